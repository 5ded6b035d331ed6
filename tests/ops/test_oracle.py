from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.ops.oracle import attend, can_decode, compare, draw_case, oracle, try_cases


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_every_backend_computes_the_formula(first, tmp_path):
    assert try_cases(tmp_path, first, 20, seed=0).failures == []


def test_cases_have_all_masks_norms_groups_and_operators():
    cases = [draw_case(number) for number in range(120)]
    for name, values in {
        "activation": {"softmax", "relu", "gated"},
        "score_norm": {"none", "l2", "mean", "rms"},
        "window": {None, 1, 2, 4},
        "causal": {False, True},
    }.items():
        assert {case.options[name] for case in cases} == values
    assert any("pair_mask" in case.options for case in cases)
    assert any("key_padding_mask" in case.options for case in cases)
    assert any(case.options.get("query_start") for case in cases)
    assert any(case.tokens["k"].shape[2] < case.tokens["q"].shape[2] for case in cases)
    assert sum(map(can_decode, cases)) > 5


def test_a_wrong_entry_of_an_operator_is_noticed():
    case = next(case for case in map(draw_case, range(100)) if "s2" in case.matrices)
    right = oracle(case)
    wrong = replace(case, matrices=case.matrices | {"s2": case.matrices["s2"] + 0.01})
    assert np.abs(oracle(wrong) - right).max() > 1e-4
    assert compare("reference", case) is None
    assert np.abs(attend("reference", wrong, torch.float64).numpy() - right).max() > 1e-4

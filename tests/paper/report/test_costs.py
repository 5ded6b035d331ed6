"""What an attention costs: the ratio of two steps of one record, with its spread."""

import json

import pytest

from toa_paper.report.costs import attention_costs, step_ratio
from toa_paper.report.evidence import read_evidence


def system(milliseconds, tenth, ninetieth, blocks=()):
    return {"milliseconds": milliseconds, "tenth": tenth, "ninetieth": ninetieth, "blocks_ms": list(blocks)}


SOFTMAX = system(2.0, 1.0, 4.0, (2.0, 4.0, 1.0))
GATED = system(4.0, 3.0, 6.0, (6.0, 4.0, 2.0))
STEPS = {
    "task": "training_step",
    "rows": [{"name": "patchtst-512", "systems": {"softmax": SOFTMAX, "toa-gated": GATED}}],
}


def paper_rows(*names, backbone="patchtst", width=512):
    model = {"embed_dim": width}
    rows = [{"name": f"{backbone}/{name}", "config": {"model": model}, **system(1.0, 0.5, 2.0)} for name in names]
    return {"task": "efficiency", "rows": [*rows, {"name": "autoformer", "config": {"model": model}}]}


def test_the_ratio_is_the_median_over_turns_and_the_spread_their_extremes():
    # turns 3, 1 and 2; the ratio of the medians over all steps would be 2 as well, the spread would not
    assert step_ratio(GATED, SOFTMAX) == (2.0, 1.0, 3.0)
    assert str(step_ratio(GATED, SOFTMAX)) == "2.00 (1.00 to 3.00)"


def test_one_turn_has_the_quantiles_of_its_steps_as_spread():
    ours, other = GATED | {"blocks_ms": [4.0]}, SOFTMAX | {"blocks_ms": [2.0]}
    assert step_ratio(ours, other) == (2.0, 3.0 / 4.0, 6.0 / 1.0)
    with pytest.raises(ValueError, match="zip"):
        step_ratio(GATED, other)


def test_a_case_of_two_records_counts_in_the_first():
    rows = paper_rows("softmax", "toa-gated", "toa-relu")
    assert attention_costs([STEPS, rows]) == {("patchtst-512", "toa-gated"): (2.0, 1.0, 3.0)}
    assert attention_costs([rows, STEPS])["patchtst-512", "toa-gated"].ratio == 1.0
    assert set(attention_costs([rows])) == {("patchtst-512", "toa-gated"), ("patchtst-512", "toa-relu")}


def test_without_softmax_nothing_is_compared():
    assert attention_costs([paper_rows("toa-gated")]) == {}
    refused = {
        "task": "training_step",
        "rows": [{"name": "a", "systems": {"softmax": {"refused": "x"}, "toa-gated": GATED}}],
    }
    assert attention_costs([refused]) == {}


def test_evidence_reads_the_costs_beside_the_records_and_names_a_wrong_file(tmp_path):
    for folder, content in (
        ("a", paper_rows("softmax", "toa-gated")),
        ("b", STEPS),
        ("c", {"task": "efficiency", "rows": 3}),
    ):
        (tmp_path / folder).mkdir()
        name = "training_step.json" if content is STEPS else "efficiency.json"
        (tmp_path / folder / name).write_text(json.dumps(content))
    evidence = read_evidence([tmp_path])
    # of training_step.json, although its folder comes later
    assert evidence.costs == {("patchtst-512", "toa-gated"): (2.0, 1.0, 3.0)}
    ((where, reason),) = evidence.skipped
    assert where == str(tmp_path / "c" / "efficiency.json")
    assert reason.startswith("it must have the times of training steps")

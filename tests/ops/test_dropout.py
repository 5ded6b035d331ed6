from typing import Any

import pytest
import torch

from tests.support import BLOCKED, GATED, make_problem
from toa.ops.attention import blocked
from toa.ops.dropout import draw_bits, dropout, keep_factors


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_entries_are_dropped_at_the_rate_and_the_mean_stays(p) -> None:
    x = torch.ones(200_001)
    dropped = dropout(x, p)
    assert (dropped == 0).float().mean().item() == pytest.approx(p, abs=0.01)
    (kept,) = dropped[dropped != 0].unique().tolist()
    # the rate is a multiple of 2**-16
    assert kept == pytest.approx(1.0 / (1.0 - p), rel=1e-3)
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.02)


def test_bits_are_uniform_over_their_range() -> None:
    bits = draw_bits(torch.Size((300, 1001)))
    assert (bits.shape, bits.dtype) == ((300, 1001), torch.int16)
    counts = torch.histc(bits.float(), bins=16, min=-32768, max=32768)
    expected = bits.numel() / 16
    assert ((counts - expected).abs() < 6 * expected**0.5).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_factors_are_zero_or_the_inverse_of_the_kept_share(dtype) -> None:
    bits = torch.tensor([-32768, -1, 0, 32767], dtype=torch.int16)
    assert keep_factors(bits, 0.5, dtype).tolist() == [2.0, 2.0, 0.0, 0.0]
    # a rate below the resolution of 16 bits drops nothing, one near 1 keeps something
    assert keep_factors(bits, 1e-6, dtype).tolist() == [1.0] * 4
    assert keep_factors(bits, 0.999999, torch.float64).tolist() == [65536.0, 0.0, 0.0, 0.0]


def test_draws_follow_the_seed_and_are_independent() -> None:
    torch.manual_seed(1)
    first, second = dropout(torch.ones(999), 0.3), dropout(torch.ones(999), 0.3)
    torch.manual_seed(1)
    assert torch.equal(dropout(torch.ones(999), 0.3), first)
    both = ((first == 0) & (second == 0)).float().mean().item()
    assert both == pytest.approx(0.09, abs=0.03)


def test_the_gradient_is_the_mask() -> None:
    x = torch.randn(50, requires_grad=True)
    out = dropout(x, 0.4)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(grad * x.detach(), out.detach())
    assert dropout(x, 0.0) is x


def test_factors_are_the_same_under_a_compiler(monkeypatch) -> None:
    bits = draw_bits(torch.Size((9, 5)))
    expected = keep_factors(bits, 0.3, torch.float32)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert torch.equal(keep_factors(bits, 0.3, torch.float32), expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("activation", BLOCKED)
def test_dropout_in_blocks_matches_the_reference(monkeypatch, activation, causal) -> None:
    norms: dict[str, Any] = (
        {} if causal else {"score_norm": "rms", "gate_norm": "rms" if activation in GATED else "none"}
    )
    problem = make_problem(keys=7, queries=5, activation=activation, causal=causal, dropout_p=0.4, **norms)
    torch.manual_seed(2)
    expected = problem.results("reference")
    monkeypatch.setattr(blocked, "_BLOCK_ELEMENTS", {"cpu": 20})
    torch.manual_seed(2)
    for name, got in problem.results("folded").items():
        torch.testing.assert_close(got, expected[name], rtol=1e-9, atol=1e-11, msg=name)

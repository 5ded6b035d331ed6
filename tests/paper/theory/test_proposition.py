import pytest
import torch
from torch import Tensor

from toa.nn import SoftmaxAttention
from toa_paper.theory import CASES, scaled_outputs, uniform_distance, uniform_gap


def random_head(num_tokens: int, width: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, W_Q and W_K with independent normal entries."""
    tokens = torch.randn(num_tokens, width, generator=generator, dtype=torch.float64)
    w_q, w_k = torch.randn(2, width, width, generator=generator, dtype=torch.float64)
    return tokens, w_q, w_k


SCALES = torch.tensor([1e-1, 1e-2, 1e-3], dtype=torch.float64)


@pytest.mark.parametrize("seed", range(5))
def test_softmax_attention_on_a_small_input_is_the_mean_at_rate_alpha_squared(seed: int) -> None:
    head = random_head(24, 6, torch.Generator().manual_seed(seed))
    gap = uniform_gap(*head, SCALES)
    assert gap[-1] < 1e-4
    assert (gap[1:] / gap[:-1] < 1.2e-2).all()
    assert gap[2] / gap[1] == pytest.approx(1e-2, rel=0.05)


def test_on_a_large_input_it_is_not_the_mean() -> None:
    head = random_head(24, 6, torch.Generator().manual_seed(0))
    assert uniform_gap(*head, torch.ones(1, dtype=torch.float64)) > 0.1


def test_formula_is_the_softmax_layer() -> None:
    tokens, w_q, w_k = random_head(12, 5, torch.Generator().manual_seed(0))
    layer = SoftmaxAttention(5, 1, 12, bias=False).double()
    with torch.no_grad():
        layer.q_proj.weight.copy_(w_q)
        layer.k_proj.weight.copy_(w_k)
        for projection in (layer.v_proj, layer.out_proj):
            projection.weight.copy_(torch.eye(5))
        for scale, outputs in zip(SCALES, scaled_outputs(tokens, w_q, w_k, SCALES), strict=True):
            shrunk = scale * tokens.unsqueeze(0)
            out, _ = layer(shrunk, shrunk, shrunk)
            assert torch.allclose(out[0, :, 0] / scale, outputs, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("name", ["A", "C", "patch"])
def test_error_of_a_small_softmax_head_is_the_uniform_distance(name: str) -> None:
    # mean squared error over white values is the squared Frobenius distance: check it on the basis of values
    operator = CASES[name]().operators[0]
    n = operator.shape[-1]
    tokens, w_q, w_k = random_head(n, 3, torch.Generator().manual_seed(0))
    errors = []
    for column in range(n):
        tokens[:, 0] = torch.eye(n, dtype=torch.float64)[column]
        small = scaled_outputs(tokens, w_q, w_k, SCALES[-1:])[0]
        errors.append(small[: len(operator)] - operator[:, column])
    total = torch.linalg.matrix_norm(torch.stack(errors))
    assert total == pytest.approx(float(uniform_distance(operator)), rel=1e-4)


def test_wrong_arguments_are_named() -> None:
    tokens, w_q, w_k = random_head(4, 3, torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="scales must be positive, got 0"):
        uniform_gap(tokens, w_q, w_k, torch.zeros(1, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"w_k must have shape \(D, E\)=\(3, 3\), got \(3, 2\)"):
        uniform_gap(tokens, w_q, w_k[:, :2], SCALES)

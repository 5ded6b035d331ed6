import pytest
import torch
from torch import Tensor

from toa.nn import SoftmaxAttention
from toa.ops import simplex_distance
from toa_paper.theory import CASES, Case, multihead_distance, uniform_distance


@pytest.mark.parametrize("name", list(CASES))
def test_softmax_has_a_positive_distance_and_the_average_a_larger_one(name: str) -> None:
    operators = CASES[name]().operators
    assert (simplex_distance(operators) > 0.2).all()
    assert (uniform_distance(operators) > simplex_distance(operators)).all()


@pytest.mark.parametrize("name", list(CASES))
def test_several_heads_are_nearer_than_one(name: str) -> None:
    operators = CASES[name]().operators
    assert (multihead_distance(operators) < simplex_distance(operators)).all()


def position_softmax(n: int, heads: int) -> SoftmaxAttention:
    return SoftmaxAttention(n, heads, n, qk_dim=n).double()


@pytest.mark.parametrize("name", ["B", "C", "E", "patch", "inverted"])
def test_no_random_softmax_layer_comes_nearer_than_the_simplex_distance(name: str) -> None:
    operator = CASES[name]().operators[0]
    n = operator.shape[-1]
    for _ in range(5):
        layer = position_softmax(n, 1)
        torch.nn.init.normal_(layer.q_proj.weight, std=3.0)
        tokens = torch.eye(n, dtype=torch.float64).unsqueeze(0)
        _, kernel = layer(tokens, tokens, tokens, need_weights=True)
        assert kernel is not None
        assert torch.linalg.matrix_norm(kernel[0, 0] - operator) >= simplex_distance(operator)


@pytest.mark.parametrize("case", [CASES["C"](channels=12), CASES["inverted"](channels=12)], ids=lambda case: case.name)
def test_training_a_softmax_layer_ends_at_the_simplex_distance(case: Case) -> None:
    operator = case.operators[0]
    n = operator.shape[-1]
    layer = position_softmax(n, 1)
    tokens = torch.eye(n, dtype=torch.float64).unsqueeze(0)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.2)
    for _ in range(60):
        _, kernel = layer(tokens, tokens, tokens, need_weights=True)
        assert kernel is not None
        loss = (kernel[0, 0] - operator).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    floor = float(simplex_distance(operator))
    assert floor <= float(loss.detach().sqrt()) < 1.05 * floor


@torch.no_grad()
def two_softmax_heads(operator: Tensor) -> Tensor:
    """Output of two `SoftmaxAttention` heads with weights for T = (s + b) P - b 1 1ᵀ / N, on the identity."""
    n = operator.shape[-1]
    eye = torch.eye(n, dtype=torch.float64)
    row_sum = float(operator.sum(-1).mean())
    b = 1.0 + n * float(-operator.min())
    kernel = (operator + b / n) / (row_sum + b)
    layer = SoftmaxAttention(4 * n, 2, n, qk_dim=n).double()
    for parameter in layer.parameters():
        parameter.zero_()
    # a token is [value | position | zeros]; the scores of the second head are zero
    layer.q_proj.weight[:n, n : 2 * n] = eye * n**0.5
    layer.k_proj.weight[:n, n : 2 * n] = kernel.log()
    for head, weight in enumerate((row_sum + b, -b)):
        layer.v_proj.weight[2 * n * head : 2 * n * head + n, :n] = eye
        layer.out_proj.weight[:n, 2 * n * head : 2 * n * head + n] = eye * weight
    tokens = torch.cat([eye, eye, torch.zeros(n, 2 * n)], -1).unsqueeze(0)
    out, _ = layer(tokens, tokens, tokens)
    return out[0, :, :n]


def test_two_softmax_heads_realise_an_operator_with_equal_row_sums() -> None:
    operator = CASES["B"]().operators[0]
    assert float(multihead_distance(operator)) < 1e-12
    assert torch.allclose(two_softmax_heads(operator), operator, rtol=0.0, atol=1e-12)


def test_many_heads_do_not_come_nearer_than_multihead_distance() -> None:
    generator = torch.Generator().manual_seed(0)
    for name in ("C", "patch", "inverted"):
        operator = CASES[name]().operators[0]
        n = operator.shape[-1]
        kernels = torch.randn(3 * n, n * n, generator=generator, dtype=torch.float64).unflatten(-1, (n, n))
        columns = kernels.softmax(-1).flatten(1).mT  # (N², heads)
        weights = torch.linalg.lstsq(columns, operator.flatten().unsqueeze(1)).solution
        assert torch.linalg.vector_norm(columns @ weights - operator.flatten()[:, None]) >= multihead_distance(operator)


def test_multihead_distance_is_the_distance_to_equal_row_sums() -> None:
    operator = CASES["C"]().operators[0]
    n = operator.shape[-1]
    # the nearest one: shift each row by the error of its sum
    sums = operator.sum(-1, keepdim=True)
    nearest = operator - (sums - sums.mean()) / n
    assert torch.allclose(nearest.sum(-1), sums.mean().expand(n))
    assert torch.allclose(multihead_distance(operator), torch.linalg.matrix_norm(operator - nearest))

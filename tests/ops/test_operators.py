import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support import assert_near
from toa import ops
from toa.ops.operators import _fast_length

STRUCTURES = ("dense", "matrix", "dplr", "toeplitz", "banded")


def make(structure: str, heads: int, tokens: int) -> ops.Operator:
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64)

    made: ops.Operator
    if structure == "dense":
        made = ops.Dense(normal(heads, tokens, tokens))
    elif structure == "matrix":
        made = ops.Dense(normal(heads, tokens, tokens), residual=False)
    elif structure == "dplr":
        made = ops.DiagonalLowRank(normal(heads, tokens), normal(heads, tokens, 3), normal(heads, tokens, 3))
    elif structure == "toeplitz":
        made = ops.Toeplitz(normal(heads, 2 * tokens - 1))
    else:
        made = ops.Banded(normal(heads, 5, tokens))
    return made


@pytest.mark.parametrize("n", [1, 2, 7, 64, 65])
@pytest.mark.parametrize("surplus", [0, 1, 6])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_mix_is_the_product_with_the_dense_matrix(structure, causal, transpose, surplus, n) -> None:
    operator = make(structure, 2, n + surplus)
    x = torch.randn(3, n, 2, 4, dtype=torch.float64)
    matrix = operator.dense(n)
    if transpose:
        matrix = matrix.mT
    if causal:
        matrix = matrix.tril()
    expected = torch.einsum("hmn,bnhd->bmhd", matrix, x)
    assert_near(operator.mix(x, transpose=transpose, causal=causal), expected)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_dense_of_a_shorter_length_is_the_leading_block(structure) -> None:
    operator = make(structure, 2, 9)
    assert (operator.num_heads, operator.num_tokens) == (2, 9)
    assert_near(operator.dense(5), operator.dense(9)[:, :5, :5])


def test_dense_matrices_are_the_definitions() -> None:
    eye = torch.eye(4, dtype=torch.float64)
    dense, plain, dplr = (make(structure, 1, 4) for structure in ("dense", "matrix", "dplr"))
    assert isinstance(dense, ops.Dense)
    assert isinstance(plain, ops.Dense)
    assert isinstance(dplr, ops.DiagonalLowRank)
    assert_near(dense.dense(4), dense.weight + eye)
    assert_near(plain.dense(4), plain.weight)
    assert_near(dplr.dense(4), eye + torch.diag(dplr.diagonal[0])[None] + dplr.left @ dplr.right.mT)

    toeplitz = make("toeplitz", 1, 4)
    assert isinstance(toeplitz, ops.Toeplitz)
    matrix = toeplitz.dense(4)
    for i in range(4):
        for j in range(4):
            assert matrix[0, i, j] == toeplitz.taps[0, 3 + i - j] + float(i == j)


@pytest.mark.parametrize(
    ("structure", "most"), [("toeplitz", 256), ("banded", 128), ("dplr", 0), ("dense", 0), ("matrix", 0)]
)
@pytest.mark.usefixtures("as_matrices")
def test_operator_of_few_tokens_is_the_same_operator_as_a_matrix(structure, most) -> None:
    operator = make(structure, 2, 300)
    for n in (5, 128, 129, 256, 257):
        short = operator.for_length(n)
        assert isinstance(short, ops.Dense) if n <= most else short is operator
        assert_near(short.dense(n), operator.dense(n))


@pytest.mark.usefixtures("as_matrices")
def test_attention_needs_a_transform_for_long_sequences_only(monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a Fourier transform")

    monkeypatch.setattr(torch.fft, "rfft", refuse)
    for n in (8, 256):
        x = torch.randn(1, n, 2, 4)
        assert ops.operator_attention(x, x, x, ops.Toeplitz(torch.randn(2, 2 * n - 1))).shape == x.shape
    x = torch.randn(1, 257, 2, 4)
    with pytest.raises(AssertionError, match="Fourier"):
        ops.operator_attention(x, x, x, ops.Toeplitz(torch.randn(2, 513)))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_mix_keeps_the_dtype_of_its_input(structure) -> None:
    operator = make(structure, 1, 5)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for causal in (False, True):
            mixed = operator.mix(torch.ones(1, 5, 1, 2, dtype=dtype), causal=causal)
            assert mixed.dtype == dtype


@pytest.mark.parametrize("structure", STRUCTURES)
def test_every_structure_is_an_operator(structure) -> None:
    assert isinstance(make(structure, 1, 3), ops.Operator)


@given(st.integers(1, 5000))
def test_fast_length_is_the_smallest_product_of_small_primes(least: int) -> None:
    def smooth(size: int) -> bool:
        for prime in (2, 3, 5):
            while size % prime == 0:
                size //= prime
        return size == 1

    expected = next(size for size in range(least, 2 * least + 1) if smooth(size))
    assert _fast_length(least) == expected

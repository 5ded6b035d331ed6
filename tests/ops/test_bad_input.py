from typing import Any, get_args

import pytest
import torch

from tests.support import message
from toa import ops

# batch size
B = 2
# number of queries
M = 3
# number of tokens, or of keys
N = 4
# number of heads
H = 2
# width of queries and keys
D = 5
# width of values
E = 6


def call(**changes: Any) -> torch.Tensor:
    arguments = {"q": torch.zeros(B, M, H, D), "k": torch.zeros(B, N, H, D), "v": torch.zeros(B, N, H, E)}
    return ops.operator_attention(**{**arguments, **changes})


def gated(**changes: Any) -> torch.Tensor:
    gate = {"gate_q": torch.zeros(B, M, H, 3), "gate_k": torch.zeros(B, N, H, 3)}
    return call(**{"activation": "gated", **gate, **changes})


def test_the_unchanged_arguments_are_valid() -> None:
    assert call().shape == (B, M, H, E)
    assert gated().shape == (B, M, H, E)


# changed arguments, and the name, rule, value and remedy in the message
SHAPES: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"q": torch.zeros(B, M, D)}, ("q must have 4 axes (B, M, H, D)", "got 3: shape (2, 3, 5)")),
    ({"k": torch.zeros(N, H, D)}, ("k must have 4 axes (B, N, H, D)", "got 3: shape (4, 2, 5)")),
    ({"v": torch.zeros(B, N, H)}, ("v must have 4 axes (B, N, H, E)", "got 3: shape (2, 4, 2)")),
    ({"k": torch.zeros(B, N, H, 7)}, ("k must have shape (B, N, H, D)=(2, any, any, 5)", "got (2, 4, 2, 7)")),
    (
        {"k": torch.zeros(B, N, 3, D), "v": torch.zeros(B, N, 3, E)},
        ("k must have a number of heads that divides that of q, H=2, got 3", "(2, 4, 3, 5)"),
    ),
    ({"k": torch.zeros(B, N, 1, D)}, ("v must have shape (B, N, H, E)=(2, 4, 1, any)", "got (2, 4, 2, 6)")),
    ({"v": torch.zeros(B, 9, H, E)}, ("v must have shape (B, N, H, E)=(2, 4, 2, any)", "got (2, 9, 2, 6)")),
    ({"v": torch.zeros(3, N, H, E)}, ("v must have shape (B, N, H, E)=(2, 4, 2, any)", "got (3, 4, 2, 6)")),
    (
        {"k": torch.zeros(B, 0, H, D), "v": torch.zeros(B, 0, H, E)},
        ("k must hold at least one token", "got 0", "drop empty sequences"),
    ),
]


@pytest.mark.parametrize(("changes", "parts"), SHAPES, ids=lambda x: x[0] if isinstance(x, tuple) else "")
def test_a_wrong_shape_is_reported_with_the_right_one(changes, parts) -> None:
    with pytest.raises(ValueError, match=message(*parts)):
        call(**changes)


@pytest.mark.parametrize("name", ["s1", "s2", "gate_s1"])
def test_an_operator_of_a_wrong_shape_raises(name) -> None:
    with pytest.raises(ValueError, match=message(f"{name} must have 3 axes (H, N, N)", "got 2: shape (4, 4)")):
        gated(**{name: torch.zeros(4, 4)})
    with pytest.raises(ValueError, match=message(f"{name} must have shape (H, N, N)=(2, any, any)", "got (3, 4, 4)")):
        gated(**{name: torch.zeros(3, 4, 4)})
    with pytest.raises(ValueError, match=message(f"{name} must be square", "(H, N, N)", "got (2, 4, 5)")):
        gated(**{name: torch.zeros(2, 4, 5)})
    with pytest.raises(ValueError, match=message(f"{name} must have one matrix per head, H=2, got 3")):
        gated(**{name: ops.Toeplitz(torch.zeros(3, 7))})


@pytest.mark.parametrize("name", ["s1", "s2", "gate_s1"])
@pytest.mark.parametrize(
    "operator",
    [
        torch.zeros(2, 3, 3),
        ops.Dense(torch.zeros(2, 3, 3)),
        ops.DiagonalLowRank(torch.zeros(2, 3), torch.zeros(2, 3, 1), torch.zeros(2, 3, 1)),
        ops.Toeplitz(torch.zeros(2, 5)),
    ],
    ids=["raw", "dense", "dplr", "toeplitz"],
)
def test_a_sequence_longer_than_the_operator_raises_and_names_resize(name, operator) -> None:
    pattern = message(f"{name} is an operator on at most 3 tokens, got a sequence of 4", "resize(4)", "num_tokens=4")
    with pytest.raises(ValueError, match=pattern):
        gated(**{name: operator})


CHOICES = {
    "activation": ops.ACTIVATIONS,
    "score_norm": ops.SCORE_NORMS,
    "gate_norm": ops.GATE_NORMS,
    "backend": ("auto", *ops.BACKENDS),
}
TYPES = {"score_norm": ops.ScoreNorm, "gate_norm": ops.GateNorm}


@pytest.mark.parametrize("name", TYPES)
def test_types_of_names_list_the_entries_of_their_table(name) -> None:
    assert get_args(TYPES[name]) == tuple(CHOICES[name])


@pytest.mark.parametrize("name", CHOICES)
def test_an_unknown_choice_lists_the_known_ones(name) -> None:
    with pytest.raises(ValueError, match=message(f"unknown {name} 'x'", *CHOICES[name])):
        gated(**{name: "x"})


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
def test_dropout_outside_the_unit_interval_raises(p) -> None:
    with pytest.raises(ValueError, match=message("dropout_p must lie in [0, 1), got", p)):
        call(dropout_p=p)


def test_gated_without_a_gate_names_the_alternative() -> None:
    for name in ("gate_q", "gate_k"):
        with pytest.raises(ValueError, match=message("needs gate_q and gate_k, got None", "activation='relu'")):
            gated(**{name: None})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gate_q", torch.zeros(B, M, H, 3)),
        ("gate_k", torch.zeros(B, N, H, 3)),
        ("gate_s1", torch.zeros(H, N, N)),
        ("gate_norm", "l2"),
    ],
)
@pytest.mark.parametrize("activation", ["softmax", "relu"])
def test_a_gate_with_an_ungated_activation_raises(activation, name, value) -> None:
    pattern = message(f"{name} goes with activation='gated', got activation='{activation}'; drop it")
    with pytest.raises(ValueError, match=pattern):
        call(activation=activation, **{name: value})


def test_a_gate_of_a_wrong_shape_raises() -> None:
    with pytest.raises(ValueError, match=message("gate_q must have shape (B, M, H, G)=(2, 3, 2, any)", "(2, 4, 2, 3)")):
        gated(gate_q=torch.zeros(B, N, H, 3))
    with pytest.raises(ValueError, match=message("gate_k must have shape (B, N, H, G)=(2, 4, 2, 3)", "(2, 4, 2, 1)")):
        gated(gate_k=torch.zeros(B, N, H, 1))
    with pytest.raises(ValueError, match=message("gate_q must have 4 axes", "got 3")):
        gated(gate_q=torch.zeros(B, M, 3))


@pytest.mark.parametrize("name", ["k", "v"])
def test_a_tensor_of_another_dtype_raises(name) -> None:
    x = torch.zeros(B, N, H, D, dtype=torch.float64)
    pattern = message(f"{name} must have the dtype of q, torch.float32, got torch.float64", ".to(q.dtype)")
    with pytest.raises(ValueError, match=pattern):
        call(**{name: x})


@pytest.mark.parametrize("name", ["k", "v"])
def test_a_tensor_on_another_device_raises(name) -> None:
    x = torch.zeros(B, N, H, D, device="meta")
    with pytest.raises(ValueError, match=message(f"{name} must be on the device of q, cpu, got meta", ".to(q.device)")):
        call(**{name: x})


def test_integers_raise() -> None:
    integers = torch.zeros(B, N, H, D, dtype=torch.int64)
    with pytest.raises(ValueError, match=message("q, k and v must be floating point, got torch.int64", ".float()")):
        call(q=integers, k=integers, v=integers)


def test_a_padding_mask_of_a_wrong_shape_raises() -> None:
    pattern = message("key_padding_mask must have shape (B, N)=(2, 4), got (2, 3)")
    with pytest.raises(ValueError, match=pattern):
        call(key_padding_mask=torch.zeros(B, M, dtype=torch.bool))
    with pytest.raises(ValueError, match=message("key_padding_mask must have 2 axes (B, N), got 1")):
        call(key_padding_mask=torch.zeros(N, dtype=torch.bool))


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.int64], ids=str)
def test_a_padding_mask_that_is_not_bool_raises(dtype) -> None:
    pattern = message("key_padding_mask must be bool, True where a key is padding, got", dtype, ".bool()")
    with pytest.raises(ValueError, match=pattern):
        call(key_padding_mask=torch.zeros(B, N, dtype=dtype))


def test_a_fully_padded_row_is_reported_by_its_index() -> None:
    mask = torch.tensor([[False] * 4, [True] * 4])
    pattern = message(
        "key_padding_mask must leave each row at least one key, got row 1 of 2 fully padded", "drop empty"
    )
    with pytest.raises(ValueError, match=pattern):
        call(key_padding_mask=mask)


@pytest.mark.parametrize("name", ["gate_q", "gate_k"])
@pytest.mark.parametrize("change", [{"dtype": torch.float64}, {"device": "meta"}], ids=str)
@pytest.mark.parametrize("backend", ["folded", "reference"])
def test_a_gate_of_another_dtype_or_device_raises(backend, change, name) -> None:
    shape = (B, M, H, 3) if name == "gate_q" else (B, N, H, 3)
    with pytest.raises(ValueError, match=message(f"{name} must", "of q", "got")):
        gated(**{name: torch.zeros(shape, **change)}, backend=backend)


@pytest.mark.parametrize("name", ["s1", "s2", "gate_s1"])
@pytest.mark.parametrize("backend", ["folded", "reference"])
def test_an_operator_on_another_device_raises(backend, name) -> None:
    with pytest.raises(ValueError, match=message(f"{name} must be on the device of q", "cpu", "got meta")):
        gated(**{name: torch.zeros(H, N, N, device="meta")}, backend=backend)


@pytest.mark.parametrize("backend", ["folded", "reference"])
def test_shapes_can_be_inferred_on_the_meta_device(backend) -> None:
    q, k, v = (torch.zeros(B, n, H, width, device="meta") for n, width in ((M, D), (N, D), (N, E)))
    assert call(q=q, k=k, v=v, backend=backend).shape == (B, M, H, E)

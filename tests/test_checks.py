import math

import pytest
import torch

from tests.support import message
from toa import _checks as checks

NAN = float("nan")


@pytest.mark.parametrize(
    ("check", "good"),
    [
        (checks.check_choice, ("name", "b", ["a", "b"])),
        (checks.check_at_least, ("name", 1, 1)),
        (checks.check_at_least, ("name", 0.5, 0.0)),
        (checks.check_at_most, ("name", 2, "bound", 2, "remedy")),
        (checks.check_fraction, ("name", 0.0)),
        (checks.check_fraction, ("name", 0.999)),
        (checks.check_positive, ("name", 1e-30)),
        (checks.check_divisible, ("name", 12, "by", 3)),
        (checks.check_shape, ("name", torch.zeros(2, 3), "(A, B)", (2, None))),
        (checks.check_tokens, ("S", 5, 5)),
        (checks.check_finite, ("name", torch.zeros(3))),
        (checks.check_finite, ("name", torch.zeros(0))),
        (checks.check_generator, (None, torch.device("cuda"))),
        (checks.check_generator, (torch.Generator("cpu"), torch.device("cpu"))),
        (checks.check_padding_mask, (torch.tensor([[True, False]]), (1, 2))),
    ],
)
def test_good_values_pass(check, good) -> None:
    assert check(*good) is None


@pytest.mark.parametrize(
    ("check", "bad", "text"),
    [
        (checks.check_choice, ("colour", "red", iter(["blue", "green"])), "unknown colour 'red'; known: blue, green."),
        (checks.check_choice, ("colour", None, ("blue",)), "unknown colour None; known: blue."),
        (checks.check_at_least, ("size", 0, 1), "size must be at least 1, got 0."),
        (checks.check_at_least, ("size", NAN, 0.0), "size must be at least 0.0, got nan."),
        (checks.check_at_most, ("size", 3, "length", 2, "use 2"), "size must be at most length=2, got 3; use 2."),
        (checks.check_at_most, ("size", NAN, "length", 2, "use 2"), "size must be at most length=2, got nan; use 2."),
        (checks.check_fraction, ("p", 1.0), "p must lie in [0, 1), got 1.0."),
        (checks.check_fraction, ("p", -0.1), "p must lie in [0, 1), got -0.1."),
        (checks.check_fraction, ("p", NAN), "p must lie in [0, 1), got nan."),
        (checks.check_positive, ("rate", 0.0), "rate must be positive, got 0.0."),
        (checks.check_positive, ("rate", NAN), "rate must be positive, got nan."),
        (checks.check_positive, ("rate", "5"), "rate must be positive, got '5'."),
        (checks.check_divisible, ("width", 10, "heads", 4), "width must be a multiple of heads=4, got 10; use 8,"),
        (checks.check_divisible, ("width", 3, "heads", 4), "width must be a multiple of heads=4, got 3; use 4,"),
        (checks.check_divisible, ("width", 3, "heads", 0), "heads must be at least 1, got 0."),
        (checks.check_divisible, ("width", 0, "heads", 2), "width must be at least 1, got 0."),
        (checks.check_shape, ("x", torch.zeros(2), "(A, B)", (2, 3)), "x must have 2 axes (A, B), got 1: shape (2,)."),
        (
            checks.check_shape,
            ("x", torch.zeros(2, 4), "(A, B)", (None, 3)),
            "x must have shape (A, B)=(any, 3), got (2, 4).",
        ),
        (
            checks.check_tokens,
            ("S1", 5, 6),
            "S1 is an operator on at most 5 tokens, got a sequence of 6; call resize(6) on the layer or operator, "
            "or build it with num_tokens=6.",
        ),
        (
            checks.check_finite,
            ("loss", torch.tensor([1.0, math.nan, math.inf, -math.inf])),
            "loss must be finite, got 1 NaN and 2 infinite values of 4; fill or drop them first",
        ),
        (
            checks.check_generator,
            (torch.Generator("cpu"), torch.device("meta")),
            "generator must be on the tensors' device meta, got one on cpu; make it with "
            "torch.Generator(device='meta').",
        ),
        (
            checks.check_padding_mask,
            (torch.zeros(1, 3, dtype=torch.bool), (1, 2)),
            "key_padding_mask must have shape (B, N)=(1, 2), got (1, 3).",
        ),
        (
            checks.check_padding_mask,
            (torch.zeros(1, 2), (1, 2)),
            "key_padding_mask must be bool, True where a key is padding, got torch.float32; cast it with .bool().",
        ),
        (
            checks.check_padding_mask,
            (torch.tensor([[False, True], [True, True]]), (2, 2)),
            "key_padding_mask must leave each row at least one key, got row 1 of 2 fully padded; drop empty sequences",
        ),
    ],
)
def test_bad_values_raise_with_name_rule_value_and_remedy(check, bad, text) -> None:
    with pytest.raises(ValueError, match=message(text)):
        check(*bad)

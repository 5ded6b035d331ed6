import math
import pickle
from pathlib import Path

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


def find_nothing(argument: checks.Argument) -> None:
    return None


def test_an_error_has_its_parts_and_their_text_in_python() -> None:
    wanted = checks.Phrase("fit with ", checks.Argument("horizon", 7))
    error = checks.ArgumentError("horizon", "be from 1 to 6", 7, "give less", wanted)
    assert (str(error.name), error.rule, error.value) == ("horizon", "be from 1 to 6", "7")
    assert error.remedy == "give less, or fit with horizon=7"
    assert str(error) == "horizon must be from 1 to 6, got 7; give less, or fit with horizon=7."
    assert str(checks.ArgumentError("y", "be there", "none", "is it complete?")).endswith("; is it complete?")


def test_an_error_shows_options_and_no_remedy_without_one() -> None:
    options = {"data": "--train", "missing": "--missing ffill"}
    fill = checks.Phrase("fill them with ", checks.Argument("missing", "ffill"))
    freq = checks.Phrase("give ", checks.Argument("freq"))
    error = checks.ArgumentError(checks.part_of("data", "series 'a'"), "have all rows", "a gap", fill, freq)
    shown = error.show(lambda argument: options.get(argument.name))
    assert shown == "series 'a' of --train must have all rows, got a gap; fill them with --missing ffill."
    assert error.show(find_nothing) == "series 'a' of data must have all rows, got a gap."


def test_a_path_is_no_argument() -> None:
    error = checks.ArgumentError(Path("seed"), "be a file", "a folder")
    assert error.show(lambda argument: "--seed") == "seed must be a file, got a folder."


def test_an_error_takes_another_name_of_an_argument_in_all_parts() -> None:
    rule = checks.Phrase("be as long as ", checks.Argument("y"))
    error = checks.ArgumentError(checks.part_of("X", "case 3"), rule, 5, checks.Phrase("cut ", checks.Argument("X")))
    assert str(error.rename("X", "--test")) == "case 3 of --test must be as long as y, got 5; cut --test."
    assert str(error) == "case 3 of X must be as long as y, got 5; cut X."


def test_an_error_comes_whole_from_another_process() -> None:
    remedy = checks.Phrase("give ", checks.Argument("id"))
    error = pickle.loads(pickle.dumps(checks.ArgumentError("time", "rise", torch.zeros(1), remedy)))  # noqa: S301
    assert (str(error), str(error.name)) == ("time must rise, got tensor([0.]); give id.", "time")
    assert error.show(find_nothing) == "time must rise, got tensor([0.])."


def test_a_warning_shows_the_options_of_a_nested_error() -> None:
    error = checks.ArgumentError("interval", "have windows", 3, checks.Phrase("raise ", checks.Argument("share")))
    warning = checks.ArgumentWarning("no interval: ", error)
    assert str(warning) == "no interval: interval must have windows, got 3; raise share."
    assert warning.phrase.show(find_nothing) == "no interval: interval must have windows, got 3."


def test_a_missing_file_is_an_os_error_and_shows_options() -> None:
    error = checks.MissingFileError("no file; name its folder with ", checks.Argument("data_dir"), ".")
    assert isinstance(error, FileNotFoundError)
    assert str(error) == "no file; name its folder with data_dir."
    assert error.phrase.show(lambda argument: "--data-dir") == "no file; name its folder with --data-dir."
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301

"""Argument errors with name, rule, value and remedy, and the checks that raise them.

raise ArgumentError("horizon", "be from 1 to 6", 7, Phrase("fit with ", Argument("horizon", 7)))

In Python the message is "horizon must be from 1 to 6, got 7; fit with horizon=7."; a command shows the option
--horizon instead, and leaves out a remedy with an argument that is none of its options.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, Union

from toa._limits import shorten

if TYPE_CHECKING:
    from torch import Generator, Tensor, device


@dataclass(frozen=True)
class Argument:
    """An argument in a message, with its value or alone; a command shows its option instead."""

    name: str
    value: object = None

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value!r}"


# the option of an argument as text, None if a command has no such option; `str` gives the wording of Python
OptionOf = Callable[[Argument], str | None]


class Phrase:
    """A text in which arguments occur: Phrase("sort it by ", Argument("time"))."""

    def __init__(self, *parts: "Part") -> None:
        self.parts = parts

    def __str__(self) -> str:
        return self.show(str)

    def __repr__(self) -> str:
        return f"Phrase{self.parts!r}"

    def show(self, option_of: OptionOf) -> str:
        """The text with the options of a command; an argument without option keeps its wording of Python."""
        return "".join(show_part(part, option_of) for part in self.parts)

    def arguments(self) -> Iterator[Argument]:
        """The arguments in the text."""
        for part in self.parts:
            if isinstance(part, Phrase):
                yield from part.arguments()
            elif isinstance(part, Argument):
                yield part

    def rename(self, argument: str, name: str) -> "Phrase":
        """The text with another name of an argument."""
        return Phrase(*(_rename(part, argument, name) for part in self.parts))


# what a message calls the thing that is wrong: an argument, a file, or a part such as Phrase("series 3 of ", name)
Name = str | Path | Argument | Phrase
Part = Union[Name, "ArgumentError"]


def as_part(name: Name) -> "Part":
    """A name as a part of a message: text is the name of an argument."""
    return Argument(name) if isinstance(name, str) else name


def part_of(whole: Name, part: str) -> Phrase:
    """The name of a part, such as "series 3 of data"."""
    return Phrase(f"{part} of ", as_part(whole))


def show_part(part: Part, option_of: OptionOf) -> str:
    """A part of a message as text."""
    if isinstance(part, Argument):
        return option_of(part) or str(part)
    return part.show(option_of) if isinstance(part, Phrase | ArgumentError) else str(part)


def _rename(part: Part, argument: str, name: str) -> Part:
    if isinstance(part, Argument):
        return Argument(name, part.value) if part.name == argument else part
    return part.rename(argument, name) if isinstance(part, Phrase | ArgumentError) else part


class ArgumentError(ValueError):
    """A wrong argument. Its message is "NAME must RULE, got VALUE; REMEDY, or REMEDY".

    Attributes:
        name: The argument; text is the name of one, unlike a path.
        rule: What the argument must be, without "must".
        value: What was given instead, as text.
        remedies: What the user can do. A command leaves out those with an argument that is none of its options.
    """

    def __init__(self, name: Name, rule: str | Phrase, value: object, *remedies: str | Phrase) -> None:
        self.name: Name = Argument(name) if isinstance(name, str) else name
        self.rule = rule
        self.value: Name = value if isinstance(value, Argument | Phrase) else str(value)
        self.remedies = remedies
        # also what another process builds the error from
        super().__init__(name, rule, self.value, *remedies)

    def __str__(self) -> str:
        return self.show(str)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    @property
    def remedy(self) -> str:
        """All remedies in the wording of Python."""
        return ", or ".join(map(str, self.remedies))

    def show(self, option_of: OptionOf) -> str:
        """The message with the options of a command."""
        name, rule, value = (show_part(part, option_of) for part in (self.name, self.rule, self.value))
        remedies = [show_part(remedy, option_of) for remedy in self.remedies if _has_options(remedy, option_of)]
        text = f"{name} must {rule}, got {value}" + (f"; {', or '.join(remedies)}" if remedies else "")
        return text if text.endswith((".", "?")) else f"{text}."

    def rename(self, argument: str, name: str) -> Self:
        """The error with another name of an argument."""
        parts = (_rename(part, argument, name) for part in (self.name, self.rule, self.value, *self.remedies))
        return type(self)(*parts)  # type: ignore[arg-type]

    def with_remedies(self, *remedies: str | Phrase) -> Self:
        """The error with other remedies."""
        return type(self)(self.name, self.rule, self.value, *remedies)


def _has_options(remedy: str | Phrase, option_of: OptionOf) -> bool:
    return isinstance(remedy, str) or all(map(option_of, remedy.arguments()))


class ArgumentWarning(UserWarning):
    """A warning in which arguments occur: warnings.warn(ArgumentWarning("give ", Argument("id"), "."))."""

    def __init__(self, *parts: Part) -> None:
        super().__init__(*parts)
        self.phrase = Phrase(*parts)

    def __str__(self) -> str:
        return str(self.phrase)


class MissingFileError(FileNotFoundError):
    """A file that is not there, with a text in which arguments occur."""

    def __init__(self, *parts: Part) -> None:
        self.phrase = Phrase(*parts)
        super().__init__(str(self.phrase))


def check_choice(name: str, value: object, known: Iterable[str]) -> None:
    """Raise if a value is not one of the known ones; the message lists them."""
    known = tuple(known)
    if value not in known:
        raise ValueError(f"unknown {name} {shorten(value)}; known: {', '.join(known)}.")


def check_at_least(name: Name, value: float, least: float) -> None:
    """Raise if a number is below its minimum or NaN."""
    if not value >= least:
        raise ArgumentError(name, f"be at least {least}", value)


def check_at_most(name: Name, value: float, bound: str, most: float, remedy: str | Phrase) -> None:
    """Raise if a number is above `most`, the value of the argument `bound`."""
    if not value <= most:
        raise ArgumentError(name, Phrase("be at most ", Argument(bound, most)), value, remedy)


def check_fraction(name: Name, value: float) -> None:
    """Raise if a probability is outside [0, 1)."""
    if not 0.0 <= value < 1.0:
        raise ArgumentError(name, "lie in [0, 1)", value)


def check_positive(name: Name, value: float | str) -> None:
    """Raise if a number is zero, negative or NaN, or not a number."""
    if isinstance(value, str) or not value > 0:
        raise ArgumentError(name, "be positive", shorten(value))


def check_count(name: Name, value: object, least: int) -> None:
    """Raise if a value is not an integer of at least `least`."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < least:
        raise ArgumentError(name, f"be an integer of at least {least}", shorten(value))


def check_seed(value: object) -> None:
    """Raise if a seed is not an integer that every random generator takes."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= int(value) < 2**63:
        raise ArgumentError("seed", "be an integer from 0 to 2**63 - 1", repr(value))


def check_divisible(name: str, value: int, by: str, divisor: int) -> None:
    """Raise if `divisor`, the value of the argument `by`, does not divide a width."""
    check_at_least(by, divisor, 1)
    check_at_least(name, value, 1)
    if value % divisor:
        near = max(divisor, value - value % divisor)
        rule = Phrase("be a multiple of ", Argument(by, divisor))
        raise ArgumentError(name, rule, value, f"use {near}, for instance")


def check_shape(name: Name, tensor: "Tensor", axes: str, shape: tuple[int | None, ...]) -> None:
    """Raise if a tensor has another rank or size; None in `shape` accepts any size."""
    sizes = tuple(tensor.shape)
    if len(sizes) != len(shape):
        raise ArgumentError(name, f"have {len(shape)} axes {axes}", f"{len(sizes)}: shape {sizes}")
    wrong = [got for want, got in zip(shape, sizes, strict=True) if want is not None and want != got]
    if wrong:
        want_text = "(" + ", ".join("any" if want is None else str(want) for want in shape) + ")"
        raise ArgumentError(name, f"have shape {axes}={want_text}", sizes)


def check_shares(weights: Mapping[str, float]) -> None:
    """Raise if the weights of a mean are negative or do not sum to 1."""
    values = list(weights.values())
    if not values or not min(values) >= 0 or not abs(sum(values) - 1.0) <= 1e-6:
        raise ArgumentError("weights", "be shares that sum to 1", shorten(values), "fit and save again")


def check_tokens(operator: str, num_tokens: int, length: int) -> None:
    """Raise if a sequence is longer than the operator that mixes it."""
    if length > num_tokens:
        raise ValueError(
            f"{operator} is an operator on at most {num_tokens} tokens, got a sequence of {length}; "
            f"call resize({length}) on the layer or operator, or build it with num_tokens={length}."
        )


def check_finite(name: Name, tensor: "Tensor") -> None:
    """Raise if a tensor holds NaN or infinities. Waits for the device, so keep it out of training steps."""
    finite = tensor.isfinite()
    if not finite.all():
        nan = int(tensor.isnan().sum())
        infinite = int((~finite).sum()) - nan
        raise ArgumentError(
            name,
            "be finite",
            f"{nan} NaN and {infinite} infinite values of {tensor.numel()}",
            "fill or drop them first; if they appeared in training, lower the learning rate",
        )


def check_generator(generator: "Generator | None", where: "device") -> None:
    """Raise if a random generator is on another device than the tensors that it fills."""
    if generator is not None and generator.device.type != where.type:
        raise ArgumentError(
            "generator",
            f"be on the tensors' device {where}",
            f"one on {generator.device}",
            f"make it with torch.Generator(device='{where}')",
        )


def check_padding_mask(mask: "Tensor", shape: tuple[int, int]) -> None:
    """Raise if a padding mask has the wrong shape or type, or hides every key of a row."""
    import torch

    check_shape("key_padding_mask", mask, "(B, N)", shape)
    if mask.dtype != torch.bool:
        raise ArgumentError(
            "key_padding_mask", "be bool, True where a key is padding", mask.dtype, "cast it with .bool()"
        )
    # reading the mask waits for the device: not in a compiled graph, not while a CUDA graph is captured
    if torch.compiler.is_compiling() or (mask.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    empty = mask.all(1)
    if empty.any():
        row = int(empty.int().argmax())
        raise ArgumentError(
            "key_padding_mask",
            "leave each row at least one key",
            f"row {row} of {len(mask)} fully padded",
            "drop empty sequences before attention",
        )

"""The wording of every argument error: name, rule, value, remedy."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Generator, Tensor, device


def check_choice(name: str, value: object, known: Iterable[str]) -> None:
    """Refuse a value outside a closed set, listing the set."""
    known = tuple(known)
    if value not in known:
        raise ValueError(f"unknown {name} {value!r}; known: {', '.join(known)}.")


def check_at_least(name: str, value: float, least: float) -> None:
    """Refuse a number below its minimum."""
    if not value >= least:
        raise ValueError(f"{name} must be at least {least}, got {value}.")


def check_fraction(name: str, value: float) -> None:
    """Refuse a probability outside [0, 1)."""
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{name} must lie in [0, 1), got {value}.")


def check_positive(name: str, value: float) -> None:
    """Refuse zero, negative numbers and NaN."""
    if not value > 0:
        raise ValueError(f"{name} must be positive, got {value}.")


def check_divisible(name: str, value: int, by: str, divisor: int) -> None:
    """Refuse a width that the number of heads does not divide."""
    check_at_least(by, divisor, 1)
    check_at_least(name, value, 1)
    if value % divisor:
        near = max(divisor, value - value % divisor)
        raise ValueError(f"{name} must be a multiple of {by}={divisor}, got {value}; use {near}, for instance.")


def check_shape(name: str, tensor: "Tensor", axes: str, shape: tuple[int | None, ...]) -> None:
    """Refuse a tensor of another rank or size; None in `shape` leaves that axis free."""
    found = tuple(tensor.shape)
    if len(found) != len(shape):
        raise ValueError(f"{name} must have {len(shape)} axes {axes}, got {len(found)}: shape {found}.")
    if any(want is not None and want != got for want, got in zip(shape, found, strict=True)):
        want_text = "(" + ", ".join("any" if want is None else str(want) for want in shape) + ")"
        raise ValueError(f"{name} must have shape {axes}={want_text}, got {found}.")


def check_tokens(operator: str, num_tokens: int, length: int) -> None:
    """Refuse a sequence longer than the operator that shall mix it."""
    if length > num_tokens:
        raise ValueError(
            f"{operator} is an operator on at most {num_tokens} tokens, got a sequence of {length}; "
            f"call resize({length}) on the layer or operator, or build it with num_tokens={length}."
        )


def check_finite(name: str, tensor: "Tensor") -> None:
    """Refuse NaN and infinities, counting them; meant for the edges of a task, not for a hot path."""
    finite = tensor.isfinite()
    if not finite.all():
        nan = int(tensor.isnan().sum())
        infinite = int((~finite).sum()) - nan
        raise ValueError(
            f"{name} must be finite, got {nan} NaN and {infinite} infinite values of {tensor.numel()}; "
            "fill or drop them first, or lower the learning rate if they arose in training."
        )


def check_generator(generator: "Generator | None", where: "device") -> None:
    """Refuse a random generator that lives on another device than the tensors it shall fill."""
    if generator is not None and generator.device.type != where.type:
        raise ValueError(
            f"generator must be on the tensors' device {where}, got one on {generator.device}; "
            f"make it with torch.Generator(device='{where}')."
        )


def check_padding_mask(mask: "Tensor", shape: tuple[int, int]) -> None:
    """Refuse a padding mask of the wrong shape or type, or one that leaves a row without any key."""
    import torch

    check_shape("key_padding_mask", mask, "(B, N)", shape)
    if mask.dtype != torch.bool:
        raise ValueError(
            f"key_padding_mask must be bool, True where a key is padding, got {mask.dtype}; cast it with .bool()."
        )
    # reading the mask waits for the device: not in a compiled graph, not while a CUDA graph is captured
    if torch.compiler.is_compiling() or (mask.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    empty = mask.all(1)
    if empty.any():
        row = int(empty.int().argmax())
        raise ValueError(
            f"key_padding_mask must leave each row at least one key, got row {row} of {len(mask)} fully padded; "
            "drop empty sequences before attention."
        )

"""Wording of every argument error: name, rule, value, remedy. Each check raises ValueError."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from toa._limits import shorten

if TYPE_CHECKING:
    from torch import Generator, Tensor, device


def check_choice(name: str, value: object, known: Iterable[str]) -> None:
    """Raise if a value is not one of the known ones; the message lists them."""
    known = tuple(known)
    if value not in known:
        raise ValueError(f"unknown {name} {shorten(value)}; known: {', '.join(known)}.")


def check_at_least(name: str, value: float, least: float) -> None:
    """Raise if a number is below its minimum or NaN."""
    if not value >= least:
        raise ValueError(f"{name} must be at least {least}, got {value}.")


def check_at_most(name: str, value: float, bound: str, most: float, remedy: str) -> None:
    """Raise if a number is above `most`, the value of the argument `bound`."""
    if not value <= most:
        raise ValueError(f"{name} must be at most {bound}={most}, got {value}; {remedy}.")


def check_fraction(name: str, value: float) -> None:
    """Raise if a probability is outside [0, 1)."""
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{name} must lie in [0, 1), got {value}.")


def check_positive(name: str, value: float | str) -> None:
    """Raise if a number is zero, negative or NaN, or not a number."""
    if isinstance(value, str) or not value > 0:
        raise ValueError(f"{name} must be positive, got {value!r}.")


def check_count(name: str, value: object, least: int) -> None:
    """Raise if a value is not an integer of at least `least`."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}.")


def check_seed(value: object) -> None:
    """Raise if a seed is not an integer that every random generator takes."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= int(value) < 2**63:
        raise ValueError(f"seed must be an integer from 0 to 2**63 - 1, got {value!r}.")


def check_divisible(name: str, value: int, by: str, divisor: int) -> None:
    """Raise if `divisor`, the value of the argument `by`, does not divide a width."""
    check_at_least(by, divisor, 1)
    check_at_least(name, value, 1)
    if value % divisor:
        near = max(divisor, value - value % divisor)
        raise ValueError(f"{name} must be a multiple of {by}={divisor}, got {value}; use {near}, for instance.")


def check_shape(name: str, tensor: "Tensor", axes: str, shape: tuple[int | None, ...]) -> None:
    """Raise if a tensor has another rank or size; None in `shape` accepts any size."""
    sizes = tuple(tensor.shape)
    if len(sizes) != len(shape):
        raise ValueError(f"{name} must have {len(shape)} axes {axes}, got {len(sizes)}: shape {sizes}.")
    wrong = [got for want, got in zip(shape, sizes, strict=True) if want is not None and want != got]
    if wrong:
        want_text = "(" + ", ".join("any" if want is None else str(want) for want in shape) + ")"
        raise ValueError(f"{name} must have shape {axes}={want_text}, got {sizes}.")


def check_shares(weights: Mapping[str, float]) -> None:
    """Raise if the weights of a mean are negative or do not sum to 1."""
    values = list(weights.values())
    if not values or not min(values) >= 0 or not abs(sum(values) - 1.0) <= 1e-6:
        raise ValueError(f"weights must be shares that sum to 1, got {shorten(values)}; fit and save again.")


def check_tokens(operator: str, num_tokens: int, length: int) -> None:
    """Raise if a sequence is longer than the operator that mixes it."""
    if length > num_tokens:
        raise ValueError(
            f"{operator} is an operator on at most {num_tokens} tokens, got a sequence of {length}; "
            f"call resize({length}) on the layer or operator, or build it with num_tokens={length}."
        )


def check_finite(name: str, tensor: "Tensor") -> None:
    """Raise if a tensor holds NaN or infinities. Waits for the device, so keep it out of training steps."""
    finite = tensor.isfinite()
    if not finite.all():
        nan = int(tensor.isnan().sum())
        infinite = int((~finite).sum()) - nan
        raise ValueError(
            f"{name} must be finite, got {nan} NaN and {infinite} infinite values of {tensor.numel()}; "
            "fill or drop them first; if they appeared in training, lower the learning rate."
        )


def check_generator(generator: "Generator | None", where: "device") -> None:
    """Raise if a random generator is on another device than the tensors that it fills."""
    if generator is not None and generator.device.type != where.type:
        raise ValueError(
            f"generator must be on the tensors' device {where}, got one on {generator.device}; "
            f"make it with torch.Generator(device='{where}')."
        )


def check_padding_mask(mask: "Tensor", shape: tuple[int, int]) -> None:
    """Raise if a padding mask has the wrong shape or type, or hides every key of a row."""
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

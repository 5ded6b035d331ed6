"""Random numbers of layers, and dropout that draws few of them: on a CPU, one per entry would take most of the time.

A fit on a CPU draws all its numbers from a generator of its own thread (`random_numbers`). PyTorch has one global
generator per device: two threads that draw from it change each other's numbers.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor
from torch.overrides import TorchFunctionMode

_thread = threading.local()

# rates are rounded to multiples of 2**-16, and kept entries are scaled by the rounded rate, so the mean stays exact
_LEVELS = 2**16


@contextmanager
def random_numbers(generator: Generator | None) -> Iterator[None]:
    """Let the layers that this thread runs on the CPU draw from a generator; None is the global one."""
    before = getattr(_thread, "generator", None)
    _thread.generator = generator
    try:
        yield
    finally:
        _thread.generator = before


def thread_generator(device: torch.device) -> Generator | None:
    """The generator of `random_numbers` for tensors of a device; None is the global one."""
    # a compiled graph cannot take a generator
    if torch.compiler.is_compiling() or device.type != "cpu":
        return None
    return getattr(_thread, "generator", None)


def initial_weights() -> AbstractContextManager[object]:
    """Let new layers draw their weights from the generator of `random_numbers`, if there is one."""
    generator = getattr(_thread, "generator", None)
    return nullcontext() if generator is None else _DrawFrom(generator)


@contextmanager
def kept_random_state(device: torch.device) -> Iterator[None]:
    """Restore the random state of this thread, or else the global ones of the CPU and a device, after the context."""
    generator = getattr(_thread, "generator", None)
    if generator is None:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
        return
    state = generator.get_state()
    try:
        yield
    finally:
        generator.set_state(state)


class _DrawFrom(TorchFunctionMode):
    """Pass a generator to every function that draws random numbers."""

    _FUNCTIONS = (torch.rand, torch.randn, torch.randint, Tensor.uniform_, Tensor.normal_, Tensor.bernoulli_)

    def __init__(self, generator: Generator) -> None:
        super().__init__()
        self._generator = generator

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        if (func in self._FUNCTIONS or "generator" in options) and options.get("generator") is None:
            options["generator"] = self._generator
        return func(*args, **options)


def plain_dropout(x: Tensor, p: float) -> Tensor:
    """The numbers of `torch.nn.functional.dropout`, from the generator of this thread if it has one."""
    if p in (0.0, 1.0) or (generator := thread_generator(x.device)) is None:
        return F.dropout(x, p)
    return x * torch.empty_like(x).bernoulli_(1.0 - p, generator=generator).div_(1.0 - p)


def dropout(x: Tensor, p: float) -> Tensor:
    """Set entries to zero with probability p and multiply the others by 1 / (1 - p)."""
    if p == 0.0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, p)
    return x * keep_factors(draw_bits(x.shape), p, x.dtype)


def draw_seeds(like: Tensor, count: int = 1, generator: Generator | None = None) -> Tensor:
    """Seeds, int32 (count,), for masks that kernels draw; one call of the generator, by default that of the device."""
    generator = generator or thread_generator(like.device)
    return torch.randint(2**31, (count,), device=like.device, dtype=torch.int32, generator=generator)


def draw_bits(shape: torch.Size) -> Tensor:
    """Uniform 16-bit integers on the CPU, four from each number of the generator."""
    count = shape.numel()
    return _draw_words(-(-count // 4)).view(torch.int16)[:count].view(shape)


def _draw_words(count: int) -> Tensor:
    if torch.compiler.is_compiling():
        # the compiler does not support `random_` over all bits
        return torch.randint(-(2**63), 2**63 - 1, (count,))
    # a smaller range takes a division per number
    return torch.empty(count, dtype=torch.int64).random_(
        -(2**63), None, generator=thread_generator(torch.device("cpu"))
    )


def keep_factors(bits: Tensor, p: float, dtype: torch.dtype) -> Tensor:
    """Dropout factors of entries: 0 with probability p, else 1 / (1 - p)."""
    kept = max(1, round((1.0 - p) * _LEVELS))
    last = kept - 1 - _LEVELS // 2
    if torch.compiler.is_compiling():
        return (bits <= last).to(dtype) * (_LEVELS / kept)
    # as numbers: PyTorch multiplies by booleans ten times slower
    factors = torch.empty(bits.shape, dtype=dtype)
    torch.le(bits, last, out=factors)
    return factors.mul_(_LEVELS / kept)

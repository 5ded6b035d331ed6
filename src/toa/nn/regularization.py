"""Stochastic operator regularization (SOR): dropout with a random rate on an operator's offset.

In each training pass p ~ U[0, 1), B ~ Bernoulli(1 - p) per entry, and M becomes M ⊙ B / (1 - p). Its mean is M. The
variance of an entry given p is p / (1 - p) M², which is unbounded as p approaches 1. The identity of S = I + M is kept.
All draws happen on the offset's device without synchronisation, so a step can be captured in a CUDA graph. For dense
operators on a GPU a seed is drawn instead of B; the kernels compute B from it.
"""

from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Generator, Tensor, nn

from toa import ops
from toa._checks import ArgumentError, check_choice, check_generator
from toa.nn.layers import Layer
from toa.ops.dropout import draw_seeds, thread_generator

Sharing = Literal["pass", "operator"]

# the largest float32 below 1: keeps 1 / (1 - p) finite whatever the generator returns
_LARGEST_RATE = 1.0 - 2.0**-24

# largest number of operators per layer: S1, S2 and the gate's S1
_MAX_OPERATORS = 3


def drop_offset(offset: Tensor, rate: Tensor, *, generator: Generator | None = None) -> Tensor:
    """Return M ⊙ B / (1 - p) with B ~ Bernoulli(1 - p).

    Args:
        offset: Offset M; its first axis is the heads.
        rate: Drop rate p in [0, 1): shape () for all heads, or (H,), one per head.
    """
    check_generator(generator, offset.device)
    generator = generator or thread_generator(offset.device)
    rate = rate.reshape(-1, *(1,) * (offset.dim() - 1))
    dropped = torch.rand(offset.shape, device=offset.device, generator=generator) < rate
    return (offset / (1.0 - rate).to(offset.dtype)).masked_fill(dropped, 0.0)


class StochasticOperatorRegularization(Layer):
    """Draws the drop rates of a pass and applies them to offsets.

    Args:
        sharing: "pass" as in the paper, one p for all operators of a forward pass (of this layer, or of the model after
            `share_drop_rate`); "operator", one p per operator and head.
        max_rate: p ~ U[0, max_rate). 1 in the paper; a smaller value bounds the variance.
        generator: Random generator on the operators' device; not for activation checkpointing, which restores none.
    """

    shown = ("sharing", "max_rate")

    def __init__(self, *, sharing: Sharing = "pass", max_rate: float = 1.0, generator: Generator | None = None) -> None:
        super().__init__()
        check_choice("sharing", sharing, get_args(Sharing))
        if not 0.0 < max_rate <= 1.0:
            raise ArgumentError("max_rate", "lie in (0, 1]", max_rate, "use sor=False for no SOR")
        self.sharing = sharing
        self.max_rate = max_rate
        self.generator = generator
        self._shared: _SharedRate | None = None

    def rates(self, num_heads: int, device: torch.device) -> "DropRates":
        """Start a pass of a layer and return the drop rates of its operators."""
        check_generator(self.generator, device)
        if self.sharing == "operator":
            return DropRates(self, None, num_heads)
        shared = None if self._shared is None else self._shared.rate
        return DropRates(self, self.draw((), device) if shared is None else shared, num_heads)

    def draw(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Draw p ~ U[0, max_rate) of this shape, in float32."""
        rate = torch.rand(shape, device=device, generator=self.generator or thread_generator(device))
        if self.max_rate != 1.0:
            rate = rate * self.max_rate
        return rate.clamp(max=_LARGEST_RATE)


@dataclass(slots=True)
class DropRates:
    """The drop rates of one pass through one layer; call it to regularize the offsets of one operator."""

    regularization: StochasticOperatorRegularization
    rate: Tensor | None
    num_heads: int
    seeds: list[Tensor] = field(default_factory=list)

    def __call__(self, *offsets: Tensor) -> tuple[Tensor, ...]:
        """Regularize the offsets of one operator with the same p and independent masks."""
        sor = self.regularization
        rate = sor.draw((self.num_heads,), offsets[0].device) if self.rate is None else self.rate
        return tuple(drop_offset(offset, rate, generator=sor.generator) for offset in offsets)

    def drop(self, offset: Tensor) -> ops.EntryDrop:
        """Return a seed and rate from which a kernel drops entries of the offset of one operator."""
        sor = self.regularization
        if not self.seeds:
            # one draw for all operators of the layer
            self.seeds = list(draw_seeds(offset, _MAX_OPERATORS, sor.generator).split(1))
        rate = sor.draw((self.num_heads,), offset.device) if self.rate is None else self.rate
        return ops.EntryDrop(self.seeds.pop(), rate)


class _SharedRate:
    """The drop rate of a model's last pass, kept afterwards for recomputation in the backward pass."""

    def __init__(self, model: nn.Module, source: StochasticOperatorRegularization) -> None:
        self.model = model
        self._source = source
        self.rate: Tensor | None = None

    def begin(self, module: nn.Module, args: object) -> None:
        """Draw a rate; a hook that runs before the model's forward."""
        if module.training:
            self.rate = self._source.draw((), next(module.parameters()).device)


def share_drop_rate(model: nn.Module) -> int:
    """Make all TOA layers of `model` share one p per forward pass of the model; return the number of layers.

    Otherwise every layer draws its own p in each pass. Layers with `sharing="operator"` do not change. A layer that is
    called outside the model's forward uses the p of the model's last pass.
    """
    layers = [m for m in model.modules() if isinstance(m, StochasticOperatorRegularization) and m.sharing == "pass"]
    if not layers:
        return 0
    if all(layer._shared is not None and layer._shared.model is model for layer in layers):
        return len(layers)
    shared = _SharedRate(model, layers[0])
    for layer in layers:
        layer._shared = shared
    # a bound method, not a closure: deepcopy then copies the shared rate with the model
    model.register_forward_pre_hook(shared.begin)
    return len(layers)


def own_generators(model: nn.Module) -> list[Generator]:
    """Return the distinct generators given to layers of `model`; a resumed run must restore their states."""
    found = (m.generator for m in model.modules() if isinstance(m, StochasticOperatorRegularization))
    return list({id(generator): generator for generator in found if generator is not None}.values())

"""Stochastic operator regularization: dropout of random strength on an operator's offset.

At each pass in training p ~ U[0, 1), B ~ Bernoulli(1 - p) entry by entry, and M becomes M ⊙ B / (1 - p). The mean is
M and the variance of an entry given p is p / (1 - p) M², without bound as p nears 1. The identity of S = I + M is
never touched. Everything is drawn on the offset's device without waiting for it, so a step can be captured in a
CUDA graph. Of dense operators on a GPU a seed is drawn instead of B, which kernels make of it wherever they need it.
"""

from typing import Literal

import torch
from torch import Generator, Tensor, nn

from toa import ops
from toa._checks import check_at_least, check_choice, check_generator

Sharing = Literal["pass", "operator"]
SHARINGS = ("pass", "operator")

# the largest float32 below 1: keeps 1 / (1 - p) finite whatever the generator returns
_LARGEST_RATE = 1.0 - 2.0**-24

# that a layer has at most: S1, S2 and the gate's
_OPERATORS = 3


def drop_offset(offset: Tensor, rate: Tensor, *, generator: Generator | None = None) -> Tensor:
    """M ⊙ B / (1 - p) with B ~ Bernoulli(1 - p).

    Args:
        offset: Offset M, its first axis the heads.
        rate: Drop rate p in [0, 1): one for all, shape (), or one a head, shape (H,).
        generator: Source of the mask, on the device of `offset`; None is that device's default one.
    """
    check_generator(generator, offset.device)
    rate = rate.reshape(-1, *(1,) * (offset.dim() - 1))
    keep = torch.rand(offset.shape, device=offset.device, generator=generator) >= rate
    return torch.where(keep, offset / (1.0 - rate).to(offset.dtype), 0.0)


class StochasticOperatorRegularization(nn.Module):
    """Draws the drop rates of a pass and applies them to offsets.

    Args:
        sharing: "pass", one p for all operators of a forward pass (of this layer, or of the whole model after
            `share_drop_rate`), as the paper says; "operator", one p for each operator of each head.
        max_rate: p ~ U[0, max_rate). 1 is the paper's; less bounds the variance.
        hold: Passes in training for which a drop rate is kept; 1 draws one per pass, as the paper does. The mask is
            drawn per pass in any case.
        generator: Source of randomness, on the device of the operators; None is that device's default one.
    """

    held_rate: Tensor
    passes: Tensor

    def __init__(
        self,
        *,
        sharing: Sharing = "pass",
        max_rate: float = 1.0,
        hold: int = 1,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        check_at_least("hold", hold, 1)
        if hold > 1 and sharing == "operator":
            raise ValueError(f"hold must be 1 with sharing='operator', got {hold}; use sharing='pass'.")
        check_choice("sharing", sharing, SHARINGS)
        if not 0.0 < max_rate <= 1.0:
            raise ValueError(f"max_rate must lie in (0, 1], got {max_rate}; leave SOR out to switch it off.")
        self.sharing = sharing
        self.max_rate = max_rate
        self.hold = hold
        if hold > 1:
            # buffers, so that a captured step and a resumed run keep the rate
            self.register_buffer("held_rate", torch.zeros(()))
            self.register_buffer("passes", torch.zeros((), dtype=torch.int64))
        self.generator = generator
        self._shared: _SharedRate | None = None

    def rates(self, num_heads: int, device: torch.device) -> "DropRates":
        """Start a pass of a layer: what its operators are to be regularized with."""
        check_generator(self.generator, device)
        if self.sharing == "operator":
            return DropRates(self, None, num_heads)
        shared = None if self._shared is None else self._shared.rate
        return DropRates(self, self.draw((), device) if shared is None else shared, num_heads)

    def draw(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """P ~ U[0, max_rate) of this shape, in float32."""
        rate = torch.rand(shape, device=device, generator=self.generator)
        if self.max_rate != 1.0:
            rate = rate * self.max_rate
        rate = rate.clamp(max=_LARGEST_RATE)
        if self.hold > 1:
            self.held_rate.copy_(torch.where(self.passes % self.hold == 0, rate, self.held_rate))
            self.passes.add_(1)
            rate = self.held_rate.clone()
        return rate

    def extra_repr(self) -> str:
        """What the module's repr shows."""
        return f"sharing={self.sharing!r}, max_rate={self.max_rate}"


class DropRates:
    """The drop rates of one pass through one layer; calling it regularizes offsets that belong together."""

    def __init__(self, regularization: StochasticOperatorRegularization, rate: Tensor | None, num_heads: int) -> None:
        self._regularization = regularization
        self._rate = rate
        self._num_heads = num_heads
        self._seeds: list[Tensor] = []

    def __call__(self, *offsets: Tensor) -> tuple[Tensor, ...]:
        """Regularize the offsets of one operator with the same p and independent masks."""
        rate = self._of_operator(offsets[0])
        return tuple(drop_offset(o, rate, generator=self._regularization.generator) for o in offsets)

    def drop(self, offset: Tensor) -> ops.EntryDrop:
        """What regularizes the offset of one operator where it is used: a seed is drawn instead of a mask."""
        if not self._seeds:
            # those of a layer's operators at once
            generator = self._regularization.generator
            drawn = torch.randint(2**31, (_OPERATORS,), device=offset.device, dtype=torch.int32, generator=generator)
            self._seeds = list(drawn.split(1))
        return ops.EntryDrop(self._seeds.pop(), self._of_operator(offset))

    def _of_operator(self, offset: Tensor) -> Tensor:
        if self._rate is not None:
            return self._rate
        return self._regularization.draw((self._num_heads,), offset.device)


class _SharedRate:
    """The drop rate of a model's last pass. It is kept after the pass: recomputation in backward needs it again."""

    def __init__(self, model: nn.Module, source: StochasticOperatorRegularization) -> None:
        self.model = model
        self._source = source
        self.rate: Tensor | None = None

    def begin(self, module: nn.Module, args: object) -> None:
        """Draw, as a hook before the model's forward."""
        if module.training:
            self.rate = self._source.draw((), next(module.parameters()).device)


def share_drop_rate(model: nn.Module) -> int:
    """Let all TOA layers of `model` use a single p per forward pass of the model; returns how many there are.

    Without it every layer draws its own p in each pass. Layers with `sharing="operator"` are left as they are. A layer
    that is called outside of the model's forward uses the p of the model's last pass.
    """
    layers = [m for m in model.modules() if isinstance(m, StochasticOperatorRegularization) and m.sharing == "pass"]
    if not layers:
        return 0
    if all(layer._shared is not None and layer._shared.model is model for layer in layers):
        return len(layers)
    shared = _SharedRate(model, layers[0])
    for layer in layers:
        layer._shared = shared
    # a method, not a closure: a copied model gets a hook of its own
    model.register_forward_pre_hook(shared.begin)
    return len(layers)


def own_generators(model: nn.Module) -> list[Generator]:
    """Generators that layers of `model` were given, each once: a resumed run has to restore their states."""
    found = (m.generator for m in model.modules() if isinstance(m, StochasticOperatorRegularization))
    return list({id(generator): generator for generator in found if generator is not None}.values())

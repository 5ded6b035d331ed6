"""What the operators of a trained model have become, in numbers.

Alphabet: B batch, N tokens, M queries, H heads.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn

from toa.nn import Attended, Attention, ChannelMask, SequenceOperator, VariateEmbedding
from toa.theory import simplex_distance


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class OperatorView:
    """An operator S = I + M of a layer, in float64.

    Attributes:
        name: Of the operator in its layer: "s1", "s2", "gate_s1".
        matrix: S, one a head.
    """

    name: str
    matrix: Float[Tensor, "h n n"]

    @property
    def heads(self) -> int:
        """Number of heads H."""
        return len(self.matrix)

    @property
    def offset(self) -> Float[Tensor, "h n n"]:
        """M, what was learned beside the identity."""
        return self.matrix - torch.eye(self.matrix.shape[-1], dtype=self.matrix.dtype)

    @property
    def row_sums(self) -> Float[Tensor, "h n"]:
        """The answer to a constant: 1 everywhere for an average, 0 for a difference."""
        return self.matrix.sum(-1)

    def simplex_distance(self) -> Float[Tensor, " h"]:
        """Distance to the nearest operator that averages; see `toa.theory.simplex_distance`."""
        return simplex_distance(self.matrix)

    def response(self) -> Float[Tensor, "h f"]:
        """‖S e_f‖ / ‖e_f‖ for the waves e_f of f = 0 … N // 2 periods in N tokens."""
        n = self.matrix.shape[-1]
        # column f is what S makes of the wave of f periods, in unit length
        answers = torch.fft.ifft(self.matrix, dim=-1) * n**0.5
        return torch.linalg.vector_norm(answers, dim=-2)[:, : n // 2 + 1]

    def eigenvalues(self) -> Complex[Tensor, "h n"]:
        """1 for every one of an untrained operator; off the real line for one that shifts."""
        return torch.linalg.eigvals(self.matrix)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LayerView:
    """An attention layer with operators.

    Attributes:
        name: Its path in the model.
        operators: Its operators.
        mixing: W_mix (H, M, N), what acts on the values for one sample; None without one.
    """

    name: str
    operators: Sequence[OperatorView]
    mixing: Float[Tensor, "h m n"] | None = None


def tokens_have_order(model: nn.Module) -> bool:
    """Whether tokens follow one another in time; those of iTransformer and DUET are channels."""
    return not any(isinstance(module, (VariateEmbedding, ChannelMask)) for module in model.modules())


@torch.no_grad()
def view_layers(
    model: nn.Module, sample: Sequence[Tensor | None] | Callable[[], object] | None = None
) -> list[LayerView]:
    """Every attention layer that has operators, in the order of the model.

    Args:
        model: Trained; it is put in evaluation mode while it is looked at.
        sample: What the model takes for one window or case, as batches of one, or what calls it so; None for the
            operators alone. A model that treats channels alone mixes each by itself: the first is kept.

    Raises:
        ValueError: If the model has no operator.
    """
    layers = {
        name: operators
        for name, module in model.named_modules()
        if isinstance(module, Attention) and (operators := _operators(module))
    }
    if not layers:
        found = sorted({type(module).__name__ for module in model.modules() if isinstance(module, Attention)})
        raise ValueError(
            f"the model must have operators to explain, got {', '.join(found) or 'no attention'} in "
            f"{type(model).__name__}; train one with attention toa-gated, toa-relu, toa-softmax or hyperglu."
        )
    mixing = {} if sample is None else _mixing(model, sample)
    return [LayerView(name=name, operators=operators, mixing=mixing.get(name)) for name, operators in layers.items()]


def _operators(layer: Attention) -> list[OperatorView]:
    return [
        OperatorView(name=name, matrix=module.dense().double().cpu())
        for name, module in layer.named_modules()
        if isinstance(module, SequenceOperator)
    ]


def _mixing(model: nn.Module, sample: Sequence[Tensor | None] | Callable[[], object]) -> dict[str, Tensor]:
    was_training = model.training
    model.eval()
    try:
        with _recording(model) as seen:
            if callable(sample):
                sample()
            else:
                model(*sample)
    finally:
        model.train(was_training)
    return seen


@contextmanager
def _recording(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Have each attention layer keep W_mix of its last call, for the first of its batch."""
    seen: dict[str, Tensor] = {}
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Attention)}
    for name, layer in layers.items():
        layer.attend = _kept(layer, name, seen)  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        for layer in layers.values():
            del layer.attend


def _kept(layer: Attention, name: str, seen: dict[str, Tensor]) -> Any:
    attend = layer.attend

    def recorded(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        *rest: Any,
        **options: Any,
    ) -> Attended:
        attended = attend(query, key, value, key_padding_mask, True, *rest, **options)
        assert attended.mixing is not None
        seen[name] = attended.mixing[0].double().cpu()
        return attended

    return recorded

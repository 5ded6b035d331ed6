"""Sequences of different lengths, and causal decoding step by step.

Alphabet: B batch, N tokens, H heads, D width, T tokens of all sequences of a batch.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from toa._checks import ArgumentError, check_shape
from toa._limits import shorten
from toa.ops.operators import Operator, causal_rows

_Kept = tuple[dict[str, Tensor], dict[str, Tensor]]
_TOKENS = ("q", "k", "v", "gate_q", "gate_k")


class Lengths(NamedTuple):
    """Sequences of a batch, packed one after another: sequence and position of each token (T,), and lengths (B,)."""

    sequence: Tensor
    position: Tensor
    lengths: Tensor
    longest: int

    @classmethod
    def of(cls, name: str, offsets: Tensor, total: int) -> "Lengths":
        """Check the boundaries (B + 1) of sequences; reading them waits for the device."""
        if offsets.dim() != 1 or offsets.is_floating_point() or offsets.dtype == torch.bool or len(offsets) < 2:
            raise ArgumentError(
                name,
                "be integers (B + 1,), 0 and the end of each sequence",
                f"{offsets.dtype} of shape {tuple(offsets.shape)}",
                "use torch.tensor([0, *lengths]).cumsum(0)",
            )
        count = offsets.diff()
        first, last, least, longest = (int(x) for x in (offsets[0], offsets[-1], count.min(), count.max()))
        if first != 0 or last != total:
            raise ArgumentError(
                name,
                f"start at 0 and end at the number of tokens, {total}",
                f"{first} and {last}",
                "the lengths must add up to the number of tokens",
            )
        if least < 1:
            raise ArgumentError(name, "increase", f"a sequence of length {least}", "drop empty sequences")
        sequence = torch.arange(len(count), device=offsets.device).repeat_interleave(count, output_size=total)
        position = torch.arange(total, device=offsets.device) - offsets[:-1][sequence]
        return cls(sequence, position, count, longest)

    @property
    def padding(self) -> Tensor:
        """True where a sequence has ended, (B, longest)."""
        return torch.arange(self.longest, device=self.lengths.device) >= self.lengths[:, None]

    def pad(self, packed: Tensor) -> Tensor:
        """Packed tokens (T, ...) as (B, longest, ...), with zeros at the end."""
        empty = packed.new_zeros(len(self.lengths), self.longest, *packed.shape[1:])
        return empty.index_put((self.sequence, self.position), packed)

    def pack(self, padded: Tensor) -> Tensor:
        """The inverse of `pad`."""
        return padded[self.sequence, self.position]


def nested_parts(name: str, x: Tensor, like: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Packed tokens and boundaries of a nested tensor (B, j, ...); they must be those of `like`."""
    if not x.is_nested or x.layout != torch.jagged or x._ragged_idx != 1:  # type: ignore[attr-defined]
        found = f"layout {x.layout}" if x.is_nested else "a tensor that is not nested"
        raise ArgumentError(
            name,
            "be a nested tensor of layout torch.jagged like the others, ragged in its second axis",
            found,
            "use torch.nested.nested_tensor(list, layout=torch.jagged)",
        )
    got, wanted = (one.offsets().diff().tolist() for one in (x, x if like is None else like))  # type: ignore[attr-defined]
    if got != wanted:
        rule = f"the lengths of the queries or keys that it belongs to, {shorten(wanted)}"
        raise ArgumentError(name, f"have {rule}", shorten(got), "pair the sequences")
    return x.values(), x.offsets()  # type: ignore[attr-defined]


def attend_lengths(
    attend: Callable[..., Tensor],
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_q: Tensor | None,
    gate_k: Tensor | None,
    cu_seqlens: Tensor | None,
    cu_seqlens_k: Tensor | None,
    **options: Any,
) -> Tensor:
    """`operator_attention` of packed or nested sequences: pads them, and packs the result."""
    for name in ("key_padding_mask", "pair_mask", "cache"):
        if options[name] is not None:
            raise ArgumentError(name, "be None with nested tensors or cu_seqlens", "one", "pad the sequences")
    tokens = {name: x for name, x in zip(_TOKENS, (q, k, v, gate_q, gate_k), strict=True) if x is not None}
    if q.is_nested or k.is_nested:
        if cu_seqlens is not None or cu_seqlens_k is not None:
            raise ArgumentError("cu_seqlens", "be None with nested tensors", "boundaries", "nested tensors have them")
        likes = {"v": k, "gate_q": q, "gate_k": k}
        parts = {name: nested_parts(name, x, likes.get(name)) for name, x in tokens.items()}
        tokens = {name: packed for name, (packed, _) in parts.items()}
        cu_seqlens, cu_seqlens_k = parts["q"][1], parts["k"][1]
    if cu_seqlens is None:
        raise ArgumentError("cu_seqlens", "be given with cu_seqlens_k", "None", "pass the boundaries of the queries")
    of_queries = Lengths.of("cu_seqlens", cu_seqlens, len(tokens["q"]))
    of_keys = Lengths.of("cu_seqlens_k", cu_seqlens if cu_seqlens_k is None else cu_seqlens_k, len(tokens["k"]))
    if len(of_queries.lengths) != len(of_keys.lengths):
        counts = f"{len(of_queries.lengths)}, got {len(of_keys.lengths)}"
        raise ValueError(f"cu_seqlens_k must have as many sequences as cu_seqlens, {counts}; pair queries with keys.")
    for name, x in tokens.items():
        sequences = of_queries if name in ("q", "gate_q") else of_keys
        check_shape(name, x, "(T, H, D)", (len(sequences.sequence), None, None))
        tokens[name] = sequences.pad(x)
    packed = of_queries.pack(attend(**tokens, **options | {"key_padding_mask": of_keys.padding}))
    return torch.nested.nested_tensor_from_jagged(packed, cu_seqlens) if q.is_nested else packed


class AttentionCache:
    """Keys and values of one causal attention layer, for decoding: pass the same cache to successive calls.

    A call appends its keys and values, and its queries see all tokens so far. A mixed key contains only earlier keys,
    because causal attention uses triangles of the operators, so it is computed once. Raw keys are kept as well: later
    keys are mixed from them. Results equal those of one call with all tokens.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all tokens."""
        self.keep(({}, {}))
        self._owner: Any = None

    def keep(self, kept: _Kept) -> None:
        """Replace all tokens by those of `extended`."""
        self._raw, self._mixed = kept

    def __len__(self) -> int:
        return self._raw["k"].shape[1] if self._raw else 0

    def claim(self, owner: object) -> None:
        """Bind the cache to a layer; raise ValueError if it holds tokens of another one."""
        if len(self) and self._owner not in (None, owner):
            raise ArgumentError(
                "cache",
                "be used by one layer only",
                f"one of another {type(self._owner).__name__} with {len(self)} tokens",
                "make an AttentionCache per layer",
            )
        self._owner = owner

    def extended(self, tokens: dict[str, Tensor], operators: dict[str, Operator | None]) -> _Kept:
        """Raw tokens with new ones (B, N, H, D) by name, and mixed ones; a call that succeeds keeps both."""
        self._check(tokens, operators)
        start = len(self)
        stop = len(self) + tokens["k"].shape[1]
        kept: _Kept = {}, {}
        for name, new in tokens.items():
            raw = kept[0][name] = torch.cat((self._raw[name], new), 1) if start else new
            operator = operators[name]
            if operator is not None:
                rows = causal_rows(operator, start, stop, transpose=name != "v").to(raw.dtype)
                if len(rows) != raw.shape[2]:
                    raw = raw.repeat_interleave(len(rows) // raw.shape[2], 2)
                mixed = torch.einsum("hmn,bnhd->bmhd", rows, raw)
                kept[1][name] = torch.cat((self._mixed[name], mixed), 1) if start else mixed
        return kept

    def _check(self, tokens: dict[str, Tensor], operators: dict[str, Operator | None]) -> None:
        if not len(self):
            return
        mixed = {name for name in operators if operators[name] is not None}
        if tokens.keys() != self._raw.keys() or mixed != self._mixed.keys():
            raise ArgumentError(
                "cache",
                "be that of the same attention",
                f"one of {', '.join(self._raw)} with operators on {', '.join(self._mixed) or 'none'}",
                "make a new AttentionCache",
            )
        for name, new in tokens.items():
            old = self._raw[name]
            check_shape(f"{name} with this cache", new, "(B, N, H, D)", (old.shape[0], None, *old.shape[2:]))
            if new.dtype != old.dtype or new.device != old.device:
                raise ArgumentError(
                    name,
                    f"have the dtype and device of its cache, {old.dtype} on {old.device}",
                    f"{new.dtype} on {new.device}",
                    "make a new AttentionCache",
                )

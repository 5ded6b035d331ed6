"""The public function: check, choose a backend, call it."""

import os
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from toa._checks import check_choice, check_fraction, check_padding_mask, check_shape, check_tokens
from toa._registry import Registry
from toa.ops._backend import Problem, never_objects, triton_objection
from toa.ops.attention.definitions import Activation, GateNorm, ScoreNorm
from toa.ops.attention.folded import folded_operator_attention
from toa.ops.attention.naive import naive_operator_attention
from toa.ops.operators import Dense, Operator

ACTIVATIONS = ("softmax", "relu", "gated")
SCORE_NORMS = ("none", "l2", "mean", "rms")
GATE_NORMS = ("none", "l2", "rms")
AUTO = "auto"


class _Implementation(Protocol):
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        s1: Operator | None = None,
        s2: Operator | None = None,
        *,
        activation: Activation = "softmax",
        gate_q: Tensor | None = None,
        gate_k: Tensor | None = None,
        gate_s1: Operator | None = None,
        scale: float = 1.0,
        score_norm: ScoreNorm = "none",
        gate_norm: GateNorm = "none",
        key_padding_mask: Tensor | None = None,
        pair_mask: Tensor | None = None,
        causal: bool = False,
        dropout_p: float = 0.0,
    ) -> Tensor: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionBackend:
    """A way to compute operator attention.

    Args:
        run: The function.
        objection: Why it cannot run a problem; None if it can.
        automatic: On which types of device "auto" may choose it; None is every.
    """

    run: _Implementation
    objection: Callable[[Problem], str | None] = never_objects
    automatic: tuple[str, ...] | None = None

    def suits(self, problem: Problem) -> bool:
        """Whether "auto" may choose it for a problem."""
        return (self.automatic is None or problem.device.type in self.automatic) and self.objection(problem) is None


def _run_fused(
    q: Tensor, k: Tensor, v: Tensor, s1: Operator | None = None, s2: Operator | None = None, **options: Any
) -> Tensor:
    # importing the kernels imports Triton
    from toa.ops.attention import fused, whole

    plain = options["key_padding_mask"] is None and options["pair_mask"] is None and not options["causal"]
    if plain and whole.fits(q, k, v, options["gate_q"], s1, s2, options["gate_s1"]):
        kept = {name: value for name, value in options.items() if name not in _MASKS}
        return whole.whole_attention(q, k, v, s1, s2, **kept)
    return folded_operator_attention(q, k, v, s1, s2, **options, kernel=fused.kernel_attention)


_MASKS = ("key_padding_mask", "pair_mask", "causal")


# in the order in which "auto" prefers them
BACKENDS: Registry[AttentionBackend] = Registry("backend")
BACKENDS.register("triton")(AttentionBackend(run=_run_fused, objection=triton_objection, automatic=("cuda",)))
BACKENDS.register("folded")(AttentionBackend(run=folded_operator_attention))
BACKENDS.register("reference")(AttentionBackend(run=naive_operator_attention, automatic=()))


def choose_backend(
    backend: str = AUTO,
    *,
    activation: Activation = "softmax",
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    width: int = 0,
    tokens: int = 0,
    pair_mask: bool = False,
) -> str:
    """Name the backend that a call would use, or say why the named one cannot run.

    "auto" is what the environment variable TOA_BACKEND names, if it is set, else the first that can run; where that is
    not the one meant for the device, a warning says once why. Softmax over more tokens than a tile holds is PyTorch's
    own fused attention on folded keys and values, "triton" or "folded". A name that is an argument speaks of attention
    alone: what else has kernels, mixing by dense operators too, takes them on a GPU unless TOA_BACKEND names another.

    Args:
        backend: A name of `BACKENDS`, or "auto".
        activation: "softmax", "relu" or "gated".
        device: Where the tensors are.
        dtype: What they hold.
        width: The largest of the widths of queries, values and gate; 0 if it is not known.
        tokens: The larger of the numbers of queries and keys; 0 if it is not known.
        pair_mask: Whether there is a mask of pairs.

    Raises:
        ValueError: If the backend is unknown, or cannot run this problem.
    """
    where = torch.device(device)
    problem = Problem(activation=activation, device=where, dtype=dtype, width=width, tokens=tokens, pair_mask=pair_mask)
    if backend == AUTO:
        backend = os.environ.get("TOA_BACKEND") or AUTO
    if backend == AUTO:
        chosen = _first_that_suits(problem)
        _say_what_is_missed(problem, chosen)
        return chosen
    if backend not in BACKENDS:
        check_choice("backend", backend, (AUTO, *BACKENDS))
    objection = BACKENDS[backend].objection(problem)
    if objection is not None:
        chosen = _first_that_suits(problem)
        raise ValueError(
            f"backend {backend!r} cannot run here: {objection}; use backend='auto', which would choose {chosen!r}."
        )
    return backend


def _first_that_suits(problem: Problem) -> str:
    return next(name for name in BACKENDS if BACKENDS[name].suits(problem))


# what has been said: training would say it at every layer of every step
_SAID: set[str] = set()


def _say_what_is_missed(problem: Problem, chosen: str) -> None:
    """Warn, once for a reason, if "auto" passes over a backend that is meant for the device."""
    # of a mask of pairs nobody expects more, and a compiler traces no warning
    if problem.pair_mask or torch.compiler.is_compiling():
        return
    for name in BACKENDS:
        if name == chosen:
            return
        if problem.device.type not in (BACKENDS[name].automatic or ()):
            continue
        reason = BACKENDS[name].objection(problem)
        if reason is not None and reason not in _SAID:
            _SAID.add(reason)
            warnings.warn(
                f"backend {chosen!r} runs instead of {name!r}, which is faster: {reason}.", RuntimeWarning, stacklevel=4
            )


def operator_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    s1: Tensor | Operator | None = None,
    s2: Tensor | Operator | None = None,
    *,
    activation: Activation = "softmax",
    gate_q: Tensor | None = None,
    gate_k: Tensor | None = None,
    gate_s1: Tensor | Operator | None = None,
    scale: float = 1.0,
    score_norm: ScoreNorm = "none",
    gate_norm: GateNorm = "none",
    key_padding_mask: Tensor | None = None,
    pair_mask: Tensor | None = None,
    causal: bool = False,
    dropout_p: float = 0.0,
    backend: str = AUTO,
) -> Tensor:
    """Attention with a signed operator on either side of its activation.

    O = act(Q Kᵀ S1) S2 V, with act = softmax, ReLU, or, gated, softplus(Qg Kgᵀ Sg) ⊙ ReLU(Q Kᵀ S1).

    Args:
        q: Queries (B, M, H, D). There may be more or fewer of them than keys.
        k: Keys (B, N, H, D).
        v: Values (B, N, H, E); the result (B, M, H, E) has their dtype.
        s1: Operator on the scores' key axis: a tensor (H, N', N'), N' ≥ N, or an operator of `toa.ops.operators`.
            A shorter sequence uses its leading block. None is the identity.
        s2: Operator between the activation and the values, likewise.
        activation: "softmax", "relu" or "gated".
        gate_q: Queries of the gate (B, M, H, G); only with `activation="gated"`.
        gate_k: Keys of the gate (B, N, H, G).
        gate_s1: Operator of the gate.
        scale: Multiplies the scores of both branches. 1 is the paper's formula; 1/sqrt(D) is customary.
        score_norm: "none" as printed; "l2" divides each score row by its L2 norm; "mean" by the number n of keys the
            query sees; "rms" by n sqrt(1 + ‖row‖² / n), which is "mean" for small scores and stays bounded for large.
        gate_norm: "none", "l2" or "rms" (by sqrt(1 + ‖row‖² / n)), for the gate's scores before softplus.
        key_padding_mask: (B, N), True where a key is padding. Padding never changes the other outputs.
        pair_mask: A factor in [0, 1] for each query m and mixed key n, (B or 1, M, N), the same for all heads, which
            may need a gradient. ReLU and gated scores are multiplied by it, activated: a masked pair passes nothing
            to S2. Softmax takes it as DUET's authors do: scores are multiplied by it, and where it is zero they
            become -ln(1e10) times `scale`, so that a masked pair keeps a weight, small only where `scale` is near 1.
            It acts after the norms, which know nothing of it.
        causal: Query m sees keys n ≤ m, counted from the first token; of S1 the upper and of S2 the lower
            triangle is used, so that no operator carries the future into the past.
        dropout_p: Dropout on the activated scores, before S2.
        backend: "auto", "triton", "folded" or "reference"; see `choose_backend`. A named backend runs or raises.

    Raises:
        ValueError: If a shape, name or mask is wrong, or the named backend cannot run here.
    """
    check_choice("activation", activation, ACTIVATIONS)
    check_choice("score_norm", score_norm, SCORE_NORMS)
    check_choice("gate_norm", gate_norm, GATE_NORMS)
    check_fraction("dropout_p", dropout_p)
    _check_qkv(q, k, v)
    _check_gate(activation, q, k, gate_q, gate_k, gate_s1, gate_norm)
    operators = {name: _as_operator(name, s, k) for name, s in (("s1", s1), ("s2", s2), ("gate_s1", gate_s1))}
    if key_padding_mask is not None:
        check_padding_mask(key_padding_mask, (k.shape[0], k.shape[1]))
    if pair_mask is not None:
        _check_pair_mask(pair_mask, q, k)

    low = _autocast_dtype(q)
    q, k, v = q.to(low), k.to(low), v.to(low)
    gate_q = None if gate_q is None else gate_q.to(low)
    gate_k = None if gate_k is None else gate_k.to(low)
    width = max(x.shape[3] for x in (q, v, gate_q) if x is not None)
    name = choose_backend(
        backend,
        activation=activation,
        device=q.device,
        dtype=v.dtype,
        width=width,
        tokens=max(q.shape[1], k.shape[1]),
        pair_mask=pair_mask is not None,
    )
    with nullcontext() if q.device.type == "meta" else torch.autocast(q.device.type, enabled=False):
        return BACKENDS[name].run(
            q,
            k,
            v,
            operators["s1"],
            operators["s2"],
            activation=activation,
            gate_q=gate_q,
            gate_k=gate_k,
            gate_s1=operators["gate_s1"],
            scale=scale,
            score_norm=score_norm,
            gate_norm=gate_norm,
            key_padding_mask=key_padding_mask,
            pair_mask=pair_mask,
            causal=causal,
            dropout_p=dropout_p,
        )


def _autocast_dtype(q: Tensor) -> torch.dtype:
    """What autocast makes of q's dtype; like PyTorch's own functions it leaves float64 alone."""
    device = q.device.type
    # tensors without data have no autocast, and asking torch.amp whether a device does cannot be compiled
    lowered = device != "meta" and q.dtype != torch.float64 and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if lowered else q.dtype


def _check_qkv(q: Tensor, k: Tensor, v: Tensor) -> None:
    check_shape("q", q, "(B, M, H, D)", (None, None, None, None))
    b, _, h, d = q.shape
    check_shape("k", k, "(B, N, H, D)", (b, None, h, d))
    check_shape("v", v, "(B, N, H, E)", (b, k.shape[1], h, None))
    if k.shape[1] == 0:
        raise ValueError("k must hold at least one token, got 0; drop empty sequences before attention.")
    _check_like(q, k=k, v=v)
    if not q.is_floating_point():
        raise ValueError(f"q, k and v must be floating point, got {q.dtype}; cast them with .float().")


def _check_like(q: Tensor, **others: Tensor) -> None:
    for name, x in others.items():
        _check_device(name, x.device, q.device)
        if x.dtype != q.dtype:
            raise ValueError(f"{name} must have the dtype of q, {q.dtype}, got {x.dtype}; cast it with .to(q.dtype).")


def _check_device(name: str, found: torch.device, wanted: torch.device) -> None:
    if found != wanted:
        raise ValueError(f"{name} must be on the device of q, {wanted}, got {found}; move it with .to(q.device).")


def _check_gate(
    activation: str,
    q: Tensor,
    k: Tensor,
    gate_q: Tensor | None,
    gate_k: Tensor | None,
    gate_s1: object,
    gate_norm: str,
) -> None:
    if activation != "gated":
        given = [n for n, x in (("gate_q", gate_q), ("gate_k", gate_k), ("gate_s1", gate_s1)) if x is not None]
        given += ["gate_norm"] if gate_norm != "none" else []
        if given:
            raise ValueError(f"{given[0]} goes with activation='gated', got activation={activation!r}; drop it.")
        return
    if gate_q is None or gate_k is None:
        raise ValueError("activation='gated' needs gate_q and gate_k, got None; use activation='relu' without a gate.")
    b, m, h, _ = q.shape
    check_shape("gate_q", gate_q, "(B, M, H, G)", (b, m, h, None))
    check_shape("gate_k", gate_k, "(B, N, H, G)", (b, k.shape[1], h, gate_q.shape[3]))
    _check_like(q, gate_q=gate_q, gate_k=gate_k)


def _check_pair_mask(pair_mask: Tensor, q: Tensor, k: Tensor) -> None:
    batch = None if pair_mask.dim() == 3 and pair_mask.shape[0] == 1 else q.shape[0]
    check_shape("pair_mask", pair_mask, "(B or 1, M, N)", (batch, q.shape[1], k.shape[1]))
    _check_device("pair_mask", pair_mask.device, q.device)
    if not pair_mask.is_floating_point():
        raise ValueError(
            f"pair_mask must be floating point, 1 where a pair is kept, got {pair_mask.dtype}; cast it with .float()."
        )


def _as_operator(name: str, s: Tensor | Operator | None, k: Tensor) -> Operator | None:
    if s is None:
        return None
    _, length, heads, _ = k.shape
    if not (isinstance(s, Tensor) or hasattr(s, "mix")):
        raise ValueError(
            f"{name} must be a tensor (H, N, N) or an operator of toa.ops, got {type(s).__name__}; "
            "of a layer's operator pass .operator()."
        )
    if isinstance(s, Tensor):
        if not s.is_floating_point():
            raise ValueError(f"{name} must be floating point, got {s.dtype}; cast it with .float().")
        check_shape(name, s, "(H, N, N)", (heads, None, None))
        if s.shape[1] != s.shape[2]:
            raise ValueError(f"{name} must be square in its last two axes (H, N, N), got {tuple(s.shape)}.")
        s = Dense(s, residual=False)
    if s.num_heads != heads:
        raise ValueError(f"{name} must have one matrix a head, H={heads}, got {s.num_heads}.")
    check_tokens(name, s.num_tokens, length)
    _check_device(name, s.device, k.device)
    return s

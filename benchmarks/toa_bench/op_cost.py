"""Cost of operator attention, forward and backward, per backend and beside PyTorch's own attention.

Alphabet: B batch, N tokens, H heads, D head width.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from toa import ops
from toa._checks import ArgumentError, check_at_least, check_choice
from toa.training.distributed import numerics
from toa_bench.rivals import RIVALS, attend, rival_objection
from toa_bench.step_cost import PeakMemory

# PyTorch's attention without operators: the baseline of all ratios
SDPA = "sdpa"
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "float64": torch.float64}

# operators by structure, with their number of diagonals; 0 if it grows with the length
STRUCTURES: dict[str, tuple[int, Callable[[Tensor], ops.Operator]]] = {
    "dense": (0, ops.Dense),
    "toeplitz": (0, ops.Toeplitz),
    "banded": (9, ops.Banded),
}

# kernels use full-size tiles from 2048 tokens; on a CPU that length would take minutes
_CHECKED_TOKENS = {"cuda": 2048, "cpu": 129}
# score matrices that the reference holds at once, forward and backward, each at least float32
_REFERENCE_SCORES = 9
# as many of gated attention
_REFERENCE_SCORES_GATED = 20
_MAX_REPEATS = 200
_LONG_MS = 100.0


@dataclass(frozen=True, kw_only=True)
class OpSettings:
    """Settings that all cases of a run share.

    Args:
        batch, heads, width: Sizes B, H, D of queries, keys, values and the gate.
        tf32: Allow TF32 for float32 products on CUDA.
        score_norm, gate_norm, causal, window: As in `toa.ops.operator_attention`. PyTorch's attention has no window.
        structure: A name of `STRUCTURES`, for all operators.
        seed: Seed of the tensors.
    """

    batch: int = 8
    heads: int = 8
    width: int = 64
    tf32: bool = True
    score_norm: ops.ScoreNorm = "none"
    gate_norm: ops.GateNorm = "none"
    causal: bool = False
    window: int | None = None
    structure: str = "dense"
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class OpCase(OpSettings):
    """One system on one problem.

    Args:
        system: "sdpa" (softmax only), a name of `toa.ops.BACKENDS`, or a name of `RIVALS`.
        activation: A name of `toa.ops.ACTIVATIONS`.
        tokens: Length N.
        dtype: A name of `DTYPES`, for tensors and operator offsets.
    """

    system: str
    activation: ops.Activation
    tokens: int = 1024
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        check_choice("system", self.system, (SDPA, *ops.BACKENDS, *RIVALS))
        check_choice("activation", self.activation, ops.ACTIVATIONS)
        check_choice("dtype", self.dtype, DTYPES)
        check_choice("structure", self.structure, STRUCTURES)
        for name in ("batch", "tokens", "heads", "width"):
            check_at_least(name, getattr(self, name), 1)
        if self.system == SDPA and self.activation != "softmax":
            raise ArgumentError(f"activation of {SDPA}", "be softmax", repr(self.activation))

    @property
    def name(self) -> str:
        """Activation and system, as shown in tables."""
        return SDPA if self.system == SDPA else f"{self.activation} {self.system}"

    def chosen(self, device: torch.device, backend: str = "auto") -> str:
        """The backend that runs this problem if `backend` is requested; raises ValueError if it cannot."""
        return ops.choose_backend(
            backend,
            activation=self.activation,
            device=device,
            dtype=DTYPES[self.dtype],
            width=self.width,
        )

    def objection(self, device: torch.device) -> str | None:
        """Why the system cannot run the problem; None if it can."""
        if self.system == SDPA:
            return None
        if self.system in RIVALS:
            if self.window is not None or self.structure != "dense":
                return "skipped: rivals are measured with dense operators and without a window"
            return rival_objection(self.system, self.activation, self.score_norm, device)
        try:
            self.chosen(device, self.system)
        except ValueError as error:
            return str(error)
        return None

    def reference_bytes(self) -> int:
        """Approximate memory of the reference, forward and backward."""
        scores = self.batch * self.heads * self.tokens**2
        held = _REFERENCE_SCORES_GATED if ops.ACTIVATIONS[self.activation].gated else _REFERENCE_SCORES
        return held * scores * max(4, DTYPES[self.dtype].itemsize)


@dataclass(frozen=True, kw_only=True, slots=True)
class OpCost:
    """Cost of forward and backward of a case.

    Args:
        milliseconds: Median over repeats of an eager call, so kernel launches are included.
        tenth, ninetieth: 10 % and 90 % quantiles.
        repeats: Number of timed repeats.
        graph_ms: Median of a CUDA graph replay; None off CUDA.
        needed_bytes: Inputs, operators, output and all gradients.
        peak_bytes: Peak memory; None if the system does not report it.
        extra_bytes: Peak memory minus the needed bytes.
    """

    milliseconds: float
    tenth: float
    ninetieth: float
    repeats: int
    graph_ms: float | None
    needed_bytes: int
    peak_bytes: int | None
    extra_bytes: int | None


@dataclass(frozen=True, kw_only=True, eq=False)
class _Problem:
    """Tensors of a case."""

    case: OpCase
    inputs: dict[str, Tensor]
    offsets: dict[str, Tensor]
    cotangent: Tensor

    @classmethod
    def of(cls, case: OpCase, device: torch.device) -> "_Problem":
        generator = torch.Generator(device).manual_seed(case.seed)

        def normal(*shape: int, std: float = 1.0) -> Tensor:
            # drawn in float32, so that all dtypes get the same problem
            made = torch.randn(shape, generator=generator, device=device).mul_(std)
            return made.to(DTYPES[case.dtype]).requires_grad_()

        gated = ops.ACTIVATIONS[case.activation].gated
        shape = (case.batch, case.tokens, case.heads, case.width)
        inputs = {name: normal(*shape) for name in ["q", "k", "v"] + ["gate_q", "gate_k"] * gated}
        n = case.tokens
        lags, _ = STRUCTURES[case.structure]
        entries = {"dense": (n, n), "toeplitz": (2 * n - 1,), "banded": (lags, n)}[case.structure]
        operators = [] if case.system == SDPA else ["s1", "s2"] + ["gate_s1"] * gated
        # rows of about unit size
        offsets = {name: normal(case.heads, *entries, std=(lags or n) ** -0.5) for name in operators}
        if case.system == SDPA:
            inputs = {name: x.detach().transpose(1, 2).contiguous().requires_grad_() for name, x in inputs.items()}
        cotangent = normal(*inputs["v"].shape).detach()
        return cls(case=case, inputs=inputs, offsets=offsets, cotangent=cotangent)

    @property
    def leaves(self) -> dict[str, Tensor]:
        return self.inputs | self.offsets

    def cast(self, dtype: torch.dtype) -> "_Problem":
        inputs, offsets = (
            {name: x.detach().to(dtype).requires_grad_() for name, x in group.items()}
            for group in (self.inputs, self.offsets)
        )
        return replace(self, inputs=inputs, offsets=offsets, cotangent=self.cotangent.to(dtype))

    def run(self, system: str) -> Tensor:
        case = self.case
        scale = case.width**-0.5
        if system == SDPA:
            q, k, v = self.inputs.values()
            return F.scaled_dot_product_attention(q, k, v, is_causal=case.causal, scale=scale)
        if system in RIVALS:
            norms = {"score_norm": case.score_norm, "gate_norm": case.gate_norm}
            same = {"activation": case.activation, "scale": scale, "causal": case.causal}
            return attend(system, self.inputs, self.offsets, **same, **norms)
        _, kind = STRUCTURES[case.structure]
        tensors: dict[str, Any] = self.inputs | {name: kind(offset) for name, offset in self.offsets.items()}
        return ops.operator_attention(
            **tensors,
            activation=case.activation,
            scale=scale,
            score_norm=case.score_norm,
            gate_norm=case.gate_norm,
            causal=case.causal,
            window=case.window,
            backend=system,
        )

    def step(self, system: str) -> tuple[Tensor, ...]:
        """The output and the gradient of every input and offset."""
        out = self.run(system)
        return out, *torch.autograd.grad(out, list(self.leaves.values()), self.cotangent)


def check_accuracy(case: OpCase, device: torch.device) -> str | None:
    """Compare a backend with the reference on a small version of a case; returns the first violation, or None.

    Errors are root mean squares against the reference in float64. Allowed are twice the error of the reference in the
    same dtype plus a few units of rounding. Gradients may also be off by `share_past_zero`: where rounding moves a
    score past zero, the gradient of ReLU jumps.
    """
    if case.system in (SDPA, "reference"):
        return None
    case = checked_case(case, device)
    with numerics(device, tf32=case.tf32):
        problem = _Problem.of(case, device)
        got = problem.step(case.system)
        plain = problem.step("reference")
        exact = problem.cast(torch.float64).step("reference")
    eps = unit_of_rounding(DTYPES[case.dtype], tf32=case.tf32 and device.type == "cuda")
    scores = 0 if ops.ACTIVATIONS[case.activation].softmax else case.batch * case.heads * case.tokens**2
    kinks = share_past_zero(scores, eps) if scores else 0.0
    for name, x, near, true in zip(("output", *problem.leaves), got, plain, exact, strict=True):
        error = _rms(x.double() - true)
        relative = 1e-6 + 4 * eps + (0.0 if name == "output" else kinks**0.5)
        allowed = 2 * _rms(near.double() - true) + relative * _rms(true) + 1e-7
        if not error <= allowed:
            what = name if name == "output" else f"gradient of {name}"
            return f"{what} at N={case.tokens}: error {error:.2e}, allowed {allowed:.2e}"
    return None


def unit_of_rounding(dtype: torch.dtype, *, tf32: bool) -> float:
    """Relative rounding error of the factors of a product."""
    # TF32 keeps ten mantissa bits and truncates; cuBLAS runs small products without tensor cores
    return max(torch.finfo(dtype).eps, 2.0**-9 if tf32 else 0.0)


def share_past_zero(scores: int, eps: float) -> float:
    """Weighted share of scores that rounding may move past zero: eps plus three standard deviations.

    A weight is a squared gradient, the square of a product of two normal numbers, whose second moment is nine. Returns
    zero if the expected number of such scores is below one half.
    """
    mean = eps * scores
    return 0.0 if mean + 3.0 * mean**0.5 < 0.5 else (mean + 9.0 * mean**0.5) / scores


def checked_case(case: OpCase, device: torch.device) -> OpCase:
    """The smaller case on which `check_accuracy` tests a case."""
    tokens = min(case.tokens, _CHECKED_TOKENS.get(device.type, _CHECKED_TOKENS["cpu"]))
    return replace(case, batch=min(case.batch, 2), heads=min(case.heads, 2), tokens=tokens)


def _rms(x: Tensor) -> float:
    return x.square().mean().sqrt().item()


def measure_case(case: OpCase, device: torch.device, *, seconds: float) -> OpCost:
    """Measure time and memory of forward and backward in this process.

    Off CUDA, memory is the growth of the process, so each case needs a fresh process.

    Args:
        case: Problem to measure.
        device: Device to run on.
        seconds: Approximate time for the eager repeats, and again for the graph replays.
    """
    with numerics(device, tf32=case.tf32):
        problem = _Problem.of(case, device)
        # a step adds the output and the gradients: as many bytes as inputs, offsets and cotangent
        held = sum(x.nbytes for x in problem.leaves.values()) + problem.cotangent.nbytes
        peak = _peak_of_step(problem, device)
        step = partial(problem.step, case.system)
        times = _times(step, device, seconds)
        replays = graph_times(step, device, seconds) if device.type == "cuda" and case.system != "reference" else None
    tenth, median, ninetieth = np.quantile(times, (0.1, 0.5, 0.9)).tolist()
    return OpCost(
        milliseconds=median,
        tenth=tenth,
        ninetieth=ninetieth,
        repeats=len(times),
        graph_ms=None if replays is None else float(np.median(replays)),
        needed_bytes=2 * held,
        peak_bytes=None if peak is None else held + peak,
        extra_bytes=None if peak is None else max(0, peak - held),
    )


def _peak_of_step(problem: _Problem, device: torch.device) -> int | None:
    """Peak bytes of a step above what was allocated before it."""
    system = problem.case.system
    if device.type != "cuda":
        # a tiny step first, to load libraries
        _Problem.of(replace(problem.case, batch=1, tokens=min(2, problem.case.tokens)), device).step(system)
        memory = PeakMemory(device)
        problem.step(system)
        return memory.peak()
    # compiles kernels and allocates cuBLAS workspaces, which do not belong to the case
    problem.step(system)
    torch.cuda.synchronize(device)
    held = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    problem.step(system)
    return torch.cuda.max_memory_allocated(device) - held


def _times(step: Callable[[], object], device: torch.device, seconds: float) -> list[float]:
    """Milliseconds of as many steps as fit into `seconds`: at least 5, on CUDA at least 50 unless a step is long."""

    def timed(count: int) -> list[float]:
        if device.type != "cuda":
            clock = []
            for _ in range(count):
                begin = time.perf_counter()
                step()
                clock.append(1e3 * (time.perf_counter() - begin))
            return clock
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        for begin_event, end_event in events:
            begin_event.record()
            step()
            end_event.record()
        torch.cuda.synchronize(device)
        return [begin_event.elapsed_time(end_event) for begin_event, end_event in events]

    rough = min(timed(3))
    least = 50 if device.type == "cuda" and rough < _LONG_MS else 5
    return timed(min(_MAX_REPEATS, max(least, math.ceil(1e3 * seconds / rough))))


def graph_times(step: Callable[[], object], device: torch.device, seconds: float) -> list[float]:
    """Milliseconds of replays of a step as one CUDA graph, without launch overhead."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return _times(graph.replay, device, seconds)

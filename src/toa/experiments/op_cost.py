"""What the primitive costs: forward and backward of operator attention by backend, beside PyTorch's own attention.

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
from toa._checks import check_at_least, check_choice
from toa.experiments.step_cost import PeakMemory
from toa.tasks.device import allow_tf32

# PyTorch's own attention, without operators: what all others are measured against
SDPA = "sdpa"
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "float64": torch.float64}

# a kernel's tiles are those of its full size from here on; a CPU would take minutes
_CHECKED_TOKENS = {"cuda": 2048, "cpu": 129}
# scores that the formula as printed holds at a time, forward and backward, each at least float32
_REFERENCE_SCORES = {"softmax": 9, "relu": 9, "gated": 20}
_MOST_REPEATS = 200
_LONG_MS = 100.0


@dataclass(frozen=True, kw_only=True, slots=True)
class OpCase:
    """One system on one problem.

    Args:
        system: "sdpa", or a name of `toa.ops.BACKENDS`.
        activation: "softmax", "relu" or "gated"; "sdpa" has softmax alone.
        batch, tokens, heads, width: Sizes B, N, H, D of queries, keys and values; the gate has the same width.
        dtype: A name of `DTYPES`, of the tensors and of the operators' offsets.
        tf32: Whether CUDA may round factors of float32 products to TF32.
        score_norm, gate_norm: Normalisers, as `toa.ops.operator_attention` has them.
        causal: Whether a query sees only itself and what is before it.
        seed: Of the tensors.
    """

    system: str
    activation: ops.Activation
    batch: int = 8
    tokens: int = 1024
    heads: int = 8
    width: int = 64
    dtype: str = "bfloat16"
    tf32: bool = True
    score_norm: ops.ScoreNorm = "none"
    gate_norm: ops.GateNorm = "none"
    causal: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("system", self.system, (SDPA, *ops.BACKENDS))
        check_choice("activation", self.activation, ops.ACTIVATIONS)
        check_choice("dtype", self.dtype, DTYPES)
        for name in ("batch", "tokens", "heads", "width"):
            check_at_least(name, getattr(self, name), 1)
        if self.system == SDPA and self.activation != "softmax":
            raise ValueError(f"activation of {SDPA} must be softmax, got {self.activation!r}.")

    @property
    def name(self) -> str:
        """The system and its activation."""
        return SDPA if self.system == SDPA else f"{self.activation} {self.system}"

    def chosen(self, device: torch.device) -> str:
        """The backend that "auto" takes for the problem."""
        return ops.choose_backend(
            activation=self.activation, device=device, dtype=DTYPES[self.dtype], width=self.width, tokens=self.tokens
        )

    def objection(self, device: torch.device) -> str | None:
        """Why the system cannot run the problem; None if it can."""
        if self.system == SDPA:
            return None
        try:
            ops.choose_backend(
                self.system,
                activation=self.activation,
                device=device,
                dtype=DTYPES[self.dtype],
                width=self.width,
                tokens=self.tokens,
            )
        except ValueError as error:
            return str(error)
        return None

    def reference_bytes(self) -> int:
        """About what the formula as printed holds, forward and backward."""
        scores = self.batch * self.heads * self.tokens**2
        return _REFERENCE_SCORES[self.activation] * scores * max(4, DTYPES[self.dtype].itemsize)


@dataclass(frozen=True, kw_only=True, slots=True)
class OpCost:
    """What forward and backward of a case cost.

    Args:
        milliseconds: Median; called from Python, so that small problems on CUDA are bound by their launches.
        tenth, ninetieth: Quantiles at 10 and 90 percent.
        repeats: How many were timed.
        graph_ms: Median of a replay of both as one CUDA graph, as a training step runs them; None elsewhere.
        needed_bytes: Inputs, operators, output, its gradient and theirs.
        peak_bytes: Most that was held; None where it is not measured.
        extra_bytes: The peak beyond what is needed.
    """

    milliseconds: float
    tenth: float
    ninetieth: float
    repeats: int
    graph_ms: float | None
    needed_bytes: int
    peak_bytes: int | None
    extra_bytes: int | None


class _Problem:
    """The tensors of a case, and a step over them."""

    def __init__(self, case: OpCase, device: torch.device) -> None:
        self.case = case
        generator = torch.Generator(device).manual_seed(case.seed)

        def normal(*shape: int, std: float = 1.0) -> Tensor:
            # drawn in float32: all dtypes see the same problem
            made = torch.randn(shape, generator=generator, device=device).mul_(std)
            return made.to(DTYPES[case.dtype]).requires_grad_()

        tokens = (case.batch, case.tokens, case.heads, case.width)
        names = ["q", "k", "v"] + ["gate_q", "gate_k"] * (case.activation == "gated")
        operators = ["s1", "s2"] + ["gate_s1"] * (case.activation == "gated")
        self.inputs = {name: normal(*tokens) for name in names}
        square = (case.heads, case.tokens, case.tokens)
        self.offsets = {name: normal(*square, std=case.tokens**-0.5) for name in operators if case.system != SDPA}
        if case.system == SDPA:
            self.inputs = {
                name: x.detach().transpose(1, 2).contiguous().requires_grad_() for name, x in self.inputs.items()
            }
        self.leaves = self.inputs | self.offsets
        self.cotangent = normal(*self.inputs["v"].shape).detach()

    def cast(self, dtype: torch.dtype) -> "_Problem":
        """The same numbers in another dtype."""
        other = object.__new__(_Problem)
        other.case = self.case
        other.inputs, other.offsets = (
            {name: x.detach().to(dtype).requires_grad_() for name, x in group.items()}
            for group in (self.inputs, self.offsets)
        )
        other.leaves, other.cotangent = other.inputs | other.offsets, self.cotangent.to(dtype)
        return other

    def run(self, system: str) -> Tensor:
        """The output."""
        case = self.case
        scale = case.width**-0.5
        if system == SDPA:
            q, k, v = self.inputs.values()
            return F.scaled_dot_product_attention(q, k, v, is_causal=case.causal, scale=scale)
        tensors: dict[str, Any] = self.inputs | {name: ops.Dense(offset) for name, offset in self.offsets.items()}
        return ops.operator_attention(
            **tensors,
            activation=case.activation,
            scale=scale,
            score_norm=case.score_norm,
            gate_norm=case.gate_norm,
            causal=case.causal,
            backend=system,
        )

    def step(self, system: str) -> tuple[Tensor, ...]:
        """The output and the gradient of every tensor."""
        out = self.run(system)
        return out, *torch.autograd.grad(out, list(self.leaves.values()), self.cotangent)

    def needed_bytes(self) -> tuple[int, int]:
        """What is there before a step, and what it must make."""
        leaves = sum(x.nbytes for x in self.leaves.values())
        return leaves + self.cotangent.nbytes, leaves + self.cotangent.nbytes


def check_accuracy(case: OpCase, device: torch.device) -> str | None:
    """What of a backend is less accurate than the reference allows, on a small case like it; None if nothing.

    Output and every gradient may be off by twice the error of the reference in the same precision, both against the
    reference in float64, as root mean squares, and by some units of the last place. Where rounding takes a score past
    zero, ReLU's gradient jumps: `share_past_zero` of the scores may.
    """
    if case.system in (SDPA, "reference"):
        return None
    case = checked_case(case, device)
    with allow_tf32(case.tf32, device):
        problem = _Problem(case, device)
        got = problem.step(case.system)
        plain = problem.step("reference")
        exact = problem.cast(torch.float64).step("reference")
    eps = unit_of_rounding(DTYPES[case.dtype], tf32=case.tf32 and device.type == "cuda")
    kinks = share_past_zero(case.batch * case.heads * case.tokens**2, eps) if case.activation != "softmax" else 0.0
    for name, x, near, true in zip(("output", *problem.leaves), got, plain, exact, strict=True):
        error = _rms(x.double() - true)
        granted = 1e-6 + 4 * eps + (0.0 if name == "output" else kinks**0.5)
        allowed = 2 * _rms(near.double() - true) + granted * _rms(true) + 1e-7
        if not error <= allowed:
            what = name if name == "output" else f"gradient of {name}"
            return f"{what} at N={case.tokens}: error {error:.2e}, allowed {allowed:.2e}"
    return None


def unit_of_rounding(dtype: torch.dtype, *, tf32: bool) -> float:
    """What a product's factors are rounded to, relative to them."""
    # tensor cores cut float32 off after ten binary digits; cuBLAS leaves small products to other units
    return max(torch.finfo(dtype).eps, 2.0**-9 if tf32 else 0.0)


def share_past_zero(scores: int, eps: float) -> float:
    """Share of so many scores that rounding may take past zero, by weight: eps, and three standard deviations more.

    A weight is the square of a gradient, a product of two normal numbers: its own square has a mean of nine. Of a few
    scores none is granted: in float32 that takes a million.
    """
    mean = eps * scores
    return 0.0 if mean + 3.0 * mean**0.5 < 0.5 else (mean + 9.0 * mean**0.5) / scores


def checked_case(case: OpCase, device: torch.device) -> OpCase:
    """The case that is checked in place of another."""
    tokens = min(case.tokens, _CHECKED_TOKENS.get(device.type, _CHECKED_TOKENS["cpu"]))
    return replace(case, batch=min(case.batch, 2), heads=min(case.heads, 2), tokens=tokens)


def _rms(x: Tensor) -> float:
    return x.square().mean().sqrt().item()


def measure_case(case: OpCase, device: torch.device, *, seconds: float) -> OpCost:
    """Time and memory of forward and backward, in this process; about `seconds` are spent on either way of timing.

    Memory off CUDA is what the process has grown by: it is a case's own in a process of its own.
    """
    with allow_tf32(case.tf32, device):
        problem = _Problem(case, device)
        before, made = problem.needed_bytes()
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
        needed_bytes=before + made,
        peak_bytes=None if peak is None else before + peak,
        extra_bytes=None if peak is None else max(0, peak - made),
    )


def _peak_of_step(problem: _Problem, device: torch.device) -> int | None:
    """Most bytes held above what was there before a step."""
    system = problem.case.system
    if device.type != "cuda":
        # loads what is loaded once
        _Problem(replace(problem.case, batch=1, tokens=min(2, problem.case.tokens)), device).step(system)
        memory = PeakMemory(device)
        problem.step(system)
        return memory.peak()
    # compiles kernels and makes cuBLAS take its workspace, which is no case's own
    problem.step(system)
    torch.cuda.synchronize(device)
    held = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    problem.step(system)
    return torch.cuda.max_memory_allocated(device) - held


def _times(step: Callable[[], object], device: torch.device, seconds: float) -> list[float]:
    """Milliseconds of as many steps as the seconds allow; at least 50 on CUDA, and five where one takes long."""

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
    return timed(min(_MOST_REPEATS, max(least, math.ceil(1e3 * seconds / rough))))


def graph_times(step: Callable[[], object], device: torch.device, seconds: float) -> list[float]:
    """The same of replays of a step as one CUDA graph, in which launches take no time."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return _times(graph.replay, device, seconds)

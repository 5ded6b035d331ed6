"""A run over many problems of the primitive: every backend on every length, beside PyTorch's own attention."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from toa import ops
from toa._files import check_writable
from toa.experiments.op_cost import SDPA, OpCase, check_accuracy, checked_case, measure_case
from toa.experiments.records import Record, provenance, write_record
from toa.tasks.device import resolve_device


@dataclass(frozen=True, kw_only=True, slots=True)
class OpRun:
    """What is measured, and how: for each length PyTorch's attention, then every activation with every backend.

    Args:
        tokens: Lengths N.
        systems: Names of `toa.ops.BACKENDS`.
        activations: Of "softmax", "relu" and "gated".
        batch, heads, width, tf32, score_norm, gate_norm, causal, seed: As in `OpCase`; only gated has a gate's norm.
        dtype: A name of `DTYPES`; bfloat16 on CUDA and float32 elsewhere if None.
        seconds: About so long each is timed.
        budget: GiB that the reference may take; 32 on CUDA and 1 elsewhere if None.
        device: "auto", "cpu", "cuda" or "cuda:N".
    """

    tokens: tuple[int, ...] = (16, 64, 256)
    systems: tuple[str, ...] = tuple(ops.BACKENDS)
    activations: tuple[ops.Activation, ...] = ("relu", "gated")
    batch: int = 8
    heads: int = 8
    width: int = 64
    dtype: str | None = None
    tf32: bool = True
    score_norm: ops.ScoreNorm = "none"
    gate_norm: ops.GateNorm = "none"
    causal: bool = False
    seconds: float = 0.3
    budget: float | None = None
    device: str = "auto"
    seed: int = 0

    def settled(self) -> "OpRun":
        """The same with what depends on the device filled in."""
        on_cuda = resolve_device(self.device).type == "cuda"
        dtype = self.dtype or ("bfloat16" if on_cuda else "float32")
        budget = (32.0 if on_cuda else 1.0) if self.budget is None else self.budget
        return replace(self, dtype=dtype, budget=budget)

    def cases(self) -> list[OpCase]:
        """The cases, in order."""
        same: dict[str, Any] = {
            name: getattr(self, name) for name in ("batch", "heads", "width", "tf32", "causal", "seed")
        }
        same["dtype"] = self.settled().dtype
        cases = []
        for tokens in self.tokens:
            cases.append(OpCase(system=SDPA, activation="softmax", tokens=tokens, **same))
            for activation in self.activations:
                norms = {
                    "score_norm": self.score_norm,
                    "gate_norm": self.gate_norm if activation == "gated" else "none",
                }
                cases += [
                    OpCase(system=system, activation=activation, tokens=tokens, **norms, **same)  # type: ignore[arg-type]
                    for system in self.systems
                ]
        return cases


def measure_cases(cases: Sequence[OpCase], device: torch.device, *, seconds: float, budget: int) -> Iterator[Record]:
    """What each case costs, one after another; a case that is wrong, too large or cannot run says so instead.

    On CUDA all run in this process; elsewhere each has one of its own, so that its memory is its own.

    Args:
        cases: What is measured.
        device: Where.
        seconds: About how long each is timed.
        budget: Bytes; the reference is skipped where it would take more.
    """
    checked: dict[OpCase, str | None] = {}
    for case in cases:
        record: Record = asdict(case) | {"name": case.name, "auto": case.chosen(device), "cost": None}
        reason = case.objection(device)
        if reason is None and case.system == "reference" and case.reference_bytes() > budget:
            needed = case.reference_bytes() / 2**30
            reason = f"skipped: about {needed:.0f} GiB, over the budget of {budget / 2**30:.0f} GiB"
        if reason is None:
            small = checked_case(case, device)
            if small not in checked:
                checked[small] = _measured(check_accuracy, small, device)
            reason = checked[small] and f"refused, not as accurate as the reference: {checked[small]}"
        if reason is None:
            cost = _measured(measure_case, case, device, seconds=seconds)
            if isinstance(cost, str):
                reason = cost
            else:
                record["cost"] = asdict(cost)
        yield record | {"reason": reason}


def run_ops(
    run: OpRun, out: Path, *, command: Sequence[str] = (), watch: Callable[[str], None] | None = None
) -> Record:
    """Measure all cases of a run and write one record of them.

    Args:
        run: What is measured.
        out: The record's file.
        command: The command line that the record shall name.
        watch: Told the name of what has been measured.
    """
    run = run.settled()
    cases = run.cases()
    check_writable(out.parent)
    assert run.budget is not None
    device = resolve_device(run.device)
    rows = []
    for row in measure_cases(cases, device, seconds=run.seconds, budget=int(run.budget * 2**30)):
        rows.append(row)
        if watch is not None:
            watch(f"{row['name']}, N={row['tokens']}")
    settings = asdict(run)
    record = {"task": "ops", "settings": settings, "rows": _over_sdpa(rows), **provenance(device, command)}
    write_record(out, record)
    return record


def refusals(record: Record) -> dict[str, list[str]]:
    """Why cases of a run have no cost, and which."""
    found: dict[str, list[str]] = {}
    for row in record["rows"]:
        if row["reason"]:
            found.setdefault(row["reason"], []).append(f"{row['name']} N={row['tokens']}")
    return found


def _over_sdpa(rows: Sequence[Record]) -> list[Record]:
    """The rows with every cost over that of PyTorch's attention on as many tokens."""
    base = {row["tokens"]: row["cost"] for row in rows if row["system"] == SDPA}

    def ratio(row: Record, key: str) -> float | None:
        cost, other = row["cost"], base[row["tokens"]]
        return cost[key] / other[key] if cost and other and cost[key] and other[key] else None

    keys = {"time": "milliseconds", "graph": "graph_ms", "peak": "peak_bytes"}
    return [row | {"over_sdpa": {short: ratio(row, key) for short, key in keys.items()}} for row in rows]


def _measured(measure: Callable[..., Any], case: OpCase, device: torch.device, **how: Any) -> Any:
    """What a measurement finds, or a sentence about why it found nothing."""
    if device.type == "cuda":
        try:
            return measure(case, device, **how)
        except torch.cuda.OutOfMemoryError:
            return "out of memory"
        finally:
            torch.cuda.empty_cache()
    # a server forks processes that have PyTorch already and have run nothing
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(measure, case, device, **how).result()
        except BrokenProcessPool:
            return "out of memory, or killed"

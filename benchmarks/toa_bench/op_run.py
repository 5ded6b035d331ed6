"""Measure every backend of operator attention at several lengths, beside PyTorch's own attention."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, fields, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from toa import ops
from toa._checks import check_choice
from toa._files import check_writable
from toa.experiments.records import Record, provenance, write_record
from toa.training.distributed import resolve_device
from toa_bench.op_cost import SDPA, OpCase, OpSettings, check_accuracy, checked_case, measure_case
from toa_bench.rivals import RIVALS
from toa_bench.tables import MEASURED


@dataclass(frozen=True, kw_only=True)
class OpRun(OpSettings):
    """Lengths, backends and activations to measure. PyTorch's attention is measured once per length.

    Args:
        tokens: Lengths N.
        systems: Names of `toa.ops.BACKENDS`, and of the rivals "flex" and "compiled".
        activations: Names of `toa.ops.ACTIVATIONS`.
        dtype: A name of `DTYPES`; default bfloat16 on CUDA, else float32.
        seconds: Approximate time to measure each case.
        budget: GiB that the reference may use; default 32 on CUDA, else 1.
        device: "auto", "cpu", "cuda" or "cuda:N".
    """

    tokens: tuple[int, ...] = (16, 64, 256)
    systems: tuple[str, ...] = (*ops.BACKENDS, *RIVALS)
    activations: tuple[ops.Activation, ...] = MEASURED
    dtype: str | None = None
    seconds: float = 0.3
    budget: float | None = None
    device: str = "auto"

    def resolved(self) -> "OpRun":
        """The same run with the defaults of its device filled in."""
        on_cuda = resolve_device(self.device).type == "cuda"
        dtype = self.dtype or ("bfloat16" if on_cuda else "float32")
        default_budget = 32.0 if on_cuda else 1.0
        budget = default_budget if self.budget is None else self.budget
        return replace(self, dtype=dtype, budget=budget)

    def cases(self) -> list[OpCase]:
        """The cases of a resolved run, in order."""
        same: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(OpSettings)} | {"dtype": self.dtype}
        ungated = same | {"gate_norm": "none"}
        cases = []
        for tokens in self.tokens:
            plain = ungated | {"score_norm": "none", "window": None, "structure": "dense"}
            cases.append(OpCase(system=SDPA, activation="softmax", tokens=tokens, **plain))
            for activation in self.activations:
                check_choice("activation", activation, ops.ACTIVATIONS)
                given = same if ops.ACTIVATIONS[activation].gated else ungated
                cases += [OpCase(system=one, activation=activation, tokens=tokens, **given) for one in self.systems]
        return cases


def measure_cases(cases: Sequence[OpCase], device: torch.device, *, seconds: float, budget: int) -> Iterator[Record]:
    """Measure cases one after another; a case that cannot run, is inaccurate or too large has a reason instead.

    On CUDA all cases share this process. Elsewhere each has a fresh one, so that its memory can be measured.

    Args:
        cases: Cases to measure.
        device: Device to run on.
        seconds: Approximate time to measure each case.
        budget: Bytes that the reference may use; larger reference cases are skipped.
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
                checked[small] = _isolated(check_accuracy, small, device)
            reason = _refusal(case.system, checked[small])
        if reason is None:
            cost = _isolated(measure_case, case, device, seconds=seconds)
            if isinstance(cost, str):
                reason = cost
            else:
                record["cost"] = asdict(cost)
        yield record | {"reason": reason}


def _refusal(system: str, violation: str | None) -> str | None:
    """Why a system is not timed after its check; a rival that fails or is inaccurate is no error of ours."""
    if violation is None or violation.startswith("failed"):
        return violation
    return f"{'not timed' if system in RIVALS else 'refused'}, not as accurate as the reference: {violation}"


def run_ops(
    run: OpRun, out: Path, *, command: Sequence[str] = (), watch: Callable[[str], None] = lambda name: None
) -> Record:
    """Measure all cases of a run and write one record.

    Args:
        run: Run to measure.
        out: File of the record.
        command: Command line stored in the record.
        watch: Called with the name of each case once it is measured.
    """
    run = run.resolved()
    cases = run.cases()
    check_writable(out.parent)
    assert run.budget is not None
    device = resolve_device(run.device)
    rows = []
    for row in measure_cases(cases, device, seconds=run.seconds, budget=int(run.budget * 2**30)):
        rows.append(row)
        watch(f"{row['name']}, N={row['tokens']}")
    record = {"task": "ops", "settings": asdict(run), "rows": _over_sdpa(rows), **provenance(device, command)}
    write_record(out, record)
    return record


def refusals(record: Record) -> dict[str, list[str]]:
    """Each reason why cases of a run have no cost, with the names of these cases."""
    found: dict[str, list[str]] = {}
    for row in record["rows"]:
        if row["reason"]:
            found.setdefault(row["reason"], []).append(f"{row['name']} N={row['tokens']}")
    return found


def _over_sdpa(rows: Sequence[Record]) -> list[Record]:
    """Add to each row its costs relative to PyTorch's attention at the same length."""
    base = {row["tokens"]: row["cost"] for row in rows if row["system"] == SDPA}

    def ratio(row: Record, key: str) -> float | None:
        cost = row["cost"]
        other = base[row["tokens"]]
        return cost[key] / other[key] if cost and other and cost[key] and other[key] else None

    keys = {"time": "milliseconds", "graph": "graph_ms", "peak": "peak_bytes"}
    return [row | {"over_sdpa": {short: ratio(row, key) for short, key in keys.items()}} for row in rows]


def _isolated(measure: Callable[..., Any], case: OpCase, device: torch.device, **options: Any) -> Any:
    """Call a measurement, off CUDA in a fresh process; returns its result, or a string that names the failure."""
    if device.type == "cuda":
        try:
            return measure(case, device, **options)
        except torch.cuda.OutOfMemoryError:
            return "out of memory"
        except Exception as error:
            # a compiler may raise anything; our own backends must not
            if case.system not in RIVALS:
                raise
            return f"failed: {type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
        finally:
            torch.cuda.empty_cache()
    # the fork server has imported PyTorch, so that each process starts fast
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(measure, case, device, **options).result()
        except BrokenProcessPool:
            return "out of memory, or killed"

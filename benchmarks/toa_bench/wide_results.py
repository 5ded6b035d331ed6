"""Facts of the data sets of the protocol toa-wide, stored results, and what they decide."""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from toa._checks import ArgumentError
from toa._console import duration
from toa.data import DATASETS, DatasetNotFoundError, ForecastData, Windows, locate
from toa.experiments.records import Record
from toa.experiments.run import Job
from toa.experiments.sweep import Event
from toa.report.decision import Decision, Errors, capped_error, choose_variant, decide
from toa.report.gains import FEWEST_SETS
from toa.training import TASKS
from toa.training.forecast import evaluation_batches
from toa_bench.wide import (
    ROOT,
    Results,
    Setting,
    WidePlan,
    choose_setting,
    final_jobs,
    horizons,
    make_job,
    trial_job,
)
from toa_bench.wide_cost import count_weights, epoch_windows, run_cost

# fields of a trial that are stored; the others of a record are large, and nothing reads them
_KEPT = (
    *("task", "name", "config", "config_hash", "data_checksum", "seed", "device", "commit", "command", "versions"),
    *("wall_s", "best_epoch", "metrics", "parameters", "windows", "error"),
)
# what the decision compares the chosen variant with
OTHERS = ("softmax", "gated", "softmax-wide")
VARIANTS = ("toa-softmax", "toa-relu", "toa-gated")


def here(plan: WidePlan, wanted: list[str] | None, data_dir: Path | None) -> list[str]:
    """Cases of the plan whose data are in the data folders; raises an error for a wanted one that is not there."""
    members = plan.members
    if wanted is not None:
        unknown = [name for name in wanted if name not in members]
        if unknown:
            raise ArgumentError("--set", f"be one of {', '.join(members)}", repr(unknown[0]))
        for name in wanted:
            locate(DATASETS[plan.case(name).dataset], data_dir)
        return wanted
    found = []
    for case in members:
        try:
            locate(DATASETS[plan.case(case).dataset], data_dir)
        except DatasetNotFoundError:
            continue
        found.append(case)
    return found


def describe_sets(plan: WidePlan, data_dir: Path | None) -> dict[str, Any]:
    """Sizes, treated values and the error of the training mean of every data set that is here, by data set."""
    assert plan.reference is not None
    found = {}
    for dataset in here(plan, None, data_dir):
        setting = Setting(rate=plan.rates[0], instance_norm=plan.norms[0])
        jobs = {system: trial_job(plan, dataset, system, setting) for system in plan.systems}
        plain = jobs[next(iter(plan.systems))].config
        reference = jobs[plan.reference].config
        data = TASKS["forecast"].load(plain, torch.device("cpu"), data_dir)
        means = {}
        for horizon in horizons(plan, dataset):
            job = make_job(plan, dataset, plan.reference, setting, horizon=horizon, seed=plan.seeds[0], test=True)
            windows = TASKS["forecast"].load(job.config, torch.device("cpu"), data_dir)
            means[str(horizon)] = {
                "windows": {name: len(getattr(windows, name)) for name in ("train", "val", "test")},
                "mse": _mean_square(windows.test),
                "val_mse": _mean_square(windows.val),
            }
        spec = DATASETS[dataset]
        channels = {job.key: spec.channels for job in jobs.values()}
        found[dataset] = {
            "rows": spec.rows,
            "channels": spec.channels,
            "lookback": plain.lookback,
            "epoch_windows": epoch_windows(plain),
            "horizons": means,
            **_treated_values(data, plain.clip),
            "weights": {name: count_weights(job.config, channels[job.key]) for name, job in jobs.items()},
            "ff_dim": {name: jobs[name].config.model["ff_dim"] for name in ("softmax", *plan.widened)},
            "operators": reference.model["num_heads"] * spec.channels**2 * 3 * reference.model["num_layers"],
            "teraflop_per_epoch": {
                name: round(run_cost(job.config) / job.config.training.epochs / 1e12, 3) for name, job in jobs.items()
            },
        }
    return found


def _mean_square(windows: Windows) -> float:
    """Mean square of all targets: the error of a forecast that is zero, the mean of the train rows."""
    total = 0.0
    count = 0
    for _, y, *_ in evaluation_batches(windows, 64):
        total += float(y.double().square().sum())
        count += y.numel()
    return total / count


def _treated_values(data: ForecastData, clip: float | None) -> dict[str, Any]:
    """Columns that are constant in training, missing and clipped values."""
    from toa.data.tables import read_dataset

    assert data.spec is not None
    values = read_dataset(data.spec, data.path).values[0]
    constant = np.ptp(values[: data.segments.train.stop], axis=0) == 0
    clipped = 0 if clip is None else int((np.abs(data.scaler.transform(values)) > clip).sum())
    return {
        "constant_columns": int(constant.sum()),
        "zeros": round(float((values == 0).mean()), 4),
        "clipped": clipped,
        "clipped_share": clipped / values.size,
    }


def checked_commit(sources: Path | None) -> str | None:
    """The commit that a file names, if all sources are those of the commit; None without a file.

    The file has the commit in its first line, and a line `id path` for each source, as git states its ids.
    """
    if sources is None:
        return None
    commit, *lines = sources.read_text(encoding="utf-8").splitlines()
    for line in lines:
        expected, _, path = line.partition(" ")
        content = (ROOT / path).read_bytes()
        found = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        if found != expected:
            raise ArgumentError(path, f"be the file of commit {commit}", "another", "copy the sources again")
    listed = {line.partition(" ")[2] for line in lines}
    extra = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "src").rglob("*.py")
        if str(path.relative_to(ROOT)) not in listed
    ]
    if extra:
        raise ArgumentError(extra[0], f"be a file of commit {commit}", "one that is not", "remove it")
    return commit


def slim_trial(record: Record) -> Record:
    """The fields of a trial that are stored."""
    slim = {name: record[name] for name in _KEPT if name in record}
    if "history" in record:
        slim["epochs"] = len(record["history"])
    elif "epochs" in record:
        slim["epochs"] = record["epochs"]
    return slim


def progress_line(job: Job, event: Event, counts: Counter[str], total: int, seconds: float) -> str:
    """One line about a run that ended."""
    ended = counts["done"] + counts["found"] + counts["failed"]
    return f"{duration(seconds)}  {ended} ended ({total} in this group)  {job.label}  {event.message}"


def final_errors(
    plan: WidePlan, results: Results, sets: Mapping[str, Any], metric: str, systems: Iterable[str]
) -> tuple[Errors, list[str]]:
    """Errors of the final runs by system and unit, and notes on incomplete units and capped runs.

    Args:
        metric: "mse" or "val_mse".
        systems: Systems that are compared. A unit in which a run of one of them is missing is left out.
    """
    systems = list(systems)
    errors: dict[str, dict[str, list[float]]] = defaultdict(dict)
    notes: list[str] = []
    capped: Counter[tuple[str, str]] = Counter()
    for unit, members in plan.units.items():
        cells: dict[str, list[float]] = {}
        missing = 0
        for system in systems:
            cells[system] = []
            for dataset in members:
                choice = choose_setting(plan, dataset, system, results)
                jobs = [] if choice is None else list(final_jobs(plan, choice))
                missing += len([job for job in jobs if job.key not in results]) if jobs else 1
                for job in jobs:
                    if job.key not in results:
                        continue
                    worst = sets[dataset]["horizons"][str(job.config.horizon)][metric]
                    error = results[job.key]["metrics"].get(metric)
                    cells[system].append(capped_error(error, worst))
                    if error is None or not error <= worst:
                        capped[unit, system] += 1
        if missing:
            notes.append(f"{unit} is not complete: {missing} final runs or choices are missing")
        else:
            for system, values in cells.items():
                errors[system][unit] = values
    notes += [
        f"{system} on {unit}: {count} runs count with the error of the training mean"
        for (unit, system), count in capped.items()
    ]
    return errors, notes


def decision_record(plan: WidePlan, results: Results, sets: Mapping[str, Any]) -> dict[str, Any]:
    """The decision as data: the units of the plan, those with all runs, the chosen variant and its comparisons.

    `complete` is true once every unit has all its runs; before that nothing is decided. Until then a comparison has the
    units in which its two systems are complete, and is left out below `FEWEST_SETS`; `finished` are the units with
    all runs of softmax and the variants. Numbers are changes of the test error in percent.
    """
    all_systems, notes = final_errors(plan, results, sets, "mse", plan.systems)
    validation, _ = final_errors(plan, results, sets, "val_mse", ("softmax", *VARIANTS))
    units = list(validation.get("softmax", ()))
    record: dict[str, Any] = {
        "decision": plan.protocol,
        "command": "python benchmarks/wide.py decide",
        "units": list(plan.units),
        "finished": units,
        "complete": len(all_systems.get("softmax", ())) == len(plan.units),
        "seeds": len(plan.seeds),
        "variant": None,
        "against": {},
        "notes": notes,
    }
    if len(units) < FEWEST_SETS:
        return record
    variant = choose_variant(validation, VARIANTS)
    against = {}
    for other in OTHERS:
        test, _ = final_errors(plan, results, sets, "mse", (variant, other))
        if len(test.get(other, ())) >= FEWEST_SETS:
            against[other] = _comparison(decide(test, variant, other))
    rises = _rises_without_operators(plan, results, units, variant)
    return record | {"variant": variant, "against": against, "without_operators": rises}


def _comparison(found: Decision) -> dict[str, Any]:
    """One comparison, in percent."""
    assert found.interval is not None
    assert found.bootstrap is not None
    return {
        "percent": found.percent,
        "interval": [100 * math.expm1(bound) for bound in found.interval],
        "bootstrap": [100 * math.expm1(bound) for bound in found.bootstrap],
        "p": found.p,
        "sign_p": found.sign_p,
        "wins": found.wins,
        "by_unit": {unit: 100 * math.expm1(difference) for unit, difference in found.differences.items()},
    }


def _rises_without_operators(plan: WidePlan, results: Results, units: list[str], variant: str) -> float | None:
    """Mean over units of the rise of the validation error with M = 0, in percent; None if no run states it."""
    by_unit: list[float] = []
    for unit in units:
        choices = [choose_setting(plan, dataset, variant, results) for dataset in plan.units[unit]]
        jobs = [job for choice in choices if choice is not None for job in final_jobs(plan, choice)]
        operators = [results[job.key].get("operators", {}) for job in jobs if job.key in results]
        rises = [found["contributions"]["operators"] for found in operators if found.get("contributions")]
        by_unit += [100 * fmean(rises)] if rises else []
    return fmean(by_unit) if by_unit else None


def decision_lines(record: Mapping[str, Any]) -> Iterator[str]:
    """The decision in lines of text."""
    yield from record["notes"]
    if not record["against"]:
        yield "fewer than three data sets are complete: no decision"
        return
    units, variant = record["finished"], record["variant"]
    if not record["complete"]:
        yield f"not complete: {len(units)} of {len(record['units'])} data sets; what follows decides nothing"
    yield f"{len(units)} data sets: {', '.join(units)}; validation chooses {variant}"
    for other, found in record["against"].items():
        low, high = found["interval"]
        first, last = found["bootstrap"]
        units_compared = len(found["by_unit"])
        yield (
            f"{variant} against {other}: {found['percent']:+.2f} % test MSE (t interval {low:+.2f} to {high:+.2f}, "
            f"bootstrap {first:+.2f} to {last:+.2f}), p {found['p']:.4f}, lower on {found['wins']} of "
            f"{units_compared} (sign test p {found['sign_p']:.4f})"
        )
        for unit, change in found["by_unit"].items():
            yield f"  {unit}: {change:+.2f} %"

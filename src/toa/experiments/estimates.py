"""How long runs will take, from records of runs that are like them."""

import statistics
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from toa.experiments.records import Record, read_record
from toa.experiments.run import Job
from toa.experiments.runner import RECORD

# what two runs have in common, from most to least
_LIKENESS = (
    ("dataset", "horizon", "backbone", "attention"),
    ("dataset", "horizon", "backbone"),
    ("dataset", "backbone"),
    ("backbone",),
)


class Estimates:
    """Seconds of earlier runs on one kind of device.

    Args:
        records: Those runs.
        on_cpu: Whether the CPU's runs count, or those of other devices.
    """

    def __init__(self, records: Iterable[Record], *, on_cpu: bool) -> None:
        self._seconds: dict[tuple[object, ...], list[float]] = {}
        for record in records:
            if str(record["device"]).startswith("cpu") == on_cpu:
                for key in _keys(record["task"], record["config"]):
                    self._seconds.setdefault(key, []).append(float(record["wall_s"]))

    def seconds(self, job: Job) -> float | None:
        """Median of the runs that are most like a job; None if none is."""
        known = (self._seconds.get(key) for key in _keys(job.task, asdict(job.config)))
        return next((statistics.median(times) for times in known if times), None)


def earlier_records(out: Path) -> list[Record]:
    """Every record under a folder of results that can be read."""
    records = []
    for path in sorted(out.glob(f"*/*/{RECORD}")):
        try:
            record = read_record(path)
            records.append({**record, "wall_s": float(record["wall_s"])})
        except (ValueError, KeyError, TypeError):
            # no estimate from it; whoever needs this run is told what is wrong
            continue
    return records


def _keys(task: str, config: dict[str, Any]) -> list[tuple[object, ...]]:
    values = {name: config.get(name) for name in ("dataset", "horizon", "backbone", "attention")}
    if isinstance(values["attention"], dict):
        values["attention"] = values["attention"]["name"]
    return [(task, *((name, values[name]) for name in names)) for names in _LIKENESS]

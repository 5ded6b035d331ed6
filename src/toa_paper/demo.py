"""The demo: demixing, a forecast of a table that it writes itself, and the parts on real data of `demo.toml`."""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toa._files import write_atomically
from toa.experiments.protocols import load_protocol, resolve
from toa.experiments.records import Record
from toa.experiments.run import run_folder, run_task

COMPARED = ("toa-gated", "toa-relu", "softmax")
SEEDS = (2024, 2025, 2026)

# rows of the table to forecast: eight weeks
HOURS = 8 * 168
# rows of it that are kept for the test
TESTED = 168
# rows to forecast
HORIZON = 24

# parts on real data by the name of their folder, in the order of the page
PARTS: dict[str, Any] = tomllib.loads((files("toa_paper") / "demo.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoRun:
    """A finished run and its folder."""

    record: Record
    folder: Path

    @property
    def attention(self) -> str:
        """Name of its attention."""
        return str(self.record["config"]["attention"]["name"])


def write_rentals(path: Path) -> Path:
    """Write a made-up CSV file: bicycles that are rented per hour, with a daily and a weekly season."""
    rng = np.random.default_rng(2024)
    hours = pd.date_range("2026-01-01", periods=HOURS, freq="h")
    hour = hours.hour.to_numpy()

    def peak(at: float, width: float) -> np.ndarray:
        return np.exp(-(((hour - at) / width) ** 2))

    workday = peak(8, 1.8) + 1.2 * peak(17.5, 2.2) + 0.3 * peak(12.5, 3)
    usual = 0.1 + np.where(hours.day_of_week >= 5, 0.7 * peak(14, 4), workday)
    # weather: it lasts for some hours
    weather = np.zeros(HOURS)
    for step in range(1, HOURS):
        weather[step] = 0.9 * weather[step - 1] + 0.05 * rng.standard_normal()
    rented = 300 * usual * np.exp(1e-4 * np.arange(HOURS) + weather) + 8 * rng.standard_normal(HOURS)
    table = pd.DataFrame({"hour": hours, "rented": np.maximum(rented, 0).round().astype(int)})
    write_atomically(path, table.to_csv(index=False).encode())
    return path


def part_configs(part: str, steps: int | None = None) -> list[Any]:
    """Configs of a part of `PARTS`, one per attention and seed.

    Args:
        steps: Steps of the demixing part; epochs change in proportion. None is the full length.
    """
    part_settings = PARTS[part]
    aeon = Path(str(files("aeon"))) / "datasets" / "data"
    names = {name: value.format(aeon=aeon) for name, value in part_settings["names"].items()}
    names["changes"] = [
        *part_settings["changes"],
        f"training.epochs={max(1, round(part_settings['epochs'] * demo_share(steps)))}",
    ]
    return [
        resolve(part_settings["task"], part_settings["protocol"], attention=attention, seed=seed, **names)
        for seed in SEEDS
        for attention in COMPARED
    ]


def run_part(
    part: str,
    out: Path,
    *,
    steps: int | None = None,
    device: str = "auto",
    command: Sequence[str] = (),
    observe: Callable[..., None] | None = None,
) -> list[DemoRun]:
    """Run a part of `PARTS`. Finished runs are loaded, interrupted runs resume.

    The arguments are those of `part_configs`, `run_task` and `toa_paper.demixing.run_demixing`.
    """
    runs = []
    for config in part_configs(part, steps):
        watch = None if observe is None else partial(observe, title=f"{config.attention.name}, seed {config.seed}")
        record = run_task(config, out, device=device, command=command, observe=watch)
        runs.append(DemoRun(record=record, folder=run_folder(config, out)))
    return runs


def demo_share(steps: int | None) -> float:
    """The share of the whole demo that `steps` is of the demixing part; 1 for None."""
    return 1.0 if steps is None else float(steps / load_protocol("demixing", "demo").tables["default"]["steps"])

"""Properties of the anomaly detector: pairs of scores and flags that are related."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.metamorphic.promises import Fit, Pair, Property, refused, saved_and_loaded, tiny_effort
from toa.estimators import AnomalyDetector

ROWS = 120
NEW_ROWS = 60
WINDOW = 8
COLUMNS = ["load", "heat", "flow"]
ORDER = ["flow", "date", "load", "heat"]
# a network that is trained in a tenth of a second
NETWORK: dict[str, Any] = {
    "model": "toa",
    "epochs": 1,
    "settings": {"embed_dim": 8, "num_heads": 2, "num_layers": 1, "ff_dim": 8},
}


def fit_methods(data: Any, **options: Any) -> AnomalyDetector:
    """All methods that need no network."""
    usual: dict[str, Any] = {"effort": tiny_effort(), "window": WINDOW, "device": "cpu"}
    return AnomalyDetector(**usual | options).fit(data)


def fit_network(data: Any, **options: Any) -> AnomalyDetector:
    """The network alone."""
    return fit_methods(data, **NETWORK | options)


def fit_pca(data: Any, **options: Any) -> AnomalyDetector:
    """One method that draws no random number."""
    return fit_methods(data, model="pca", **options)


def draw_table(random: np.random.Generator, rows: int = ROWS) -> pd.DataFrame:
    """Waves with noise, two of them alike, and one unusual row near the end."""
    steps = np.arange(rows)[:, None]
    values = np.sin(steps / np.array([3.0, 3.0, 5.0])) + 0.3 * random.normal(size=(rows, len(COLUMNS)))
    values[-WINDOW, random.integers(len(COLUMNS))] += 4.0
    frame = pd.DataFrame(values, columns=COLUMNS)
    frame.insert(0, "date", pd.date_range("2024-01-01", periods=rows, freq="h"))
    return frame


def draw_series(random: np.random.Generator, rows: int = ROWS) -> pd.DataFrame:
    parts = [draw_table(random, rows - int(random.integers(20))).assign(id=name) for name in ("x", "y", "z")]
    return pd.concat(parts, ignore_index=True)


def answers(result: Any) -> np.ndarray:
    """Score and flag of each row."""
    return np.stack([result["score"].to_numpy(), result["anomaly"].to_numpy()], 1)


def of_series(result: pd.DataFrame, names: str = "xyz") -> np.ndarray:
    """Score and flag of each row, in this order of the series."""
    return np.concatenate([answers(result[result["id"] == name]) for name in names])


def scale_values(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame, new = draw_table(random), draw_table(random, NEW_ROWS)
    scale = 10.0 ** random.uniform(-3, 3, len(COLUMNS))
    changed = [part.assign(**(part[COLUMNS] * scale)) for part in (frame, new)]
    yield answers(fit(frame).predict(new)), answers(fit(changed[0]).predict(changed[1]))


def shift_values(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame, new = draw_table(random), draw_table(random, NEW_ROWS)
    shift = random.uniform(-100, 100, len(COLUMNS))
    changed = [part.assign(**(part[COLUMNS] + shift)) for part in (frame, new)]
    yield answers(fit(frame).predict(new)), answers(fit(changed[0]).predict(changed[1]))


def rename_columns(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame, new = draw_table(random), draw_table(random, NEW_ROWS)
    names = {"load": "z", "heat": "y", "flow": "x", "date": "when"}
    yield answers(fit(frame).predict(new)), answers(fit(frame.rename(columns=names)).predict(new.rename(columns=names)))


def permute_columns(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame, new = draw_table(random), draw_table(random, NEW_ROWS)
    yield answers(fit(frame).predict(new)), answers(fit(frame[ORDER]).predict(new[ORDER]))


def permute_columns_after_fit(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    model = fit(draw_table(random))
    new = draw_table(random, NEW_ROWS)
    yield answers(model.predict(new)), answers(model.predict(new[ORDER]))


def duplicate_columns(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame, new = draw_table(random), draw_table(random, NEW_ROWS)
    twice = [part.assign(**{f"{name} again": part[name] for name in COLUMNS}) for part in (frame, new)]
    yield answers(fit(frame).predict(new)), answers(fit(twice[0]).predict(twice[1]))


def add_constant_column(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame, new = draw_table(random), draw_table(random, NEW_ROWS)
    value = float(random.uniform(-10, 10))
    yield (
        answers(fit(frame).predict(new)),
        answers(fit(frame.assign(constant=value)).predict(new.assign(constant=value))),
    )


def rename_series(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame, new = draw_series(random), draw_series(random, NEW_ROWS)
    names = {"x": "c", "y": "a", "z": "b"}
    renamed = [part.assign(id=part["id"].map(names)) for part in (frame, new)]
    result = fit(renamed[0], id="id").predict(renamed[1])
    yield of_series(fit(frame, id="id").predict(new)), of_series(result, "cab")


def permute_series(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame, new = draw_series(random), draw_series(random, NEW_ROWS)
    other = fit(_in_other_order(frame), id="id")
    yield of_series(fit(frame, id="id").predict(new)), of_series(other.predict(new))


def permute_series_after_fit(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    model = fit(draw_series(random), id="id")
    new = draw_series(random, NEW_ROWS)
    yield of_series(model.predict(new)), of_series(model.predict(_in_other_order(new)))


def _in_other_order(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([frame[frame["id"] == name] for name in "zxy"], ignore_index=True)


def _twice(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([frame, frame.assign(id=frame["id"].str.upper())], ignore_index=True)


def duplicate_series(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame, new = draw_series(random), draw_series(random, NEW_ROWS)
    yield of_series(fit(frame, id="id").predict(new)), of_series(fit(_twice(frame), id="id").predict(new))


def equal_series(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame, new = draw_series(random), draw_series(random, NEW_ROWS)
    result = fit(_twice(frame), id="id").predict(_twice(new))
    yield of_series(result), of_series(result, "XYZ")


def permute_rows(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame, new = draw_table(random), draw_table(random, NEW_ROWS)
    model = fit(frame)
    yield refused(lambda: fit(frame.iloc[random.permutation(len(frame))]))
    yield refused(lambda: model.predict(new.iloc[random.permutation(len(new))]))


def add_time_zone(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame, new = draw_table(random), draw_table(random, NEW_ROWS)
    zone = random.choice(["UTC", "Asia/Tokyo", "America/New_York"])
    zoned = [part.assign(date=part["date"].dt.tz_localize("UTC").dt.tz_convert(zone)) for part in (frame, new)]
    yield answers(fit(frame).predict(new)), answers(fit(zoned[0]).predict(zoned[1]))


def narrow_numbers(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    narrow = [part.astype(dict.fromkeys(COLUMNS, np.float32)) for part in (draw_table(random), draw_table(random))]
    wide = [part.astype(dict.fromkeys(COLUMNS, np.float64)) for part in narrow]
    yield answers(fit(wide[0]).predict(wide[1])), answers(fit(narrow[0]).predict(narrow[1]))


def other_frames(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    pl = pytest.importorskip("polars")
    pa = pytest.importorskip("pyarrow")
    frame, new = draw_table(random), draw_table(random, NEW_ROWS)
    expected = answers(fit(frame).predict(new))
    for convert in (pl.from_pandas, pa.Table.from_pandas):
        yield expected, answers(fit(convert(frame)).predict(convert(new)))


def one_by_one(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame, new = draw_series(random), draw_series(random, NEW_ROWS)
    model = fit(frame, id="id")
    together = model.predict(new)
    for name in "xyz":
        yield of_series(together, name), of_series(model.predict(new[new["id"] == name]), name)


def save_and_load(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame, new = draw_table(random), draw_table(random, NEW_ROWS)
    model = fit(frame)
    loaded = saved_and_loaded(model, folder)
    yield answers(model.predict(new)), answers(loaded.predict(new))
    model.reset_stream()
    yield answers(model.detect(new)), answers(loaded.detect(new))


def later_values(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame, new = draw_table(random), draw_table(random, NEW_ROWS)
    row = int(random.integers(WINDOW, NEW_ROWS))
    other = new.copy()
    other.loc[row:, COLUMNS] = 10.0 * random.normal(size=(NEW_ROWS - row, len(COLUMNS)))
    model = fit(frame)
    results = []
    for rows in (new, other):
        model.reset_stream()
        results.append(answers(model.detect(rows)))
    assert not np.array_equal(results[0][row:], results[1][row:]), "later scores see the other values"
    yield results[0][:row], results[1][:row]


def calls_of_any_size(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame, new = draw_table(random), draw_table(random, NEW_ROWS)
    model = fit(frame)
    model.reset_stream()
    once = answers(model.detect(new))
    for size in (1, int(random.integers(2, NEW_ROWS))):
        model.reset_stream()
        parts = [answers(model.detect(new[first : first + size])) for first in range(0, NEW_ROWS, size)]
        yield once, np.concatenate(parts)


PROPERTIES: dict[str, Property] = {
    "scale": scale_values,
    "shift": shift_values,
    "renamed columns": rename_columns,
    "permuted columns": permute_columns,
    "permuted columns after fit": permute_columns_after_fit,
    "duplicated columns": duplicate_columns,
    "one more constant column": add_constant_column,
    "renamed series": rename_series,
    "permuted series": permute_series,
    "permuted series after fit": permute_series_after_fit,
    "equal series": equal_series,
    "duplicated series": duplicate_series,
    "row order": permute_rows,
    "time zone": add_time_zone,
    "float32": narrow_numbers,
    "pandas, polars, arrow": other_frames,
    "one by one": one_by_one,
    "save and load": save_and_load,
    "later values": later_values,
    "calls of any size": calls_of_any_size,
}

"""Properties of the forecaster: pairs of forecasts that are related."""

import copy
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.metamorphic.promises import Fit, Pair, Property, refused, saved_and_loaded, tiny_effort
from toa.estimators import Forecaster

HORIZON = 4
PERIOD = 12
ROWS = 96
COLUMNS = ["load", "heat", "flow"]
# rows that a backtest may forecast
TESTED = 24
# rows between two fits of a backtest
REFIT = 8
# a network that is trained in a tenth of a second
NETWORK: dict[str, Any] = {"model": "toa", "backbone": "dlinear", "lookback": 24, "epochs": 1}


def fit_methods(data: Any, **options: Any) -> Forecaster:
    """All methods that need neither trees nor a network."""
    usual: dict[str, Any] = {"effort": tiny_effort(), "interval": 0.8, "season": PERIOD, "device": "cpu"}
    return Forecaster(HORIZON, **usual | options).fit(data)


def fit_network(data: Any, **options: Any) -> Forecaster:
    """The network alone."""
    return fit_methods(data, **NETWORK | options)


def draw_values(random: np.random.Generator, rows: int = ROWS, columns: int = len(COLUMNS)) -> np.ndarray:
    """Waves of one period with a trend and noise; the spread of each column is about one."""
    steps = np.arange(rows)[:, None]
    phase = random.uniform(0.0, PERIOD, columns)
    trend = random.normal(size=columns) * steps / rows
    return np.sin(2 * np.pi * (steps + phase) / PERIOD) + trend + 0.3 * random.normal(size=(rows, columns))


def draw_table(random: np.random.Generator, rows: int = ROWS) -> pd.DataFrame:
    frame = pd.DataFrame(draw_values(random, rows), columns=COLUMNS)
    frame.insert(0, "date", pd.date_range("2024-01-01", periods=rows, freq="2h"))
    return frame


def draw_series(random: np.random.Generator) -> pd.DataFrame:
    """Three series of different lengths in the rows of one table."""
    parts = [draw_table(random, int(random.integers(60, ROWS))).assign(id=name) for name in ("x", "y", "z")]
    return pd.concat(parts, ignore_index=True)


def numbers(forecast: pd.DataFrame, columns: Iterable[str] = COLUMNS) -> np.ndarray:
    """Forecasts and bounds of the columns."""
    names = [f"{column}{end}" for column in columns for end in ("", "_lower", "_upper")]
    return forecast[names].to_numpy()


def by_series(forecast: pd.DataFrame, names: Iterable[str]) -> np.ndarray:
    """Forecasts of the series in this order."""
    return np.concatenate([numbers(forecast[forecast["id"] == name]) for name in names])


def scale_values(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame = draw_table(random)
    scale = 10.0 ** random.uniform(-3, 3, len(COLUMNS))
    expected = numbers(fit(frame).predict())
    yield expected, numbers(fit(frame.assign(**(frame[COLUMNS] * scale))).predict()) / np.repeat(scale, 3)


def shift_values(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame = draw_table(random)
    shift = random.uniform(-100, 100, len(COLUMNS))
    expected = numbers(fit(frame).predict())
    yield expected, numbers(fit(frame.assign(**(frame[COLUMNS] + shift))).predict()) - np.repeat(shift, 3)


def rename_columns(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame = draw_table(random)
    names = {"load": "z", "heat": "y", "flow": "x", "date": "when"}
    renamed = fit(frame.rename(columns=names)).predict()
    yield numbers(fit(frame).predict()), numbers(renamed, "zyx")


def permute_columns(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame = draw_table(random)
    yield numbers(fit(frame).predict()), numbers(fit(frame[["flow", "date", "load", "heat"]]).predict())


def permute_columns_after_fit(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    model = fit(draw_table(random))
    new = draw_table(random)
    yield numbers(model.predict(new)), numbers(model.predict(new[["flow", "date", "load", "heat"]]))


def duplicate_columns(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame = draw_table(random)
    forecast = fit(frame.assign(**{f"{name} again": frame[name] for name in COLUMNS})).predict()
    yield numbers(fit(frame).predict()), numbers(forecast)


def equal_columns(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame = draw_table(random)
    forecast = fit(frame.assign(copy=frame["load"])).predict()
    yield numbers(forecast, ["load"]), numbers(forecast, ["copy"])


def add_constant_column(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame = draw_table(random)
    yield numbers(fit(frame).predict()), numbers(fit(frame.assign(constant=random.uniform(-10, 10))).predict())


def rename_series(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame = draw_series(random)
    renamed = frame.assign(id=frame["id"].map({"x": "third", "y": "first", "z": "second"}))
    forecast = fit(renamed, id="id").predict()
    yield by_series(fit(frame, id="id").predict(), "xyz"), by_series(forecast, ["third", "first", "second"])


def permute_series(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame = draw_series(random)
    other = fit(_in_other_order(frame), id="id")
    yield by_series(fit(frame, id="id").predict(), "xyz"), by_series(other.predict(), "xyz")


def permute_series_after_fit(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame = draw_series(random)
    model = fit(frame, id="id")
    yield by_series(model.predict(frame), "xyz"), by_series(model.predict(_in_other_order(frame)), "xyz")


def _in_other_order(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([frame[frame["id"] == name] for name in "zxy"], ignore_index=True)


def duplicate_series(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame = draw_series(random)
    twice = pd.concat([frame, frame.assign(id=frame["id"].str.upper())], ignore_index=True)
    yield by_series(fit(frame, id="id").predict(), "xyz"), by_series(fit(twice, id="id").predict(), "xyz")


def equal_series(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame = draw_series(random)
    twice = pd.concat([frame, frame.assign(id=frame["id"].str.upper())], ignore_index=True)
    forecast = fit(twice, id="id").predict()
    yield by_series(forecast, "xyz"), by_series(forecast, "XYZ")


def permute_rows(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame = draw_series(random)
    other = frame.iloc[random.permutation(len(frame))]
    model = fit(frame, id="id")
    yield refused(lambda: fit(other, id="id"))
    yield refused(lambda: model.predict(other))


def add_time_zone(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame = draw_table(random)
    zone = random.choice(["UTC", "Asia/Tokyo", "America/New_York"])
    other = frame.assign(date=frame["date"].dt.tz_localize("UTC").dt.tz_convert(zone))
    plain, zoned = fit(frame).predict(), fit(other).predict()
    yield numbers(plain), numbers(zoned)
    instants = (part.astype("int64").to_numpy() for part in (plain["date"], zoned["date"].dt.tz_convert("UTC")))
    expected, got = instants
    yield expected - expected[0], got - expected[0]


def narrow_numbers(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    narrow = draw_table(random).astype(dict.fromkeys(COLUMNS, np.float32))
    wide = narrow.astype(dict.fromkeys(COLUMNS, np.float64))
    expected, got = fit(wide).predict(), fit(narrow).predict()
    yield numbers(expected), numbers(got)


def other_frames(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    pl = pytest.importorskip("polars")
    pa = pytest.importorskip("pyarrow")
    frame = draw_table(random)
    expected = numbers(fit(frame).predict())
    yield expected, numbers(fit(pl.from_pandas(frame)).predict().to_pandas())
    yield expected, numbers(fit(pa.Table.from_pandas(frame)).predict().to_pandas())


def one_by_one(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame = draw_series(random)
    model = fit(frame, id="id")
    new = frame.assign(**{name: frame[name] + random.normal(size=len(frame)) for name in COLUMNS})
    together = model.predict(new)
    for name in "xyz":
        yield by_series(together, name), by_series(model.predict(new[new["id"] == name]), name)


def save_and_load(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame = draw_table(random)
    model = fit(frame)
    loaded = saved_and_loaded(model, folder)
    new = draw_table(random)
    yield numbers(model.predict()), numbers(loaded.predict(frame))
    yield numbers(model.predict(new)), numbers(loaded.predict(new))


def export_to_onnx(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame = draw_table(random)
    # float32 would lose the digits of a large offset
    offset = 10.0 ** random.uniform(0, 8)
    frame[COLUMNS] += offset
    model = fit(frame)
    if model.weights_ != {"toa": 1.0}:
        yield refused(lambda: model.export(folder / "model.onnx"))
        return
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model.export(folder / "model.onnx")
    session = runtime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    rows = frame[COLUMNS].to_numpy()[-model.lookback_ :]
    names = [port.name for port in session.get_outputs()]
    answers = dict(zip(names, session.run(None, {"series": rows[None]}), strict=True))
    forecast = model.predict()
    for name, ending in (("forecast", ""), ("lower", "_lower"), ("upper", "_upper")):
        yield forecast[[f"{column}{ending}" for column in COLUMNS]].to_numpy() - offset, answers[name][0] - offset


def update_by_rows(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame = draw_table(random, ROWS + TESTED)
    expected = numbers(fit(frame[:ROWS]).predict(frame))
    for size in (1, int(random.integers(2, TESTED)), TESTED):
        # not the shared estimator, which an update would change
        model = copy.deepcopy(fit(frame[:ROWS]))
        for start in range(ROWS, len(frame), size):
            model.update(frame[start : start + size])
        yield expected, numbers(model.predict())


def shorter_horizons(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    model = fit(draw_table(random))
    steps = int(random.integers(1, HORIZON))
    yield numbers(model.predict())[:steps], numbers(model.predict(horizon=steps))


def later_values(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame = draw_table(random)
    origin = ROWS - int(random.integers(HORIZON + PERIOD, TESTED))
    yield from _before(fit(frame[: ROWS - TESTED]), frame, origin, random)


def later_values_with_gaps(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame = draw_table(random)
    for name in COLUMNS:
        frame.loc[random.integers(1, ROWS - HORIZON, 20), name] = np.nan
    origin = ROWS - int(random.integers(HORIZON + PERIOD, TESTED))
    for missing in ("ffill", "interpolate", "zero"):
        model = fit(frame[: ROWS - TESTED], missing=missing)
        yield from _before(model, frame, origin, random)


def later_values_with_covariates(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame = draw_table(random).assign(promo=random.normal(size=ROWS), weather=random.normal(size=ROWS))
    frame["load"] += frame["promo"]
    model = fit(frame[: ROWS - TESTED], covariates=["promo"], past_covariates=["weather"])
    origin = ROWS - int(random.integers(HORIZON + PERIOD, TESTED))
    yield from _before(model, frame, origin, random, [*COLUMNS, "weather"])


def later_values_with_refits(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame = draw_table(random)
    origin = ROWS - int(random.integers(HORIZON + PERIOD, TESTED))
    yield from _before(fit(frame[: ROWS - TESTED]), frame, origin, random, refit=REFIT)


def _before(
    model: Forecaster,
    frame: pd.DataFrame,
    origin: int,
    random: np.random.Generator,
    columns: Iterable[str] = COLUMNS,
    refit: int | None = None,
) -> Iterator[Pair]:
    """Forecasts at all origins up to one, with the values from there on and with other ones."""
    other = frame.copy()
    for name in columns:
        other.loc[origin:, name] = 10.0 * random.normal(size=len(frame) - origin)
    tested = [model.backtest(rows, test_size=TESTED, refit=refit) for rows in (frame, other)]
    early = tested[0].origins <= origin
    later = ~early
    assert early.any()
    before, after = (part.forecast[later] for part in tested)
    # a seasonal naive forecast sees a value one season later: origins are that far from the end
    assert not np.array_equal(before, after), "later forecasts see the other values"
    for name in ("forecast", "lower", "upper"):
        expected, got = (getattr(part, name)[early] for part in tested)
        yield expected, got


PROPERTIES: dict[str, Property] = {
    "scale": scale_values,
    "shift": shift_values,
    "renamed columns": rename_columns,
    "permuted columns": permute_columns,
    "permuted columns after fit": permute_columns_after_fit,
    "equal columns": equal_columns,
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
    "ONNX": export_to_onnx,
    "rows of a stream": update_by_rows,
    "shorter horizons": shorter_horizons,
    "later values": later_values,
    "later values, missing values": later_values_with_gaps,
    "later values, covariates": later_values_with_covariates,
    "later values, refits": later_values_with_refits,
}

"""Tables as other libraries have them are read without options."""

import numpy as np
import pandas as pd
import pytest

from tests.estimators.signals import quick, wave
from tests.support import message
from toa.data.frames import read_panel
from toa.data.layouts import LAYOUTS

pl = pytest.importorskip("polars")

NIXTLA, GLUON = LAYOUTS


def table(layout=NIXTLA, rows: int = 60, **columns) -> pd.DataFrame:
    days = pd.date_range("2024-01-01", periods=rows, freq="D")
    parts = [
        pd.DataFrame({layout.id: name, layout.time: days, layout.target: wave(rows, level=10.0, seed=place)})
        for place, name in enumerate(("a", "b"))
    ]
    return pd.concat(parts, ignore_index=True).assign(**columns)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.id)
@pytest.mark.parametrize("kind", [lambda frame: frame, pl.from_pandas], ids=["pandas", "polars"])
def test_the_names_of_other_libraries_need_no_options(layout, kind) -> None:
    frame = kind(table(layout))
    panel = read_panel(frame)
    assert (panel.ids, panel.id_column, panel.time_column) == (("a", "b"), layout.id, layout.time)
    assert panel.columns == (layout.target,)


def test_a_forecast_of_such_a_table_has_its_columns(tmp_path) -> None:
    model = quick(epochs=1).fit(table())
    forecast = model.predict()
    assert list(forecast) == ["unique_id", "ds", "y"]
    assert forecast["unique_id"].unique().tolist() == ["a", "b"]
    assert model.id_ == "unique_id"
    model.save(tmp_path / "model.toa")
    loaded = type(model).load(tmp_path / "model.toa")
    assert loaded.id_ == "unique_id"
    pd.testing.assert_frame_equal(loaded.predict(table()), forecast)
    assert len(loaded.predict(table()[table()["unique_id"] == "b"])) == 6


def test_only_the_target_is_forecast_and_other_columns_are_named() -> None:
    frame = table(price=np.arange(120) % 7, promo=1.0)
    with pytest.warns(UserWarning, match=message("'y' is forecast", "'price' are not read", "covariates")):
        model = quick(epochs=1, past_covariates=("promo",)).fit(frame)
    assert model.columns_ == ("y",)


def test_named_columns_are_read_as_the_user_says() -> None:
    frame = table(price=np.arange(120) % 7)
    assert read_panel(frame, id="unique_id").columns == ("y", "price")
    assert read_panel(frame, values=["price"]).columns == ("price",)
    other = frame.rename(columns={"ds": "when"})
    with pytest.raises(ValueError, match="give id, if the column names the series"):
        read_panel(other)


@pytest.mark.parametrize(
    ("series", "name"),
    [
        (pd.Series(wave(60), index=pd.date_range("2024-01-01", periods=60, freq="h"), name="load"), "load"),
        (pd.Series(wave(60), index=pd.period_range("2020-01", periods=60, freq="M")), "value"),
        (pl.Series("load", wave(60)), "load"),
        (pl.Series(wave(60)), "value"),
    ],
    ids=["dates", "periods", "polars", "without a name"],
)
def test_a_series_is_a_table_with_one_column(series, name) -> None:
    panel = read_panel(series)
    assert panel.columns == (name,)
    np.testing.assert_array_equal(panel.values[0][:, 0], wave(60))
    forecast = quick(epochs=1).fit(series).predict()
    assert name in list(forecast.columns)


@pytest.mark.parametrize("order", [["item", "when"], ["when", "item"]])
def test_an_index_of_ids_and_dates_becomes_two_columns(order) -> None:
    frame = table().rename(columns={"unique_id": "item", "ds": "when"}).set_index(order)
    panel = read_panel(frame)
    assert (panel.id_column, panel.time_column, panel.ids) == ("item", "when", ("a", "b"))
    unnamed = read_panel(frame.rename_axis([None, None]))
    assert (unnamed.id_column, unnamed.time_column) == ("id", "time")
    assert quick(epochs=1).fit(frame).predict().columns.tolist() == ["item", "when", "y"]


def test_names_of_columns_in_several_levels_are_joined() -> None:
    frame = pd.DataFrame(
        np.arange(20.0).reshape(10, 2) % 7, columns=pd.MultiIndex.from_product([["close"], ["a", "b"]])
    )
    assert read_panel(frame).columns == ("close a", "close b")
    frame.columns = pd.MultiIndex.from_tuples([("a",), ("b",)])
    assert read_panel(frame).columns == ("a", "b")


@pytest.mark.parametrize(
    "flags", [[True, False] * 15, pd.array([True, None] * 15, dtype="boolean"), [True, False, None] * 10]
)
def test_flags_are_zeros_and_ones(flags) -> None:
    frame = pd.DataFrame({"y": wave(30), "on": flags})
    panel = read_panel(frame, missing="zero")
    expected = [float(flag) if flag is not pd.NA and flag is not None else 0.0 for flag in flags]
    assert panel.values[0][:, 1].tolist() == expected


def test_flags_of_polars_are_zeros_and_ones() -> None:
    frame = pl.DataFrame({"y": wave(4), "on": [True, False, True, True]})
    assert read_panel(frame).values[0][:, 1].tolist() == [1.0, 0.0, 1.0, 1.0]

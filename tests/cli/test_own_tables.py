"""What people's own tables are like: names of files and of things, gaps, and numbers that are dates."""

import re

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from tests.support import message
from toa.cli import app
from toa.data.formats import read_frame
from toa.data.frames import read_panel
from toa.estimators import AnomalyDetector, Classifier, Forecaster
from toa.estimators.backtest import without_last
from toa.estimators.files import SavedColumns, saved_columns

QUICK = ("--effort", "least", "--device", "cpu")


def call(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(map(str, words)), env={"COLUMNS": "200", "TERM": "dumb"})
    return result.exit_code, re.sub(r"\s+", " ", result.output)


def daily(rows: int = 60, start: str = "2024-01-01") -> pd.DataFrame:
    values = np.sin(np.arange(rows)) + np.random.default_rng(0).normal(size=rows)
    return pd.DataFrame({"day": pd.date_range(start, periods=rows), "y": values})


def quick(**options) -> Forecaster:
    return Forecaster(horizon=2, effort="least", device="cpu", **options)


# results never replace data


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ((), "--out must be another file than the data, got forecast.csv for both"),
        (("--out", "a.csv", "--save", "forecast.csv"), "--save must be another file than the data"),
        (("--out", "a.csv", "--save", "a.csv"), "--save must be another file than --out"),
    ],
)
def test_no_result_replaces_the_data_or_another_result(tmp_path, monkeypatch, words, rule):
    monkeypatch.chdir(tmp_path)
    daily().to_csv("forecast.csv", index=False)
    before = (tmp_path / "forecast.csv").read_bytes()
    code, text = call("forecast", "forecast.csv", "--horizon", 2, *words, *QUICK)
    assert code == 2
    assert rule in text
    assert (tmp_path / "forecast.csv").read_bytes() == before


def test_events_do_not_replace_the_table_of_normal_rows(tmp_path):
    for name in ("new.csv", "normal.csv"):
        daily().to_csv(tmp_path / name, index=False)
    words = ("--train", tmp_path / "normal.csv", "--out", tmp_path / "rows.csv", "--events", tmp_path / "normal.csv")
    code, text = call("detect", tmp_path / "new.csv", *words, "--method", "pca")
    assert code == 2
    assert "--events must be another file than --train" in text


# times


def test_a_forecaster_of_integer_times_is_saved(tmp_path):
    table = pd.DataFrame({"t": range(60), "y": daily()["y"]})
    own = quick(time="t").fit(table)
    own.save(tmp_path / "m.toa")
    pd.testing.assert_frame_equal(Forecaster.load(tmp_path / "m.toa").predict(table), own.predict())


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["t", "step"])
def test_a_column_of_equal_steps_is_kept_and_offered_as_the_time(tmp_path, name):
    table = pd.DataFrame({name: range(10, 70), "y": daily()["y"]})
    table.to_csv(tmp_path / "own.csv", index=False)
    words = ("forecast", tmp_path / "own.csv", "--horizon", 2, "--out", tmp_path / "o.csv", *QUICK)
    code, text = call(*words)
    assert (
        f"warning: column '{name}' is read as values, but looks like a time; give --time {name} if it is one." in text
    )
    assert code == (2 if name == "step" else 0)
    assert ("two results named 'step'; give --time step if it holds the times, or rename" in text) == (name == "step")
    code, text = call(*words, "--time", name)
    assert (code, "warning" in text) == (0, False)
    assert pd.read_csv(tmp_path / "o.csv")[name].tolist() == [70, 71]


def test_equal_steps_of_several_series_and_of_fractions_are_noticed():
    table = pd.DataFrame({"who": ["a", "b"] * 30, "t": np.repeat(np.arange(30), 2), "y": daily()["y"]})
    with pytest.warns(UserWarning, match="column 't' is read as values, but looks like a time; give time='t' if"):
        panel = read_panel(table, id="who")
    assert panel.columns == ("t", "y")
    with pytest.warns(UserWarning, match="choose the other columns with values if it is one."):
        read_panel(table[["t", "y"]].assign(t=0.01 * np.arange(60)))


@pytest.mark.parametrize(
    "options", [{"values": ["t", "y"]}, {"categories": {"t": None}}, {"time": "day"}, {"name": "future"}]
)
def test_chosen_columns_and_tables_with_times_are_not_warned_of(options):
    table = daily().assign(t=range(60))
    assert "t" in read_panel(table if "time" in options else table[["t", "y"]], **options).columns


def test_irregular_and_short_columns_are_values():
    table = daily()[["y"]].assign(t=np.arange(60) ** 2)
    assert read_panel(table).columns == ("y", "t")
    assert read_panel(table.assign(t=range(60))[:5]).columns == ("y", "t")


def times_of(table: pd.DataFrame, **options) -> list[object]:
    """The times of a table, as estimators read them."""
    (found,) = read_panel(table, **options).times or ()
    return found.tolist()


def test_whole_floats_are_steps_and_others_are_refused():
    table = pd.DataFrame({"t": np.arange(60.0), "y": daily()["y"]})
    assert times_of(table, time="t") == list(range(60))
    with pytest.raises(ValueError, match=message("column 't' of data must have dates or whole numbers", "got 0.5")):
        times_of(table.assign(t=table["t"] / 2), time="t")
    with pytest.raises(ValueError, match=message("must have a number in every row")):
        times_of(table.assign(t=table["t"].where(table["t"] != 3)), time="t")


def test_numbers_that_spell_dates_are_dates():
    table = daily().assign(day=lambda one: one["day"].dt.strftime("%Y%m%d").astype(int))
    for options in ({}, {"time": "day"}):
        with pytest.warns(UserWarning, match=message("20240101", "read as dates", "2024-01-01")):
            assert times_of(table, **options) == daily()["day"].tolist()
    months = pd.date_range("2019-03-01", periods=60, freq="MS")
    table = pd.DataFrame({"month": months.strftime("%Y%m").astype(int), "y": daily()["y"]})
    with pytest.warns(UserWarning, match=message("201903", "2019-03-01")):
        assert times_of(table, time="month") == months.tolist()


def test_numbers_of_which_one_is_no_date_stay_numbers():
    table = pd.DataFrame({"t": np.arange(20240110, 20240170), "y": daily()["y"]})
    assert times_of(table, time="t") == table["t"].tolist()


def test_a_column_of_days_is_found():
    table = daily()
    assert times_of(table.assign(day=table["day"].dt.date)) == table["day"].tolist()


def test_the_step_of_integers_can_be_given_as_text():
    table = pd.DataFrame({"t": range(0, 120, 2), "y": daily()["y"]})
    assert read_panel(table, time="t", freq="2").freq == 2


# gaps


def test_a_share_to_test_on_is_not_trained_on_though_rows_are_missing(tmp_path):
    table = daily(300)
    kept = np.random.default_rng(0).random(300) > 0.45
    table = table[kept | (np.arange(300) > 200) | (np.arange(300) == 0)]
    own = Forecaster(horizon=7, missing="ffill", effort="least", device="cpu")
    trained = without_last(own.read(table), table, 0.2, own.horizon)
    assert trained["day"].max() < own.fit(trained).backtest(table, test_size=0.2).frame()["day"].min()
    assert len(table) - len(trained) == 60


def test_gaps_of_a_new_table_are_filled_as_asked(tmp_path):
    daily().to_csv(tmp_path / "a.csv", index=False)
    daily().drop(index=50).to_csv(tmp_path / "gap.csv", index=False)
    files = ("--out", tmp_path / "o.csv")
    assert call("forecast", tmp_path / "a.csv", "--horizon", 2, "--save", tmp_path / "m.toa", *files, *QUICK)[0] == 0
    new = ("forecast", tmp_path / "gap.csv", "--model", tmp_path / "m.toa", *files)
    assert "--missing ffill" in call(*new)[1]
    code, text = call(*new, "--missing", "ffill")
    assert code == 0, text


def test_none_beside_numbers_is_a_missing_value():
    table = daily().astype({"y": object})
    table.loc[3, "y"] = None
    with pytest.raises(ValueError, match=message("missing")):
        read_panel(table)
    assert read_panel(table, missing="ffill").values[0][3, 0] == table.loc[2, "y"]


# names


def test_ids_of_a_text_file_stay_as_they_are(tmp_path):
    parts = [daily().assign(store=store) for store in ("007", "12", "NA")]
    pd.concat(parts).to_csv(tmp_path / "shops.csv", index=False)
    words = ("--id", "store", "--horizon", 2, "--save", tmp_path / "m.toa", "--out", tmp_path / "o.csv")
    code, text = call("forecast", tmp_path / "shops.csv", *words, *QUICK)
    assert code == 0, text
    again = ("--model", tmp_path / "m.toa", "--out", tmp_path / "again.csv")
    code, text = call("forecast", tmp_path / "shops.csv", *again)
    assert code == 0, text
    for name in ("o.csv", "again.csv"):
        found = pd.read_csv(tmp_path / name, dtype=str, keep_default_na=False)["store"]
        assert list(dict.fromkeys(found)) == ["007", "12", "NA"]
    # a later table without text among its ids: 12 is still the series of fit
    parts[1].to_csv(tmp_path / "one.csv", index=False)
    code, text = call("forecast", tmp_path / "one.csv", *again)
    assert code == 0, text
    assert "series were not in the training" not in text


def test_ids_that_are_plain_numbers_stay_numbers(tmp_path):
    (tmp_path / "a.csv").write_text("id,y\n7,1\n12,2\n")
    assert read_frame(tmp_path / "a.csv", names=["id"])["id"].tolist() == [7, 12]


def test_numbers_of_selected_rows_are_no_series(tmp_path):
    chosen = daily()[::2].reset_index(drop=True).set_index(pd.Index(range(3, 120, 4)))
    chosen.to_parquet(tmp_path / "a.parquet")
    assert list(read_frame(tmp_path / "a.parquet").columns) == ["day", "y"]
    chosen.to_csv(tmp_path / "a.csv")
    with pytest.warns(UserWarning, match=message("the first column has no name")):
        assert list(read_frame(tmp_path / "a.csv").columns) == ["day", "y"]
    chosen.rename_axis("machine").to_parquet(tmp_path / "b.parquet")
    assert list(read_frame(tmp_path / "b.parquet").columns) == ["machine", "day", "y"]


# intervals


def test_quantiles_of_a_column_do_not_depend_on_other_columns():
    own = Forecaster(horizon=12, quantiles=[0.1, 0.9], effort="least", device="cpu")
    alone, both = (own.fit(table).predict() for table in (daily(60), daily(60).assign(z=5.0)))
    width, other = ((found["y_q0.9"] - found["y_q0.1"]).mean() for found in (alone, both))
    assert other == pytest.approx(width, rel=0.1)


def test_a_series_of_one_row_has_an_interval_of_its_level():
    small, large = (daily()["y"].to_numpy() * share + 1 for share in (0.1, 0.05))
    table = pd.DataFrame(
        {
            "id": ["a"] * 60 + ["b"] * 60 + ["c"],
            "t": [*range(60), *range(60), 0],
            "y": [*(10 * small), *(1e7 * large), 9.7e6],
        }
    )
    found = Forecaster(horizon=2, id="id", time="t", interval=0.8, effort="least", device="cpu").fit(table).predict()
    assert found.iloc[-1]["y_upper"] - found.iloc[-1]["y_lower"] > 1e5


# detection and classification


def test_a_detector_keeps_the_order_of_the_dates_of_fit(tmp_path):
    table = daily(300, "2026-01-01")
    text = table.assign(day=table["day"].dt.strftime("%d/%m/%Y"))
    own = AnomalyDetector(model="pca", window=8, device="cpu").fit(text)
    own.save(tmp_path / "m.toa")
    for one in (own, AnomalyDetector.load(tmp_path / "m.toa")):
        assert one.predict(text[31:43])["day"].iloc[0] == pd.Timestamp("2026-02-01")


def test_dates_are_read_as_asked_before_training(tmp_path):
    table = daily(300, "2026-01-01")
    table["day"] = table["day"].dt.strftime("%d/%m/%Y")
    table.to_csv(tmp_path / "normal.csv", index=False)
    # the first of each month: both orders are regular
    table[31:43].to_csv(tmp_path / "new.csv", index=False)
    words = ("--train", tmp_path / "normal.csv", "--day-first", "--method", "pca", "--window", 8)
    code, text = call("detect", tmp_path / "new.csv", *words, "--out", tmp_path / "o.csv")
    assert code == 0, text


def test_one_labelled_array_in_a_list_is_scored():
    values = daily(200)["y"].to_numpy().copy()
    values[150] = 50.0
    labels = np.arange(200) == 150
    own = AnomalyDetector(model="pca", window=8, device="cpu").fit(values)
    assert own.score([values], [labels]) == own.score(values, labels)


def test_no_events_have_the_columns_of_events():
    pl = pytest.importorskip("polars")
    table = daily(200)
    spiked = table.assign(y=table["y"].where(table.index != 150, 90.0))
    own = AnomalyDetector(model="pca", window=8, device="cpu").fit(pl.from_pandas(table))
    some = own.events(pl.from_pandas(spiked))
    none = own.events(pl.from_pandas(table)).head(0)
    empty = own.events(pl.from_pandas(table.assign(y=0.0)))
    assert len(some) > 0
    assert len(empty) == 0
    assert pl.concat([some, empty]).schema == pl.concat([some, none]).schema


def cases(names: list[str]) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    steps = np.arange(len(names))
    rows = [np.sin(steps * (0.3 + kind)) + 0.1 * rng.normal(size=len(names)) for kind in (0, 1) * 12]
    return pd.DataFrame(rows, columns=names).assign(kind=["a", "b"] * 12)


def test_steps_are_matched_by_name(tmp_path):
    names = [f"t{i}" for i in range(16)]
    table = cases(names)
    own = Classifier(label="kind", effort="least", device="cpu").fit(table)
    own.save(tmp_path / "m.toa")
    for one in (own, Classifier.load(tmp_path / "m.toa")):
        assert (one.predict(table[["kind", *names[::-1]]]) == one.predict(table)).all()
        with pytest.raises(ValueError, match=message("X must have the steps of fit, 't0' to 't15'", "no 't5'")):
            one.predict(table.drop(columns="t5"))
        with pytest.raises(ValueError, match=message("a new one, 'case'")):
            one.predict(table.assign(case=1)[["case", *names]])


def test_classes_that_are_numbers_in_one_file_are_compared_as_text(tmp_path):
    table = cases([f"t{i}" for i in range(16)])
    kinds = ["1", "2", "A"] * 8
    table.assign(kind=kinds).to_csv(tmp_path / "train.csv", index=False)
    table.assign(kind=kinds)[table.index % 3 < 2].to_csv(tmp_path / "test.csv", index=False)
    words = ("--label", "kind", "--test", tmp_path / "test.csv", "--out", tmp_path / "o.csv", "--effort", "least")
    code, text = call("classify", tmp_path / "train.csv", *words)
    assert code == 0, text
    assert "16 cases of test.csv: accuracy" in text
    # the file has no case of the third class
    assert re.search(r"class cases recall precision .* A 0 ", text), text


def test_classes_that_are_numbers_are_compared_as_text_with_a_file_of_text(tmp_path):
    table = cases([f"t{i}" for i in range(16)])
    kinds = np.arange(24) % 3 + 9
    table.assign(kind=kinds).to_csv(tmp_path / "train.csv", index=False)
    table.assign(kind=["unknown", *map(str, kinds[1:])]).to_csv(tmp_path / "test.csv", index=False)
    words = ("--label", "kind", "--test", tmp_path / "test.csv", "--out", tmp_path / "o.csv", "--effort", "least")
    code, text = call("classify", tmp_path / "train.csv", *words)
    assert code == 0, text
    found = pd.read_csv(tmp_path / "o.csv")["prediction"]
    assert f"23 cases of test.csv: accuracy {(found[1:] == kinds[1:]).mean():.3f}," in text
    assert "1 of 24 cases are not evaluated: their labels are not classes of the model: 'unknown' (1)." in text


def test_a_text_file_without_names_of_columns_is_refused(tmp_path):
    """The first row would be lost, and 1.5 be the name of a column."""
    path = tmp_path / "a.csv"
    path.write_text("2024-01-01,1.5\n2024-01-02,2.5\n2024-01-03,3.5\n")
    code, text = call("forecast", path, "--horizon", 1, *QUICK)
    assert code == 2
    assert "must begin with the names of its columns, got '2024-01-01', '1.5'; add a first line of names." in text
    path.write_text("01.01.2024;1,5\n02.01.2024;2\n03.01.2024;2,5\n")
    assert "must begin with the names" in call("forecast", path, "--horizon", 1, *QUICK)[1]
    for names in ("date,1.5", "0.5,1.5", "2024-01-01,y"):
        path.write_text(f"{names}\n7,8\n")
        assert len(read_frame(path)) == 1


def test_a_covariate_that_the_data_lack_is_not_asked_of_the_future(tmp_path):
    daily().to_csv(tmp_path / "a.csv", index=False)
    pd.DataFrame({"day": pd.date_range("2024-03-01", periods=2), "promo": 1.0}).to_csv(tmp_path / "b.csv", index=False)
    words = ("forecast", tmp_path / "a.csv", "--horizon", 2, "--future", tmp_path / "b.csv", *QUICK)
    assert "error: DATA must have the covariate 'promotion', got 'y'." in call(*words, "--covariate", "promotion")[1]
    daily().assign(other=1.0).to_csv(tmp_path / "a.csv", index=False)
    assert "got no such column in" in (text := call(*words, "--covariate", "other")[1])
    assert text.endswith("; add it. ")


@pytest.mark.filterwarnings("default")
def test_a_horizon_of_all_rows_has_no_interval_and_states_the_remedy(tmp_path):
    daily(5).to_csv(tmp_path / "a.csv", index=False)
    code, text = call("forecast", tmp_path / "a.csv", "--horizon", 5, "--out", tmp_path / "b.csv", *QUICK)
    assert code == 0
    assert "a series must have more rows than the horizon, got none" in text
    assert "add rows, or shorten the horizon." in text


def test_a_column_that_begins_in_the_tested_rows_is_named_before_training(tmp_path):
    table = daily().assign(late=np.where(np.arange(60) < 50, np.nan, 1.0))
    table.to_csv(tmp_path / "a.csv", index=False)
    code, text = call("forecast", tmp_path / "a.csv", "--horizon", 2, "--test", 0.3, *QUICK)
    assert code == 2
    assert (
        "column 'late' of DATA must begin before the tested rows, got its first value in its row 51 and --test 0.3"
        in text
    )
    assert text.endswith("; test fewer rows, or choose the other columns with --value. ")


def test_columns_are_known_from_a_saved_model_and_from_no_other_file(tmp_path):
    (tmp_path / "a.csv").write_text("id,y\n1,2\n", encoding="utf-8")
    assert saved_columns(tmp_path / "a.csv") == saved_columns(tmp_path / "nosuch.toa") == SavedColumns()
    rows = pd.concat([daily().assign(shop=name) for name in ("007", "008")])
    forecaster = Forecaster(2, id="shop", time="day", effort="least", device="cpu").fit(rows)
    forecaster.save(tmp_path / "shops.toa")
    assert saved_columns(tmp_path / "shops.toa") == SavedColumns(id="shop", has_text_ids=True)

import re
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from tests.estimators.signals import long, wide
from tests.estimators.stages import only
from toa.cli import app
from toa.estimators import Forecaster
from toa.models import BACKBONES
from toa.nn import ATTENTIONS
from toa.report.figures import PANELS, draw_forecast

QUICK = ("--backbone", "dlinear", "--lookback", "24", "--epochs", "1", "--device", "cpu")


def call(*words: object):
    result = CliRunner().invoke(app, ["forecast", *map(str, words)], env={"COLUMNS": "200", "TERM": "dumb"})
    return result.exit_code, re.sub(r"\s+", " ", result.output)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "load.csv"
    wide().to_csv(path, index=False)
    return path


@pytest.mark.usefixtures("pictures")
def test_one_command_writes_a_forecast_with_intervals_and_a_picture(table, tmp_path) -> None:
    out = tmp_path / "out" / "next.csv"
    options = (*QUICK, "--epochs", "8", "--effort", "thorough")
    code, text = call(table, "--horizon", 6, "--out", out, "--quantile", 0.1, "--test", 0.2, *options)
    assert code == 0, text
    found = pd.read_csv(out)
    assert list(found.columns) == [
        "date",
        *(f"load{end}" for end in ("", "_q0.1", "_lower", "_upper")),
        *(f"heat{end}" for end in ("", "_q0.1", "_lower", "_upper")),
    ]
    assert found["date"].tolist() == [f"2024-01-21 {hour:02}:00:00" for hour in range(0, 12, 2)]
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "240 rows, every 2h; forecast: load, heat." in text
    assert "dlinear, " in text
    assert "6 steps from the last 24" in text
    assert "pinball loss on held-out rows" in text
    assert "last 20% of the rows, 43 forecasts: MSE" in text
    assert "of values within the 80% interval; MAE load" in text
    settings: Any = {"backbone": "dlinear", "lookback": 24, "epochs": 8, "effort": "thorough", "device": "cpu"}
    seen = Forecaster(6, interval=0.8, quantiles=[0.1], **settings)
    own = seen.fit(wide()[:192]).weights_
    assert "weights: " in text
    weights = text.split("weights in the test, fitted without its rows: ")[1]
    assert all(f"{weight:.2f} {name}" in weights for name, weight in own.items())
    assert "MAE RMSE MASE WAPE sMAPE" in text
    assert re.search("(beats|loses to) seasonal naive on", text)


def test_rows_to_test_on_are_not_trained_on_but_forecast_from(table, tmp_path) -> None:
    out = tmp_path / "next.csv"
    _, text = call(table, "--horizon", 6, "--out", out, "--test", 0.2, "--network-only", *QUICK)
    model = Forecaster(6, model="toa", interval=0.8, backbone="dlinear", lookback=24, epochs=1, device="cpu")
    assert f"MSE {model.fit(wide()[:192]).backtest(wide(), test_size=0.2).metrics['mse']:.4f}" in text
    np.testing.assert_allclose(pd.read_csv(out)["load"], model.fit(wide()).predict()["load"])


def test_networks_of_several_seeds_are_averaged_and_named(table, tmp_path) -> None:
    out = tmp_path / "next.csv"
    code, text = call(table, "--horizon", 6, "--out", out, "--network-only", "--seeds", 2, *QUICK)
    assert code == 0, text
    assert "mean of 2 networks: dlinear, " in text
    model = Forecaster(6, model="toa", seeds=2, interval=0.8, backbone="dlinear", lookback=24, epochs=1, device="cpu")
    np.testing.assert_allclose(pd.read_csv(out)["load"], model.fit(wide()).predict()["load"])


def test_a_saved_model_is_used_without_training(table, tmp_path) -> None:
    saved, first, second = tmp_path / "load.toa", tmp_path / "a.csv", tmp_path / "b.csv"
    assert call(table, "--horizon", 6, "--save", saved, "--out", first, *QUICK)[0] == 0
    code, text = call(table, "--model", saved, "--out", second, "--horizon", 4)
    assert code == 0, text
    assert "trained" not in text
    pd.testing.assert_frame_equal(pd.read_csv(second), pd.read_csv(first)[:4])
    code, text = call(table, "--model", saved, "--out", second, "--test", 0.2)
    assert code == 0, text
    assert "if the model was fitted to the tested rows, their errors are too low." in text


@pytest.mark.filterwarnings("always")
def test_a_model_names_a_table_with_fewer_rows_than_it_was_validated_with(table, tmp_path) -> None:
    saved, out = tmp_path / "load.toa", tmp_path / "next.csv"
    with only("linear"):
        assert call(table, "--horizon", 6, "--save", saved, "--out", out)[0] == 0
    code, text = call(table, "--model", saved, "--out", out)
    assert code == 0, text
    assert "warning" not in text
    wide().tail(5).to_csv(tmp_path / "short.csv", index=False)
    code, text = call(tmp_path / "short.csv", "--model", saved, "--out", out)
    assert code == 0, text
    assert "warning: DATA has 5 rows, but the forecast read " in text
    assert text.count("warning") == 1


@pytest.mark.slow
def test_several_series_with_covariates(tmp_path) -> None:
    long().to_csv(tmp_path / "shops.csv", index=False)
    days = [pd.Timestamp("2024-01-01") + pd.Timedelta(days=start + step) for start in (160, 120) for step in range(6)]
    plans = pd.DataFrame({"id": ["x"] * 6 + ["y"] * 6, "day": days, "promo": 1.0})
    plans.to_csv(tmp_path / "plans.csv", index=False)
    code, text = call(
        *(
            tmp_path / "shops.csv",
            "--horizon",
            6,
            "--id",
            "id",
            "--time",
            "day",
            "--value",
            "y",
            "--covariate",
            "promo",
        ),
        *("--future", tmp_path / "plans.csv", "--out", tmp_path / "next.csv", "--interval", 0, "--test", 0.3, *QUICK),
    )
    assert code == 0, text
    found = pd.read_csv(tmp_path / "next.csv")
    assert list(found.columns) == ["id", "day", "y"]
    assert found["id"].value_counts().to_dict() == {"x": 6, "y": 6}
    assert "280 rows of 2 series, every D" in text


REFUSED = {
    "horizon": ((), "--horizon must be given to train"),
    "too long": (("--horizon", 200, "--network-only"), "error: DATA must have at least --lookback + --horizon"),
    "remedy": (("--horizon", 200, "--network-only"), "shorten --lookback or --horizon, or add rows"),
    "interval": (
        ("--horizon", 6, "--interval", 80),
        "--interval must lie in (0, 1), got 80; for 80 % give --interval 0.8",
    ),
    "quantile": (
        ("--horizon", 6, "--quantile", 5),
        "--quantile must lie in (0, 1), got 5; for 5 % give --quantile 0.05",
    ),
    "column": (("--horizon", 6, "--value", "wind"), "error: DATA must have a column 'wind'"),
    "test": (("--horizon", 6, "--test", 2), "error: --test must lie in (0, 1), got 2"),
    "freq": (("--horizon", 6, "--freq", "5h"), "resample it, or give another --freq"),
    "missing": (("--horizon", 6, "--missing", "guess"), "error: unknown missing 'guess'"),
    "covariate": (
        ("--horizon", 6, "--covariate", "x"),
        "got no table; name a file with it, for example --future plans",
    ),
    "id": (("--horizon", 6, "--id", "who", "--test", 0.2), "error: DATA must have a column 'who'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_options_exit_with_one_line(table, case) -> None:
    words, expected = REFUSED[case]
    code, text = call(table, *words)
    assert code == 2
    assert expected in text


FILES = {
    "missing value": (
        lambda frame: frame.assign(load=frame["load"].mask(frame.index == 5)),
        "or --missing interpolate",
    ),
    "gap": (lambda frame: frame.drop(index=[50, 51]), "fill them with --missing interpolate, --missing ffill"),
    "several series": (
        lambda frame: pd.concat([frame, frame]),
        "sort it and keep one row per date, or give --id, if it has several series",
    ),
    "dates again": (
        lambda frame: pd.concat([frame, frame]).sort_values("date"),
        "keep one row per date, or give --id, if it has several series",
    ),
    "no number": (
        lambda frame: frame.assign(load=frame["load"].astype(str).mask(frame.index == 5, "-")),
        "got '-' in column 'load' at data row 6; correct it (1 such cells), or leave it empty for a missing value",
    ),
    "no values": (lambda frame: frame[["date"]], "got only ids and times; add one."),
    "two time columns": (lambda frame: frame.assign(when=frame["date"]), "name it with --time, an id column with --id"),
}


@pytest.mark.parametrize("case", FILES)
def test_remedies_name_options_of_the_shell(tmp_path, case) -> None:
    change, remedy = FILES[case]
    change(wide()).to_csv(tmp_path / "own.csv", index=False)
    code, text = call(tmp_path / "own.csv", "--horizon", 6, *QUICK)
    assert code == 2
    assert remedy in text


def test_columns_that_a_model_does_not_have_are_named_and_not_used(table, tmp_path) -> None:
    saved, more = tmp_path / "load.toa", tmp_path / "more.csv"
    assert call(table, "--horizon", 6, "--save", saved, "--out", tmp_path / "a.csv", *QUICK)[0] == 0
    wide().assign(wind=1.0).to_csv(more, index=False)
    code, text = call(more, "--model", saved, "--out", tmp_path / "b.csv")
    assert code == 0, text
    assert "not used, because the model has no such column: wind" in text
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "b.csv"), pd.read_csv(tmp_path / "a.csv"))


def test_bad_files_and_models_are_refused(table, tmp_path) -> None:
    code, text = call(tmp_path / "none.csv", "--horizon", 6)
    assert (code, "No such file" in text) == (2, True)
    code, text = call(tmp_path, "--horizon", 6)
    assert (code, "with parquet files, got none below" in text) == (2, True)
    (tmp_path / "parts").mkdir()
    wide().to_parquet(tmp_path / "parts" / "a.parquet")
    code, text = call(tmp_path / "parts", "--horizon", 6, "--id", "id", "--covariate", "heat")
    assert (code, "--covariate must be left out for the folder" in text) == (2, True)
    saved = tmp_path / "m.toa"
    call(table, "--horizon", 6, "--save", saved, "--out", tmp_path / "a.csv", *QUICK)
    assert "error: --horizon must be from 1 to 6" in call(table, "--model", saved, "--horizon", 7)[1]
    assert "error: --lookback goes with training" in call(table, "--model", saved, "--lookback", 7)[1]
    wide().rename(columns={"load": "wind", "heat": "sun"}).to_csv(tmp_path / "other.csv", index=False)
    text = call(tmp_path / "other.csv", "--model", saved)[1]
    assert text.startswith("error: DATA must have the columns of fit, 'load', 'heat', got no 'load'")
    saved.write_bytes(saved.read_bytes()[:-10])
    code, text = call(table, "--model", saved)
    assert code == 2
    assert "m.toa must be a forecaster saved by toa" in text


def test_series_that_end_earlier_are_named(tmp_path) -> None:
    long().to_csv(tmp_path / "shops.csv", index=False)
    words = ["--horizon", 6, "--id", "id", "--time", "day", "--value", "y", "--out", tmp_path / "a.csv"]
    code, text = call(tmp_path / "shops.csv", *words, *QUICK)
    assert code == 0, text
    assert "series end at different times: forecasts begin from 2024-04-30 00:00:00 (y) to 2024-06-09" in text


def test_a_stopped_fit_saves_nothing(table, tmp_path, monkeypatch) -> None:
    def stop(self, *data):
        raise KeyboardInterrupt

    monkeypatch.setattr(Forecaster, "fit", stop)
    code, text = call(table, "--horizon", 6, "--save", tmp_path / "m.toa", "--out", tmp_path / "a.csv", *QUICK)
    assert (code, text.strip()) == (130, "stopped.")
    assert not (tmp_path / "m.toa").exists()


def test_a_summary_sorts_weights_and_says_that_the_network_has_none(table, tmp_path) -> None:
    trend = pd.DataFrame({"y": 3.0 * np.arange(300.0)})
    trend.to_csv(tmp_path / "trend.csv", index=False)
    saved = tmp_path / "m.toa"
    code, text = call(tmp_path / "trend.csv", "--horizon", 6, "--out", tmp_path / "a.csv", "--save", saved, *QUICK)
    assert code == 0, text
    assert "the network (dlinear) has no weight in the forecast." in text
    assert "trained for" not in text
    shares = [float(share) for share in re.findall(r"(\d\.\d\d) ", text.split("weights: ")[1].split(";")[0])]
    assert shares == sorted(shares, reverse=True)
    result = CliRunner().invoke(app, ["explain", str(saved), "--out", str(tmp_path / "page")])
    decide = "the network has no weight in this model; these decide: 0.50 drift, 0.50 optimised theta."
    assert decide in " ".join(result.output.split())


@pytest.mark.parametrize(("weight", "warned"), [(0.03, True), (0.6, False)])
def test_explain_states_a_small_weight_of_the_network(table, tmp_path, monkeypatch, weight, warned) -> None:
    saved = tmp_path / "m.toa"
    code, text = call(table, "--horizon", 6, "--out", tmp_path / "a.csv", "--save", saved, "--network-only", *QUICK)
    assert code == 0, text
    shares = property(lambda self: {"toa": weight, "drift": 1.0 - weight})
    monkeypatch.setattr("toa.estimators.forecaster.Forecaster.weights_", shares)
    result = CliRunner().invoke(app, ["explain", str(saved), "--data", str(table), "--out", str(tmp_path / "page")])
    assert result.exit_code == 0, result.output
    shown = " ".join(result.output.split())
    assert ("warning: the network has a weight of 0.03 in this model; these decide: 0.97 drift," in shown) is warned
    assert ("warning: the network has" in shown) is warned
    assert "in the mean forecast of 6 steps by the network" in shown


@pytest.mark.filterwarnings("always")
def test_too_few_windows_are_reported_with_the_names_of_options(tmp_path) -> None:
    wide(60).to_csv(tmp_path / "short.csv", index=False)
    code, text = call(tmp_path / "short.csv", "--horizon", 6, "--interval", 0.99, "--out", tmp_path / "a.csv", *QUICK)
    assert code == 0, text
    assert "warning: the interval of 0.99 comes from differences of the rows" in text
    assert "--interval 0.99 must have at least 99 windows" in text
    assert "validation_share" not in text


def test_help_shows_examples_and_the_choices_of_registries() -> None:
    _, text = call("--help")
    assert "toa forecast load.csv --horizon 96" in text
    assert "{backbones}" not in text
    for name in (*BACKBONES, *ATTENTIONS):
        assert name in text


def test_a_picture_shows_the_first_panels_and_counts_all() -> None:
    past = pd.DataFrame({f"c{n}": np.arange(40.0) for n in range(14)})
    ahead = past[:5].assign(c0_lower=0.0, c0_upper=2.0, **{"c0_q0.1": 1.0})
    figure, panels = draw_forecast(past, ahead, list(past.columns), interval=0.8)
    assert panels == 14
    drawn = [axis for axis in figure.axes if axis.get_visible()]
    assert len(drawn) == PANELS
    labels = [line.get_label() for line in drawn[0].get_lines()]
    assert labels == ["past", "forecast", "quantiles"]
    np.testing.assert_array_equal(drawn[0].get_lines()[1].get_xdata(), np.arange(5))
    # the legend is below all panels and states the level
    figure.canvas.draw()
    (legend,) = figure.legends
    assert "80% interval" in [text.get_text() for text in legend.get_texts()]
    top = legend.get_window_extent().ymax
    assert all(axis.get_window_extent().ymin > top for axis in drawn)
    plt.close(figure)

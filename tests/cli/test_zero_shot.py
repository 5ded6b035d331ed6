"""`toa forecast --zero-shot`."""

from pathlib import Path

import pandas as pd
import pytest

from tests.cli.test_forecast import call
from tests.estimators.signals import wide
from tests.training.pretraining_cases import tiny_model
from toa.estimators import zero_shot


@pytest.fixture
def table(tmp_path) -> Path:
    path: Path = tmp_path / "load.csv"
    wide().to_csv(path, index=False)
    return path


@pytest.fixture
def weights(tmp_path) -> Path:
    folder: Path = tmp_path / "weights"
    tiny_model().save_pretrained(folder)
    return folder


@pytest.mark.usefixtures("pictures")
def test_a_table_is_forecast_without_a_fit(table, weights, tmp_path) -> None:
    out = tmp_path / "next.csv"
    options = ("--horizon", 5, "--zero-shot", "--model", weights, "--out", out, "--quantile", 0.3, "--device", "cpu")
    code, text = call(table, *options)
    assert code == 0, text
    assert "240 rows, every 2h; forecast: load, heat." in text
    assert "nothing was fitted" in text
    got = pd.read_csv(out, parse_dates=["date"])
    expected = zero_shot(wide(), 5, quantiles=[0.3], model=weights, device="cpu")
    pd.testing.assert_frame_equal(got, expected, check_dtype=False)
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_24_steps_are_forecast_unless_given(table, weights, tmp_path) -> None:
    out = tmp_path / "a.csv"
    code, text = call(table, "--zero-shot", "--model", weights, "--out", out, "--device", "cpu")
    assert code == 0, text
    assert len(pd.read_csv(out)) == 24


def test_codes_for_missing_values_are_left_out(table, weights, tmp_path) -> None:
    frame = wide()
    frame.loc[200:203, "load"] = -9999.0
    coded = tmp_path / "coded.csv"
    frame.to_csv(coded, index=False)
    out = tmp_path / "a.csv"
    options = ("--zero-shot", "--model", weights, "--out", out, "--device", "cpu", "--horizon", 4)
    code, text = call(coded, *options, "--missing-values", -9999)
    assert code == 0, text
    expected = zero_shot(frame, 4, model=weights, missing_values=-9999, device="cpu")
    pd.testing.assert_frame_equal(pd.read_csv(out, parse_dates=["date"]), expected, check_dtype=False)


WRONG = {
    "a fit": (("--epochs", 3), "--epochs must be left out with --zero-shot"),
    "test rows": (("--test", 0.2), "--test must be left out with --zero-shot"),
    "a file to save": (("--save", "a.toa"), "--save must be left out with --zero-shot"),
    "a wide interval": (("--interval", 0.95, "--horizon", 3), "--interval must be at most 0.8"),
    "a long horizon": (("--horizon", 40), "at most 4 times that of the pretrained model=32, got 40"),
    "a wrong season": (("--season", 0), "season must be an integer of at least 1, got 0"),
    "a percentage": (("--interval", 80), "--interval must lie in (0, 1)"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_options_exit_with_one_line(table, weights, tmp_path, case) -> None:
    words, expected = WRONG[case]
    code, text = call(table, "--zero-shot", "--model", weights, "--out", tmp_path / "a.csv", *words)
    assert code == 2
    assert expected in text


def test_without_weights_one_line_names_the_remedy(table, tmp_path, monkeypatch) -> None:
    from toa.models import pretrained

    monkeypatch.setattr(pretrained, "SHIPPED", tmp_path)
    code, text = call(table, "--zero-shot", "--out", tmp_path / "a.csv")
    assert code == 2
    assert "no weights are part of this version of toa" in text

"""One command on a benchmark file must forecast as well as the benchmark protocol on the same rows."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from tests.support import ROOT
from toa.cli import app
from toa.data import DATASETS, DatasetNotFoundError, locate
from toa.estimators import Forecaster

pytestmark = [pytest.mark.data, pytest.mark.slow]

# rows of the benchmark
ROWS = 14_400
# rows whose statistics it standardises by
TRAIN = 8_640


def protocol_error() -> float:
    """Test MSE of toa-paper's PatchTST with the default attention at look-back 512, horizon 96, as recorded."""
    lines = (ROOT / "results" / "forecasting" / "search.jsonl").read_text().splitlines()
    wanted = {"dataset": "ETTh1", "backbone": "patchtst", "horizon": 96, "lookback": 512}
    for record in map(json.loads, lines):
        config = record["config"]
        if wanted.items() <= config.items() and config["attention"]["name"] == "toa-softmax":
            return record["metrics"]["mse"]
    raise AssertionError("no such record")


def test_a_user_file_is_forecast_as_well_as_by_the_protocol(tmp_path) -> None:
    try:
        frame = pd.read_csv(locate(DATASETS["ETTh1"]))[:ROWS]
    except DatasetNotFoundError as error:
        pytest.skip(str(error))
    frame.to_csv(tmp_path / "plant.csv", index=False)
    words = ["plant.csv", "--horizon", "96", "--test", "0.2", "--save", "plant.toa", "--out", "next.csv"]
    words = [str(tmp_path / word) if "." in word and word != "0.2" else word for word in words]
    result = CliRunner().invoke(app, ["forecast", *words, "--device", "cpu"])
    assert result.exit_code == 0, result.output
    forecast = pd.read_csv(tmp_path / "next.csv")
    assert len(forecast) == 96
    assert forecast["date"].iloc[0] == "2018-02-21 00:00:00"
    assert (tmp_path / "next.png").stat().st_size > 10_000

    model = Forecaster.load(tmp_path / "plant.toa")
    # fourteen days
    assert model.lookback_ == 336
    tested = model.backtest(frame, test_size=0.2)
    assert tested.origins.min() == ROWS - 2_880
    assert len(tested.forecast) == 2_785
    std = frame.drop(columns="date").to_numpy()[:TRAIN].std(0)
    mse = float(np.square((tested.forecast - tested.actual) / std).mean())
    assert mse <= 1.05 * protocol_error()
    assert 0.75 <= tested.metrics["coverage"] <= 0.85

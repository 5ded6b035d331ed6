"""Tests on the real benchmark files, if $TOA_DATA names a folder with them."""

import numpy as np
import pytest
import torch

from toa.data import DATASETS, DatasetNotFoundError, load_forecast, locate, read_dataset, verify

pytestmark = pytest.mark.data

# windows at 96 -> 96; first value of the first and last column; mean and deviation of the last column's train rows
KNOWN = {
    "ETTh1": ((8449, 2785, 2785), (5.827, 30.531), (17.12826, 9.17649)),
    "ETTh2": ((8449, 2785, 2785), (41.13, 38.662), (26.87202, 11.58472)),
    "ETTm2": ((34369, 11425, 11425), (41.13, 38.662), (26.87243, 11.58075)),
    "ETTm1": ((34369, 11425, 11425), (5.827, 30.531), (17.12495, 9.17304)),
    "Exchange": ((5120, 665, 1422), (0.7855, 0.593), (0.604825, 0.0952995)),
    "Weather": ((36696, 5175, 10444), (1008.89, 428.1), (411.05434, 383.95710)),
    "ECL-6ch": ((18221, 2537, 5165), (14.0, 1056.0), (767.02944, 254.94838)),
    "Traffic-6ch": ((12089, 1661, 3413), (0.0048, 0.0232), (0.055042, 0.0638209)),
    "Solar-12ch": ((36601, 5161, 10417), (0.0, 0.0), (4.55617, 6.44089)),
}


def load(name: str, **options):
    try:
        return load_forecast(name, lookback=96, horizon=96, **options)
    except DatasetNotFoundError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", KNOWN)
def test_a_real_file_gives_its_windows_statistics_and_first_values(name):
    spec = DATASETS[name]
    data = load(name, marks=spec.reader in ("csv", "ett-csv"))
    counts, first, statistics = KNOWN[name]
    assert tuple(len(windows) for windows in (data.train, data.val, data.test)) == counts
    assert data.checksum == spec.sha256
    assert (data.scaler.mean[-1], data.scaler.std[-1]) == pytest.approx(statistics, rel=1e-5)
    batch = data.train.batch(torch.tensor([0, len(data.train) - 1]))
    start = data.scaler.inverse(batch.x[0].double())[0]
    assert (start[0].item(), start[-1].item()) == pytest.approx(first, rel=1e-4, abs=1e-4)
    assert batch.x.shape == (2, 96, spec.channels)
    assert data.subset == name.endswith("ch")
    train = data.train.batch(torch.arange(0, len(data.train), 96)).x
    assert train.mean().abs() < 0.05


@pytest.mark.parametrize("name", list(DATASETS))
def test_every_available_file_has_its_checksum_and_can_be_read(name):
    spec = DATASETS[name]
    try:
        path = locate(spec)
    except DatasetNotFoundError as error:
        pytest.skip(str(error))
    verify(path, spec)
    series = read_dataset(spec, path)
    assert series.values[0].shape == (spec.rows, spec.channels)
    assert (series.times is not None) == (spec.reader in ("csv", "ett-csv"))
    if spec.target is not None:
        assert series.columns[-1] == "OT"


def test_weather_repeats_one_row_so_its_allowance_is_needed():
    data = load("Weather")
    assert data.spec is not None
    series = read_dataset(data.spec, data.path)
    assert series.times is not None
    dates, values = series.times[0], series.values[0]
    (row,) = np.flatnonzero(dates.duplicated())
    assert str(dates[row]) == "2020-05-12 06:00:00"
    np.testing.assert_array_equal(values[row], values[row - 1])

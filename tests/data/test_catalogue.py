from dataclasses import FrozenInstanceError

import pytest

from tests.data.files import make_spec
from tests.support import message
from toa.data import ANOMALY_SETS, DATASETS

BENCHMARKS = (
    "Weather Solar ECL ETTh1 ETTh2 ETTm1 ETTm2 Exchange Traffic PEMS03 PEMS04 PEMS07 PEMS08 ILI "
    "ECL-6ch Traffic-6ch Solar-12ch "
    "PEMS08-Last40 EIA930 China-Temperature Hangzhou-Metro NYC-Taxi Favorita SMD-1-6 SMD-2-1 NN5-Daily Web-Traffic"
)


def test_the_catalogue_holds_the_benchmarks_and_the_subsets():
    assert list(DATASETS) == BENCHMARKS.split()
    assert all(DATASETS[name].name == name for name in DATASETS)


def test_no_two_entries_share_a_file():
    assert len({DATASETS[name].path for name in DATASETS}) == len(DATASETS)


def test_subsets_name_their_full_set_and_are_narrower():
    subsets = [DATASETS[name] for name in DATASETS if DATASETS[name].subset_of is not None]
    assert [spec.name for spec in subsets] == ["ECL-6ch", "Traffic-6ch", "Solar-12ch"]
    for spec in subsets:
        assert spec.subset_of is not None
        full = DATASETS[spec.subset_of]
        assert spec.channels < full.channels
        assert (spec.rows, spec.split, spec.frequency) == (full.rows, full.split, full.frequency)
        assert "cannot be compared with published" in spec.note


def test_every_entry_has_an_https_source_and_only_official_urls():
    for name in DATASETS:
        spec = DATASETS[name]
        assert spec.source.startswith("https://")
        assert (spec.url is not None) == name.startswith("ETT")


def test_an_unknown_name_lists_the_known():
    with pytest.raises(
        ValueError, match=message("unknown dataset 'etth1'; known: Weather, Solar", "Solar-12ch", "Web-Traffic.")
    ):
        _ = DATASETS["etth1"]


def test_entries_are_frozen():
    with pytest.raises(FrozenInstanceError):
        DATASETS["ETTh1"].rows = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"frequency": "2h"}, ("unknown frequency '2h'", "15min")),
        ({"split": "half"}, ("unknown split 'half'", "ratio")),
        ({"reader": "xls"}, ("unknown reader 'xls'", "npz")),
        ({"fill": "mean"}, ("unknown fill 'mean'", "ffill")),
        ({"path": "/etc/passwd"}, ("path must be relative", "/etc/passwd")),
        ({"path": "a/../../b.csv"}, ("path must be relative",)),
        ({"sha256": "abc"}, ("sha256 must be 64", "'abc'")),
        ({"git_id": "abc"}, ("git_id must be 40", "'abc'")),
    ],
)
def test_an_invalid_entry_raises(change, parts):
    with pytest.raises(ValueError, match=message(*parts)):
        make_spec(**change)


def test_every_file_that_is_served_has_a_checksum():
    served = [*DATASETS.values(), *(file for one in ANOMALY_SETS.values() for file in one.served or ())]
    assert [file.path for file in served if file.url and not (file.sha256 or file.git_id)] == []

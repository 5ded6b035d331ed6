from collections import Counter

import pytest

from tests.support import message
from toa.data import DATASETS
from toa_paper.published import published_numbers
from toa_paper.tables import TABLES, missing_data, select, table_cells


@pytest.fixture
def no_data(monkeypatch, tmp_path):
    monkeypatch.setenv("TOA_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def one(table, **wanted):
    (cell,) = select(table_cells(table), **{name: [value] for name, value in wanted.items()})
    return cell


def test_every_number_has_a_cell_and_every_cell_its_runs():
    cells = [cell for name in TABLES for cell in table_cells(name)]
    assert Counter(cell.number for cell in cells) == Counter(published_numbers())
    assert [cell.reason for cell in cells if not cell.jobs] == []


def test_a_run_is_that_of_the_paper():
    cell = one("forecast-full", dataset="ETTh1", horizon="192", backbone="patchtst", variant="toa-relu", metric="mae")
    (job,) = cell.jobs
    assert (cell.metric, cell.combine, cell.factor) == ("mae", "mean", 1.0)
    config = job.config
    assert (config.protocol, config.dataset, config.horizon, config.lookback) == ("toa-paper", "ETTh1", 192, 512)
    assert (config.attention.name, config.attention.sor, config.seed) == ("toa-relu", True, 2024)


def test_the_ablation_differs_in_sor_alone():
    with_sor, without = (
        one("sor-ablation-full", dataset="ETTh2", horizon="96", variant=variant).jobs[0]
        for variant in ("toa-gated", "toa-gated-nosor")
    )
    assert with_sor.config.attention.sor
    assert not without.config.attention.sor
    assert without.command[-2:] == ("--set", "attention.sor=false")
    # what the full table has too is the same run
    assert with_sor.key in {job.key for cell in table_cells("forecast-full") for job in cell.jobs}


def test_a_backbone_with_its_own_protocol_has_the_attention_of_the_paper():
    cell = one("pems-full", dataset="PEMS03", horizon="12", backbone="itransformer", variant="toa-gated", metric="mse")
    config = cell.jobs[0].config
    assert config.protocol == "itransformer-pems"
    assert (config.attention.score_norm, config.attention.gate_norm) == ("rms", "rms")


@pytest.mark.parametrize(
    ("table", "wanted", "runs"),
    [
        ("forecast-average", {"dataset": "ETT", "backbone": "duet", "variant": "softmax"}, 16),
        ("forecast-average", {"dataset": "Weather", "backbone": "duet", "variant": "softmax"}, 4),
        ("pems-average", {"dataset": "PEMS07", "backbone": "patchtst", "variant": "softmax"}, 4),
        ("sor-ablation-average", {"dataset": "ETTh1", "variant": "toa-relu-nosor"}, 4),
        ("classification-summary", {"metric": "accuracy_pct", "variant": "toa-relu"}, 28),
        ("classification-summary", {"metric": "avg_rank", "variant": "toa-relu"}, 7 * 28),
        ("classification", {"dataset": "Libras", "variant": "hyperglu-dplr"}, 1),
        ("anomaly", {"dataset": "SWAT", "backbone": "transformer", "variant": "toa-gated-nosor"}, 1),
        ("demixing", {"variant": "toa-gated"}, 1),
        ("efficiency", {"backbone": "informer"}, 1),
    ],
)
def test_a_cell_has_as_many_runs_as_its_number_is_the_mean_of(table, wanted, runs):
    cell = one(table, **wanted)
    assert len({job.key for job in cell.jobs}) == len(cell.jobs) == runs
    random = table != "efficiency"
    assert len(cell.seeded(3)) == (3 * runs if random else runs)


def test_seeds_start_with_the_papers():
    runs = one("demixing", variant="softmax").seeded(3)
    assert [run.config.seed for run in runs] == [2024, 2025, 2026]
    assert runs[2].command[-2:] == ("--seed", "2026")


def test_missing_data_are_named_with_a_remedy(no_data):
    (missing,) = missing_data(
        one("forecast-full", dataset="Solar", horizon="96", backbone="duet", variant="softmax", metric="mse")
    )
    assert missing.dataset == "Solar"
    assert DATASETS["Solar"].path in missing.remedy
    assert DATASETS["Solar"].source in missing.remedy
    average = one("forecast-average", dataset="ETT", backbone="duet", variant="softmax")
    assert [one.dataset for one in missing_data(average)] == ["ETTh1", "ETTh2", "ETTm1", "ETTm2"]
    assert missing_data(one("demixing", variant="softmax")) == []


def test_an_existing_file_is_not_missing(no_data, tmp_path):
    path = tmp_path / DATASETS["ETTh1"].path
    path.parent.mkdir(parents=True)
    path.touch()
    assert missing_data(one("efficiency", backbone="informer")) == []


def test_unknown_values_raise_an_error_with_the_known_ones():
    with pytest.raises(ValueError, match=message("unknown table 'forecast'", "forecast-full")):
        table_cells("forecast")
    with pytest.raises(ValueError, match=message("unknown dataset 'ETTh1'", "known:", "ETT,")):
        select(table_cells("forecast-average"), dataset=["ETTh1"])
    with pytest.raises(ValueError, match=message("unknown variant 'hyperglu'", "toa-gated")):
        select(table_cells("anomaly"), variant=["hyperglu"])

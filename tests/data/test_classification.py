from pathlib import Path
from typing import Any

import aeon.datasets
import numpy as np
import pytest
import torch

from tests.data.test_ts_files import UNEQUAL, write
from tests.support import message
from toa.data import (
    CLASSIFICATION_SETS,
    DatasetNotFoundError,
    load_classification,
    locate_classification,
    read_ts,
)
from toa.data.classification import fold_numbers, fold_rows


def plant(folder: Path, train: str, test: str, name: str = "toy") -> Path:
    write(folder / f"{name}_TEST.ts", UNEQUAL + test)
    return write(folder / f"{name}_TRAIN.ts", UNEQUAL + train)


TRAIN = "".join(f"{i},{i + 1},{i * i}:1,{i},3:{'ab'[i % 2]}\n" for i in range(10))
TEST = "5,6:7,8:a\n1,2,3,4:1,?,3,4:b\n"


@pytest.fixture(autouse=True)
def _offline(home, monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no network in tests")

    monkeypatch.setattr(aeon.datasets, "load_classification", refuse)


def test_the_28_sets_of_the_archive_are_listed():
    assert len(CLASSIFICATION_SETS) == 28
    assert set(CLASSIFICATION_SETS) <= set(aeon.datasets.tsc_datasets.UEA)
    assert sum(CLASSIFICATION_SETS[name].verified for name in CLASSIFICATION_SETS) == 20


def test_japanese_vowels_from_aeon_differ_in_length_behind_a_mask():
    data = load_classification("JapaneseVowels", seed=1)
    assert (data.channels, data.length, len(data.classes)) == (12, 29, 9)
    assert len(data.train) + len(data.val) == 270
    assert len(data.test) == 370
    assert data.train.mask is not None
    lengths = torch.cat([part.mask.sum(1) for part in (data.train, data.val) if part.mask is not None])
    assert (int(lengths.min()), int(lengths.max())) == (7, 26)
    assert torch.equal(data.train.series[~data.train.mask], torch.zeros(int((~data.train.mask).sum()), 12))
    assert data.val.labels.bincount().tolist() == [6] * 9
    assert data.facts["held_out"] == dict.fromkeys(data.classes, 6)
    assert data.facts["not_validated"] == []


def test_folds_take_every_seed_and_are_as_few_as_the_cases_of_a_class():
    labels = [0] * 6 + [1] * 2
    assert sorted(set(fold_numbers(labels, 5, 2**63 - 1).tolist())) == [0, 1]


def test_folds_hold_out_each_case_of_a_small_set_once():
    data = load_classification("BasicMotions", evaluation="folds", seed=1)
    assert data.folds is not None
    assert data.val is data.train or torch.equal(data.val.series, data.train.series)
    for fold in range(5):
        assert data.train.labels[data.folds == fold].bincount().tolist() == [2] * 4
    rows = fold_rows(data.folds)
    assert rows.shape == (32, 5)
    for fold in range(5):
        assert set(rows[:, fold].tolist()) == set(torch.nonzero(data.folds != fold)[:, 0].tolist())


def test_folds_are_as_many_as_the_smallest_class_has_cases(tmp_path):
    data = load_classification(plant(tmp_path, TRAIN + "1,2:3,4:b\n", TEST), evaluation="folds")
    assert data.folds is not None
    assert sorted(data.folds.bincount().tolist()) == [2, 2, 2, 2, 3]
    # one model has fewer cases to train on and repeats one of them
    assert fold_rows(data.folds).shape == (9, 5)
    few = "1:2:a\n3:4:a\n5:6:b\n7:8:b\n9:1:b\n"
    assert load_classification(plant(tmp_path, few, TEST), evaluation="folds").facts["validation"] == "2 folds of TRAIN"
    with pytest.raises(ValueError, match=message("two cases of each class", "use evaluation=strict")):
        load_classification(plant(tmp_path, "1:2:a\n3:4:a\n5:6:b\n", TEST), evaluation="folds")


def test_a_set_of_60_cases_is_split_as_by_strict():
    strict, folds = (load_classification("JapaneseVowels", evaluation=name, seed=1) for name in ("strict", "folds"))
    assert folds.folds is None
    assert torch.equal(strict.val.series, folds.val.series)


def test_basic_motions_from_aeon_need_no_mask():
    data = load_classification("BasicMotions", seed=1)
    assert data.train.mask is None
    assert data.train.series.shape == (32, 100, 6)
    assert data.val.series.shape == (8, 100, 6)
    assert data.test.series.shape == (40, 100, 6)
    padded = load_classification("BasicMotions", seed=1, min_length=120)
    assert padded.train.mask is not None
    assert padded.train.series.shape == (32, 120, 6)


def test_statistics_are_those_of_the_training_cases():
    data = load_classification("JapaneseVowels", seed=1)
    assert data.train.mask is not None
    rows = data.train.series[data.train.mask].double()
    assert rows.mean(0).abs().max() < 1e-6
    assert (rows.std(0, correction=0) - 1).abs().max() < 1e-6
    assert data.test.mask is not None
    assert data.test.series[data.test.mask].mean(0).abs().max() > 1e-3


def test_peers_validate_on_test_and_scale_it_by_itself():
    data = load_classification("JapaneseVowels", evaluation="tslib-uea")
    assert data.val is data.test
    assert len(data.train) == 270
    assert data.scaler is None
    for part in (data.train, data.test):
        assert part.mask is not None
        rows = part.series[part.mask].double()
        assert rows.mean(0).abs().max() < 1e-6
        assert (rows.std(0, correction=1) - 1).abs().max() < 1e-6
    assert data.facts["validation"] == "TEST"


def test_another_seed_changes_validation_but_not_test():
    one, other = (load_classification("BasicMotions", seed=seed) for seed in (1, 2))
    assert one.checksum == other.checksum
    assert torch.equal(one.test.labels, other.test.labels)
    assert not torch.equal(one.val.series[:, 0], other.val.series[:, 0])


def test_user_files_load_by_path(tmp_path):
    data = load_classification(plant(tmp_path, TRAIN, TEST), seed=0)
    assert (data.name, data.spec, data.classes) == ("toy", None, ("a", "b"))
    assert (data.length, data.channels) == (4, 2)
    assert (len(data.train), len(data.val), len(data.test)) == (8, 2, 2)
    assert data.facts["missing_values"] == 1
    # the gap in the last case lies on the line between 1 and 3
    assert data.scaler is not None
    assert data.scaler.inverse(data.test.series[1].double())[1, 1].item() == pytest.approx(2.0, abs=1e-5)


@pytest.mark.parametrize("evaluation", ["strict", "tslib-uea"])
def test_ethanol_has_its_extra_step_only_under_tslib_uea(tmp_path, evaluation):
    named = {name: plant(tmp_path / name, TRAIN, TRAIN, name) for name in ("toy", "EthanolConcentration")}
    toy, ethanol = (
        load_classification(named[name], evaluation=evaluation, seed=0).test.series
        for name in ("toy", "EthanolConcentration")
    )
    assert torch.equal(toy, ethanol) is (evaluation == "strict")


def test_a_data_folder_has_priority_over_the_datasets_inside_aeon(tmp_path, home, monkeypatch):
    spec = CLASSIFICATION_SETS["BasicMotions"]
    inside = locate_classification(spec)
    assert "aeon" in inside[0].parts
    for source in inside:
        write(tmp_path / "data" / spec.name / f"{source.name}.gz", source.read_text())
    found = locate_classification(spec, tmp_path / "data")
    assert [path.name for path in found] == ["BasicMotions_TRAIN.ts.gz", "BasicMotions_TEST.ts.gz"]
    assert load_classification("BasicMotions", data_dir=tmp_path / "data").checksum == (
        load_classification("BasicMotions").checksum
    )


def test_a_failed_fetch_leaves_no_files(home, monkeypatch):
    spec = CLASSIFICATION_SETS["Libras"]
    with pytest.raises(
        DatasetNotFoundError, match=message("'Libras' must lie in a data folder as Libras/Libras_TRAIN.ts")
    ):
        locate_classification(spec)
    with pytest.raises(
        ConnectionError, match=message("'Libras' could not be fetched", "no network in tests", "$TOA_DATA")
    ):
        load_classification("Libras")

    def serve(name: str, *, split: str, extract_path: str) -> None:
        plant(Path(extract_path) / name, TRAIN, TEST, name)

    monkeypatch.setattr(aeon.datasets, "load_classification", serve)
    with pytest.raises(ValueError, match=message("must have the archive's sizes, got 2 classes instead of 15")):
        load_classification("Libras")
    assert not (home / "cache" / "toa" / "Libras").exists()


def test_a_fetched_set_is_kept(home, monkeypatch):
    source = locate_classification(CLASSIFICATION_SETS["BasicMotions"])
    monkeypatch.setattr("toa.data.classification.files", lambda package: home / "nothing")

    def serve(name: str, *, split: str, extract_path: str) -> None:
        for path in source:
            write(Path(extract_path) / name / path.name, path.read_text())

    monkeypatch.setattr(aeon.datasets, "load_classification", serve)
    load_classification("BasicMotions")
    monkeypatch.delattr(aeon.datasets, "load_classification")
    kept = locate_classification(CLASSIFICATION_SETS["BasicMotions"])
    assert [path.parent for path in kept] == [home / "cache" / "toa" / "BasicMotions"] * 2
    assert len(load_classification("BasicMotions").test) == 40
    assert [path.name for path in (home / "cache" / "toa").iterdir()] == ["BasicMotions"]


BAD: list[tuple[str, str, tuple[str, ...]]] = [
    (TRAIN, "1:2:c\n", ("TEST of toy must have only classes of TRAIN, got 'c' besides 'a', 'b'",)),
    (TRAIN, "1:a\n", ("TRAIN and TEST of toy must have as many channels, got 2 and 1",)),
    ("1:2:a\n3:4:a\n", "1:2:a\n", ("TRAIN of toy must have at least two classes, got only 'a'.",)),
    ("1:2:a\n3:4:b\n", "1:2:a\n", ("a class with two cases", "got 2 cases of 2 classes")),
    (TRAIN, "?,?:1,2:a\n", ("case 1 of TEST of toy must have values in every channel, got none in channel 1",)),
]


@pytest.mark.parametrize(("train", "test", "parts"), BAD, ids=str)
def test_bad_files_are_rejected(tmp_path, train, test, parts):
    with pytest.raises(ValueError, match=message(*parts)):
        load_classification(plant(tmp_path, train, test))


def test_bad_names_are_rejected(tmp_path):
    with pytest.raises(ValueError, match=message("unknown classification dataset 'Basic'; known: Articulary")):
        load_classification("Basic")
    with pytest.raises(ValueError, match=message("must be a file NAME_TRAIN.ts beside NAME_TEST.ts", "got x.ts")):
        load_classification("x.ts")
    with pytest.raises(FileNotFoundError, match=message("no such file: x_TRAIN.ts")):
        load_classification("x_TRAIN.ts")
    evaluation: Any = "honest"
    with pytest.raises(ValueError, match=message("unknown evaluation 'honest'; known: strict, folds, tslib-uea.")):
        load_classification("BasicMotions", evaluation=evaluation)


def test_the_catalogue_agrees_with_the_sets_inside_aeon():
    for name in ("BasicMotions", "JapaneseVowels"):
        spec = CLASSIFICATION_SETS[name]
        train, test = (read_ts(path) for path in locate_classification(spec))
        assert spec.variable is (len(set(train.lengths)) > 1)
        assert (len(train), len(test)) == (spec.train, spec.test)
        assert not np.isnan(np.concatenate(train.values)).any()

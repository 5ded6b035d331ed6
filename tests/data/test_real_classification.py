import pytest
import torch

from toa.data import CLASSIFICATION_SETS, checksum, load_classification, locate_classification

pytestmark = pytest.mark.data

VERIFIED = [name for name in CLASSIFICATION_SETS if CLASSIFICATION_SETS[name].verified]


@pytest.mark.parametrize("evaluation", ["strict", "tslib-uea"])
@pytest.mark.parametrize("name", VERIFIED)
def test_a_real_set_has_the_archives_sizes_and_finite_cases(name, evaluation):
    spec = CLASSIFICATION_SETS[name]
    data = load_classification(name, evaluation=evaluation, seed=2024, download=False)
    strict = evaluation == "strict"
    assert (data.channels, data.length, len(data.classes)) == (spec.channels, spec.length, spec.classes)
    assert len(data.train) + strict * len(data.val) == spec.train
    assert len(data.test) == spec.test
    assert (data.train.mask is not None) is spec.variable
    assert all(part.series.isfinite().all() for part in (data.train, data.val, data.test))
    assert data.train.labels.unique().numel() == spec.classes
    assert torch.equal(data.test.labels.unique(), torch.arange(spec.classes))
    if strict:
        assert 0.1 <= len(data.val) / spec.train <= 0.3
        assert data.facts["not_validated"] == []


@pytest.mark.parametrize("name", VERIFIED)
def test_a_real_set_has_the_recorded_checksums(name):
    spec = CLASSIFICATION_SETS[name]
    assert tuple(checksum(path) for path in locate_classification(spec)) == spec.sha256

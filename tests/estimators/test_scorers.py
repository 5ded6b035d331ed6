import numpy as np
import pytest
from sklearn.covariance import EmpiricalCovariance
from sklearn.decomposition import PCA
from sklearn.ensemble import IsolationForest

from toa.estimators.scorers import SCORERS
from toa.estimators.scoring import Baseline, NormalRows, window_max, window_mean

WINDOW = 12


def rows(count: int = 400, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, 3)) @ np.array([[1.0, 0.9, 0.0], [0.0, 0.3, 0.1], [0.0, 0.0, 1.0]])


def fit(name: str, *series: np.ndarray) -> Baseline:
    return SCORERS[name].fit(NormalRows(series=series or [rows()], window=WINDOW, seed=3))


def test_isolation_forest_has_the_scores_of_scikit_learn():
    theirs = IsolationForest(n_estimators=100, max_samples=256, random_state=3).fit(rows())
    new = 2.0 * rows(60, 1)
    np.testing.assert_allclose(fit("isolation forest").rows(new).sum(1), -theirs.score_samples(new), rtol=1e-12)


def test_pca_has_the_error_of_scikit_learn():
    theirs = PCA(n_components=2).fit(rows())
    new = rows(60, 1)
    error = (new - theirs.inverse_transform(theirs.transform(new))) ** 2
    np.testing.assert_allclose(fit("pca").rows(new), error, atol=1e-12)


def test_pca_never_keeps_all_components():
    free = np.random.default_rng(0).standard_normal((200, 2))
    assert fit("pca", free).rows(free).sum() > 1.0
    alone = fit("pca", free[:, :1])
    np.testing.assert_allclose(alone.rows(free[:, :1]), (free[:, :1] - free[:, :1].mean()) ** 2)


def test_mahalanobis_has_the_distance_of_scikit_learn():
    # the ridge of 0.01 is small beside these variances
    new = 100.0 * rows(60, 1)
    theirs = EmpiricalCovariance().fit(100.0 * rows()).mahalanobis(new)
    distance = fit("mahalanobis", 100.0 * rows()).rows(new).sum(1)
    np.testing.assert_allclose(distance, theirs, rtol=1e-4)


def test_z_score_is_the_squared_distance_from_the_mean():
    values = rows()
    expected = ((values - values.mean(0)) / values.std(0)) ** 2
    np.testing.assert_allclose(fit("z-score").rows(values), expected, rtol=1e-12)


def test_subsequence_pca_finds_another_shape_within_the_usual_range():
    t = np.arange(400)
    normal = np.stack([np.sin(t / 3), np.cos(t / 4)], 1)
    new = normal.copy()
    new[200:212, 1] = new[200, 1]
    parts = fit("sub-sequence pca", normal).rows(new)
    assert 195 <= parts.sum(1).argmax() <= 217
    assert parts[200:212, 1].sum() > 100 * parts[200:212, 0].sum()


@pytest.mark.parametrize("name", SCORERS)
def test_parts_are_finite_and_sum_to_scores_that_find_an_outlier(name):
    new = 0.3 * rows(60, 1)
    new[30] += [0.0, 9.0, 0.0]
    parts = fit(name).rows(new)
    assert parts.shape == new.shape
    assert np.isfinite(parts).all()
    assert parts.sum(1).min() >= 0.0
    assert abs(int(parts.sum(1).argmax()) - 30) < WINDOW
    assert parts[30].argmax() == 1


@pytest.mark.parametrize("name", SCORERS)
def test_a_small_memory_budget_changes_no_score(name, monkeypatch):
    new = rows(40, 1)
    expected = fit(name).rows(new), fit(name).ends(new, WINDOW)
    monkeypatch.setenv("TOA_MEMORY", "1e-9")
    in_blocks = fit(name).rows(new), fit(name).ends(new, WINDOW)
    for block_scores, scores in zip(in_blocks, expected, strict=True):
        np.testing.assert_allclose(block_scores, scores, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", SCORERS)
def test_the_score_on_arrival_is_that_of_the_last_row(name):
    scorer = fit(name)
    new = rows(40, 1)
    ends = scorer.ends(new, WINDOW)
    assert len(ends) == 40 - WINDOW + 1
    np.testing.assert_allclose(ends[-1], scorer.rows(new)[-1], rtol=1e-9)
    np.testing.assert_allclose(ends[3], scorer.rows(new[: WINDOW + 3])[-1], rtol=1e-9)


@pytest.mark.parametrize("name", SCORERS)
def test_a_scorer_survives_its_state(name):
    scorer = fit(name)
    new = rows(40, 1)
    assert (SCORERS[name].load(scorer.state(), new.shape[1]).rows(new) == scorer.rows(new)).all()


def test_methods_of_windows_read_values_up_to_the_largest():
    normal = NormalRows(series=[rows()], window=WINDOW, seed=3, largest=2.0)
    scorer = SCORERS["sub-sequence pca"].fit(normal)
    new = 3.0 * rows(60, 1)
    clipped = new.clip(-2.0, 2.0)
    for other in (scorer, SCORERS["sub-sequence pca"].load(scorer.state(), new.shape[1], 2.0)):
        assert (other.rows(new) == scorer.rows(clipped)).all()
        assert (other.ends(new, WINDOW) == scorer.ends(clipped, WINDOW)).all()
    single = SCORERS["z-score"].fit(normal)
    assert (single.rows(new) == fit("z-score").rows(new)).all()


def test_means_and_maxima_use_the_rows_that_there_are():
    values = np.array([1.0, 2.0, 3.0, 10.0])
    assert window_mean(values, 1, 1).tolist() == [1.5, 2.0, 5.0, 6.5]
    assert window_mean(values[:, None], 2, 0)[:, 0].tolist() == [1.0, 1.5, 2.0, 5.0]
    rng = np.random.default_rng(0)
    for before, after in ((0, 0), (3, 3), (4, 0), (0, 6), (40, 40)):
        many = rng.normal(size=(29, 2))
        expected = [many[max(row - before, 0) : row + after + 1].mean(0) for row in range(29)]
        assert np.allclose(window_mean(many, before, after), expected)
    # a very large value is forgotten when its window is over
    assert window_mean(np.array([1e18, 1.0, 2.0, 3.0, 4.0]), 1, 0)[2:].tolist() == [1.5, 2.5, 3.5]
    assert window_max(values[::-1], 1, 0).tolist() == [10.0, 10.0, 3.0, 2.0]

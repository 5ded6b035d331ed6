import numpy as np
import pytest

from toa.estimators.combination import Combination, Tail, inject_anomalies

WINDOW = 20


def noise(rows: int = 2000, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 4))


def scores(values: np.ndarray) -> dict[str, list[np.ndarray]]:
    """A good method, a useless one and one that helps."""
    useless = np.random.default_rng(9).random(len(values))
    return {
        "z-score": [(values[:, :2] ** 2).sum(1)],
        "pca": [useless],
        "isolation forest": [(values[:, 2:] ** 2).sum(1)],
    }


def test_a_tail_is_minus_the_log_of_the_share_of_normal_rows():
    held = np.random.default_rng(0).exponential(size=50_000)
    tail = Tail.fit(held)
    # for an exponential distribution it is the score itself
    np.testing.assert_allclose(tail(np.array([0.1, 1.0, 3.0, 8.0])), [0.1, 1.0, 3.0, 8.0], rtol=0.05)
    grown = tail(np.array([1e3, 1e6]))
    assert 40.0 < grown[0] < grown[1] < 200.0


def test_a_tail_of_equal_scores_is_finite():
    assert np.isfinite(Tail.fit(np.zeros(50))(np.array([0.0, 1.0]))).all()


def test_injected_anomalies_change_the_labelled_rows_alone():
    values = noise()
    changed, labels = inject_anomalies(values, WINDOW, 0)
    assert 0.1 < labels.mean() < 0.7
    assert (changed[~labels] == values[~labels]).all()
    assert (changed != values).any(1)[labels].mean() > 0.9
    again = inject_anomalies(values, WINDOW, 0)
    assert (again[0] == changed).all()
    assert not inject_anomalies(values[:WINDOW], WINDOW, 0)[1].any()


def fit(**others: list[np.ndarray]) -> Combination:
    held = noise()
    changed, labels = inject_anomalies(held, WINDOW, 0)
    return Combination.fit(scores(held) | others, scores(changed) | others, [labels], WINDOW)


def test_other_methods_join_only_if_they_find_injected_anomalies():
    combination = fit()
    assert set(combination.weights) == {"z-score", "pca", "isolation forest"}
    assert sum(combination.weights.values()) == pytest.approx(1.0)
    precision = combination.precision
    assert precision["combination"] > precision["z-score"] > precision["pca"]
    useless = [np.random.default_rng(5).random(2000)]
    assert "sub-sequence pca" not in fit(**{"sub-sequence pca": useless}).weights


def test_rows_that_are_too_few_for_an_injection_use_the_first_methods():
    held = noise(WINDOW)
    combination = Combination.fit(scores(held), scores(held), [np.zeros(WINDOW, dtype=bool)], WINDOW)
    assert set(combination.weights) == {"z-score", "pca"}
    assert combination.precision == {}


def test_a_lasting_shift_scores_higher_than_its_rows_alone_and_an_alarm_stays_near_it():
    combination = fit()
    members = {name: np.stack([score[0], 0 * score[0]], 1) for name, score in scores(noise(seed=1)).items()}
    members["z-score"][1000:1100, 1] += 20.0
    parts = combination.parts(members.__getitem__, WINDOW)
    score = parts.sum(1)
    assert score[1000:1100].min() > score[:950].max()
    assert (score[1100 + WINDOW // 10 + 1 :] < score[1000:1100].min()).all()
    # the mean over a window adds to what the rows have
    tail = combination.tails["z-score"][0]
    assert score[1050] > tail(members["z-score"].sum(1))[1050] / len(combination.tails)
    assert parts[1050].argmax() == 1
    early = combination.parts(lambda name: members[name][:1050], WINDOW, later=False)
    full = combination.parts(members.__getitem__, WINDOW, later=False)
    np.testing.assert_allclose(early, full[:1050])


def test_a_combination_survives_its_state():
    combination = fit()
    members = {name: score[0][:, None] for name, score in scores(noise(seed=1)).items()}
    again = Combination.from_state(*combination.state())
    assert (again.parts(members.__getitem__, WINDOW) == combination.parts(members.__getitem__, WINDOW)).all()
    assert again.precision == combination.precision

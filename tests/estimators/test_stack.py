from dataclasses import asdict

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from tests.support import message
from toa.estimators.kernels import FEATURES, FULL, KernelFeatures, KernelSizes, align_cases
from toa.estimators.probabilities import accuracy, choose_factor, log_loss, softmax, stratified_folds
from toa.estimators.ridge import RidgeHead, choose_ridge, rotate
from toa.estimators.stack import Stack, baseline_accuracies

# as few as there can be
FEW = KernelSizes(kernels=84, groups=16)


def features(cases: int, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, P), the first of which separate three classes, and the classes."""
    rng = np.random.default_rng(seed)
    codes = np.arange(cases) % 3
    x = rng.normal(size=(cases, count))
    x[:, :3] += 3.0 * np.eye(3)[codes]
    return (x - x.mean(0)).astype(np.float32), codes


def waves(count: int = 30, channels: int = 2, steps: int = 24, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    codes = np.arange(count) % 2
    phase = rng.uniform(0, 6, size=(count, channels, 1))
    series = np.sin(np.where(codes, 1.5, 0.5)[:, None, None] * np.arange(steps) + phase)
    return (series + 0.1 * rng.normal(size=series.shape)).astype(np.float32), codes


@pytest.mark.parametrize("sizes", [(12, 40), (40, 12)])
def test_scores_are_those_of_models_without_the_case_or_its_fold(sizes):
    x, codes = features(*sizes)
    target = np.where(np.eye(3)[codes] > 0, 1.0, -1.0)
    kept = np.arange(len(x)) % 4 > 0
    targets = torch.from_numpy(target)
    choice = choose_ridge(rotate(torch.from_numpy(x)), targets, codes, kept, sizes[1])
    for case in range(len(x)):
        rest = kept & (np.arange(len(x)) != case)
        model = Ridge(choice.penalty).fit(x[rest], target[rest])
        assert np.allclose(choice.scores[case], model.predict(x[case : case + 1])[0], atol=1e-3)
    head, _ = RidgeHead.fit(x.copy(), codes, np.arange(len(x)) % 2, classes=3)
    scaled = (x - head.mean) / head.scale
    everything = np.ones(len(x), dtype=bool)
    choice = choose_ridge(rotate(torch.from_numpy(scaled)), targets, codes, everything, sizes[1])
    assert np.allclose(head.weight, Ridge(choice.penalty).fit(scaled, target).coef_.T, atol=1e-4)


@pytest.mark.parametrize("sizes", [(60, 90), (90, 60)])
def test_a_ridge_head_knows_new_cases_and_expects_its_errors(sizes):
    x, codes = features(*sizes)
    head, nested = RidgeHead.fit(x, codes, stratified_folds(codes, 5, 0), classes=3)
    held_out = nested[-1]
    new, others = features(300, sizes[1], seed=1)
    proba = head.predict(new)
    assert np.allclose(proba.sum(1), 1.0)
    assert accuracy(proba, others) > 0.6
    assert abs(accuracy(held_out, codes) - accuracy(proba, others)) < 0.15
    # leave-one-out results calibrate: the loss of new cases is near the one that was expected
    assert abs(log_loss(held_out, codes) - log_loss(proba, others)) < 0.25


@pytest.mark.parametrize("feature", [np.zeros(12), np.arange(12.0)])
def test_a_ridge_head_of_one_feature_among_constants_leaves_cases_out(feature):
    x = np.zeros((12, 40), dtype=np.float32)
    x[:, 0] = feature
    codes = (np.arange(12) > 5).astype(np.int64)
    _, nested = RidgeHead.fit(x, codes, stratified_folds(codes, 5, 0), classes=2)
    held_out = nested[-1]
    assert np.isfinite(nested).all()
    # without information each case looks like the other class, of which one more is left
    assert accuracy(held_out, codes) == (1.0 if feature.any() else 0.0)


def test_factors_undo_overconfidence_and_never_give_certainty():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(2_000, 3))
    codes = np.array([rng.choice(3, p=row) for row in softmax(scores)])
    assert choose_factor(10.0 * scores, codes) == pytest.approx(0.1, rel=0.15)
    right = np.eye(3)[np.arange(12) % 3]
    assert 0.85 < softmax(choose_factor(right, np.arange(12) % 3) * right).max() < 0.98


def choose(members, codes, baselines=None, *, seed: int = 0) -> Stack:
    """A stack of members whose probabilities depend on no fold."""
    nested = {name: np.repeat(part[None], 6, axis=0) for name, part in members.items()}
    return Stack.choose(nested, codes, stratified_folds(codes, 5, seed), baselines)


def test_weights_lower_the_log_loss_below_that_of_every_member():
    rng = np.random.default_rng(0)
    codes = np.arange(200) % 2
    members = {name: softmax(np.eye(2)[codes] + rng.normal(size=(200, 2))) for name in ("a", "b")}
    members["noise"] = softmax(3.0 * rng.normal(size=(200, 2)))
    chosen = choose(members, codes, {"most frequent class": 0.5})
    assert {"a", "b"} <= set(chosen.weights) <= {"a", "b", "class shares"}
    assert sum(chosen.weights.values()) == pytest.approx(1.0)
    mixed = chosen.combine(members, 200)
    assert log_loss(mixed, codes) < min(log_loss(part, codes) for part in members.values())
    assert chosen.verdicts() == ["beats a, b, noise, most frequent class"]
    lost = Stack(weights={"a": 1.0}, factor=1.0, accuracies={"stack": 0.5, "a": 0.5, "b": 0.5, "c": 0.6})
    assert lost.verdicts() == ["equals b", "loses to c"]
    lower = Stack(weights={"a": 1.0}, factor=1.0, accuracies={"stack": 0.5, "a": 0.6})
    assert lower.verdicts() == ["loses to a"]
    assert Stack.from_state(asdict(chosen), ("a", "b", "class shares")) == chosen
    with pytest.raises(ValueError, match="member"):
        Stack.from_state(asdict(chosen), ("a", "c", "class shares"))


def test_the_accuracy_of_a_stack_of_noise_is_that_of_chance():
    stated = []
    seeming = []
    codes = np.arange(40) % 2
    for seed in range(60):
        rng = np.random.default_rng(seed)
        members = {str(number): softmax(rng.normal(size=(40, 2))) for number in range(8)}
        chosen = choose(members, codes, seed=seed)
        stated.append(chosen.accuracies["stack"])
        seeming.append(accuracy(chosen.combine(members, 40), codes))
    assert abs(np.mean(stated) - 0.5) < 0.03
    # on the cases that chose the weights, the same stacks seem to know something
    assert np.mean(seeming) > 0.55


@pytest.mark.slow
def test_heads_of_noise_state_the_accuracy_of_chance_and_are_not_certain():
    stated = []
    losses = []
    codes = np.arange(40) % 2
    for seed in range(30):
        rng = np.random.default_rng(seed)
        folds = stratified_folds(codes, 5, seed)
        sizes = (8, 30, 200)
        fitted = {
            str(size): RidgeHead.fit(rng.normal(size=(40, size)).astype(np.float32), codes, folds, classes=2)
            for size in sizes
        }
        chosen = Stack.choose({name: held_out for name, (_, held_out) in fitted.items()}, codes, folds)
        stated.append(chosen.accuracies["stack"])
        new = {name: head.predict(rng.normal(size=(200, int(name)))) for name, (head, _) in fitted.items()}
        losses.append(log_loss(chosen.combine(new, 200), np.arange(200) % 2))
    assert abs(np.mean(stated) - 0.5) < 0.03
    # the log loss of equal probabilities is log(2) = 0.693
    assert np.mean(losses) < 0.75


def test_baselines_know_the_most_frequent_class_and_the_nearest_case():
    series = np.repeat([[0.0], [0.1], [5.0], [5.1], [5.2]], 12, axis=1)[:, None].astype(np.float32)
    accuracies = baseline_accuracies(series, np.array([0, 0, 1, 1, 0]), seed=0)
    assert accuracies == {"most frequent class": 0.6, "1-NN": 0.8}


def test_cases_of_other_lengths_are_stretched_or_padded():
    short = np.arange(4.0)[:, None]
    full = np.linspace(0.0, 3.0, 16)[:, None]
    aligned = align_cases([short, full], 16)
    assert aligned.shape == (2, 1, 16)
    assert np.allclose(aligned[0], aligned[1])
    assert align_cases([short], 4).shape == (1, 1, 10)
    assert align_cases([short], 11, pad=True).tolist() == [[[0, 1, 2, 3, *[0] * 7]]]
    # all cases are stretched to ten steps, after padding
    assert align_cases([short], 5, pad=True)[0, 0, [0, -1]].tolist() == [0, 0]


@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("shape", [(3, 1, 10), (3, 2, 33), (3, 40, 100)])
def test_features_of_a_case_depend_on_it_alone_and_are_finite(name, shape):
    series = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    series[2] = 1.0
    features = FEATURES[name](series)
    assert features.dtype == np.float32
    assert np.isfinite(features).all()
    assert np.allclose(features[1:2], FEATURES[name](series[1:2]), atol=1e-5)


def test_features_hold_what_their_names_say():
    t = np.linspace(0.0, 1.0, 64, dtype=np.float32)
    ramp = t
    wave = np.sin(40.0 * t)
    series = np.stack((ramp, wave))[None]
    assert np.allclose(FEATURES["statistics"](series)[0, :2], [0.5, wave.mean()], atol=1e-5)
    assert FEATURES["statistics of quarters"](series).shape == (1, 8 * 2 * (1 + 2 + 4))
    assert np.allclose(FEATURES["values"](series).reshape(64, 2).T, series[0])
    bands = FEATURES["spectrum"](series).reshape(-1, 2)
    assert bands[:, 0].argmax() < bands[:, 1].argmax()
    assert FEATURES["covariances"](series).shape == (1, 3)


@pytest.fixture(scope="module")
def kernels() -> KernelFeatures:
    return KernelFeatures.fit(waves()[0], FEW, seed=1)[0]


def test_kernels_are_restored_from_their_state(kernels):
    tensors, facts = kernels.state()
    again = KernelFeatures.from_state(tensors, facts, *kernels.shape)
    new = waves(5, seed=3)[0]
    assert np.array_equal(again.transform(new), kernels.transform(new))
    # each case alone, too
    assert np.allclose(np.concatenate([again.transform(new[i : i + 1]) for i in range(5)]), kernels.transform(new))
    assert sum(tensor.nbytes for tensor in tensors.values()) < 2**20


def test_many_values_or_cases_reduce_the_kernels():
    series, _ = waves(6, steps=12)
    few, features = KernelFeatures.fit(series, FEW, seed=1, most_values=series.size - 1)
    every, more = KernelFeatures.fit(series, FEW, seed=1)
    assert features.shape[1] < more.shape[1]
    assert np.array_equal(KernelFeatures.from_state(*few.state(), *few.shape).transform(series), features)
    assert KernelFeatures.fit(series, FEW, seed=1, most_cases=5)[0].sizes == few.sizes != every.sizes
    assert FULL.reduced() == (500, 16)


@pytest.mark.slow
def test_there_are_fewer_kernels_for_many_values_or_cases():
    series, _ = waves(12, steps=12)
    few, features = KernelFeatures.fit(series, FULL, seed=1, most_values=series.size - 1)
    assert features.shape[1] < 5_000 < KernelFeatures.fit(series, FULL, seed=1)[1].shape[1]
    assert np.array_equal(KernelFeatures.from_state(*few.state(), *few.shape).transform(series), features)
    many, _ = KernelFeatures.fit(np.repeat(series, 300, axis=0), FULL, seed=1)
    assert many.sizes == few.sizes


def test_other_kernels_than_saved_are_refused(kernels):
    tensors, facts = kernels.state()
    for changed, words in (
        ((tensors, facts | {"seed": 2}), "differ from those that this version of aeon draws"),
        ((tensors, facts | {"sizes": [10**9, 64]}), "must have sizes"),
        ((tensors, facts | {"sizes": [1, 64]}), "must have sizes"),
        ((tensors | {"biases.series": tensors["biases.series"][:-1]}, facts), "biases must have shape"),
    ):
        with pytest.raises(ValueError, match=message(words)):
            KernelFeatures.from_state(*changed, *kernels.shape)
    with pytest.raises(ValueError, match=message("kernels must have sizes", "for 3 channels")):
        KernelFeatures.from_state(tensors, facts, 3, 24)


def test_kernels_leave_the_state_of_the_process_as_it_was():
    before = np.random.get_state(legacy=False)["state"]["key"].copy()  # noqa: NPY002
    generator = torch.get_rng_state()
    threads = torch.get_num_threads()
    first, second = (KernelFeatures.fit(waves(channels=1)[0], FEW, seed=4)[1] for _ in range(2))
    assert np.array_equal(first, second)
    assert np.array_equal(np.random.get_state(legacy=False)["state"]["key"], before)  # noqa: NPY002
    assert torch.get_rng_state().equal(generator)
    assert torch.get_num_threads() == threads

import numpy as np
import pytest
import torch

from tests.support import assert_near, message
from toa.data.classification import Cases, pad_cases
from toa.models import ClassifyModel, build_classifier
from toa.training.classify import (
    classification_loss,
    classify,
    validation_error,
)
from toa.training.distributed import make_fabric
from toa.training.loop import train
from toa.training.metrics import class_scores, confusion_matrix
from toa.training.optimization import TrainingConfig
from toa.training.step import ShuffledBatches


def make_cases(count: int = 24, *, seed: int = 0) -> Cases:
    """Waves of two frequencies, of 12 to 20 steps."""
    generator = np.random.default_rng(seed)
    labels = [row % 2 for row in range(count)]
    lengths = generator.integers(12, 21, count)
    phases = generator.uniform(0, 0.5, count)
    cases = [
        np.sin((0.4, 1.2)[label] * np.arange(length) + phase)[:, None] + 0.1 * generator.normal(size=(length, 2))
        for label, length, phase in zip(labels, lengths, phases, strict=True)
    ]
    return pad_cases(cases, labels, 20, masked=True)


def make_model(name: str = "patchtst", attention: str = "toa-gated") -> ClassifyModel:
    settings = {"embed_dim": 8, "num_heads": 2, "num_layers": 1, "ff_dim": 12}
    patches = {"patch_len": 8, "stride": 4} if name == "patchtst" else {}
    return build_classifier(
        name, lookback=20, channels=2, num_classes=2, attention=attention, settings={**settings, **patches}
    )


@pytest.mark.parametrize("name", ["patchtst", "itransformer", "transformer"])
def test_batch_size_never_changes_a_prediction(name):
    model = make_model(name).double()
    cases = make_cases()
    whole = Cases(series=cases.series.double(), labels=cases.labels, mask=cases.mask)
    logits = classify(model, whole, batch_size=24)
    for size in (1, 7):
        assert_near(classify(model, whole, batch_size=size), logits)
    assert_near(classify(model, whole), logits)


def test_evaluation_keeps_the_mode_and_counts_every_case():
    model = make_model().train()
    cases = make_cases()
    scores = class_scores(cases.labels, classify(model, cases).argmax(1))
    assert model.training
    hits = classify(model, cases).argmax(1) == cases.labels
    assert scores["accuracy"] == pytest.approx(hits.float().mean().item())
    assert validation_error(classify(model, cases), cases.labels) == pytest.approx(1.0 - scores["accuracy"])


def test_loss_is_cross_entropy_of_the_masked_model():
    model = make_model().eval()
    cases = make_cases(6)
    series, labels, mask = cases.batch(torch.arange(6))
    chosen = model(series, mask).log_softmax(1)[torch.arange(6), labels]
    assert_near(classification_loss(model, series, labels, mask), -chosen.mean(), 1e-6)


def test_batches_visit_each_case_once_per_epoch():
    cases = make_cases(10)
    batches = ShuffledBatches(cases, 4, seed=1)
    assert batches.steps_per_epoch == 3
    series = torch.cat([batches.at(2, step)[0] for step in range(3)])
    assert_near(series.sum(0), cases.series.sum(0), 1e-5)
    assert len(batches.at(0, 0)) == 3


def test_training_learns_to_tell_waves_apart():
    torch.manual_seed(0)
    model = make_model()
    cases = make_cases(48)
    config = TrainingConfig(epochs=12, optimizer="radam", learning_rate=1e-2, clip_norm=4.0, patience=12)
    fabric = make_fabric(torch.device("cpu"))
    held = make_cases(24, seed=1)
    state = train(
        model,
        ShuffledBatches(cases, 16, seed=0),
        classification_loss,
        config,
        fabric=fabric,
        key="waves",
        validate=lambda trained: validation_error(classify(trained, held), held.labels),
    )
    assert validation_error(classify(model, held), held.labels) <= 0.1
    errors = [entry["validation"] for entry in state.history]
    # of epochs that tie, the last is kept
    assert state.best_epoch == len(errors) - errors[::-1].index(min(errors))


def test_confusion_matrix_has_a_row_for_each_true_class():
    labels, taken = torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([0, 1, 1, 2, 0, 2])
    assert confusion_matrix(labels, taken, 4).tolist() == [[1, 1, 0, 0], [0, 1, 0, 0], [1, 0, 2, 0], [0, 0, 0, 0]]


def test_scores_by_hand():
    scores = class_scores(torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([0, 1, 1, 2, 0, 2]))
    assert scores["accuracy"] == pytest.approx(4 / 6)
    assert scores["balanced_accuracy"] == pytest.approx((1 / 2 + 1 + 2 / 3) / 3)
    # F1 per class: 2 / 4, 2 / 3, 4 / 5
    assert scores["macro_f1"] == pytest.approx((2 / 4 + 2 / 3 + 4 / 5) / 3)


def test_a_class_that_is_only_predicted_lowers_only_macro_f1():
    scores = class_scores(torch.tensor([0, 0, 0, 0]), torch.tensor([0, 0, 0, 1]))
    assert scores == pytest.approx({"accuracy": 0.75, "balanced_accuracy": 0.75, "macro_f1": (6 / 7 + 0.0) / 2})


def test_scores_without_cases_raise_an_error():
    with pytest.raises(ValueError, match=message("scores need at least one case, got none")):
        class_scores(torch.zeros(0), torch.zeros(0))

"""The network of a classifier: one model per fold, trained together; it is validated on all cases.

    candidates = network_candidates(spec, schema)              # architectures
    validated = NetworkMember(spec, schema, candidates[0], folds).fit(training)
    validated.fitted.probabilities(cases)                      # (n, K)

Alphabet: n cases, L longest length, l length of a case, C channels, K classes, F folds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from toa._checks import check_finite
from toa.data.classification import Cases, pad_cases
from toa.data.panel import Values
from toa.estimators import sizes
from toa.estimators.architecture import attention_spec, train_task
from toa.estimators.classifier_settings import CaseNetworkSpec, CaseSchema
from toa.estimators.importance import Importance, in_float64, integrated_gradients
from toa.estimators.members import CaseTraining, ScaledCases, ValidatedMember
from toa.estimators.probabilities import (
    Codes,
    Folds,
    HeldOut,
    Probabilities,
    accuracy,
    choose_factor,
    softmax,
    stratified_folds,
)
from toa.training.base import TASKS
from toa.training.classify import TrainingCases, classify, validation_logits
from toa.training.distributed import resolve_device
from toa.training.loop import TrainingStopped
from toa.training.optimization import TrainingConfig

# fewer cases to validate on are too few to choose an epoch
_LEAST_HELD = 4
# how a network is trained, beside the parameters of the classifier; a training loss below the last number is zero
_TRAINING: Mapping[str, Any] = {"schedule": "cosine", "clip_norm": 4.0, "least_loss": 2e-3}
# title of the progress bar
_TITLE = "classifier"
_TASK = TASKS["classify"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FittedCaseNetwork:
    """A trained network; with folds, the mean of a model per fold.

    Attributes:
        architecture: Backbone, settings and the steps per token ("patch").
        folds: Number of models; 0 for one that was trained on all cases.
        factor: Factor of the scores before softmax, which calibrates them.
        validation: Accuracy on the held-out cases; None without any.
    """

    spec: CaseNetworkSpec
    schema: CaseSchema
    architecture: Mapping[str, Any]
    model: nn.Module
    folds: int
    factor: float
    validation: float | None

    def probabilities(self, cases: ScaledCases) -> Probabilities:
        """See `FittedMember`."""
        logits = classify(self.model, self.to_tokens(cases))
        check_finite("logits", logits)
        return softmax(self.factor * logits.double().cpu().numpy())

    def to_tokens(self, cases: ScaledCases) -> Cases:
        """The cases as the model reads them, without classes."""
        return to_tokens(cases.values, [0] * len(cases), self.schema, patch_of(self.architecture), self.spec.device)

    def explain(self, cases: ScaledCases) -> Importance:
        """Parts of steps and channels in the class that the network gives the first case, see `Importance`."""
        tokens = self.to_tokens(cases)
        series = tokens.series[:1].cpu().double()
        mask = None if tokens.mask is None else tokens.mask[:1].cpu()
        model = in_float64(self.model)
        predicted = int(self.probabilities(cases)[0].argmax())

        def log_probability(rows: Tensor) -> Tensor:
            masks = None if mask is None else mask.expand(len(rows), -1)
            return model(rows, masks).log_softmax(-1)[:, predicted, None]

        (shares,), change = integrated_gradients(log_probability, [series], [torch.zeros_like(series)])
        channels = len(self.schema.columns)
        return Importance(
            what="the logarithm of the probability by the network, compared with a case at the mean of fit",
            outputs=(str(self.schema.classes[predicted]),),
            columns=self.schema.columns,
            shares=shares.reshape(1, -1, channels)[:, : len(cases.values[0])],
            ahead=np.zeros((1, channels)),
            change=change,
        )


@dataclass(frozen=True, slots=True, eq=False)
class NetworkMember:
    """A network of one architecture.

    Attributes:
        folds: The fold in which each case is held out; None trains one model on all cases and keeps its last epoch.
    """

    spec: CaseNetworkSpec
    schema: CaseSchema
    architecture: Mapping[str, Any]
    folds: Folds | None

    def fit(self, training: CaseTraining) -> ValidatedMember:
        """See `Member`.

        Raises:
            TrainingStopped: After a signal before the first validation; after a later one it is returned.
        """
        patch = patch_of(self.architecture)
        tokens = to_tokens(training.cases.values, training.codes.tolist(), self.schema, patch, self.spec.device)
        models = 0 if self.folds is None else int(self.folds.max()) + 1
        data = _task_data(self.schema, self.architecture, models, tokens)
        if self.folds is not None:
            data = replace(data, val=tokens, folds=torch.from_numpy(self.folds).to(tokens.labels.device))
        schedule = self._schedule(len(training.codes), models, training.effort.network_steps)
        model, stopped = _train(self.spec, self.architecture, schedule, data)
        network = FittedCaseNetwork(
            spec=self.spec,
            schema=self.schema,
            architecture=self.architecture,
            model=model,
            folds=models,
            factor=1.0,
            validation=None,
        )
        if self.folds is None:
            return ValidatedMember(network, None, stopped)
        scores = validation_logits(model, data).double().cpu().numpy()
        factor = choose_factor(scores, training.codes)
        network = replace(network, factor=factor, validation=accuracy(scores, training.codes))
        return ValidatedMember(network, _repeated(softmax(factor * scores), training.folds), stopped)

    def _schedule(self, cases: int, models: int, most_steps: int) -> dict[str, Any]:
        """Batch size, steps per epoch and epochs."""
        schedule = sizes.classifier_schedule(
            cases,
            len(self.schema.columns),
            self.architecture["backbone"],
            copies=max(1, models),
            batch_size=self.spec.batch_size,
            epochs=self.spec.epochs,
        )
        if self.spec.epochs is None:
            most_epochs = most_steps // schedule["steps"]
            schedule["epochs"] = max(1, min(schedule["epochs"], most_epochs))
        return schedule


def network_candidates(spec: CaseNetworkSpec, schema: CaseSchema) -> list[dict[str, Any]]:
    """Architectures to choose from; `settings` that the user chose take the place of the usual sizes."""
    candidates = sizes.classifier_candidates(spec.backbone, schema.length, spec.settings)
    return [
        {"backbone": backbone, "patch": patch, "settings": {**settings, **(spec.settings or {})}}
        for backbone, settings, patch in candidates
    ]


def check_candidates(spec: CaseNetworkSpec, schema: CaseSchema) -> None:
    """Build every network without memory for it: wrong settings raise ValueError before anything is fitted."""
    for architecture in network_candidates(spec, schema):
        with torch.device("meta"):
            build_case_network(spec, schema, architecture, 0)


def network_folds(codes: Codes, share: float, seed: int) -> Folds | None:
    """The fold in which each case is held out; None for too few cases.

    The only case of a class is held out too, and counts as an error: no model can know its class without it.
    """
    if not share or share * len(codes) < _LEAST_HELD:
        return None
    return stratified_folds(codes, max(2, round(1.0 / share)), seed)


def build_case_network(
    spec: CaseNetworkSpec, schema: CaseSchema, architecture: Mapping[str, Any], models: int
) -> nn.Module:
    """An untrained network, or as many models as there are folds."""
    return _TASK.build(_config(spec, architecture, epochs=1, batch_size=1), _task_data(schema, architecture, models))


def patch_of(architecture: Mapping[str, Any]) -> int:
    """Steps per token; older files have one token per step."""
    return int(architecture.get("patch", 1))


def to_tokens(values: Sequence[Values], codes: Sequence[int], schema: CaseSchema, patch: int, device: str) -> Cases:
    """Standardised cases in tokens of several steps and padded, on the device."""
    # (l, C) as (l / patch, patch * C); the last step fills the last token
    tokens = [np.pad(case, ((0, -len(case) % patch), (0, 0)), mode="edge") for case in values]
    tokens = [case.reshape(-1, patch * case.shape[1]) for case in tokens]
    length = -(-schema.length // patch)
    masked = any(len(case) != length for case in tokens)
    return pad_cases(tokens, list(codes), length, masked=masked, device=resolve_device(device))


def _repeated(probabilities: Probabilities, folds: Folds) -> HeldOut:
    """The same for every fold: each case has one network that was not trained on it."""
    return np.repeat(probabilities[None], folds.max() + 2, axis=0)


def _train(
    spec: CaseNetworkSpec, architecture: Mapping[str, Any], schedule: Mapping[str, Any], data: TrainingCases
) -> tuple[nn.Module, TrainingStopped | None]:
    """Train without changing the global random state; with the best weights, a signal that ended it is returned."""
    config = _config(spec, architecture, epochs=schedule["epochs"], batch_size=schedule["batch_size"])
    try:
        model, _ = train_task(_TASK, config, data, device=spec.device, progress=spec.progress, title=_TITLE)
    except TrainingStopped as stopped:
        if stopped.model is None:
            raise
        return stopped.model.eval(), stopped
    return model, None


def _task_data(
    schema: CaseSchema, architecture: Mapping[str, Any], models: int, train: Cases | None = None
) -> TrainingCases:
    """The cases, with the sizes that the model depends on."""
    patch = patch_of(architecture)
    return TrainingCases(
        channels=len(schema.columns) * patch,
        train=train,
        length=-(-schema.length // patch),
        classes=schema.classes,
        folds=torch.from_numpy(np.arange(models)) if models else None,
    )


def _config(spec: CaseNetworkSpec, architecture: Mapping[str, Any], *, epochs: int, batch_size: int) -> Any:
    """Config of the task; epochs and batch size matter only in training."""
    attention = architecture.get("attention", spec.attention)
    return _TASK.config(
        protocol="",
        dataset="",
        backbone=architecture["backbone"],
        attention=None if attention is None else attention_spec(attention),
        model=architecture["settings"],
        training=TrainingConfig(epochs=epochs, learning_rate=spec.learning_rate, patience=spec.patience, **_TRAINING),
        batch_size=batch_size,
        seed=spec.seed,
        evaluation="strict",
    )

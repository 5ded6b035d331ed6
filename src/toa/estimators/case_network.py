"""The network of a classifier: one model per fold, trained together; it is validated on all cases.

Alphabet: n cases, L longest length, l length of a case, C channels, K classes, F folds.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int64
from torch import Tensor

from toa._checks import check_finite
from toa.data.classification import Cases, pad_cases
from toa.data.panel import Panel, Values
from toa.data.splits import check_standardised
from toa.estimators import sizes
from toa.estimators.base import Estimator
from toa.estimators.effort import Ceiling
from toa.estimators.importance import Importance, in_float64, integrated_gradients
from toa.estimators.stack import Codes, Probabilities, accuracy, choose_factor, log_loss, softmax, stratified_folds
from toa.training.base import TASKS, TaskData, check_sample
from toa.training.classify import classify, validation_logits
from toa.training.distributed import resolve_device
from toa.training.loop import TrainingStopped

# fewer cases to validate on are too few to choose an epoch
_LEAST_HELD = 4


@dataclass(eq=False, repr=False)
class CaseNetwork(Estimator):
    """Trains the network of `toa.Classifier`, which documents the fields."""

    _kind = "case network"
    _task = TASKS["classify"]
    # a training loss below the last number is zero
    _training: ClassVar[Mapping[str, Any]] = {"schedule": "cosine", "clip_norm": 4.0, "least_loss": 2e-3}

    _: KW_ONLY
    length: int | None = None
    patience: int = 20

    def _fit_network(
        self, panel: Panel, codes: Codes, ceiling: Ceiling, accept: Callable[[Probabilities], Any] = lambda _: None
    ) -> None:
        """Train candidates, as many as the effort has, and keep the one with the lowest log loss.

        `accept` is called whenever a better network is kept, with calibrated probabilities of each case by the model
        that was not trained on it. With too few cases to validate on, it is not called: one model is trained on all
        cases, and its last epoch is kept. A signal raises TrainingStopped; the best network so far is kept.
        """
        folds = self._folds(codes)
        longest = 0.0
        best = np.inf
        candidates = self._candidates()[: 1 if folds is None else self._effort.candidates]
        for number, candidate in enumerate(candidates, 1):
            begin = ceiling.passed
            if number > 1 and not ceiling.allows(f"network {number}", longest):
                return
            held_out, stopped = candidate._train_candidate(panel, codes, folds)
            loss = -np.inf if held_out is None else log_loss(held_out, codes)
            if loss < best:
                best = loss
                self.__dict__.update(candidate.__dict__)
                if held_out is not None:
                    accept(held_out)
            if stopped is not None:
                raise stopped
            longest = max(longest, ceiling.passed - begin)

    def _candidates(self) -> list[Self]:
        """Copies with one network each, so that the network stays if another is not better."""
        found = []
        for backbone, settings, patch in sizes.classifier_candidates(self.backbone, self.length_, self.settings):
            found.append(copy.copy(self))
            found[-1]._choose(backbone, settings, patch=patch)
        return found

    def _check_candidates(self) -> None:
        """Build every network without memory for it: wrong settings raise ValueError before anything is fitted."""
        for candidate in self._candidates():
            candidate.folds_ = 0
            with torch.device("meta"):
                self._task.build(candidate._config(), candidate._data())

    def _folds(self, codes: Codes) -> Int64[np.ndarray, " n"] | None:
        """The fold in which each case is held out; None for too few cases.

        The only case of a class is held out too, and counts as an error: no model can know its class without it.
        """
        if not self.validation_share or self.validation_share * len(codes) < _LEAST_HELD:
            return None
        number = max(2, round(1.0 / self.validation_share))
        return stratified_folds(codes, number, self.seed)

    def _train_candidate(
        self, panel: Panel, codes: Codes, folds: Int64[np.ndarray, " n"] | None
    ) -> tuple[Probabilities | None, TrainingStopped | None]:
        """Train the chosen network; returns probabilities of held-out cases, and what stopped it."""
        cases = self._to_cases(panel, codes)
        self.folds_ = 0 if folds is None else int(folds.max()) + 1
        data = self._data(cases)
        if folds is not None:
            data = replace(data, val=cases, folds=torch.from_numpy(folds).to(cases.labels.device))
        schedule = sizes.classifier_schedule(
            len(codes),
            len(self.columns_),
            self.architecture_["backbone"],
            copies=max(1, self.folds_),
            batch_size=self.batch_size,
            epochs=self.epochs,
        )
        if self.epochs is None:
            most = self._effort.network_steps // schedule["steps"]
            schedule |= {"epochs": max(1, min(schedule["epochs"], most))}
        stopped = None
        try:
            self._fit_model(data, schedule)
        except TrainingStopped as error:
            if error.model is None:
                raise
            stopped, self.model_ = error, error.model.eval()
        self.validation_, self.factor_ = None, 1.0
        if folds is None:
            return None, stopped
        scores = validation_logits(self.model_, data).double().cpu().numpy()
        self.factor_ = choose_factor(scores, codes)
        self.validation_ = accuracy(scores, codes)
        return softmax(self.factor_ * scores), stopped

    def _network_probabilities(self, panel: Panel) -> Probabilities:
        cases = self._to_cases(panel, [0] * len(panel))
        logits = classify(self.model_, cases)
        check_finite("logits", logits)
        return softmax(self.factor_ * logits.double().cpu().numpy())

    def run_sample(self, data: Any, index: int = 0) -> None:
        """Classify one case of a pandas frame or a list, see `Estimator.run_sample`."""
        self._network_probabilities(self._case(data, index))

    def explain(self, data: Any, index: int | None = None) -> Importance:
        """Parts of steps and channels in the class that the network gives one case, see `Estimator.explain`."""
        panel = self._case(data, index or 0)
        cases = self._to_cases(panel, [0] * len(panel))
        series = cases.series[:1].cpu().double()
        mask = None if cases.mask is None else cases.mask[:1].cpu()
        model, known = in_float64(self.model_), int(self._network_probabilities(panel)[0].argmax())

        def chance(rows: Tensor) -> Tensor:
            given = None if mask is None else mask.expand(len(rows), -1)
            return model(rows, given).log_softmax(-1)[:, known, None]

        (shares,), change = integrated_gradients(chance, [series], [torch.zeros_like(series)])
        return Importance(
            what="the logarithm of the probability by the network, compared with a case at the mean of fit",
            outputs=(str(self.classes_[known]),),
            columns=self.columns_,
            shares=shares.reshape(1, -1, len(self.columns_))[:, : panel.lengths[0]],
            ahead=np.zeros((1, len(self.columns_))),
            change=change,
        )

    def _case(self, data: Any, index: int) -> Panel:
        self._check_has_network()
        data = data.to_pandas() if hasattr(data, "to_pandas") else data
        framed = isinstance(data, pd.DataFrame)
        if framed and self.id is not None and self.id not in data.columns:
            self._read_fitted(data)  # raises the error that names it
        ids = data[self.id].unique() if framed and self.id is not None else None
        check_sample(index, len(data if ids is None else ids))
        if ids is not None:
            return self._read_fitted(data[data[self.id] == ids[index]])
        return self._read_fitted(data.iloc[[index]] if framed else [data[index]])

    def _scaled(self, panel: Panel) -> list[Values]:
        return [
            check_standardised(self.scaler_.transform(values), self.columns_, f"case {index + 1} of X")
            for index, values in enumerate(panel.values)
        ]

    def _to_cases(self, panel: Panel, codes: Sequence[int] | Codes) -> Cases:
        """The cases, standardised, in tokens of several steps and padded, on the device."""
        patch, chosen = self._patch, self._scaled(panel)
        # (l, C) as (l / patch, patch * C); the last step fills the last token
        chosen = [np.pad(case, ((0, -len(case) % patch), (0, 0)), mode="edge") for case in chosen]
        chosen = [case.reshape(-1, patch * case.shape[1]) for case in chosen]
        length = -(-self.length_ // patch)
        masked = any(len(case) != length for case in chosen)
        return pad_cases(chosen, list(map(int, codes)), length, masked=masked, device=resolve_device(self.device))

    @property
    def _patch(self) -> int:
        # older files have one token per step
        return int(self.architecture_.get("patch", 1))

    def _fields(self) -> dict[str, Any]:
        return {"evaluation": "strict"}

    def _data(self, train: Any = None, val: Any = None) -> TaskData:
        shape: dict[str, Any] = {"length": -(-self.length_ // self._patch), "classes": self.classes_}
        folds = torch.from_numpy(np.arange(self.folds_)) if self.folds_ else None
        return TaskData(channels=len(self.columns_) * self._patch, train=train, val=val, folds=folds, **shape)

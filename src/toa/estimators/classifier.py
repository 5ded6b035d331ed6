"""Classifier: learns the classes of labelled series and predicts the class of new ones.

Alphabet: n cases, L longest length, l length of a case, C channels, K classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from jaxtyping import Float64
from sklearn.base import ClassifierMixin
from torch import Tensor

from toa._checks import check_at_least, check_finite, check_fraction
from toa.data.cases import Cases, fit_scaler, hold_out, pad_cases
from toa.data.frames import check_results, read_cases, to_native, with_labels
from toa.data.panel import Panel
from toa.data.splits import StandardScaler, check_standardised
from toa.estimators.base import Estimator
from toa.estimators.sizes import DEFAULT_ATTENTION, choose_case_batch, choose_classifier, choose_epochs
from toa.tasks.base import TASKS, TaskData, check_sample
from toa.tasks.classify import classify
from toa.tasks.distributed import resolve_device
from toa.tasks.training import TrainingStopped

# fewer held-out cases are too few to select an epoch
_LEAST_HELD = 4


@dataclass(eq=False, repr=False)
class Classifier(ClassifierMixin, Estimator):  # type: ignore[misc]
    """Classify time series.

        model = toa.Classifier().fit(X, y)   # X (n, C, L) or (n, L), or a list of (C, l); y one label per case
        model.predict(new)                   # labels of the same type as y
        model.predict_proba(new)             # (n, K), in the order of model.classes_

    For long frames, `id` names the column with the case of each row, and `label` the column of the class; or y has the
    labels, one per case in the order of the ids, or a mapping by id. Results are then frames with a row per id. A frame
    without `id` has a case of one channel in each row, and its results are arrays. Cases may differ in length; the
    padding of shorter ones changes no prediction.

    Args:
        backbone: A name of `toa.models.BACKBONES`; None is "transformer", or "patchtst" for long series.
        attention: A name of `toa.nn.ATTENTIONS`, or the fields of `toa.nn.AttentionSpec`.
        settings: Settings of the backbone; unset ones are chosen for a small model.
        length: Longest case L that can be classified; None is the longest of `fit`.
        epochs: Maximum number of epochs; None chooses by data size.
        batch_size: Cases per batch; None chooses by data size.
        learning_rate: Initial learning rate; it decays to zero.
        patience: Epochs without a better validation accuracy before training stops.
        validation_share: Share of each class that is held out to select the epoch. If that is fewer than four cases in
            all, or 0, every case is used for training and the last epoch is kept.
        id: In a long frame, the column of cases.
        time: In a frame, the column of times or steps.
        values: In a frame, the channels; None for all other columns.
        label: In a frame, the column of classes.
        missing: Missing values: "error", "ffill", "interpolate" or "zero".
        seed: Seed of the held-out cases, weights, batches, dropout and SOR.
        device: "auto", "cpu", "cuda" or "cuda:N".
        progress: Whether to show a progress bar.

    Attributes:
        model_: The trained model.
        classes_: Labels in the order of the columns of `predict_proba`.
        length_: Longest case.
        validation_: Accuracy on the held-out cases; None without any.
    """

    _kind = "classifier"
    _task = TASKS["classify"]
    _training: ClassVar[Mapping[str, Any]] = {"schedule": "cosine", "clip_norm": 4.0}
    _facts = ("length_", "validation_", "architecture_")

    _: KW_ONLY
    backbone: str | None = None
    attention: str | Mapping[str, Any] = DEFAULT_ATTENTION
    length: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float = 1e-3
    patience: int = 20
    validation_share: float = 0.2
    label: str | None = None

    def fit(self, X: Any, y: Any = None) -> "Classifier":
        """Train on labelled cases.

        Args:
            X: Cases: an array (n, C, L) or (n, L), a list of arrays (C, l) or (l,), or a long frame.
            y: One label of any type per case; None if the frame has them.

        Raises:
            ValueError: If the data cannot be read, or have only one class.
        """
        check_fraction("validation_share", self.validation_share)
        panel = self._read(X)
        labels = _labels(panel, y)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must have at least two classes, got 1: {self.classes_.tolist()[0]!r}; add others.")
        if len(self.classes_) == len(labels) > 2:
            raise ValueError(
                f"y must have a class with at least two cases, got {len(labels)} cases of as many classes; is it "
                "continuous, a number to predict?"
            )
        check_results(replace(panel, time_column=None), list(map(str, self.classes_)))
        check_results(replace(panel, time_column=None), ("prediction",))
        self.columns_ = panel.columns
        self.length_ = max(panel.lengths)
        if self.length is not None:
            check_at_least("length", self.length, self.length_)
            self.length_ = self.length
        self._train(panel, codes)
        return self

    def predict(self, X: Any) -> Any:
        """Labels of new cases: an array, or for a long frame a frame by id with a column "prediction"."""
        panel, proba = self._probabilities(X)
        labels = self.classes_[proba.argmax(1)]
        return labels if panel.backend is None else _frame_by_id(panel, {"prediction": labels})

    def predict_proba(self, X: Any) -> Any:
        """Probability of each class (n, K), or for a long frame a frame by id with a column per class."""
        panel, proba = self._probabilities(X)
        if panel.backend is None:
            return proba
        return _frame_by_id(panel, {str(name): proba[:, index] for index, name in enumerate(self.classes_)})

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Accuracy on labelled cases; y is None if the frame has the labels."""
        panel, proba = self._probabilities(X)
        right = self.classes_[proba.argmax(1)] == _labels(panel, y)
        return float(np.average(right, weights=sample_weight))

    def labels_in(self, X: Any) -> np.ndarray | None:
        """Labels in the column `label` of a frame, one per case; None without that column."""
        return self._read(X).labels

    def run_sample(self, data: Any, index: int = 0) -> None:
        """Classify one case of a pandas frame or a list, see `Estimator.run_sample`."""
        if isinstance(data, pd.DataFrame) and self.id is not None:
            ids = data[self.id].unique()
            check_sample(index, len(ids))
            self.predict(data[data[self.id] == ids[index]])
            return
        check_sample(index, len(data))
        self.predict(data.iloc[[index]] if isinstance(data, pd.DataFrame) else [data[index]])

    def _read(self, data: Any) -> Panel:
        return read_cases(data, id=self.id, time=self.time, values=self.values, label=self.label, missing=self.missing)

    def _read_fitted(self, data: Any) -> Panel:
        """Cases with the channels of fit and at most the length of fit."""
        self._check_fitted("applied to cases")
        panel = self._read(data)
        if panel.backend is not None:
            panel = panel.select(self.columns_, "X")
        elif len(panel.columns) != len(self.columns_):
            raise ValueError(
                f"X must have {len(self.columns_)} channels, those of fit, got {len(panel.columns)}; fit again, or "
                "choose its channels."
            )
        for index, steps in enumerate(panel.lengths):
            if steps > self.length_:
                case = index + 1 if panel.backend is None else panel.ids[index]
                raise ValueError(
                    f"case {case!r} of X must have at most {self.length_} steps, the longest case of fit, got {steps}; "
                    f"cut it, or fit with length={steps}."
                )
        return panel

    def _to_cases(self, panel: Panel, codes: np.ndarray, indices: Sequence[int]) -> Cases:
        """The cases with these indices, standardised and padded, on the device."""
        chosen = [
            check_standardised(self.scaler_.transform(panel.values[index]), self.columns_, f"case {index + 1} of X")
            for index in indices
        ]
        masked = any(len(case) != self.length_ for case in chosen)
        labels = [int(codes[index]) for index in indices]
        return pad_cases(chosen, labels, self.length_, masked=masked, device=resolve_device(self.device))

    def _train(self, panel: Panel, codes: np.ndarray) -> None:
        self._choose(*choose_classifier(self.backbone, self.length_))
        kept, held = list(range(len(codes))), list[int]()
        counts = np.bincount(codes)
        if self.validation_share and self.validation_share * counts[counts > 1].sum() >= _LEAST_HELD:
            kept, held = hold_out(codes.tolist(), self.validation_share, self.seed)
        self.scaler_ = fit_scaler([panel.values[index] for index in kept], "X")
        data = self._data(self._to_cases(panel, codes, kept), self._to_cases(panel, codes, held) if held else None)
        batch_size = choose_case_batch(self.batch_size, len(kept))
        epochs = choose_epochs(self.epochs, len(kept), batch_size)
        self.validation_: float | None = None
        try:
            best = self._fit_model(data, epochs=epochs, batch_size=batch_size)
        except TrainingStopped as stopped:
            # keeps the best model so far, which the caller may save
            if stopped.model is not None:
                self.model_, self.validation_ = stopped.model.eval(), 1.0 - stopped.best
            raise
        self.validation_ = None if best is None else 1.0 - best

    def _fields(self) -> dict[str, Any]:
        return {"evaluation": "strict"}

    def _data(self, train: Any = None, val: Any = None) -> TaskData:
        sizes: dict[str, Any] = {"length": self.length_, "classes": self.classes_}
        return TaskData(channels=len(self.columns_), train=train, val=val, **sizes)

    def _probabilities(self, X: Any) -> tuple[Panel, Float64[np.ndarray, "n k"]]:
        panel = self._read_fitted(X)
        logits = classify(self.model_, self._to_cases(panel, np.zeros(len(panel), dtype=int), range(len(panel))))
        check_finite("logits", logits)
        return panel, logits.double().softmax(1).cpu().numpy()

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        labels = self.classes_.tolist()
        for label in labels:
            if not isinstance(label, str | int | float | bool):
                raise ValueError(f"labels must be text, numbers or booleans to be saved, got {label!r}; rename them.")
        kind = "object" if self.classes_.dtype == object else self.classes_.dtype.str
        tensors = {f"scaler.{name}": value for name, value in self.scaler_.state().items()}
        return tensors, {"columns": list(self.columns_), "classes": labels, "label_type": kind}

    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.columns_ = tuple(facts["columns"])
        self.classes_ = np.array(facts["classes"], dtype=facts["label_type"])
        self.scaler_ = StandardScaler.from_state({name: tensors[f"scaler.{name}"] for name in ("mean", "std")})


def _labels(panel: Panel, y: Any) -> np.ndarray:
    """Labels of all cases, from y or the frame."""
    labels = panel.labels if y is None else with_labels(panel, y).labels
    if labels is None:
        raise ValueError(
            "y must be given, or label must name the column of the frame with the classes, got y=None: the classifier "
            "requires y to be passed, but the target y is None."
        )
    return labels


def _frame_by_id(panel: Panel, columns: Mapping[str, np.ndarray]) -> Any:
    assert panel.id_column is not None
    # the result has no times
    return to_native(replace(panel, time_in_index=False), {panel.id_column: np.asarray(panel.ids), **columns})

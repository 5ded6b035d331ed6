"""Classifier: from labelled series to the class of new ones.

Alphabet: n cases, L longest length, C channels, K classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float64
from sklearn.base import ClassifierMixin
from torch import Tensor, nn

from toa._checks import check_at_least, check_choice, check_fraction
from toa.data.cases import Cases, fit_scaler, hold_out, pad_cases
from toa.data.scaling import StandardScaler
from toa.estimators.base import Estimator
from toa.estimators.cases import CaseTable, labels_of, read_cases
from toa.estimators.fitting import attention_spec, choose_epochs, fit_model, restore_model
from toa.estimators.frames import Missing
from toa.estimators.rows import match_columns
from toa.models import backbone_names, build_classifier
from toa.tasks.classify import CaseBatches, classification_loss, classify, validation_error
from toa.tasks.device import resolve_device
from toa.tasks.optimization import TrainingConfig

# steps up to which each is a token; beyond, a token is a patch
_POINTS = 400
# tokens of a channel where they are patches, about
_PATCHES = 64
# cases a batch by size: an eighth of them, within these
_BATCH = (8, 64)
# fewer say little about an epoch
_LEAST_HELD = 4
# of small tables; `settings` goes over it
_SIZES: dict[str, Any] = {"embed_dim": 64, "num_heads": 4, "num_layers": 2, "ff_dim": 128, "dropout": 0.1}
# learned, and plain enough for a file as it is
_FACTS = ("length_", "validation_", "architecture_")


class Classifier(ClassifierMixin, Estimator):  # type: ignore[misc]
    """Tells classes of time series apart.

        model = toa.Classifier().fit(X, y)   # X (n, C, L) or (n, L), or a list of (C, l); y one label a case
        model.predict(new)                   # labels of the kind that y had
        model.predict_proba(new)             # (n, K), in the order of model.classes_

    Long frames have `id` name the column that says which case a row is of, and `label` that of the class, or labels
    come as y: one a case in the order in which ids come, or a mapping by id. Answers are then frames by id. A frame
    without `id` has a case of one channel in each row, and is answered as an array is. Cases may differ in length;
    shorter ones are padded, which changes no prediction.

    Args:
        backbone: A name of `toa.models.BACKBONES`; None is "transformer", or "patchtst" for long series.
        attention: A name of `toa.nn.ATTENTIONS`, or the fields of `toa.nn.AttentionSpec`.
        settings: Sizes and parts of the backbone; what is left out is small.
        length: Longest case L that can be classified; None is the longest of `fit`.
        epochs: Passes over the data at most; None is by size.
        batch_size: Cases a batch; None is by size.
        learning_rate: Highest of a schedule that falls to zero.
        patience: Epochs without a better accuracy on the held-out cases after which training ends.
        validation_share: Share of each class that is held out to choose the epoch by. Where that is fewer than four
            cases in all, or 0, every case trains and the last epoch is kept.
        id: In a long frame, the column of cases.
        time: In a frame, the column of times or steps.
        values: In a frame, the channels; None is all other columns.
        label: In a frame, the column of classes.
        missing: What to do about missing values: "error", "ffill", "interpolate" or "zero".
        seed: Of what is held out, of weights, batches, dropout and SOR.
        device: "auto", "cpu", "cuda" or "cuda:N".
        progress: Whether to show a bar while fitting.

    Attributes:
        model_: The trained model.
        classes_: Labels in the order of the columns of `predict_proba`.
        length_: Longest case.
        validation_: Accuracy on the held-out cases; None without any.
    """

    _kind = "classifier"

    def __init__(
        self,
        *,
        backbone: str | None = None,
        attention: str | Mapping[str, Any] = "toa-gated",
        settings: Mapping[str, Any] | None = None,
        length: int | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float = 1e-3,
        patience: int = 20,
        validation_share: float = 0.2,
        id: str | None = None,
        time: str | None = None,
        values: Sequence[str] | None = None,
        label: str | None = None,
        missing: Missing = "error",
        seed: int = 2024,
        device: str = "auto",
        progress: bool = False,
    ) -> None:
        self.backbone = backbone
        self.attention = attention
        self.settings = settings
        self.length = length
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.patience = patience
        self.validation_share = validation_share
        self.id = id
        self.time = time
        self.values = values
        self.label = label
        self.missing = missing
        self.seed = seed
        self.device = device
        self.progress = progress

    def fit(self, X: Any, y: Any = None) -> "Classifier":
        """Learn to tell classes apart.

        Args:
            X: Cases: an array (n, C, L) or (n, L), a list of arrays (C, l) or (l,), or a long frame.
            y: One label a case, of any kind; None if the frame has them.

        Raises:
            ValueError: If the data cannot be read, or have one class alone.
        """
        check_fraction("validation_share", self.validation_share)
        table = self._read(X)
        labels = _checked_labels(table, y)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must have two classes at least, got 1 class: {self.classes_[0]!r} alone; add others.")
        if len(self.classes_) == len(labels) > 2:
            raise ValueError(
                f"y must have a class with two cases at least, got {len(labels)} cases of as many classes; is it "
                "continuous, a number to predict?"
            )
        self.columns_ = table.columns
        self.length_ = self._choose_length(table)
        self.architecture_ = self._choose_architecture()
        kept, held = self._hold_out(codes)
        self.scaler_ = fit_scaler([table.cases[place] for place in kept], "X")
        train = self._cases(table, codes, kept)
        val = self._cases(table, codes, held) if held else None
        self.model_, state = fit_model(
            self._make,
            CaseBatches(train, self._choose_batch(len(kept)), seed=self.seed),
            classification_loss,
            self._training,
            validate=None if val is None else lambda model: validation_error(model, val),
            seed=self.seed,
            device=self.device,
            progress=self.progress,
            description=self._kind,
        )
        self.validation_ = None if state.best is None else 1.0 - state.best
        return self

    def predict(self, X: Any) -> Any:
        """Labels of new cases: an array, or for a frame a frame by id with a column "prediction"."""
        table, proba = self._probabilities(X)
        labels = self.classes_[proba.argmax(1)]
        return labels if table.panel is None else _by_id(table, {"prediction": labels})

    def predict_proba(self, X: Any) -> Any:
        """Probability of each class (n, K), or for a frame a frame by id with a column for each class."""
        table, proba = self._probabilities(X)
        if table.panel is None:
            return proba
        return _by_id(table, {str(name): proba[:, place] for place, name in enumerate(self.classes_)})

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Share of the cases whose class is predicted; y is None if the frame has it."""
        table, proba = self._probabilities(X)
        right = self.classes_[proba.argmax(1)] == _checked_labels(table, y)
        return float(np.average(right, weights=sample_weight))

    def labels_in(self, X: Any) -> np.ndarray | None:
        """Labels that a frame has in its column `label`, one a case; None if it has none."""
        return self._read(X).labels

    def _read(self, data: Any) -> CaseTable:
        return read_cases(
            data,
            id=self.id,
            time=self.time,
            values=None if self.values is None else list(self.values),
            label=self.label,
            missing=self.missing,
        )

    def _read_known(self, data: Any) -> CaseTable:
        """Cases with the channels of fit, none longer than the longest there."""
        self._check_fitted("asked about cases")
        table = self._read(data)
        if table.panel is not None:
            panel = match_columns(table.panel, self.columns_, "X")
            table = CaseTable(cases=panel.values, columns=panel.columns, labels=table.labels, panel=panel)
        elif len(table.columns) != len(self.columns_):
            raise ValueError(
                f"X must have {len(self.columns_)} channels, those of fit, got {len(table.columns)}; fit again, or "
                "choose its channels."
            )
        for place, case in enumerate(table.cases):
            if len(case) > self.length_:
                raise ValueError(
                    f"{table.name(place)} of X must have at most {self.length_} steps, those of the longest case of "
                    f"fit, got {len(case)}; cut it, or fit with length={len(case)}."
                )
        return table

    def _choose_length(self, table: CaseTable) -> int:
        longest = max(map(len, table.cases))
        if self.length is None:
            return longest
        check_at_least("length", self.length, longest)
        return self.length

    def _choose_architecture(self) -> dict[str, Any]:
        """Backbone and settings, what was left open chosen."""
        backbone = self.backbone or ("transformer" if self.length_ <= _POINTS else "patchtst")
        check_choice("backbone", backbone, backbone_names("classify"))
        sizes = dict(_SIZES)
        if backbone == "patchtst":
            patch = max(1, min(self.length_, 2 * self.length_ // _PATCHES or self.length_ // 2))
            sizes |= {"patch_len": patch, "stride": max(1, patch // 2)}
        return {"backbone": backbone, "settings": sizes | dict(self.settings or {})}

    def _choose_batch(self, cases: int) -> int:
        least, most = _BATCH
        return max(least, min(most, cases // 8)) if self.batch_size is None else self.batch_size

    def _hold_out(self, codes: np.ndarray) -> tuple[list[int], list[int]]:
        counts = np.bincount(codes)
        if self.validation_share and self.validation_share * counts[counts > 1].sum() >= _LEAST_HELD:
            return hold_out(codes.tolist(), self.validation_share, self.seed)
        return list(range(len(codes))), []

    def _make(self) -> nn.Module:
        return build_classifier(
            self.architecture_["backbone"],
            lookback=self.length_,
            channels=len(self.columns_),
            num_classes=len(self.classes_),
            attention=attention_spec(self.attention),
            settings=self.architecture_["settings"],
        )

    def _training(self, steps_per_epoch: int) -> TrainingConfig:
        return TrainingConfig(
            epochs=choose_epochs(self.epochs, steps_per_epoch),
            learning_rate=self.learning_rate,
            schedule="cosine",
            patience=self.patience,
            clip_norm=4.0,
        )

    def _cases(self, table: CaseTable, codes: np.ndarray, places: Sequence[int]) -> Cases:
        """Cases of a table, standardised and padded, on the device."""
        chosen = [self.scaler_.transform(table.cases[place]) for place in places]
        masked = any(len(case) != self.length_ for case in chosen)
        labels = [int(codes[place]) for place in places]
        return pad_cases(chosen, labels, self.length_, masked=masked, device=resolve_device(self.device))

    def _probabilities(self, X: Any) -> tuple[CaseTable, Float64[np.ndarray, "n k"]]:
        table = self._read_known(X)
        count = len(table.cases)
        logits = classify(self.model_, self._cases(table, np.zeros(count, dtype=int), range(count)))
        return table, logits.double().softmax(1).cpu().numpy()

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {f"scaler.{name}": value for name, value in self.scaler_.state().items()}
        tensors |= {f"model.{name}": value for name, value in self.model_.state_dict().items()}
        labels = self.classes_.tolist()
        for label in labels:
            if not isinstance(label, str | int | float | bool):
                raise ValueError(f"labels must be text, numbers or booleans to be saved, got {label!r}; rename them.")
        facts = {name: getattr(self, name) for name in _FACTS}
        kind = "object" if self.classes_.dtype == object else self.classes_.dtype.str
        return tensors, facts | {"columns": list(self.columns_), "classes": labels, "label_type": kind}

    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        for name in _FACTS:
            setattr(self, name, facts[name])
        self.columns_ = tuple(facts["columns"])
        self.classes_ = np.array(facts["classes"], dtype=facts["label_type"])
        self.scaler_ = StandardScaler.from_state({name: tensors[f"scaler.{name}"] for name in ("mean", "std")})
        self.model_ = restore_model(self._make, tensors, resolve_device(self.device))


def _checked_labels(table: CaseTable, y: Any) -> np.ndarray:
    """Labels of all cases, from y or the table."""
    if y is None:
        if table.labels is None:
            raise ValueError(
                "y must be given, or label name the column of the frame that has the classes, got y=None: the "
                "classifier requires y to be passed, but the target y is None."
            )
        return table.labels
    labels = labels_of(y, table.panel)
    if len(labels) != len(table.cases):
        raise ValueError(f"y must have a label for each of the {len(table.cases)} cases, got {len(labels)}.")
    return labels


def _by_id(table: CaseTable, columns: Mapping[str, np.ndarray]) -> Any:
    panel = table.panel
    assert panel is not None
    assert panel.id_column is not None
    # an answer has no times, in its index or elsewhere
    return replace(panel, time_in_index=False).give_back({panel.id_column: np.asarray(panel.ids), **columns})

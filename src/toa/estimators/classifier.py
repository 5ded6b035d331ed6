"""Classifier: learns the classes of labelled series and predicts the class of new ones.

The shell of scikit-learn around the stages: parameters and tables are here, `toa.estimators.classifier_fitting` fits,
and the frozen value `fitted_` of `toa.estimators.fitted_classifier` classifies.

Alphabet: n cases, L longest length, l length of a case, C channels, K classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import ClassifierMixin
from torch import Tensor, nn

from toa._checks import ArgumentError, check_at_least
from toa._console import shows_progress
from toa.data.columns import warn_of_misread, warn_of_single_cases
from toa.data.frames import check_frequency, check_results, read_cases, to_native
from toa.data.frequency import Frequency
from toa.data.panel import Panel
from toa.estimators.architecture import NETWORK
from toa.estimators.base import Estimator
from toa.estimators.classifier_files import classifier_state, restore_classifier
from toa.estimators.classifier_fitting import fit_classifier, prepare_fit
from toa.estimators.classifier_settings import CaseNetworkSpec, CaseSchema, ClassifierSettings
from toa.estimators.effort import Ceiling
from toa.estimators.fitted_classifier import FittedClassifier, has_order, select_channels
from toa.estimators.importance import Importance
from toa.estimators.labels import class_codes, labels_by_row
from toa.estimators.probabilities import Codes, Probabilities
from toa.estimators.stack import Stack
from toa.training.base import check_sample


@dataclass(eq=False, repr=False)
class Classifier(ClassifierMixin, Estimator):  # type: ignore[misc]
    """Classify time series.

        model = toa.Classifier().fit(X, y)   # X (n, C, L) or (n, L), or a list of (C, l); y one label per case
        model.predict(new)                   # labels of the same type as y
        model.predict_proba(new)             # (n, K), in the order of model.classes_

    The probabilities are a weighted mean of members: "kernels", a ridge classifier on the features of random
    convolutional kernels (MultiRocket and Hydra); ridge classifiers on the simple features of
    `toa.estimators.kernels.FEATURES`; "toa", the network; and "class shares", the share of each class. Each member
    predicts every training case without having been fitted to it: the ridge classifiers leave one case out, and the
    network has one model per fold. These predictions choose the weights. Each fifth of the cases is then predicted with
    what the other cases choose: weights and, for up to 1,000 cases, ridge classifiers with their penalties. That gives
    the accuracy `validation_` and calibrates the probabilities.

    For long frames, `id` names the column with the case of each row, and `label` the column of the class; or y has the
    labels, one per case in the order of the ids, or a mapping by id. Results are then frames with a row per id. A frame
    without `id` has a case of one channel in each row, and its results are arrays. So has a frame in which each id has
    one row, if `time` is not given; its results have the ids. Cases may differ in length: the
    network pads them; for the other members they are padded or stretched to the longest, whichever gives the kernels
    the lower leave-one-out error. Stretched cases lose their frequencies, padded ones the relative place of an event.
    After a fit on cases of one length, shorter ones are padded. No case changes the prediction of another.

    Args:
        model: "auto" weights the members; "toa" is the network alone.
        effort: Counted work of the fit: "quick", or "thorough", which uses all kernels for larger data, and compares
            networks of three kinds and trains them longer. No clock has a part in it.
        time_limit: Largest number of seconds of the fit; None for none. Networks that would end later are left out,
            with a warning that names them. The minute in which the kernels are compiled when they are first used does
            not count.
        backbone: A name of `toa.models.BACKBONES`; None is "transformer".
        attention: A name of `toa.nn.ATTENTIONS`, or the fields of `toa.nn.AttentionSpec`.
        settings: Settings of the backbone; unset ones are chosen for a small model. Validation chooses the length of
            patches and the instance norm, unless they are given.
        length: Longest case L that can be classified; None is the longest of `fit`.
        epochs: Maximum number of epochs; None chooses by data size. Training ends early when its loss is zero.
        batch_size: Cases per batch; None chooses by data size.
        learning_rate: Initial learning rate; it decays to zero.
        patience: Epochs without a better validation accuracy before training stops.
        validation_share: Share of the cases that each model of the network is validated on: 0.2 gives five models, and
            each case is held out of one of them. If the share is fewer than four cases, or 0, "toa" trains one model on
            all cases and keeps the last epoch, and "auto" leaves the network out.
        id: In a frame, the column of cases.
        time: In a frame, the column of times or steps.
        values: In a frame, the channels; None for all other columns.
        label: In a frame, the column of classes.
        missing, missing_values, day_first, time_zone, device, progress: As in `toa.Forecaster`.
        seed: Seed of the kernels, folds, weights, batches, dropout and SOR.

    Attributes:
        fitted_: All that was fitted, a frozen value.
        model_: The trained network.
        classes_: Labels in the order of the columns of `predict_proba`.
        length_: Longest case.
        padded_: Whether shorter cases are padded, not stretched, for the members other than the network.
        lengths_: Shortest and longest case of fit. Much shorter or longer cases lead to a warning.
        freq_: Frequency of the times in fit, or None; later cases must have it.
        stack_: Weights of the members, and the cross-validated accuracies of members and baselines; None for "toa".
        weights_: The weights of the members.
        validation_: Cross-validated accuracy; None without any held-out case. With a network it is a little too high
            for few cases, because its epochs are chosen on all of them.
        cases_: Number of training cases.
        no_network_: Why "auto" has no network: "too few cases", "no errors to mend", "no time" or "effort"; None if it
            has one. It is not saved.
        truncated_: Members that `time_limit` left out.
    """

    _kind = "classifier"
    _facts = ("length_", "validation_", "architecture_")
    _counts = ("length",)

    _: KW_ONLY
    length: int | None = None
    patience: int = 20
    label: str | None = None

    def fit(self, X: Any, y: Any = None) -> "Classifier":
        """Train on labelled cases. A fit that is stopped, or raises, leaves the classifier as it was.

        Args:
            X: Cases: an array (n, C, L) or (n, L), a list of arrays (C, l) or (l,), or a long frame.
            y: One label of any type per case; a pandas series by row if it has the index of X, else by id. None if
                the frame has them.

        Raises:
            ValueError: If the data cannot be read, or have only one class.
            FitStopped: After Ctrl-C in the training of the network; it is a KeyboardInterrupt that has the best
                classifier so far, see `toa.estimators.classifier_fitting`.
        """
        self._check_parameters()
        # a new fit does not keep the order of the dates of an earlier one
        options = self._table | {"day_first": self.day_first}
        panel = read_cases(X, values=self.values, label=self.label, **options)
        if self.values is None:
            warn_of_misread(panel)
        classes, codes = _read_classes(panel, y, X)
        schema = self._schema(panel, classes)
        settings = self.settings_of_fit()
        prepare_fit(settings, schema)
        ceiling = Ceiling(self.time_limit)
        self.fitted_: FittedClassifier = fit_classifier(panel, codes, schema, settings, ceiling)
        ceiling.warn()
        return self

    def predict(self, X: Any) -> Any:
        """Labels of new cases: an array, or for a long frame a frame by id with a column "prediction"."""
        panel, proba = self.classify(X)
        labels = self.classes_[proba.argmax(1)]
        return labels if panel.backend is None else _frame_by_id(panel, {"prediction": labels})

    def predict_proba(self, X: Any) -> Any:
        """Probability of each class (n, K), or for a long frame a frame by id with a column per class."""
        panel, proba = self.classify(X)
        if panel.backend is None:
            return proba
        return _frame_by_id(panel, {str(name): proba[:, index] for index, name in enumerate(self.classes_)})

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Accuracy on labelled cases; y is None if the frame has the labels."""
        panel, proba = self.classify(X)
        right = class_codes(_labels(panel, y, X), self.classes_, len(panel)) == proba.argmax(1)
        return float(np.average(right, weights=sample_weight))

    def classify(self, X: Any) -> tuple[Panel, Probabilities]:
        """The cases as a panel, and the probability of each class (n, K)."""
        panel = self.read_fitted(X)
        return panel, self.fitted_.probabilities(panel)

    def read(self, X: Any, like: Panel | None = None) -> Panel:
        """Cases as a panel; raises ValueError if X has other channels, steps or times than the cases `like`."""
        panel = self._read(X)
        if like is not None:
            # for its errors alone: another order is no error
            has_order(select_channels(panel, like.columns).steps, like.steps)
            check_frequency(panel, like.freq, "X")
        return panel

    def read_fitted(self, X: Any) -> Panel:
        """Cases with the channels, steps and frequency of fit, and at most its length."""
        self._check_fitted("applied to cases")
        panel = self._read(X)
        if not has_order(panel.steps, self.steps_):
            panel = self._read(X, self.steps_)
        panel = select_channels(panel, self.columns_)
        self.fitted_.check_cases(panel)
        return panel

    def run_sample(self, data: Any, index: int = 0) -> None:
        """Classify one case of a pandas frame or a list, see `Estimator.run_sample`."""
        panel = self._read_case(data, index)
        self.fitted_.require_network().probabilities(self.fitted_.scale(panel))

    def explain(self, data: Any, index: int | None = None) -> Importance:
        """Parts of steps and channels in the class that the network gives one case, see `Estimator.explain`."""
        panel = self._read_case(data, index or 0)
        return self.fitted_.require_network().explain(self.fitted_.scale(panel))

    def page(
        self,
        path: str | Path,
        X: Any,
        y: Any = None,
        *,
        title: str = "Classes",
        command: str = "",
        left_out: Sequence[str] = (),
    ) -> Path:
        """Write one HTML file: the confusion matrix with the cases behind it, the methods, the model.

        Args:
            path: File to write.
            X: Cases as for `predict`, not those of `fit`, whose classes are known.
            y: One label per case; None takes those of the frame, and without them all cases are listed.
            title, command, left_out: As in `toa.Forecaster.page`.
        """
        self._check_fitted("shown on a page")
        # loaded on use: pages build on the estimators
        from toa.report import page

        return page(self, path, X, y, title=title, command=command, left_out=left_out)

    def settings_of_fit(self) -> ClassifierSettings:
        """The parameters that the stages of a fit take."""
        network = CaseNetworkSpec(
            backbone=self.backbone,
            attention=self.attention,
            settings=self.settings,
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            patience=self.patience,
            seed=self.seed,
            device=self.device,
            progress=shows_progress(self.progress),
        )
        return ClassifierSettings(
            alone=self.model == NETWORK,
            effort=self._effort,
            seed=self.seed,
            validation_share=self.validation_share,
            network=network,
        )

    def _schema(self, panel: Panel, classes: np.ndarray) -> CaseSchema:
        """What the cases of fit are like; raises ValueError if results or longer cases would not fit them."""
        for names in (map(str, classes), ("prediction",)):
            check_results(replace(panel, time_column=None), list(names))
        longest = max(panel.lengths)
        if self.length is not None:
            check_at_least("length", self.length, longest)
        return CaseSchema(
            columns=panel.columns,
            classes=classes,
            length=longest if self.length is None else self.length,
            lengths=(min(panel.lengths), longest),
            freq=panel.freq,
            steps=panel.steps,
            day_first=panel.day_first,
            count=len(panel),
        )

    def _read(self, data: Any, values: Sequence[str] | None = None) -> Panel:
        # a later table is read as that of fit
        wide = bool(self.steps_) if hasattr(self, "fitted_") else None
        return read_cases(data, values=values or self.values, label=self.label, wide=wide, **self._table)

    def _read_case(self, data: Any, index: int) -> Panel:
        """One case, for the network."""
        self._check_has_network()
        data = data.to_pandas() if hasattr(data, "to_pandas") else data
        is_frame = isinstance(data, pd.DataFrame)
        if is_frame and self.id is not None:
            if self.id not in data.columns:
                self.read_fitted(data)  # raises the error that names it
            ids = data[self.id].unique()
            check_sample(index, len(ids))
            return self.read_fitted(data[data[self.id] == ids[index]])
        check_sample(index, len(data))
        return self.read_fitted(data.iloc[[index]] if is_frame else [data[index]])

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return classifier_state(self.fitted_)

    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], where: str | Path) -> None:
        if "stack" not in facts:
            self.model = NETWORK
        self.fitted_ = restore_classifier(tensors, facts, self.settings_of_fit().network, where)

    @property
    def model_(self) -> nn.Module:
        """The trained network."""
        return nn.Identity() if self.fitted_.network is None else self.fitted_.network.model

    @property
    def classes_(self) -> np.ndarray:
        """Labels in the order of the columns of `predict_proba`."""
        return self.fitted_.schema.classes

    @property
    def columns_(self) -> tuple[str, ...]:
        """Channels."""
        return self.fitted_.schema.columns

    @property
    def length_(self) -> int:
        """Longest case."""
        return self.fitted_.schema.length

    @property
    def lengths_(self) -> tuple[int, int]:
        """Shortest and longest case of fit."""
        return self.fitted_.schema.lengths

    @property
    def freq_(self) -> Frequency | None:
        """Frequency of the times in fit, or None."""
        return self.fitted_.schema.freq

    @property
    def steps_(self) -> Sequence[str]:
        """Columns of a table with one case per row; empty for other data."""
        return self.fitted_.schema.steps

    @property
    def day_first_(self) -> bool | None:
        """Whether the day comes first in dates."""
        return self.fitted_.schema.day_first

    @property
    def cases_(self) -> int:
        """Number of training cases."""
        return self.fitted_.schema.count

    @property
    def padded_(self) -> bool:
        """Whether shorter cases are padded, not stretched, for the members other than the network."""
        return self.fitted_.padded

    @property
    def stack_(self) -> Stack | None:
        """Weights of the members, and the accuracies of members and baselines; None for "toa"."""
        return self.fitted_.stack

    @property
    def weights_(self) -> Mapping[str, float]:
        """Weight of each member."""
        return self.fitted_.weights

    @property
    def architecture_(self) -> dict[str, Any]:
        """Backbone, settings and steps per token of the network."""
        return dict(self.fitted_.architecture)

    @property
    def validation_(self) -> float | None:
        """Cross-validated accuracy; None without any held-out case."""
        return self.fitted_.validation

    @property
    def validation_interval_(self) -> tuple[float, float] | None:
        """Interval of 95 % of `validation_`, by Wilson's formula; None without it.

        It is for the accuracy over many independent cases of the same source as those of fit; that of a small test set
        varies more. It does not cover other sources, such as other people or devices, nor that each case was predicted
        by members fitted to fewer cases, which matters below about 30 cases.
        """
        return self.fitted_.validation_interval

    @property
    def no_network_(self) -> str | None:
        """Why "auto" has no network; None if it has one, and after loading."""
        return self.fitted_.no_network

    @property
    def truncated_(self) -> tuple[str, ...]:
        """Members that `time_limit` left out."""
        return self.fitted_.truncated


def _read_classes(panel: Panel, y: Any, cases: Any) -> tuple[np.ndarray, Codes]:
    """The classes, and the place of each label among them; raises ValueError for labels that are no classes."""
    labels = _labels(panel, y, cases)
    classes, codes = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise ArgumentError("y", "have at least two classes", f"1 class, {classes.tolist()[0]!r}", "add more")
    if len(classes) == len(labels) > 2:
        raise ArgumentError(
            "y",
            "have a class with at least two cases",
            f"{len(labels)} cases of as many classes",
            "is it continuous, a number to predict?",
        )
    warn_of_single_cases(classes.tolist(), np.bincount(codes).tolist())
    return classes, codes


def _labels(panel: Panel, y: Any, cases: Any) -> np.ndarray:
    """Labels of all cases, from y or the frame `cases`."""
    labels = panel.labels if y is None else panel.with_labels(labels_by_row(y, cases)).labels
    if labels is None:
        raise ArgumentError(
            "y",
            "be given, or label must name the column of the frame with the classes",
            "y=None: the classifier requires y to be passed, but the target y is None",
        )
    return labels


def _frame_by_id(panel: Panel, columns: Mapping[str, np.ndarray]) -> Any:
    """Results with a row per case, as a frame like the source."""
    assert panel.id_column is not None
    # the result has no times
    return to_native(replace(panel, time_in_index=False), {panel.id_column: np.asarray(panel.ids), **columns})

"""Classifier: learns the classes of labelled series and predicts the class of new ones.

Alphabet: n cases, L longest length, l length of a case, C channels, K classes.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from torch import Tensor

from toa._checks import check_at_least, check_count, check_finite, check_shape
from toa._limits import check_unpacked
from toa.data.columns import warn_of_misread, warn_of_single_cases
from toa.data.frames import check_frequency, check_results, read_cases, to_native
from toa.data.panel import Panel
from toa.data.splits import StandardScaler
from toa.estimators.base import NETWORK, named
from toa.estimators.case_network import CaseNetwork
from toa.estimators.effort import Ceiling
from toa.estimators.kernels import FEATURES, Features, KernelFeatures, Series, align_cases, compile_kernels
from toa.estimators.pages import cases_page
from toa.estimators.stack import (
    SHARES,
    Codes,
    HeldOut,
    Probabilities,
    RidgeHead,
    Stack,
    accuracy,
    baseline_accuracies,
    class_codes,
    labels_by_row,
    log_loss,
    stratified_folds,
)

KERNELS = "kernels"
# folds of the cases that measure the accuracy
_FOLDS = 5
# factor of the lengths of fit beyond which a case is much shorter or longer
_FAR = 1.25
# cases that a file may state
_MOST_CASES = 10**9


@dataclass(eq=False, repr=False)
class Classifier(ClassifierMixin, CaseNetwork):  # type: ignore[misc]
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
    page = cases_page
    _facts = ("length_", "validation_", "architecture_")

    _: KW_ONLY
    label: str | None = None

    def fit(self, X: Any, y: Any = None) -> "Classifier":
        """Train on labelled cases.

        Args:
            X: Cases: an array (n, C, L) or (n, L), a list of arrays (C, l) or (l,), or a long frame.
            y: One label of any type per case; a pandas series by row if it has the index of X, else by id. None if
                the frame has them.

        Raises:
            ValueError: If the data cannot be read, or have only one class.
        """
        self._check_parameters()
        self.day_first_ = self.day_first
        panel = read_cases(X, values=self.values, label=self.label, **self._table)
        if self.values is None:
            warn_of_misread(panel)
        self.day_first_, self.steps_ = panel.day_first, panel.steps
        labels = _labels(panel, y, X)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must have at least two classes, got 1 class, {self.classes_.tolist()[0]!r}; add more.")
        if len(self.classes_) == len(labels) > 2:
            raise ValueError(
                f"y must have a class with at least two cases, got {len(labels)} cases of as many classes; is it "
                "continuous, a number to predict?"
            )
        warn_of_single_cases(self.classes_.tolist(), np.bincount(codes).tolist())
        for names in (map(str, self.classes_), ("prediction",)):
            check_results(replace(panel, time_column=None), list(names))
        self.columns_ = panel.columns
        self.lengths_, self.freq_ = (min(panel.lengths), max(panel.lengths)), panel.freq
        self.length_ = max(panel.lengths)
        if self.length is not None:
            check_at_least("length", self.length, self.length_)
            self.length_ = self.length
        self._check_candidates()
        self.truncated_: tuple[str, ...] = ()
        self.scaler_ = StandardScaler.fit(np.concatenate(panel.values), allow_constant=True, name="X")
        self.heads_: dict[str, RidgeHead] = {}
        self.kernels_: KernelFeatures | None = None
        self.padded_ = True
        self.stack_: Stack | None = None
        self.factor_, self.validation_, self.folds_ = 1.0, None, 0
        self.no_network_: str | None = None
        self.cases_ = len(codes)
        # the kernels are compiled once per machine; that is not part of the time limit
        if self.model != NETWORK:
            compile_kernels()
        ceiling = Ceiling(self.time_limit)
        if self.model == NETWORK:
            self._fit_network(panel, codes, ceiling)
        else:
            self._fit_stack(panel, codes, ceiling)
        self.truncated_ = tuple(ceiling.left_out)
        ceiling.warn()
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
        right = class_codes(_labels(panel, y, X), self.classes_, len(panel)) == proba.argmax(1)
        return float(np.average(right, weights=sample_weight))

    def read(self, X: Any, like: Panel | None = None) -> Panel:
        """Cases as a panel; raises ValueError if X has other channels, steps or times than the cases `like`."""
        panel = self._read(X)
        if like is not None:
            _has_order(_select_channels(panel, like.columns).steps, like.steps)
            check_frequency(panel, like.freq, "X")
        return panel

    def _read(self, data: Any, values: Sequence[str] | None = None) -> Panel:
        # a later table is read as that of fit
        wide = bool(self.steps_) if hasattr(self, "steps_") else None
        return read_cases(data, values=values or self.values, label=self.label, wide=wide, **self._table)

    def _read_fitted(self, data: Any) -> Panel:
        """Cases with the channels of fit and at most the length of fit."""
        self._check_fitted("applied to cases")
        panel = self._read(data)
        if not _has_order(panel.steps, self.steps_):
            panel = self._read(data, self.steps_)
        panel = _select_channels(panel, self.columns_)
        for index, steps in enumerate(panel.lengths):
            if steps > self.length_:
                case = index + 1 if panel.backend is None else panel.ids[index]
                raise ValueError(
                    f"case {case!r} of X must have at most {self.length_} steps, the longest case of fit, got {steps}; "
                    f"cut it, or fit with length={steps}."
                )
        check_frequency(panel, self.freq_, "X")
        least, most = self.lengths_
        if other := [steps for steps in panel.lengths if not least / _FAR <= steps <= most * _FAR]:
            seen = f"{least}" if least == most else f"{least} to {most}"
            found = f"{len(other)} of {len(panel)} cases of X are much shorter or longer than those of fit"
            example = f"such as {other[0]} steps (fit: {seen})"
            warnings.warn(f"{found}, {example}; their predictions are less certain.", stacklevel=4)
        return panel

    def _fit_stack(self, panel: Panel, codes: Codes, ceiling: Ceiling) -> None:
        """Fit the members, each validated on cases that it was not fitted to, and weight them."""
        classes = len(self.classes_)
        held_out: dict[str, HeldOut] = {}
        folds = stratified_folds(codes, min(_FOLDS, len(codes)), self.seed)
        ways = (False, True) if len(set(panel.lengths)) > 1 else (True,)
        for pad in ways:
            series = self._aligned(panel, pad=pad)
            kernels, features = KernelFeatures.fit(series, seed=self.seed, most_values=self._effort.kernel_values)
            head, own = RidgeHead.fit(features, codes, folds, classes=classes)
            if KERNELS not in held_out or log_loss(own[-1], codes) < log_loss(held_out[KERNELS][-1], codes):
                self.padded_, self.kernels_, self.heads_[KERNELS], held_out[KERNELS] = pad, kernels, head, own
                aligned = series
            del features
        for name, compute in FEATURES.items():
            self.heads_[name], held_out[name] = RidgeHead.fit(compute(aligned), codes, folds, classes=classes)
        baselines = baseline_accuracies(aligned, codes, seed=self.seed)
        self._leave_out_network()

        def choose(network: Probabilities | None) -> Stack:
            # each case has one network that was not trained on it
            own = {} if network is None else {NETWORK: np.repeat(network[None], folds.max() + 2, axis=0)}
            self.stack_ = Stack.choose(held_out | own, codes, folds, baselines)
            self.validation_, self.no_network_ = self.stack_.accuracies["stack"], None
            return self.stack_

        found = choose(None).combine({name: part[-1] for name, part in held_out.items()}, len(codes))
        if self._folds(codes) is None:
            self.no_network_ = "too few cases"
        elif accuracy(found, codes) == 1.0:
            self.no_network_ = "no errors to mend"
        elif not self._effort.has_networks:
            self.no_network_ = "effort"
        elif not ceiling.allows(NETWORK):
            self.no_network_ = "no time"
        else:
            self._fit_network(panel, codes, ceiling, choose)

    def _aligned(self, panel: Panel, *, pad: bool) -> Series:
        return align_cases(self._scaled(panel), self.length_, pad=pad)

    def _features(self, name: str, series: Series) -> Features:
        if name != KERNELS:
            return FEATURES[name](series)
        assert self.kernels_ is not None
        return self.kernels_.transform(series)

    @property
    def validation_interval_(self) -> tuple[float, float] | None:
        """Interval of 95 % of `validation_`, by Wilson's formula; None without it.

        It is for the accuracy over many independent cases of the same source as those of fit; that of a small test set
        varies more. It does not cover other sources, such as other people or devices, nor that each case was predicted
        by members fitted to fewer cases, which matters below about 30 cases.
        """
        if self.validation_ is None or not self.cases_:
            return None
        # loaded on use: scipy's statistics take long to import
        from scipy.stats import binomtest

        found = binomtest(round(self.validation_ * self.cases_), self.cases_).proportion_ci(method="wilson")
        return float(found.low), float(found.high)

    @property
    def weights_(self) -> Mapping[str, float]:
        """Weight of each member."""
        return {NETWORK: 1.0} if self.stack_ is None else self.stack_.weights

    def _probabilities(self, X: Any) -> tuple[Panel, Probabilities]:
        panel = self._read_fitted(X)
        found = self._combine(panel)
        check_finite("probabilities", torch.from_numpy(found))
        return panel, found

    def _combine(self, panel: Panel) -> Probabilities:
        members = {NETWORK: self._network_probabilities(panel)} if NETWORK in self.weights_ else {}
        if self.stack_ is None:
            return members[NETWORK]
        series = self._aligned(panel, pad=self.padded_)
        for name, head in self.heads_.items():
            if name in self.weights_:
                members[name] = head.predict(self._features(name, series))
        return self.stack_.combine(members, len(panel))

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        labels = self.classes_.tolist()
        for label in labels:
            if not isinstance(label, str | int | float | bool):
                raise ValueError(f"labels must be text, numbers or booleans to be saved, got {label!r}; rename them.")
        kind = "object" if self.classes_.dtype == object else self.classes_.dtype.str
        tensors = {f"scaler.{name}": value for name, value in self.scaler_.state().items()}
        facts: dict[str, Any] = {"columns": list(self.columns_), "classes": labels, "label_type": kind}
        facts |= {"folds": self.folds_, "factor": self.factor_, "cases": self.cases_}
        facts |= {"steps": list(self.steps_), "day_first": self.day_first_, "padded": self.padded_}
        facts |= {"lengths": list(self.lengths_), "freq": self.freq_}
        parts: dict[str, Any] = {f"head.{name}": head for name, head in self.heads_.items() if name in self.weights_}
        if KERNELS in self.weights_:
            parts["kernels"] = self.kernels_
        if self.stack_ is not None:
            facts["stack"] = asdict(self.stack_)
        for name, part in parts.items():
            own, facts[name] = part.state()
            tensors |= {f"{name}.{key}": value for key, value in own.items()}
        return tensors, facts

    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.columns_ = tuple(facts["columns"])
        self.classes_ = np.array(facts["classes"], dtype=facts["label_type"])
        self.scaler_ = StandardScaler.from_state({name: tensors[f"scaler.{name}"] for name in ("mean", "std")})
        check_shape("scaler.mean", self.scaler_.state()["mean"], "(C,)", (len(self.columns_),))
        self.steps_, self.day_first_ = tuple(facts.get("steps", ())), facts.get("day_first")
        # older files have neither lengths nor a frequency, and stretched cases, or one network alone
        self.lengths_, self.freq_ = tuple(facts.get("lengths", (1, self.length_))), facts.get("freq")
        least, most = self.lengths_
        check_count("lengths", least, 1)
        check_count("lengths", most, least)
        assert type(self.freq_) in (str, int, type(None)), "a frequency that is none"
        self.padded_ = facts.get("padded", False)
        if not isinstance(self.padded_, bool):
            raise ValueError(f"padded must be true or false, got {self.padded_!r}; fit and save again.")
        self.folds_, self.factor_ = facts.get("folds", 0), facts.get("factor", 1.0)
        self.cases_ = facts.get("cases", 0)
        _check_cases(self.cases_, self.validation_)
        models = {name.split(".")[2] for name in tensors if name.startswith("model.models.")}
        if len(models) != self.folds_ or self._patch < 1:
            raise ValueError(f"{self.folds_!r} networks of {self._patch} steps per token, but weights of {len(models)}")
        self.heads_, self.kernels_, self.stack_, self.no_network_ = {}, None, None, None
        if "stack" not in facts:
            self.model = NETWORK
            return
        self.stack_ = Stack.from_state(facts["stack"], (KERNELS, *FEATURES, NETWORK, SHARES))
        check_unpacked("length_", self.length_ * len(self.columns_), tensors)
        sample = align_cases([np.zeros((1, len(self.columns_)))], self.length_)
        if KERNELS in self.weights_:
            shape = sample.shape[1:]
            self.kernels_ = KernelFeatures.from_state(named(tensors, "kernels."), facts["kernels"], *shape)
        for name in (KERNELS, *FEATURES):
            if name in self.weights_:
                own, count = named(tensors, f"head.{name}."), self._features(name, sample).shape[1]
                check_shape(f"head.{name}.weight", own["weight"], "(P, K)", (count, None))
                self.heads_[name] = RidgeHead.from_state(own, facts[f"head.{name}"], classes=len(self.classes_))

    def _try(self) -> None:
        case = np.zeros((1, len(self.columns_), 1))
        found = torch.from_numpy(self._combine(read_cases(case)))
        check_finite("probabilities", found)
        check_shape("probabilities", found, "(n, K)", (1, len(self.classes_)))


def _select_channels(panel: Panel, columns: Sequence[str]) -> Panel:
    """The cases with these channels; raises ValueError if they have others."""
    if panel.backend is not None:
        return panel.select(columns, "X")
    if len(panel.columns) != len(columns):
        raise ValueError(
            f"X must have {len(columns)} channels, those of fit, got {len(panel.columns)}; fit again, or choose its "
            "channels."
        )
    return panel


def _has_order(steps: Sequence[str], fitted: Sequence[str]) -> bool:
    """Whether the columns of a table with one case per row begin like those of fit; ValueError if they are others."""
    # cases may be shorter or longer
    common = min(len(steps), len(fitted))
    if list(steps[:common]) == list(fitted[:common]):
        return True
    if set(steps) == set(fitted):
        return False
    new, missing = (next((one for one in a if one not in b), None) for a, b in ((steps, fitted), (fitted, steps)))
    found = f"a new one, {new!r}" if new is not None else f"no {missing!r}"
    raise ValueError(
        f"X must have the steps of fit, {fitted[0]!r} to {fitted[-1]!r}, or begin with them, got {found}; choose the "
        "steps with values."
    )


def _check_cases(cases: Any, share: float | None) -> None:
    """Raise ValueError if a file has a number of cases of which this accuracy cannot be the share."""
    check_count("cases", cases, 0)
    right = 0.0 if share is None else share * cases
    if cases > _MOST_CASES or not (0.0 <= right <= cases and abs(right - round(right)) <= 1e-3):
        rule = f"at most {_MOST_CASES}, of which the accuracy {share} is a whole number"
        raise ValueError(f"cases must be {rule}, got {cases}; fit and save again.")


def _labels(panel: Panel, y: Any, cases: Any) -> np.ndarray:
    """Labels of all cases, from y or the frame `cases`."""
    labels = panel.labels if y is None else panel.with_labels(labels_by_row(y, cases)).labels
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

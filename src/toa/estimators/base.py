"""Estimator: the shell of scikit-learn that Forecaster, AnomalyDetector and Classifier share.

Its constructor stores the arguments unchanged, so that `get_params`, `set_params` and `sklearn.base.clone` work. `fit`
sets one attribute, `fitted_`, a frozen value; the other attributes that end in "_" are properties of it. Beside it, a
detector has only its streams. A subclass defines:

    _kind = "guess"                            # name of the estimator in files
    _facts = ("threshold_",)                   # fitted attributes that JSON can hold
    def _state(self): return tensors, facts    # what else a file holds
    def _restore(self, tensors, facts, where): ...
    def run_sample(self, data, index): ...     # apply the model to one window or case
    def explain(self, data, index): ...        # what the network looked at in one window or case
    model_, architecture_, weights_, validation_, truncated_    # properties
"""

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn

from toa._checks import (
    Argument,
    ArgumentError,
    Phrase,
    check_choice,
    check_count,
    check_fraction,
    check_positive,
    check_seed,
)
from toa._limits import shorten
from toa.data.panel import Missing
from toa.estimators.architecture import NETWORK
from toa.estimators.effort import DEFAULT_EFFORT, EFFORTS, Effort
from toa.estimators.files import download_folder, load_file, save_file, to_json, to_tuples
from toa.estimators.importance import Importance
from toa.estimators.saved_types import check_parameters
from toa.estimators.sizes import DEFAULT_ATTENTION
from toa.training.checkpoint import UNREADABLE, Checkpoint, check_weights


@dataclass(eq=False, repr=False, kw_only=True)
class Estimator(BaseEstimator):  # type: ignore[misc]
    """An estimator that can be fitted, saved and loaded; its fields are parameters that all estimators have."""

    _kinds: ClassVar[dict[str, type["Estimator"]]] = {}
    _kind: ClassVar[str]
    _facts: ClassVar[tuple[str, ...]]
    # values of `model`, and parameters that are counts of at least 1, beside those of all estimators
    _models: ClassVar[tuple[str, ...]] = ("auto", NETWORK)
    _counts: ClassVar[tuple[str, ...]] = ()

    model: str = "auto"
    effort: str = DEFAULT_EFFORT
    time_limit: float | None = None
    backbone: str | None = None
    attention: str | Mapping[str, Any] | None = DEFAULT_ATTENTION
    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float = 1e-3
    patience: int = 3
    validation_share: float = 0.2
    settings: Mapping[str, Any] | None = None
    id: str | None = None
    time: str | None = None
    values: Sequence[str] | None = None
    missing: Missing = "error"
    missing_values: float | Sequence[float] | None = None
    day_first: bool | None = None
    time_zone: str | None = None
    seed: int = 2024
    device: str = "auto"
    progress: bool | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        Estimator._kinds[cls._kind] = cls

    @property
    def _table(self) -> dict[str, Any]:
        """Arguments of `toa.data.read_panel` that hold for all tables."""
        names = ("id", "time", "missing", "missing_values", "day_first", "time_zone")
        options = {name: getattr(self, name) for name in names}
        if options["day_first"] is None:
            # a later table has the order of the dates of fit
            options["day_first"] = getattr(self, "day_first_", None)
        return options

    @abstractmethod
    def run_sample(self, data: Any, index: int = 0) -> None:
        """Apply the fitted model to one window or case, for observers of the model.

        Args:
            data: A pandas frame like the one of `fit`, or a list of cases. Of several series, the first is used.
            index: First row of the window, or index of the case.
        """

    @abstractmethod
    def explain(self, data: Any, index: int | None = None) -> Importance:
        """Parts of lags and columns in the result of the network for one window or case, by integrated gradients.

        `index` is as in `run_sample`; None takes the last window, for detectors that with the largest error.
        """

    def save(self, path: str | Path) -> None:
        """Write a fitted estimator to one file: safetensors with JSON, without any code.

        It holds parameters, weights, scaler, schema and versions, and no row of the data.
        """
        save_file(Path(path), self._kind, *self._saved())

    @classmethod
    def load(cls, path: str | Path, *, device: str | None = None) -> Self:
        """Read a file that `save` wrote.

        Args:
            device: "auto", "cpu" or "cuda"; None uses the saved device, or the CPU if that is not available.
        """
        return cls._loaded(load_file(Path(path), cls._kind), device, path)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a fitted estimator in the format of the Hugging Face hub: config.json and model.safetensors."""
        save_file(Path(folder), self._kind, *self._saved(), folder=True)

    @classmethod
    def from_pretrained(cls, name: str | Path, *, device: str | None = None, revision: str | None = None) -> Self:
        """Read a folder that `save_pretrained` wrote, or a model of the hub by its name, "owner/model".

        The hub needs the extra `toa[hf]`; a folder does not.
        """
        folder = Path(name).expanduser()
        if not folder.is_dir():
            folder = download_folder(str(name), revision)
        return cls._loaded(load_file(folder, cls._kind, folder=True), device, folder)

    def _saved(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        self._check_fitted("saved")
        tensors, facts = self._state()
        tensors |= {f"model.{name}": value for name, value in self.model_.state_dict().items()}
        facts |= {name: getattr(self, name) for name in self._facts}
        if self.truncated_:
            facts["truncated"] = list(self.truncated_)
        parameters = json.loads(json.dumps(self.get_params(deep=False), default=to_json))
        return tensors, {"parameters": parameters, "fitted": facts}

    @classmethod
    def _loaded(cls, saved: Checkpoint, device: str | None, where: str | Path) -> Self:
        facts: Any = saved.facts
        check_weights(saved.tensors, where)
        try:
            parameters = {name: to_tuples(value) for name, value in facts["parameters"].items()}
            if device is None:
                device = str(parameters["device"])
                device = "cpu" if device.startswith("cuda") and not torch.cuda.is_available() else device
            parameters["device"] = device
            check_parameters(cls, parameters)
            estimator = cls(**parameters)
            estimator._restore(saved.tensors, facts["fitted"], where)
        except UNREADABLE as error:
            if isinstance(error, ValueError) and str(where) in str(error):
                raise
            raise ArgumentError(
                where,
                f"hold a complete {cls._kind}",
                f"one that does not fit this version of toa ({shorten(error)})",
                "use the version that wrote it, or fit and save again",
            ) from None
        return estimator

    @abstractmethod
    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors by name, without those of the network, and JSON values, without `_facts`."""

    @abstractmethod
    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], where: str | Path) -> None:
        """Set `fitted_` from what a file holds; raises an error for parts that do not fit one another.

        Args:
            where: The file, for errors.
        """

    def _check_parameters(self) -> None:
        """Raise ValueError for a parameter out of range; counts may be None."""
        check_choice("model", self.model, self._models)
        check_choice("effort", self.effort, EFFORTS)
        if self.time_limit is not None:
            check_positive("time_limit", self.time_limit)
        check_seed(self.seed)
        if isinstance(self.values, str):
            raise ArgumentError("values", "be a list of columns", repr(self.values), f"write [{self.values!r}]")
        check_fraction("validation_share", self.validation_share)
        for name in ("epochs", "batch_size", "patience", *self._counts):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), 1)

    @property
    @abstractmethod
    def model_(self) -> nn.Module:
        """The trained network; an identity if there is none."""

    @property
    @abstractmethod
    def architecture_(self) -> dict[str, Any]:
        """Backbone, attention and settings of the network; the backbone is None without one."""

    @property
    @abstractmethod
    def weights_(self) -> Mapping[str, float]:
        """Weight of each method or member; the name of the network is "toa"."""

    @property
    @abstractmethod
    def validation_(self) -> float | None:
        """Error or accuracy on held-out data; None without any."""

    @property
    @abstractmethod
    def truncated_(self) -> tuple[str, ...]:
        """Methods that `time_limit` left out."""

    @property
    def has_network(self) -> bool:
        """Whether there is a network, with or without a weight."""
        return self.architecture_["backbone"] is not None

    @property
    def _effort(self) -> Effort:
        return EFFORTS[self.effort]

    def _check_has_network(self) -> None:
        if not self.has_network:
            raise ArgumentError(
                f"the {self._kind}",
                "have a network",
                "one without",
                Phrase("fit it with ", Argument("model", "toa")),
                Phrase("with ", Argument("effort", "thorough")),
                Phrase("without ", Argument("time_limit")),
            )

    def _check_fitted(self, done: str) -> None:
        if not hasattr(self, "fitted_"):
            raise NotFittedError(f"a {self._kind} must be fitted before it is {done}, got an unfitted one; call fit.")


def load_estimator(path: str | Path, *, device: str | None = None) -> Estimator:
    """Load an estimator of any kind from a file of `save` or a folder of `save_pretrained`."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} must be a saved estimator, got no such file.")
    # loaded on use: each kind is registered by its module, and all of them stand on this one
    from toa.estimators import classifier, detector, forecaster  # noqa: F401

    saved = load_file(path, folder=path.is_dir())
    kind = str(saved.facts["kind"])
    check_choice(f"kind of estimator in {path}", kind, Estimator._kinds)
    return Estimator._kinds[kind]._loaded(saved, device, path)

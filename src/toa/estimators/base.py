"""Estimator: the common base of Forecaster, AnomalyDetector and Classifier.

A subclass follows scikit-learn: its constructor stores the arguments unchanged, so that `get_params`, `set_params` and
`sklearn.base.clone` work, and `fit` sets attributes that end in "_", among them `model_`. It also defines:

    _kind = "guess"                            # name of the estimator in files
    _task = TASKS["forecast"]                  # the task that builds and trains the model
    _training = {"schedule": "cosine"}         # fields of its TrainingConfig that are not parameters
    _facts = ("threshold_",)                   # fitted attributes that JSON can hold
    def _fields(self): return {"horizon": 3}   # further fields of the task's config
    def _state(self): return tensors, facts    # tensors by name and JSON values: everything else to save
    def _restore(self, tensors, facts): ...    # set the attributes of `_state` before the model is built
    def run_sample(self, data, index): ...     # apply the model to one window or case

A file holds tensors in safetensors and everything else in JSON, with versions and a checksum. Writing is atomic.
Reading never executes anything; it raises ValueError for a file that was truncated or edited, or that has another kind
or format version.
"""

import json
import platform
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn

import toa
from toa._checks import check_choice, check_count, check_fraction, check_positive, check_seed
from toa._files import CHECKSUM, parse_json, seal, unseal, write_atomically
from toa._limits import shorten
from toa.data.panel import Missing
from toa.estimators.effort import DEFAULT_EFFORT, EFFORTS, Effort
from toa.estimators.importance import Importance
from toa.estimators.sizes import DEFAULT_ATTENTION
from toa.nn import AttentionSpec
from toa.training.base import Task, TaskData
from toa.training.checkpoint import UNREADABLE, Checkpoint, check_weights, load_checkpoint, model_with, save_checkpoint
from toa.training.distributed import make_fabric, resolve_device
from toa.training.optimization import TrainingConfig

# increased when older files can no longer be read
FORMAT = 1
# name of the network among the methods of an estimator
NETWORK = "toa"
CONFIG, WEIGHTS = "config.json", "model.safetensors"
# members that `greedy_weights` averages
_MEMBERS = 20
# keeps scores bounded for any data; the layer's default has no normaliser, as the paper prints it
_NORMS = {"toa-relu": {"score_norm": "rms"}, "toa-gated": {"score_norm": "rms", "gate_norm": "rms"}}


@dataclass(eq=False, repr=False, kw_only=True)
class Estimator(BaseEstimator):  # type: ignore[misc]
    """An estimator that can be fitted, saved and loaded; its fields are parameters that all estimators have."""

    _kinds: ClassVar[dict[str, type["Estimator"]]] = {}
    _kind: ClassVar[str]
    _task: ClassVar[Task]
    _training: ClassVar[Mapping[str, Any]]
    # share of the epochs in which the rate rises: training does not stop early in them
    _rise: ClassVar[float] = 0.0
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
    progress: bool = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        Estimator._kinds[cls._kind] = cls

    def _data(self, train: Any = None, val: Any = None) -> TaskData:
        """The windows or cases, with the sizes that the model depends on."""
        return TaskData(channels=len(self.columns_), train=train, val=val)

    @property
    def _table(self) -> dict[str, Any]:
        """Arguments of `toa.data.read_panel` that hold for all tables."""
        names = ("id", "time", "missing", "missing_values", "day_first", "time_zone")
        options = {name: getattr(self, name) for name in names}
        if options["day_first"] is None:
            # a later table has the order of the dates of fit
            options["day_first"] = getattr(self, "day_first_", None)
        return options

    def _try(self) -> None:
        """Apply a loaded estimator to zeros: parts of a file that do not fit one another raise an error."""

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
            folder = _download(str(name), revision)
        return cls._loaded(load_file(folder, cls._kind, folder=True), device, folder)

    def _saved(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        self._check_fitted("saved")
        tensors, facts = self._state()
        tensors |= {f"model.{name}": value for name, value in self.model_.state_dict().items()}
        facts |= {name: getattr(self, name) for name in self._facts}
        if self.truncated_:
            facts["truncated"] = list(self.truncated_)
        parameters = json.loads(json.dumps(self.get_params(deep=False), default=_to_json))
        return tensors, {"parameters": parameters, "fitted": facts}

    @classmethod
    def _loaded(cls, saved: Checkpoint, device: str | None, where: str | Path) -> Self:
        facts: Any = saved.facts
        check_weights(saved.tensors, where)
        try:
            parameters = {name: _to_tuples(value) for name, value in facts["parameters"].items()}
            if device is None:
                device = str(parameters["device"])
                device = "cpu" if device.startswith("cuda") and not torch.cuda.is_available() else device
            parameters["device"] = device
            if not isinstance(parameters["values"], tuple | None):
                raise ValueError(f"values must be a list of columns, got {parameters['values']}")
            made = cls(**parameters)
            made._restore_all(saved.tensors, facts["fitted"], where)
            made._try()
        except UNREADABLE as error:
            if isinstance(error, ValueError) and str(where) in str(error):
                raise
            raise ValueError(
                f"{where} must hold a complete {cls._kind}, got one that does not fit this version of toa "
                f"({shorten(error)}); use the version that wrote it, or fit and save again."
            ) from None
        return made

    def _restore_all(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], where: str | Path) -> None:
        """Set the fitted attributes, and build the model with its weights."""
        for name in self._facts:
            setattr(self, name, facts[name])
        self.truncated_ = tuple(map(str, facts.get("truncated", ())))
        self._restore(tensors, facts)
        self.model_: nn.Module = nn.Identity()
        if self._has_network:
            model = model_with(self._build, tensors, self.architecture_["settings"], where)
            self.model_ = model.to(resolve_device(self.device))

    def _check_parameters(self) -> None:
        """Raise ValueError for a parameter out of range; counts may be None."""
        check_choice("model", self.model, self._models)
        check_choice("effort", self.effort, EFFORTS)
        if self.time_limit is not None:
            check_positive("time_limit", self.time_limit)
        check_seed(self.seed)
        if isinstance(self.values, str):
            raise ValueError(f"values must be a list of columns, got {self.values!r}; write [{self.values!r}].")
        check_fraction("validation_share", self.validation_share)
        for name in ("epochs", "batch_size", "patience", *self._counts):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), 1)

    @property
    def _effort(self) -> Effort:
        return EFFORTS[self.effort]

    @property
    def _has_network(self) -> bool:
        return self.architecture_["backbone"] is not None

    def _leave_out_network(self) -> None:
        self.model_ = nn.Identity()
        self.architecture_: dict[str, Any] = {"backbone": None, "attention": None, "settings": {}}
        self.validation_: float | None = None

    def _choose(self, backbone: str, sizes: Mapping[str, Any], **more: Any) -> None:
        """Set `architecture_`; given settings replace the chosen sizes."""
        self.architecture_ = {"backbone": backbone, **more, "settings": {**sizes, **(self.settings or {})}}

    def _config(self, *, epochs: int = 1, batch_size: int = 1) -> Any:
        """Config of the task; epochs and batch size matter only in training."""
        attention = self.architecture_.get("attention", self.attention)
        return self._task.config(
            protocol="",
            dataset="",
            backbone=self.architecture_["backbone"],
            attention=None if attention is None else attention_spec(attention),
            model=self.architecture_["settings"],
            training=TrainingConfig(
                epochs=epochs,
                learning_rate=self.learning_rate,
                patience=self.patience + int(self._rise * epochs),
                operator_rate=getattr(self, "schedule_", {}).get("operator_rate", 1.0),
                **self._training,
            ),
            batch_size=batch_size,
            seed=self.seed,
            **self._fields(),
        )

    def _build(self) -> nn.Module:
        return self._task.build(self._config(), self._data())

    def _check_has_network(self) -> None:
        if not self._has_network:
            raise ValueError(
                f"the {self._kind} must have a network, got one without; fit it with model='toa', with "
                "effort='thorough', or without time_limit."
            )

    def _fit_model(self, data: TaskData, schedule: Mapping[str, Any], title: str = "") -> float | None:
        """Train `model_` by the task, without changing the global random state; the best validation loss, if any."""
        config = self._config(epochs=schedule["epochs"], batch_size=schedule["batch_size"])
        fabric, title = make_fabric(self.device), title or self._kind
        if self.progress:
            from toa._console import show_epochs
        with show_epochs(title) if self.progress else nullcontext() as observe:
            model, state, _ = self._task.fit(config, data, fabric, key=title, observe=observe)
        self.model_ = model.eval()
        self._best_epoch = state.best_epoch
        return state.best

    def _check_fitted(self, done: str) -> None:
        if not hasattr(self, "model_"):
            raise NotFittedError(f"a {self._kind} must be fitted before it is {done}, got an unfitted one; call fit.")


def greedy_weights(
    members: Mapping[str, np.ndarray], loss: Callable[[np.ndarray], float], first: Sequence[str] = (), times: int = 1
) -> tuple[dict[str, float], float]:
    """Weights of a mean with a low loss, and that loss.

    Members are added one by one, each time the one that lowers the loss of the mean most; the mean of those up to the
    lowest loss is kept. It begins with the members `first`, each added `times` times.
    """
    chosen, best = times * list(first), (np.inf, list[str]())
    total = np.sum([np.zeros_like(next(iter(members.values()))), *(members[name] for name in chosen)], axis=0)
    if chosen:
        best = loss(total / len(chosen)), chosen.copy()
    while len(chosen) < _MEMBERS:
        losses = {name: loss((total + part) / (len(chosen) + 1)) for name, part in members.items()}
        name = min(losses, key=losses.__getitem__)
        total, chosen = total + members[name], [*chosen, name]
        if not best[1] or losses[name] < best[0]:
            best = losses[name], chosen
    return {name: best[1].count(name) / len(best[1]) for name in members if name in best[1]}, best[0]


def weighted_mean(weights: Mapping[str, float], members: Mapping[str, np.ndarray]) -> np.ndarray:
    """The weighted sum of those members that have a weight."""
    return np.sum([weight * members[name] for name, weight in weights.items()], axis=0)


def load_estimator(path: str | Path, *, device: str | None = None) -> Estimator:
    """Load an estimator of any kind from a file of `save` or a folder of `save_pretrained`."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} must be a saved estimator, got no such file.")
    saved = load_file(path, folder=path.is_dir())
    return Estimator._kinds[str(saved.facts["kind"])]._loaded(saved, device, path)


def save_file(
    path: Path, kind: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], *, folder: bool = False
) -> None:
    """Write one file, or config.json and model.safetensors into a folder."""
    versions = {"toa": toa.__version__, "torch": torch.__version__, "python": platform.python_version()}
    header = {"format": FORMAT, "kind": kind, "versions": versions, "facts": dict(facts)}
    if folder:
        save_checkpoint(path / WEIGHTS, tensors, {})
        text = json.dumps(seal(header, tensors), indent=2, sort_keys=True) + "\n"
        write_atomically(path / CONFIG, text.encode())
    elif path.is_dir():
        raise ValueError(f"path must be a file, got the folder {path}; use save_pretrained for a folder.")
    else:
        save_checkpoint(path, tensors, header)


def load_file(path: Path, wanted: str | None = None, *, folder: bool = False) -> Checkpoint:
    """Read what `save_file` wrote, of the wanted or of any kind; the facts have the kind too."""
    header: Any = None
    kind = wanted or "model"
    if folder:
        for name in (CONFIG, WEIGHTS):
            if not (path / name).is_file():
                raise FileNotFoundError(f"{path} must hold {CONFIG} and {WEIGHTS} of a {kind}, got no {name}.")
        try:
            header = parse_json((path / CONFIG).read_bytes(), "it")
        except ValueError as error:
            raise ValueError(f"{path / CONFIG} must be JSON, got {error}; is it complete?") from None
    elif not path.is_file():
        hint = "; load a folder with from_pretrained" if path.is_dir() else ""
        raise FileNotFoundError(f"{path} must be a saved {kind}, got no such file{hint}.")
    weights = path / WEIGHTS if folder else path
    try:
        saved = load_checkpoint(weights, verify=False)
    except ValueError as error:
        raise ValueError(
            f"{weights} must be a {kind} saved by toa, got another or a truncated file ({error.__cause__}); save or "
            "copy it again."
        ) from None
    header = header if folder else saved.facts
    if not isinstance(header, dict) or not {"format", "kind", "facts", CHECKSUM} <= set(header):
        raise ValueError(f"{path} must be a {kind} saved by toa, got another file.")
    if header["format"] != FORMAT:
        made = header.get("versions")
        by = f" of toa {made.get('toa')}" if isinstance(made, dict) else ""
        raise ValueError(
            f"{path} must have format {FORMAT}, which toa {toa.__version__} reads, got format "
            f"{header['format']!r}{by}; use that version of toa, or fit and save again."
        )
    if wanted is None:
        check_choice(f"kind of estimator in {path}", header["kind"], Estimator._kinds)
    elif header["kind"] != wanted:
        raise ValueError(
            f"{path} must be a saved {wanted}, got the kind {header['kind']!r}; use it with its own class or command."
        )
    facts = unseal(header, str(path), saved.tensors)[0]["facts"]
    if not isinstance(facts, dict):
        raise ValueError(f"facts in {path} must be a mapping, got {type(facts).__name__}; save it again.")
    return Checkpoint(tensors=saved.tensors, facts={**facts, "kind": header["kind"]}, verified=True)


def attention_spec(attention: str | Mapping[str, Any]) -> AttentionSpec:
    """An attention by name, with normalised scores, or by the fields of `toa.nn.AttentionSpec`."""
    if isinstance(attention, str):
        return AttentionSpec(name=attention, **_NORMS.get(attention, {}))  # type: ignore[arg-type]
    return AttentionSpec(**attention)


def named(tensors: Mapping[str, Tensor], start: str) -> dict[str, Tensor]:
    """Tensors whose name has this start, without it."""
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


def _download(name: str, revision: str | None) -> Path:
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise FileNotFoundError(f"name must be a folder or a model of the hub, 'owner/model', got {name!r}.")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ImportError(
            f"{name!r} is not a local folder, and huggingface_hub, which downloads models, is not installed; install "
            "toa[hf]."
        ) from error
    return Path(snapshot_download(name, revision=revision, allow_patterns=["config.json", "model.safetensors"]))


def _to_json(value: Any) -> Any:
    """A parameter that JSON does not know, as one that it knows."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise ValueError(f"parameters must be text, numbers, lists or mappings to be saved, got {value!r}.")


def _to_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_tuples(entry) for key, entry in value.items()}
    return tuple(_to_tuples(entry) for entry in value) if isinstance(value, list) else value

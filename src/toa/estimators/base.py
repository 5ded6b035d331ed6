"""What all estimators share: scikit-learn's habits, files, and what is told of progress.

A subclass stores the arguments of its constructor unchanged (`get_params`, `set_params` and `sklearn.base.clone` then
work), keeps what it learns in attributes that end in "_", names its `_kind`, and says what to save and how to go on
from it:

    class Guess(Estimator):
        _kind = "guess"

        def __init__(self, level: float = 0.5) -> None:
            self.level = level

        def fit(self, data): ...                     # sets self.model_
        def _state(self): return tensors, facts      # of a fitted estimator; facts is what JSON can hold
        def _restore(self, tensors, facts): ...      # on an estimator that was made from the saved parameters
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from torch import Tensor

from toa.estimators.saving import load_file, load_folder, save_file, save_folder
from toa.tasks.checkpoint import Checkpoint
from toa.tasks.training import Observer


class Estimator(BaseEstimator):  # type: ignore[misc]
    """An estimator that is fitted, saved and loaded."""

    # what its files are of
    _kind: ClassVar[str]

    @abstractmethod
    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and facts of a fitted estimator, besides its parameters."""

    @abstractmethod
    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Become what was saved."""

    def save(self, path: str | Path) -> None:
        """Write a fitted estimator as one file: safetensors with JSON, nothing in it is code.

        It holds parameters, weights, scaler, schema and versions, and no row of the data.
        """
        save_file(Path(path), self._kind, *self._saved())

    @classmethod
    def load(cls, path: str | Path, *, device: str | None = None) -> Self:
        """Read what `save` wrote.

        Args:
            path: The file.
            device: Where it shall run, "auto", "cpu" or "cuda"; None is as it was saved, on the CPU if that has gone.

        Raises:
            ValueError: If the file was cut short or edited, or is of another kind or version.
        """
        return cls._loaded(load_file(Path(path), cls._kind), device)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a fitted estimator in the form of the Hugging Face hub: config.json and model.safetensors."""
        save_folder(Path(folder), self._kind, *self._saved())

    @classmethod
    def from_pretrained(cls, name: str | Path, *, device: str | None = None, revision: str | None = None) -> Self:
        """Read a folder that `save_pretrained` wrote, or a model of the hub by its name, "owner/model".

        The hub needs the extra `toa[hf]`; a folder needs nothing.
        """
        folder = Path(name).expanduser()
        if not folder.is_dir():
            folder = _download(str(name), revision)
        return cls._loaded(load_folder(folder, cls._kind), device)

    def _saved(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        self._check_fitted("saved")
        tensors, facts = self._state()
        return tensors, {"parameters": _listed(self.get_params(deep=False)), "fitted": facts}

    @classmethod
    def _loaded(cls, saved: Checkpoint, device: str | None) -> Self:
        facts: Any = saved.facts
        try:
            parameters = {name: _tupled(value) for name, value in facts["parameters"].items()}
            if "device" in parameters:
                parameters["device"] = _present(parameters["device"]) if device is None else device
            made = cls(**parameters)
            made._restore(saved.tensors, facts["fitted"])
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"the file must hold all of a {cls._kind}, got one that does not fit this version of toa ({error!r}); "
                "use the version that wrote it, or fit and save again."
            ) from None
        return made

    def _check_fitted(self, done: str) -> None:
        if not hasattr(self, "model_"):
            raise NotFittedError(
                f"a {self._kind} must be fitted before it can be {done}, got one that is not; call fit."
            )


@contextmanager
def watched(description: str, shown: bool) -> Iterator[Observer | None]:
    """A progress bar for training, if it shall be shown."""
    if not shown:
        yield None
        return
    from toa._console import show_epochs

    with show_epochs(description) as observe:
        yield observe


def _download(name: str, revision: str | None) -> Path:
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise FileNotFoundError(f"name must be a folder or a model of the hub, 'owner/model', got {name!r}.")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ImportError(
            f"{name!r} is no folder here, and huggingface_hub, which would look for it on the hub, is not installed; "
            "install toa[hf]."
        ) from error
    return Path(snapshot_download(name, revision=revision, allow_patterns=["config.json", "model.safetensors"]))


def _present(device: Any) -> Any:
    """A device by name, if it is here; a model trained elsewhere runs on the CPU."""
    import torch

    return "cpu" if isinstance(device, str) and device.startswith("cuda") and not torch.cuda.is_available() else device


def _listed(value: Any) -> Any:
    """Parameters as JSON has them."""
    if isinstance(value, Mapping):
        return {str(key): _listed(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [_listed(entry) for entry in value]
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return _listed(value.tolist())
    raise ValueError(f"parameters must be plain to be saved: text, numbers, lists, mappings, got {value!r}.")


def _tupled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tupled(entry) for key, entry in value.items()}
    return tuple(_tupled(entry) for entry in value) if isinstance(value, list) else value

"""Time-Series-Library beside ours: its models under a loop like its own, from a checkout of it.

Nothing of it is part of this package: it is imported from the checkout's path, which is to happen in a process of its
own. Packages that it imports at the top of its files but does not use on the way are stood in for where they are not
installed, and named in the result.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from toa.experiments.step_cost import PeakMemory, StepCost
from toa.tasks.forecast import ForecastRun
from toa.tasks.training import synchronized_time

# our names of models to its own
PEER_MODELS = {
    "patchtst": "PatchTST",
    "itransformer": "iTransformer",
    "informer": "Informer",
    "autoformer": "Autoformer",
}

# packages of Reformer, UEA, M4 and downloads, with their parts; no forecast from a file at hand needs them
_UNUSED = {
    "reformer_pytorch": (),
    "sktime": ("sktime.datasets",),
    "patoolib": (),
    "datasets": (),
    "huggingface_hub": (),
}

# so many batches, taken in turn, are made before the clock starts
_BATCHES = 8


class _StandIn(ModuleType):
    """In place of a module that is not installed; what is taken from it fails when it is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def fail(*args: object, **kwargs: object) -> NoReturn:
            raise ModuleNotFoundError(f"{self.__name__} must be installed for {name}, got nothing; install it.")

        return fail


def check_peer(path: Path) -> None:
    """Refuse a folder that is no checkout of the library."""
    if not ((path / "run.py").is_file() and (path / "models" / "PatchTST.py").is_file()):
        raise ValueError(
            f"peer must be a checkout of Time-Series-Library, with run.py and models/PatchTST.py, got {path}; "
            "clone github.com/thuml/Time-Series-Library."
        )


def missing_packages() -> list[str]:
    """Packages that the library imports, does not use on the way, and that are not installed."""
    return [name for name in _UNUSED if find_spec(name) is None]


def stand_in_for_missing() -> list[str]:
    """Put empty modules in their place; returns the packages' names."""
    missing = missing_packages()
    for name in missing:
        for module in (name, *_UNUSED[name]):
            sys.modules[module] = _StandIn(module)
    return missing


def peer_arguments(config: ForecastRun, channels: int) -> dict[str, Any]:
    """A run's sizes under the names that its models read; where a run says nothing, the defaults of its scripts."""
    sizes = config.model
    return {
        "task_name": "long_term_forecast",
        "seq_len": config.lookback,
        "label_len": sizes.get("label_len", config.lookback // 2),
        "pred_len": config.horizon,
        "enc_in": channels,
        "dec_in": channels,
        "c_out": channels,
        "d_model": sizes["embed_dim"],
        "n_heads": sizes.get("num_heads", 8),
        "e_layers": sizes["num_layers"],
        "d_layers": sizes.get("decoder_layers", 1),
        "d_ff": sizes["ff_dim"],
        "dropout": sizes["dropout"],
        "factor": sizes.get("factor", 3),
        "moving_avg": sizes.get("moving_average", 25),
        "activation": "gelu",
        "distil": True,
        "embed": "timeF",
        "freq": "h",
    }


class PeerSystem:
    """One of its models under a loop like its own: eager, Adam, batches from the host, the loss read at every step.

    Its loader is left out, which is in its favour: the batches are random and there before the clock starts.

    Args:
        path: The checkout.
        model: The model's name there.
        arguments: What its models read; see `peer_arguments`.
        batch_size: Windows a batch.
        num_marks: Calendar features.
        learning_rate: Adam's.
        device: Where it trains.
        seed: Of weights and batches.
    """

    def __init__(
        self,
        path: Path,
        model: str,
        arguments: Mapping[str, Any],
        *,
        batch_size: int,
        num_marks: int,
        learning_rate: float,
        device: torch.device,
        seed: int = 0,
    ) -> None:
        check_peer(path)
        sys.path.insert(0, str(path))
        stand_in_for_missing()
        self._device = device
        self._memory = PeakMemory(device)
        torch.manual_seed(seed)
        self._settings = settings = SimpleNamespace(**arguments)
        module: Any = import_module(f"models.{model}")
        self._system: nn.Module = module.Model(settings).float().to(device)
        self._optimizer = torch.optim.Adam(self._system.parameters(), lr=learning_rate)
        seen = (batch_size, settings.seq_len)
        told = (batch_size, settings.label_len + settings.pred_len)
        shapes = ((*seen, settings.enc_in), (*told, settings.enc_in), (*seen, num_marks), (*told, num_marks))
        # a loader of NumPy arrays gives float64
        self._batches = [tuple(torch.randn(shape, dtype=torch.float64) for shape in shapes) for _ in range(_BATCHES)]

    def time_steps(self, steps: int, warmup: int) -> list[float]:
        """Seconds of each of `steps` steps, after `warmup` of them that are not counted."""
        seconds = []
        self._system.train()
        for number in range(warmup + steps):
            begin = synchronized_time(self._device)
            self._step(self._batches[number % _BATCHES])
            seconds.append(synchronized_time(self._device) - begin)
        return seconds[warmup:]

    def cost(self, seconds: Sequence[float]) -> StepCost:
        """What so many steps came to."""
        return StepCost.of(self._system, seconds, self._memory)

    def _step(self, batch: tuple[Tensor, ...]) -> None:
        settings = self._settings
        x, y, marks, all_marks = (tensor.float().to(self._device) for tensor in batch)
        self._optimizer.zero_grad()
        target = y[:, -settings.pred_len :]
        start = torch.cat((y[:, : settings.label_len], torch.zeros_like(target)), 1)
        forecast = self._system(x, marks, start, all_marks)[:, -settings.pred_len :]
        loss = nn.functional.mse_loss(forecast, target)
        loss.item()
        loss.backward()
        self._optimizer.step()

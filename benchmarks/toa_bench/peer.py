"""Time-Series-Library as the peer: its models in a training loop like its own, imported from a checkout.

Import it only in a process that runs nothing else. Packages that the peer imports but does not need here are replaced
by stand-ins if they are not installed; records list them.
"""

import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from toa._checks import ArgumentError
from toa.data import mark_names
from toa.training.forecast import ForecastRun
from toa.training.loop import synchronized_time
from toa_bench.step_cost import PeakMemory, StepCost

# our model names to the peer's
PEER_MODELS = {
    "patchtst": "PatchTST",
    "itransformer": "iTransformer",
    "informer": "Informer",
    "autoformer": "Autoformer",
}

# packages for Reformer, UEA, M4 and downloads, with their submodules: forecasting from a local file needs none
_UNUSED = {
    "reformer_pytorch": (),
    "sktime": ("sktime.datasets",),
    "patoolib": (),
    "datasets": (),
    "huggingface_hub": (),
}

# batches made before timing starts and used in turn
_BATCHES = 8


class _StandIn(ModuleType):
    """Replaces a module that is not installed; anything imported from it fails when called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def fail(*args: object, **kwargs: object) -> NoReturn:
            raise ModuleNotFoundError(f"{self.__name__} must be installed to use {name}; install it.")

        return fail


def check_peer(path: Path) -> None:
    """Raise ValueError if a folder is not a checkout of the peer."""
    if not ((path / "run.py").is_file() and (path / "models" / "PatchTST.py").is_file()):
        raise ArgumentError(
            "peer",
            "be a checkout of Time-Series-Library, with run.py and models/PatchTST.py",
            path,
            "clone github.com/thuml/Time-Series-Library",
        )


def hide_checkouts(command: Sequence[str]) -> list[str]:
    """A command line with CHECKOUT in place of each folder after --peer."""
    words = [re.sub(r"^--peer=.*", "--peer=CHECKOUT", word) for word in command]
    return ["CHECKOUT" if before == "--peer" else word for before, word in zip(("", *words), words, strict=False)]


def missing_packages() -> list[str]:
    """Packages that the peer imports, does not need here, and that are not installed."""
    return [name for name in _UNUSED if find_spec(name) is None]


def stand_in_for_missing() -> list[str]:
    """Replace missing packages by stand-ins; returns their names."""
    missing = missing_packages()
    for name in missing:
        for module in (name, *_UNUSED[name]):
            sys.modules[module] = _StandIn(module)
    return missing


def peer_arguments(config: ForecastRun, channels: int) -> dict[str, Any]:
    """Sizes of a run under the names that the peer's models read; unset ones get the defaults of its scripts."""
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
    """A peer model in a loop like the peer's: eager, Adam, batches from the host, the loss read at every step.

    The peer's data loader is left out, which favours the peer: batches are random and made before timing starts.
    `compiled` is the fastest that PyTorch makes of the same model: `torch.compile`, fused Adam, batches on the device,
    and on CUDA one graph for the complete step.

    Args:
        path: The checkout.
        config: Run with the backbone, sizes, batch size and learning rate.
        channels: Number of channels of the series.
        device: Device to train on.
        seed: Seed of weights and batches.
        compiled: Compile the model and its step.
    """

    def __init__(
        self,
        path: Path,
        config: ForecastRun,
        channels: int,
        device: torch.device,
        *,
        seed: int = 0,
        compiled: bool = False,
    ) -> None:
        check_peer(path)
        sys.path.insert(0, str(path))
        stand_in_for_missing()
        self._device = device
        self._memory = PeakMemory(device)
        torch.manual_seed(seed)
        self._settings = settings = SimpleNamespace(**peer_arguments(config, channels))
        module: Any = import_module(f"models.{PEER_MODELS[config.backbone]}")
        self._model: nn.Module = module.Model(settings).float().to(device)
        self._compiled = compiled
        self._graph: torch.cuda.CUDAGraph | None = None
        on_cuda = device.type == "cuda"
        options: dict[str, Any] = {"fused": True, "capturable": on_cuda} if compiled else {}
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=config.training.learning_rate, **options)
        self._forward: Any = torch.compile(self._model) if compiled else self._model
        past = (config.batch_size, settings.seq_len)
        future = (config.batch_size, settings.label_len + settings.pred_len)
        marks = len(mark_names())
        shapes = ((*past, channels), (*future, channels), (*past, marks), (*future, marks))
        # the peer's loader yields float64
        batches = [tuple(torch.randn(shape, dtype=torch.float64) for shape in shapes) for _ in range(_BATCHES)]
        self._batches = [tuple(tensor.float().to(device) for tensor in b) for b in batches] if compiled else batches

    def time_steps(self, steps: int, warmup: int) -> list[float]:
        """Seconds of each of `steps` steps, after `warmup` steps that do not count."""
        seconds = []
        self._model.train()
        for number in range(warmup + steps):
            begin = synchronized_time(self._device)
            self._step(self._batches[number % _BATCHES])
            seconds.append(synchronized_time(self._device) - begin)
        return seconds[warmup:]

    def cost(self, seconds: Sequence[float]) -> StepCost:
        """Cost of the steps that took `seconds`."""
        return StepCost.of(self._model, seconds, self._memory)

    def _step(self, batch: tuple[Tensor, ...]) -> None:
        if self._compiled and self._device.type == "cuda":
            if self._graph is None:
                self._capture()
            assert self._graph is not None
            for static, tensor in zip(self._inputs, batch, strict=True):
                static.copy_(tensor)
            self._graph.replay()
        else:
            self._update(tuple(tensor.float().to(self._device) for tensor in batch))

    def _capture(self) -> None:
        """Record one step on fixed inputs, after steps that compile the model and fill the optimizer's state."""
        self._inputs = tuple(tensor.clone() for tensor in self._batches[0])
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._update(self._inputs)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._update(self._inputs)

    def _update(self, batch: tuple[Tensor, ...]) -> None:
        settings = self._settings
        x, y, marks, all_marks = batch
        self._optimizer.zero_grad()
        target = y[:, -settings.pred_len :]
        start = torch.cat((y[:, : settings.label_len], torch.zeros_like(target)), 1)
        forecast = self._forward(x, marks, start, all_marks)[:, -settings.pred_len :]
        loss = nn.functional.mse_loss(forecast, target)
        if not self._compiled:
            loss.item()
        loss.backward()
        self._optimizer.step()

"""Number of kernel launches per training step; run by test_launches.py in a process with Triton's interpreter.

What PyTorch does is counted where it is dispatched, views and new tensors left out, kernels where they are launched.
Dropout is taken as on a GPU. The optimizer and the gathering of a batch are not counted.
"""

from collections import Counter
from typing import Any

import torch
import triton.runtime.interpreter as interpreter
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from toa.models import build_forecaster
from toa.nn import layers
from toa.training import TrainingConfig
from toa.training.distributed import make_fabric
from toa.training.forecast import forecast_loss
from toa.training.step import TrainingStep

# what makes a tensor without writing to it
UNWRITTEN = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}


class Launches(TorchDispatchMode):
    """Counts by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        space, name = func._schema.name.split("::")
        if space == "toa":
            with self:
                return OPDEFS[func._schema.name]._init_fn(*args, **kwargs)
        out = func(*args, **kwargs)
        given = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        made = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        writes = name.endswith("_") or any(x.untyped_storage()._cdata not in given for x in made)
        if made and writes and name not in UNWRITTEN:
            self.counts[name] += 1
        return out


def count_launches(monkeypatch, attention: str, **settings: Any) -> Counter[str]:
    monkeypatch.setenv("TOA_BACKEND", "triton")
    native = torch.ops.aten.native_dropout
    monkeypatch.setattr(layers, "dropout", lambda x, p: native(x, p, True)[0] if p else x)
    launches = Launches()
    plain = interpreter.GridExecutor.__call__

    def launched(self: Any, *args: Any, **kwargs: Any) -> Any:
        launches.counts[self.fn.__name__] += 1
        with _disable_current_modes():
            return plain(self, *args, **kwargs)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", launched)
    sizes = {"lookback": 16, "horizon": 8, "channels": 7, "num_marks": 4}
    model = build_forecaster("itransformer", **sizes, attention=attention, settings=settings)
    shapes = ((2, 16, 7), (2, 8, 7), (2, 16, 4), (2, 8, 4))

    batch = tuple(torch.randn(shape) for shape in shapes)

    class One:
        steps_per_epoch = 1

        def at(self, epoch: int, step: int) -> tuple[Tensor, ...]:
            return batch

    fabric = make_fabric(torch.device("cpu"))
    run = TrainingStep(model, One(), forecast_loss, TrainingConfig(), fabric)
    monkeypatch.setattr(run.optimizer, "step", lambda: None)
    run.wrapped.train()
    with launches:
        run.run(0)
    return launches.counts


def test_a_step_launches_no_more_kernels_than_it_needs(monkeypatch) -> None:
    sizes = {"embed_dim": 16, "num_heads": 2, "num_layers": 2, "ff_dim": 16}
    counts = count_launches(monkeypatch, "toa-gated", **sizes, dropout=0.1)
    # a product forward and two backward for each of ten maps, less the one of inputs that need no gradient
    assert counts["addmm"] + counts["mm"] == 10 + 19
    # GELU with dropout, the norm over time and the split of projections are kernels of PyTorch
    assert sum(counts.values()) <= 108, counts

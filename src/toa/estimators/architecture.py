"""What the networks of all estimators share: their name, their attention, and how their training is shown."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from torch import nn

from toa.nn import AttentionSpec
from toa.training.base import Task
from toa.training.distributed import make_fabric
from toa.training.loop import TrainingState

# name of the network among the methods of an estimator
NETWORK = "toa"
# architecture of an estimator without a network
NO_NETWORK: Mapping[str, Any] = {"backbone": None, "attention": None, "settings": {}}
# keeps scores bounded for any data; the layer's default has no normaliser, as the paper prints it
_NORMS = {"toa-relu": {"score_norm": "rms"}, "toa-gated": {"score_norm": "rms", "gate_norm": "rms"}}


def attention_spec(attention: str | Mapping[str, Any]) -> AttentionSpec:
    """An attention by name, with normalised scores, or by the fields of `toa.nn.AttentionSpec`."""
    if isinstance(attention, str):
        return AttentionSpec(name=attention, **_NORMS.get(attention, {}))  # type: ignore[arg-type]
    return AttentionSpec(**attention)


def train_task(
    task: Task, config: Any, data: object, *, device: str, progress: bool, title: str
) -> tuple[nn.Module, TrainingState]:
    """Train a model without changing the global random state, with a bar of this title if `progress`."""
    if progress:
        from toa._console import show_epochs
    with show_epochs(title) if progress else nullcontext() as observe:
        model, state, _ = task.fit(config, data, make_fabric(device), key=title, observe=observe)
    return model.eval(), state

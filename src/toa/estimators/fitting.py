"""What the estimators hand to the training engine: an attention by name, a schedule by size, a seed kept to itself."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from toa._checks import check_at_least
from toa.estimators.base import watched
from toa.nn import AttentionSpec
from toa.tasks.batches import Batches
from toa.tasks.device import resolve_device
from toa.tasks.distributed import make_fabric
from toa.tasks.optimization import TrainingConfig
from toa.tasks.training import TrainingState, train

# keeps scores bounded whatever the data; the layer's own default is the paper's formula as printed
_NORMS = {"toa-relu": {"score_norm": "rms"}, "toa-gated": {"score_norm": "rms", "gate_norm": "rms"}}

# training of small data goes on for about so many steps, within bounds on the epochs
_STEPS = 1000
_EPOCHS = (10, 100)


def attention_spec(attention: str | Mapping[str, Any]) -> AttentionSpec:
    """An attention by name, its scores normalised, or by the fields of `toa.nn.AttentionSpec` as they are given."""
    if isinstance(attention, str):
        return AttentionSpec(name=attention, **_NORMS.get(attention, {}))  # type: ignore[arg-type]
    return AttentionSpec(**attention)


def choose_epochs(epochs: int | None, steps_per_epoch: int) -> int:
    """Passes over the data; None is by size: a large table needs few, a small one many."""
    if epochs is not None:
        check_at_least("epochs", epochs, 1)
        return epochs
    least, most = _EPOCHS
    return min(most, max(least, math.ceil(_STEPS / steps_per_epoch)))


def fit_model(
    make: Callable[[], nn.Module],
    batches: Batches,
    loss_of: Callable[..., Tensor],
    config: Callable[[int], TrainingConfig],
    *,
    validate: Callable[[nn.Module], float] | None,
    seed: int,
    device: str,
    progress: bool,
    description: str,
) -> tuple[nn.Module, TrainingState]:
    """Build and train a model; nobody else's random numbers change.

    Args:
        make: The model, its weights drawn.
        batches: What it is trained on, on the device.
        loss_of: The loss, from the model and a batch.
        config: How, from the steps of an epoch.
        validate: The loss that the epoch is chosen by; None trains to the end.
        seed: Of weights, dropout and SOR.
        device: "auto", "cpu", "cuda" or "cuda:N".
        progress: Whether to show a bar.
        description: What it says.
    """
    check_at_least("seed", seed, 0)
    where = resolve_device(device)
    fabric = make_fabric(where)
    devices = [fabric.device] if fabric.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), watched(description, progress) as observe:
        torch.manual_seed(seed)
        model = make()
        state = train(
            model,
            batches,
            loss_of,
            config(batches.steps_per_epoch),
            fabric=fabric,
            key=description,
            validate=validate,
            observe=observe,
        )
    return model.eval(), state


def restore_model(make: Callable[[], nn.Module], tensors: Mapping[str, Tensor], device: torch.device) -> nn.Module:
    """The model of a file, from the tensors whose names start with "model."."""
    with torch.random.fork_rng(devices=[]):
        model = make()
    weights = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(
            f"the file must hold the weights of its model, got others ({' '.join(str(error).split())}); it was written "
            "by another version of toa: use that one, or fit and save again."
        ) from None
    return model.to(device).eval()

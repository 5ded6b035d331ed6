"""A model trained by one process and by two: `python -m tests.training.distributed_cases FOLDER CASE …`.

A process of its own, so that ranks are forked before anything has trained. What each rank saw is printed as JSON, by
case and number of ranks. Ranks meet in a file and talk over the loopback interface.
"""

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

# children find them loaded
from lightning.fabric import Fabric  # noqa: F401
from torch import Tensor, nn

from tests.experiments.sweep_cases import write_series
from tests.training.test_loop import Small, assert_same_weights, loss_of
from toa.experiments import resolve, run_task
from toa.nn import StochasticOperatorRegularization, TokenBatchNorm
from toa.training import TrainingConfig, TrainingState, TrainingStopped, make_fabric, train
from toa.training.checkpoint import load_checkpoint

SIZES = (1, 2)


class Steady(Small):
    """Nothing random, and batch norms before all weights: a shift before one has no gradient but rounding."""

    def __init__(self) -> None:
        super().__init__(dropout=0.0)
        self.attention.sor = None
        self.tokens = TokenBatchNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x.mT).mT + self.tokens(x, x[..., 0] > 1.0)
        return self.head(self.attention(x, x, x)[0])


class Rows:
    """Batches of seven rows and an epoch's last of one: neither can be halved."""

    steps_per_epoch = 5

    def __init__(self, before: Callable[[int], None] = lambda step: None) -> None:
        self.before = before

    def at(self, epoch: int, step: int) -> tuple[Tensor, Tensor]:
        self.before(epoch * 5 + step)
        generator = torch.Generator().manual_seed(epoch * 100 + step)
        x = torch.randn(1 if step == 4 else 7, 6, 8, generator=generator)
        return x, x.sum(-1, keepdim=True)


def validate(model: nn.Module) -> float:
    return float(loss_of(model, *Rows().at(99, 0)))


def fit(size: int, model: Small, config: TrainingConfig, batches: Rows, path: Path, **options: Any) -> TrainingState:
    torch.manual_seed(1)
    fabric = make_fabric(torch.device("cpu"), devices=size)
    return train(
        model, batches, loss_of, config, fabric=fabric, key="run", checkpoint=path, validate=validate, **options
    )


def curve(size: int, folder: Path) -> object:
    """Losses of every step, and the final state of the model and its batch norm."""
    seen = []
    for config in (
        TrainingConfig(epochs=3, learning_rate=1e-2, clip_norm=1.0),
        TrainingConfig(epochs=3, learning_rate=1e-2, accumulate=2),
    ):
        model = Steady()
        losses: list[float] = []
        state = fit(
            size,
            model,
            config,
            Rows(),
            folder / f"curve-{size}-{config.accumulate}",
            observe=lambda done, total, loss, validation, losses=losses: losses.append(loss),
            observe_every=1,
        )
        history = [value for entry in state.history for value in entry.values()]
        statistics = [value for name, value in model.state_dict().items() if "running" in name]
        seen.append(
            {
                "losses": losses,
                "history": history,
                "statistics": torch.cat(statistics).tolist(),
                "best": state.best_epoch,
            }
        )
    return seen


def noisy() -> Small:
    """A model with dropout, and with SOR that has its own generator."""
    model = Small()
    model.attention.sor = StochasticOperatorRegularization(generator=torch.Generator().manual_seed(8))
    return model


def resumed(size: int, folder: Path) -> object:
    """A run that only the last rank is signalled to stop, and that resumes; compared with an uninterrupted run."""
    config = TrainingConfig(epochs=4, learning_rate=3e-3)
    rank = int(os.environ["LOCAL_RANK"])

    def stop(step: int) -> None:
        if step == 7 and rank == size - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    whole = noisy()
    state = fit(size, whole, config, Rows(), folder / f"whole-{size}")
    path = folder / f"stopped-{size}"
    said = ""
    try:
        fit(size, noisy(), config, Rows(stop), path, observe_every=3)
    except TrainingStopped as stopped:
        said = str(stopped)
    again = noisy()
    nn.init.zeros_(again.head.weight)
    history = fit(size, again, config, Rows(), path).history
    assert_same_weights(again, whole)
    names = [name for name in load_checkpoint(path).tensors if name.startswith("random")]
    same = all(abs(a[name] - b[name]) < 1e-6 for a, b in zip(history, state.history, strict=True) for name in a)
    # what the next random number would be: ranks must not draw the same
    return {"said": said, "names": sorted(names), "same": same, "draw": float(torch.rand(()))}


def regrouped(size: int, folder: Path) -> object:
    """A run of one process that several processes resume."""
    path = folder / "regrouped"
    steps = []
    config = TrainingConfig(epochs=2, learning_rate=3e-3)

    def stop(step: int) -> None:
        steps.append(step)
        if step == 3 and size == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        fit(size, noisy(), config, Rows(stop), path)
    except TrainingStopped:
        return "stopped"
    return [steps[0], float(torch.rand(()))]


def shares(size: int, folder: Path) -> object:
    """Shares of each rank of batches of seven rows and of one."""
    from toa.training.distributed import share_batch

    fabric = make_fabric(torch.device("cpu"), devices=size)
    parts = [share_batch(fabric, (torch.arange(rows), torch.arange(rows))) for rows in (7, 4, 1)]
    return [[*(tensor.tolist() for tensor in tensors), weight, copies] for tensors, weight, copies in parts]


# what is small, and what draws nothing at random, as far as a model lets it
SMALL = ["model.embed_dim=16", "model.dropout=0.0"]
FEW = [*SMALL, "model.num_heads=2", "model.ff_dim=16"]
STEADY = [*FEW, "attention.sor=false"]
MODELS = {
    "patchtst": STEADY,
    "itransformer": STEADY,
    "transformer": [*STEADY, "model.label_len=8"],
    "tsmixer": SMALL,
    "dlinear": ["model.moving_average=3"],
    "duet": [*STEADY, "model.head_dropout=0.0"],
    "informer": [*FEW, "model.label_len=8"],
    "autoformer": [*SMALL, "model.ff_dim=16", "model.label_len=8", "model.moving_average=3"],
}


def models(size: int, folder: Path) -> object:
    """A short run of every model."""
    path = write_series(folder)
    seen = {}
    for name, own in MODELS.items():
        protocol = "duet-unified-96" if name == "duet" else "tslib-96"
        changes = ["lookback=32", "batch_size=15", "training.epochs=2", 'date_column=""', "marks=false", *own]
        names = {"dataset": str(path), "horizon": 8, "backbone": name}
        config = resolve("forecast", protocol, seed=1, changes=changes, **names)
        record = run_task(config, folder / str(size), device="cpu", devices=size)
        losses = [value for entry in record["history"] for value in entry.values()]
        seen[name] = {"losses": [*losses, *record["metrics"].values()], "devices": record["devices"]}
    return seen


CASES = {"curve": curve, "resumed": resumed, "regrouped": regrouped, "shares": shares, "models": models}


def rank_of(case: str, size: int, rank: int, folder: Path) -> int:
    """Fork a rank, which writes its results."""
    pid = os.fork()
    if pid:
        return pid
    try:
        # other processes have the cores
        torch.set_num_threads(1)
        warnings.simplefilter("error")
        os.environ.update(LOCAL_RANK=str(rank), WORLD_SIZE=str(size), GLOO_SOCKET_IFNAME="lo")
        if size > 1:
            meeting = f"file://{folder / f'{case}.meeting'}"
            torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
        (folder / f"{case}-{size}-{rank}.json").write_text(json.dumps(CASES[case](size, folder)))
        if size > 1:
            torch.distributed.destroy_process_group()
        os._exit(0)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)


def play(case: str, folder: Path) -> dict[str, object]:
    seen: dict[str, object] = {}
    for size in SIZES:
        children = [rank_of(case, size, rank, folder) for rank in range(size)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        assert codes == [0] * size, f"{case} with {size}: exit codes {codes}"
        seen[str(size)] = [json.loads((folder / f"{case}-{size}-{rank}.json").read_text()) for rank in range(size)]
    return seen


if __name__ == "__main__":
    given = sys.argv[2:]
    sys.stdout.write(json.dumps({case: play(case, Path(sys.argv[1])) for case in given}) + "\n")

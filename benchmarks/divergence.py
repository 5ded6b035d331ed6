"""What grows when training of softmax attention between channels diverges, and what prevents it.

    python benchmarks/divergence.py [--arm NAME ...] [--columns 20 170] [--rate 4e-3] [--steps 80] [--out FILE]

Each arm trains iTransformer on PEMS08-Last40 with the settings of toa-wide, but for the changes that ARMS names and the
sizes of the options. All arms see the same batches. Every few steps one fixed batch of training windows goes through
the model without dropout and SOR. Per layer it gives:

    score      mean over queries of the largest absolute score before its normaliser
    mean key   root mean square of the keys' mean over channels, over that of the keys: 1 if all keys are equal
    entropy    mean entropy of the softmax of the scores, over its largest value log N: 0 if one key has all weight
    offset     largest singular value of M of S1, over heads; 0 without operators
    output     root mean square of the attention's output, over that of its input

The record has these, and the loss of the fixed batch. No test window is read.
"""

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from toa.data import Windows
from toa.experiments import resolve
from toa.nn import Attended, Attention, SequenceOperator, intercepted
from toa.training import TASKS
from toa.training.metrics import evaluating
from toa.training.optimization import make_optimizer, set_rates
from toa_bench.script import command_line, exit_on_error, make_console, make_parser, save

DATASET = "PEMS08-Last40"
HORIZON = 12
SEED = 2024
# windows of the fixed batch
MEASURED = 16
RISING_RATES = ("training.schedule=warmup-cosine", "training.warmup=100")
# a step of Adam then moves an operator of any size equally far
OPERATOR_RATE = "training.operator_rate=10 / N"
# attention and changes of settings
ARMS: Mapping[str, tuple[str, ...]] = {
    "softmax": ("softmax",),
    "toa-softmax": ("toa-softmax",),
    "toa-softmax, operator rate 10 / N": ("toa-softmax", OPERATOR_RATE),
    "toa-softmax, rates rise for 100 steps": ("toa-softmax", *RISING_RATES),
    "toa-softmax, gradient clipped to 1": ("toa-softmax", "training.clip_norm=1.0"),
    "toa-softmax, scores l2": ("toa-softmax", "attention.score_norm=l2"),
    "softmax, rates rise for 100 steps": ("softmax", *RISING_RATES),
    "toa-relu": ("toa-relu",),
}


def root_mean_square(x: Tensor) -> float:
    """Square root of the mean square."""
    return float(x.square().mean().sqrt())


def measure_layer(layer: Attention, query: Tensor, attended: Attended) -> dict[str, float]:
    """What the docstring of this file lists, for one call of a layer."""
    q = attended.factors.q
    k = attended.factors.k
    scale = getattr(layer, "scale", q.shape[-1] ** -0.5)
    scores = scale * torch.einsum("bmhd,bnhd->bhmn", q, k)
    offset = 0.0
    operator = getattr(layer, "s1", None)
    if isinstance(operator, SequenceOperator):
        matrix = operator.dense()  # (H, N, N)
        scores = scores @ matrix
        eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype)
        offset = float(torch.linalg.matrix_norm(matrix - eye, 2).max())
    weights = scores.softmax(-1)
    entropy = -(weights * weights.clamp_min(1e-30).log()).sum(-1)
    return {
        "score": float(scores.abs().amax(-1).mean()),
        "mean key": root_mean_square(k.mean(1)) / root_mean_square(k),
        "entropy": float(entropy.mean()) / math.log(scores.shape[-1]),
        "offset": offset,
        "output": root_mean_square(attended.output) / root_mean_square(query),
    }


def measure_model(model: nn.Module, windows: Windows) -> tuple[float, list[dict[str, float]]]:
    """Loss of the fixed batch, and what is measured of each layer."""
    x, y, *_ = windows.batch(torch.linspace(0, len(windows) - 1, MEASURED).long())
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Attention)}
    rows: list[dict[str, float]] = []

    def keep(name: str, query: Tensor, attended: Attended) -> Attended:
        rows.append(measure_layer(layers[name], query, attended))
        return attended

    with evaluating(model), intercepted(model, keep):
        loss = float(F.mse_loss(model(x), y))
    return loss, rows


def train_arm(arm: str, columns: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measurements of one training, every few steps."""
    attention, *changes = ARMS[arm]
    if OPERATOR_RATE in changes:
        changes = [f"training.operator_rate={10 / columns}"]
    sizes = {"model.embed_dim": args.width, "model.ff_dim": args.width, "model.num_layers": args.layers}
    sizes |= {"most_columns": columns, "batch_size": args.batch, "training.learning_rate": args.rate}
    config = resolve(
        "forecast",
        "toa-wide",
        dataset=DATASET,
        backbone="itransformer",
        attention=attention,
        horizon=HORIZON,
        seed=SEED,
        changes=[*(f"{name}={value}" for name, value in sizes.items()), "model.instance_norm=false", *changes],
    )
    device = torch.device("cpu")
    task: Any = TASKS["forecast"]
    data = task.load(config, device, args.data_dir)
    torch.manual_seed(SEED)
    model = task.build(config, data)
    optimizer = make_optimizer(model, config.training, device)
    draws = torch.Generator().manual_seed(SEED)
    rows: list[dict[str, Any]] = []
    for step in range(args.steps + 1):
        if step % args.every == 0:
            loss, layers = measure_model(model, data.train)
            rows.append({"step": step, "loss": loss, "layers": layers})
            if not math.isfinite(loss):
                break
        index = torch.randint(0, len(data.train), (args.batch,), generator=draws)
        x, y, *_ = data.train.batch(index)
        set_rates(optimizer, config.training, step, len(data.train) // args.batch)
        model.train()
        F.mse_loss(model(x), y).backward()
        if config.training.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), config.training.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
    return rows


def summary_line(arm: str, columns: int, rows: Sequence[Mapping[str, Any]]) -> str:
    """Loss and the most extreme layer at three steps."""
    parts = []
    for row in (rows[len(rows) // 6], rows[len(rows) // 2], rows[-1]):
        score = max(layer["score"] for layer in row["layers"])
        entropy = min(layer["entropy"] for layer in row["layers"])
        offset = max(layer["offset"] for layer in row["layers"])
        output = max(layer["output"] for layer in row["layers"])
        parts.append(
            f"step {row['step']}: loss {row['loss']:.3f}, score {score:.1f}, entropy {entropy:.2f}, "
            f"offset {offset:.2f}, output {output:.2f}"
        )
    return f"{arm}, {columns} columns: " + "; ".join(parts)


def run(args: argparse.Namespace) -> None:
    console = make_console()
    begin = time.process_time()
    cases: dict[str, Any] = {}
    for columns in args.columns:
        for arm in args.arm or ARMS:
            rows = train_arm(arm, columns, args)
            cases.setdefault(str(columns), {})[arm] = rows
            console.print(summary_line(arm, columns, rows), soft_wrap=True)
    settings = {name: getattr(args, name) for name in ("rate", "steps", "every", "width", "layers", "batch")}
    record = {"benchmark": "divergence", "dataset": DATASET, "seed": SEED, "settings": settings, "cases": cases}
    record["cpu_s"] = round(time.process_time() - begin, 1)
    save(record, args, command_line("benchmarks/divergence.py", None), console)


def main() -> None:
    parser = make_parser(__doc__, "runs/divergence.json")
    parser.add_argument("--arm", action="append", choices=list(ARMS), help="all if not given")
    parser.add_argument("--columns", type=int, nargs="+", default=[20, 170])
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--data-dir", type=str)
    with exit_on_error():
        run(parser.parse_args())


if __name__ == "__main__":
    main()

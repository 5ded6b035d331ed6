"""A learned operator between channels next to their correlation, and what the model does with it.

    python benchmarks/operator_and_correlation.py RUN [--data-dir FOLDER] [--image FILE] [--out FILE]

RUN is the folder of a finished forecasting run of iTransformer with operators, with its weights. Three matrices are
drawn with the channels in one order, which puts channels of high correlation beside each other:

    correlation   of the values of two channels in the training rows
    operator      M = S - I of the values, for the layer and head with the largest M: what channel j adds to channel i
    effect        change of the forecast of i, mean over its steps and over test windows, if channel j was one standard
                  deviation higher in the last rows and all others stay

Errors play no part. The record has rank correlations of the three, without their diagonals, and the strongest pairs.
"""

import argparse
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from jaxtyping import Float64
from matplotlib.figure import Figure
from torch import nn

from toa._checks import ArgumentError
from toa.data import ForecastData, Windows
from toa.experiments.run import load_run
from toa.report.figures import draw_matrix, save_figure
from toa.report.operators import view_layers
from toa.training.metrics import evaluating
from toa_bench.script import command_line, exit_on_error, make_console, make_parser, save

# windows of the test that the effect is measured on, and rows that are raised
WINDOWS = 64
ROWS = 12
# pairs that the record lists
PAIRS = 10

Matrix = Float64[np.ndarray, "c c"]


def largest_operator(model: nn.Module) -> tuple[str, Matrix]:
    """Layer and head of the operator of the values with the largest M, and M."""
    found: list[tuple[float, str, Matrix]] = []
    for number, layer in enumerate(view_layers(model), 1):
        for view in layer.operators:
            if view.name == "s2":
                for head, offset in enumerate(view.offset, 1):
                    found.append((float(offset.square().sum()), f"layer {number}, head {head}", offset.numpy()))
    if not found:
        raise ArgumentError("RUN", "have operators of the values", "none", "train one with attention toa-gated")
    _, place, offset = max(found, key=lambda entry: entry[0])
    return place, offset


@torch.no_grad()
def effects(model: nn.Module, windows: Windows, rows: int = ROWS, most: int = WINDOWS) -> Matrix:
    """Mean change of the forecast of each channel (rows of the result) if another one (columns) was higher."""
    index = torch.linspace(0, len(windows) - 1, min(most, len(windows))).long()
    series = windows.batch(index).x
    found = np.empty((windows.channels, windows.channels))
    with evaluating(model):
        before = model(series)
        for channel in range(windows.channels):
            raised = series.clone()
            raised[:, -rows:, channel] += 1.0
            found[:, channel] = (model(raised) - before).double().mean((0, 1)).numpy()
    return found


def correlation_order(correlation: Matrix) -> np.ndarray:
    """Channels in the order of the second eigenvector of the Laplacian of their positive correlations."""
    weights = correlation.clip(min=0.0)
    laplacian = np.diag(weights.sum(1)) - weights
    return np.argsort(np.linalg.eigh(laplacian)[1][:, 1], kind="stable")


def ranks(values: np.ndarray) -> np.ndarray:
    """The place of each value among all."""
    return np.argsort(np.argsort(values)).astype(float)


def rank_correlation(a: Matrix, b: Matrix) -> float:
    """Spearman's correlation of the absolute values outside of the diagonal."""
    outside = ~np.eye(len(a), dtype=bool)
    return float(np.corrcoef(ranks(np.abs(a[outside])), ranks(np.abs(b[outside])))[0, 1])


def strongest_pairs(matrices: dict[str, Matrix], columns: tuple[str, ...], most: int = PAIRS) -> list[dict[str, Any]]:
    """The pairs of different channels with the largest effects."""
    size = np.abs(matrices["effect"].copy())
    np.fill_diagonal(size, 0.0)
    order = np.argsort(-size, axis=None, kind="stable")[:most]
    places = zip(*np.unravel_index(order, size.shape), strict=True)
    return [
        {
            "forecast of": columns[row],
            "reads": columns[column],
            **{name: round(float(matrix[row, column]), 4) for name, matrix in matrices.items()},
        }
        for row, column in places
    ]


def draw(matrices: dict[str, Matrix], titles: dict[str, str], order: np.ndarray) -> Figure:
    """The matrices side by side, without their diagonals."""
    figure, axes = plt.subplots(1, len(matrices), figsize=(4.2 * len(matrices), 4.3), layout="constrained")
    for axis, (name, matrix) in zip(axes, matrices.items(), strict=True):
        shown = matrix[np.ix_(order, order)].copy()
        np.fill_diagonal(shown, 0.0)
        draw_matrix(axis, shown)
        axis.set_title(titles[name], fontsize=9, loc="left")
        axis.set(xlabel="channel that is read", ylabel="channel that is forecast")
    return figure


def run(args: argparse.Namespace) -> None:
    console = make_console()
    loaded = load_run(args.run)
    data: ForecastData = loaded.task.load(loaded.config, torch.device("cpu"), args.data_dir)
    train = data.train
    rows = torch.cat([train.batch(torch.arange(len(train))).x[:, 0], train.batch(torch.tensor([len(train) - 1])).x[0]])
    place, offset = largest_operator(loaded.model)
    matrices: dict[str, Matrix] = {
        "correlation": np.nan_to_num(np.corrcoef(rows.double().numpy().T)),
        "operator": offset,
        "effect": effects(loaded.model, data.test),
    }
    titles = {
        "correlation": "correlation of the channels",
        "operator": f"learned operator M of the values ({place})",
        "effect": "effect on the forecast",
    }
    image = save_figure(draw(matrices, titles, correlation_order(matrices["correlation"])), args.image)
    agreement = {
        "operator and correlation": rank_correlation(matrices["operator"], matrices["correlation"]),
        "effect and correlation": rank_correlation(matrices["effect"], matrices["correlation"]),
        "effect and operator": rank_correlation(matrices["effect"], matrices["operator"]),
    }
    others = ~np.eye(data.channels, dtype=bool)
    record: dict[str, Any] = {
        "benchmark": "operator_and_correlation",
        "run": {
            name: loaded.record[name] for name in ("command", "config_hash", "commit", "device", "metrics", "seed")
        },
        "dataset": data.name,
        "channels": data.channels,
        "operator": place,
        "rank_correlations": agreement,
        "negative_share": {name: float((matrix[others] < 0).mean()) for name, matrix in matrices.items()},
        "pairs": strongest_pairs(matrices, data.columns),
    }
    for name, value in agreement.items():
        console.print(f"{name}: rank correlation {value:.2f}")
    console.print(f"picture: {image}", soft_wrap=True)
    save(record, args, command_line("benchmarks/operator_and_correlation.py", None), console)


def main() -> None:
    parser = make_parser(__doc__, "runs/operator_and_correlation.json")
    parser.add_argument("run", type=Path, help="folder of a finished run with its weights")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--image", type=Path, default=Path("runs/operator_and_correlation.png"))
    with exit_on_error():
        run(parser.parse_args())


if __name__ == "__main__":
    main()

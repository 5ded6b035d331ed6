"""Draw the figures of concept.md, two_axis.md and synthetic.md into docs/images.

    python docs/figures.py [RUN]

RUN is the folder of a finished run of two-axis: its operator between channels is drawn too, with channels named.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle

if TYPE_CHECKING:
    import torch

IMAGES = Path(__file__).resolve().parent / "images"
# colours of a weight or an activation, of an operator, and of an unchanged part
WEIGHT = "#9dc3e6"
OPERATOR = "#f4b183"
PLAIN = "0.93"
# size of the names in the drawing of the block
BLOCK_FONT = 9


def block() -> None:
    """A block with operator attention: the block of a backbone, one head of the layer, and an operator in training."""
    figure, (backbone, head, operator) = plt.subplots(
        1, 3, figsize=(10, 4.4), width_ratios=(1.5, 4.6, 2.4), layout="constrained"
    )
    draw_backbone(backbone)
    draw_head(head)
    draw_operator(operator)
    for axis in (backbone, head, operator):
        axis.axis("off")
    save(figure, "block")


def draw_box(axis: Axes, x: float, y: float, text: str, color: str, *, width: float = 1.5, height: float = 0.6) -> None:
    """A box with a name around a point."""
    corner = (x - width / 2, y - height / 2)
    shape = "round,pad=0.02,rounding_size=0.08"
    axis.add_patch(FancyBboxPatch(corner, width, height, boxstyle=shape, facecolor=color, edgecolor="0.3"))
    axis.text(x, y, text, ha="center", va="center", fontsize=BLOCK_FONT)


def draw_arrow(axis: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """An arrow between two points."""
    axis.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": "0.25", "shrinkA": 0, "shrinkB": 0})


def draw_backbone(axis: Axes) -> None:
    """Tokens pass the attention and the feed-forward network, each with a shortcut and a norm."""
    axis.set(xlim=(-1.5, 1.2), ylim=(-0.6, 6.4))
    axis.set_title("block of a backbone", fontsize=BLOCK_FONT + 1)
    parts = (
        (0.0, "tokens", PLAIN),
        (1.5, "operator\nattention", OPERATOR),
        (2.8, "add, norm", PLAIN),
        (4.1, "feed-forward", PLAIN),
        (5.4, "add, norm", PLAIN),
    )
    for y, text, color in parts:
        draw_box(axis, 0.0, y, text, color, height=0.8 if "\n" in text else 0.6)
    for low, high in ((0.32, 1.08), (1.92, 2.48), (3.12, 3.78), (4.42, 5.08), (5.72, 6.3)):
        draw_arrow(axis, (0.0, low), (0.0, high))
    # shortcuts
    for low, high in ((0.65, 2.8), (3.4, 5.4)):
        axis.plot((0.0, -1.2, -1.2), (low, low, high), color="0.25", linewidth=1)
        draw_arrow(axis, (-1.2, high), (-0.77, high))


def draw_head(axis: Axes) -> None:
    """The path of one head: scores, their operator, the activation, the operator of the values, the output."""
    axis.set(xlim=(-0.9, 8.3), ylim=(-0.6, 6.4))
    axis.set_title("one head of operator attention", fontsize=BLOCK_FONT + 1)
    draw_box(axis, 3.7, 0.0, "tokens H", PLAIN)
    weights = ((0.4, "Q = H W_Q"), (3.7, "K = H W_K"), (7.0, "V = H W_V"))
    for x, text in weights:
        draw_box(axis, x, 1.2, text, WEIGHT, width=1.8)
        draw_arrow(axis, (3.7 + 0.5 * np.sign(x - 3.7), 0.32), (x, 0.88))
    draw_box(axis, 2.0, 2.4, "scores A = Q Kᵀ", PLAIN, width=2.6)
    for x in (0.4, 3.7):
        draw_arrow(axis, (x, 1.52), (2.0 + 0.8 * np.sign(x - 2.0), 2.08))
    draw_box(axis, 2.0, 3.4, "A S1", OPERATOR)
    draw_box(axis, 2.0, 4.4, "act: softmax, ReLU\nor gated", WEIGHT, width=2.6, height=0.75)
    draw_box(axis, 7.0, 3.4, "S2 V", OPERATOR)
    draw_box(axis, 4.5, 5.4, "act(A S1) S2 V", PLAIN, width=2.6)
    draw_arrow(axis, (2.0, 2.72), (2.0, 3.08))
    draw_arrow(axis, (2.0, 3.72), (2.0, 4.0))
    draw_arrow(axis, (7.0, 1.52), (7.0, 3.08))
    draw_arrow(axis, (2.4, 4.8), (3.8, 5.08))
    draw_arrow(axis, (7.0, 3.72), (5.2, 5.08))
    draw_arrow(axis, (4.5, 5.72), (4.5, 6.3))
    axis.text(4.7, 6.1, "heads joined, times W_O", fontsize=BLOCK_FONT - 1)
    notes = ((3.4, "ReLU and gated:\na normaliser"), (4.4, "gated: a second\nQ, K and S1"))
    for y, text in notes:
        axis.text(0.5, y, text, fontsize=BLOCK_FONT - 1, style="italic", ha="right", va="center")


def draw_operator(axis: Axes) -> None:
    """S = I + M as three matrices, and in training M with entries dropped."""
    axis.set(xlim=(-0.4, 7.0), ylim=(-0.6, 6.4), aspect="equal")
    axis.set_title("an operator, S = I + M", fontsize=BLOCK_FONT + 1)
    place = np.arange(8)
    distance = place[:, None] - place
    offset = 0.6 * np.exp(-np.abs(distance) / 3) * np.cos(1.3 * distance + 0.8)
    kept = np.random.default_rng(1).random(offset.shape) >= 0.5
    rows = (
        (3.9, "in evaluation", offset),
        (0.5, "in training (SOR): entries of M dropped,\nthe rest divided by 1 - p", offset * kept / 0.5),
    )
    limit = 1.3
    for y, title, part in rows:
        for x, matrix in ((0.0, np.eye(8)), (2.4, part), (4.8, np.eye(8) + part)):
            axis.imshow(matrix, cmap="RdBu_r", vmin=-limit, vmax=limit, extent=(x, x + 1.8, y, y + 1.8))
            axis.add_patch(Rectangle((x, y), 1.8, 1.8, fill=False, edgecolor="0.3", linewidth=0.8))
        for x, sign in ((2.1, "+"), (4.5, "=")):
            axis.text(x, y + 0.9, sign, ha="center", va="center", fontsize=BLOCK_FONT + 2)
        axis.text(0.0, y - 0.15, title, va="top", fontsize=BLOCK_FONT - 1)
    # pictures change the limits
    axis.set(xlim=(-0.4, 7.0), ylim=(-0.6, 6.4))


def identity() -> None:
    """Shapes of the matrices before and after the operators move."""
    figure, axes = plt.subplots(2, 1, figsize=(7, 2.6), layout="constrained")
    literal = [("Q", 0.4, 1), ("Kᵀ", 1, 0.4), ("S1", 1, 1), (None, 0, 0), ("S2", 1, 1), ("V", 0.4, 1)]
    folded = [("Q", 0.4, 1), ("(S1ᵀK)ᵀ", 1, 0.4), (None, 0, 0), ("S2V", 0.4, 1)]
    titles = ("literal: two N x N x N products", "folded: operators mix keys and values first")
    for axis, parts, title in zip(axes, (literal, folded), titles, strict=True):
        x = 0.0
        for name, width, height in parts:
            if name is None:
                axis.text(x + 0.1, 0.5, "act →", ha="center", va="center")
                x += 0.5
                continue
            color = "#f4b183" if name.startswith("S") and width == height else "#9dc3e6"
            axis.add_patch(Rectangle((x, 0.5 - height / 2), width, height, facecolor=color, edgecolor="0.3"))
            axis.text(x + width / 2, 0.5, name, ha="center", va="center", fontsize=9)
            x += width + 0.15
        axis.set(xlim=(-0.1, 5.2), ylim=(-0.1, 1.1), aspect="equal")
        axis.set_title(title, loc="left", fontsize=9)
        axis.axis("off")
    save(figure, "identity")


def normalisers() -> None:
    """Length of a row after normalisation against its length before."""
    keys = 64
    before = np.logspace(-2, 4, 200)
    lengths = {
        "none": before,
        "mean": before / keys,
        "l2": before / np.sqrt(before**2 + 1e-6),
        "rms": before / (keys * np.sqrt(1 + before**2 / keys)),
    }
    figure, axis = plt.subplots(figsize=(5, 3), layout="constrained")
    for name, after in lengths.items():
        axis.loglog(before, after, label=name)
    axis.set(xlabel="length of a row of scores", ylabel="after the normaliser", title=f"{keys} keys")
    axis.legend()
    save(figure, "normalisers")


def regularisation() -> None:
    """An offset and three passes of SOR."""
    rng = np.random.default_rng(0)
    place = np.arange(24)
    offset = np.exp(-np.abs(place[:, None] - place) / 2) * np.cos(place[:, None] - place)
    figure, axes = plt.subplots(1, 4, figsize=(8, 2.3), layout="constrained")
    for axis, rate in zip(axes, (0.0, 0.2, 0.6, 0.95), strict=True):
        kept = offset * (rng.random(offset.shape) >= rate) / (1 - rate)
        limit = np.abs(kept).max()
        axis.imshow(kept, cmap="RdBu_r", vmin=-limit, vmax=limit)
        axis.set_title(f"p = {rate}" if rate else "M", fontsize=9)
        axis.set_xticks([])
        axis.set_yticks([])
    save(figure, "sor")


def two_axes() -> None:
    """Which tokens one token of two-axis reads: the row of its channel along time, and all channels along channels."""
    channels = 5
    patches = 9
    chosen = (2, 5)
    figure, axes = plt.subplots(1, 2, figsize=(8, 2.4), layout="constrained")
    titles = ("along time: patches of one channel", "along channels: the same weights at all positions")
    for axis, title in zip(axes, titles, strict=True):
        time = axis is axes[0]
        for channel in range(channels):
            for patch in range(patches):
                read = channel == chosen[0] if time else patch == chosen[1]
                color = "#9dc3e6" if read else "0.93"
                if (channel, patch) == chosen:
                    color = "#f4b183"
                place = (patch, channels - 1 - channel)
                axis.add_patch(Rectangle(place, 0.85, 0.85, facecolor=color, edgecolor="0.5", linewidth=0.6))
        y = channels - 1 - chosen[0] + 0.42
        for end in (0, patches - 1) if time else (0, channels - 1):
            to = (end + 0.42, y) if time else (chosen[1] + 0.42, end + 0.42)
            axis.annotate("", (chosen[1] + 0.42, y), to, arrowprops={"arrowstyle": "->", "color": "0.25"})
        if not time:
            for patch in (2, 8):
                ends = ((patch + 0.42, channels - 0.6), (patch + 0.42, 0.42))
                axis.annotate("", *ends, arrowprops={"arrowstyle": "<->", "color": "0.75"})
        axis.set(xlim=(-0.2, patches), ylim=(-0.2, channels), aspect="equal", xlabel="patches (time)")
        axis.set(xticks=[], yticks=[])
        axis.set_ylabel("channels" if time else "")
        axis.set_title(title, loc="left", fontsize=9)
        for side in axis.spines.values():
            side.set_visible(False)
    save(figure, "two_axis")


def channel_operator(run: Path) -> None:
    """What training changed in S2 between channels: last layer of a two-axis, mean over heads."""
    from toa.experiments.records import RECORD, read_record
    from toa.training.checkpoint import load_checkpoint

    saved = load_checkpoint(run / "model.safetensors")
    # without units
    names = [name.split(" (")[0] for name in saved.facts["columns"]]  # type: ignore[union-attr]
    found = sorted(name for name in saved.tensors if name.endswith("s2.offset") and "channel_blocks" in name)
    if not found:
        raise SystemExit(f"{run} must hold a two-axis model with dense operators between channels, got none.")
    offset = saved.tensors[found[-1]].mean(0).numpy()
    config = read_record(run / RECORD)["config"]
    if config["attention"]["operator_init"] == "centering":
        # the start subtracts the mean over channels
        offset += 1 / len(names)
    side = 1.5 + 0.22 * len(names)
    figure, axis = plt.subplots(figsize=(side + 1.0, side), layout="constrained")
    limit = np.abs(offset).max()
    picture = axis.imshow(offset, cmap="RdBu_r", vmin=-limit, vmax=limit)
    axis.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    axis.set_yticks(range(len(names)), names, fontsize=7)
    axis.set(xlabel="channel that is read", ylabel="mixed value of")
    axis.set_title(f"{config['dataset']}, horizon {config['horizon']}: change of S2 in training", fontsize=9)
    figure.colorbar(picture, ax=axis, shrink=0.7)
    save(figure, "two_axis_operator")


def synthetic_series() -> None:
    """Three series of each kind, and of each change on a season without noise."""
    import torch

    from toa.data.synthetic import CHANGES, SOURCES, Draws, SyntheticSettings, draw_series

    device = torch.device("cpu")
    length = 400
    for kind, source in SOURCES.items():
        draw_examples(kind, source(Draws.of("figure", kind, device=device), 3, length))
    mixtures = SyntheticSettings(weights=dict.fromkeys(SOURCES, 1e-9) | {"mixture": 1.0}, changes={})
    draw_examples("mixture", draw_series(3, length, seed=4, step=0, settings=mixtures))
    season = torch.sin(2 * torch.pi * torch.arange(float(length)) / 60).expand(3, length)
    spread = season.std(1, keepdim=True)
    for name, change in CHANGES.items():
        draw_examples(name, change(Draws.of("figure", name, device=device), season, spread))


def draw_examples(name: str, series: "torch.Tensor") -> None:
    """A strip with one panel per series."""
    figure, axes = plt.subplots(1, len(series), figsize=(7, 1.0), layout="constrained")
    for axis, values in zip(axes, series.numpy(), strict=True):
        axis.plot(values, linewidth=0.7)
        axis.set_xticks([])
        axis.set_yticks([])
    save(figure, f"synthetic_{name}", dpi=64)


def save(figure: plt.Figure, name: str, *, dpi: int = 110) -> None:
    figure.savefig(IMAGES / f"{name}.png", dpi=dpi, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    block()
    identity()
    normalisers()
    regularisation()
    two_axes()
    synthetic_series()
    for run in sys.argv[1:]:
        channel_operator(Path(run))

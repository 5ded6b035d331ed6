"""Draw the figures of concept.md into docs/images: python docs/figures.py."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Rectangle

IMAGES = Path(__file__).resolve().parent / "images"


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
    keys, before = 64, np.logspace(-2, 4, 200)
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


def save(figure: plt.Figure, name: str) -> None:
    figure.savefig(IMAGES / f"{name}.png", dpi=110, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    identity()
    normalisers()
    regularisation()

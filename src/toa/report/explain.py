"""Figures and a page that show what the operators of a model have learned."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from toa.ops import simplex_distance
from toa.report.figures import BLUE, GREEN, RED, draw_matrix, save_figure
from toa.report.html_page import Section, write_sections
from toa.report.operators import LayerView, OperatorView
from toa.report.tables import TEXTS, Rows, Table

# titles of operators by their names in a layer
OPERATOR_TITLES = {
    "s1": "S1, on the scores",
    "s2": "S2, on the values",
    "gate_s1": "S1 of the gate",
    "score_mixer": "mixer of the scores, all ranks on",
    "gate_mixer": "mixer of the gate, all ranks on",
    "value_mixer": "mixer of the values, all ranks on",
}
# heat maps of W_mix per row
_COLUMNS = 4


def layer_table(layer: LayerView) -> Table:
    """One row per operator and head."""
    rows: Table = [
        ("operator", "head", "size of M", "negative", "row sums", "from the simplex", "largest |eigenvalue|")
    ]
    for operator in layer.operators:
        # 0 for the identity; about s sqrt(N) for noise with standard deviation s
        sizes = operator.offset.square().sum((1, 2)).sqrt() / operator.matrix.shape[-1] ** 0.5
        negative = (operator.matrix < 0).double().mean((1, 2))
        sums = operator.row_sums
        distance = operator.simplex_distance()
        radius = operator.eigenvalues().abs().amax(1)
        for h in range(len(sizes)):
            ends = f"{sums[h].min():.2f} to {sums[h].max():.2f}"
            cells = (f"{sizes[h]:.3f}", f"{negative[h]:.0%}", ends, f"{distance[h]:.2f}", f"{radius[h]:.2f}")
            rows.append((operator.name, str(h + 1), *cells))
    return rows


def draw_operator(operator: OperatorView, title: str, *, ordered: bool = True) -> Figure:
    """One row per head: heat map of M, row sums, gain per frequency, eigenvalues."""
    offset = operator.offset.numpy()
    sums = operator.row_sums.numpy()
    values = operator.eigenvalues().numpy()
    distance = operator.simplex_distance()
    response = operator.response().numpy()
    angle = np.linspace(0.0, 2.0 * np.pi, 200)
    figure, axes = _grid(len(offset), 3 + ordered, 2.9)
    for head, (entries, row_sums, *gain, eigenvalues) in enumerate(axes):
        title_of_head = f"head {head + 1}: M, simplex distance {distance[head]:.2f}"
        _draw_entries(entries, offset[head], title_of_head)
        _draw_curve(row_sums, np.arange(len(sums[head])), sums[head], BLUE)
        _label(row_sums, "row sums", "token")
        row_sums.xaxis.set_major_locator(MaxNLocator(integer=True))
        for axis in gain:
            _draw_curve(axis, np.arange(len(response[head])) / max(1, 2 * len(response[head]) - 2), response[head], RED)
            axis.set_ylim(bottom=min(0.0, float(response[head].min())))
            _label(axis, "gain per frequency", "cycles per token")
        eigenvalues.plot(np.cos(angle), np.sin(angle), color="0.7", linewidth=0.8)
        eigenvalues.scatter(values[head].real, values[head].imag, s=10, color=GREEN)
        eigenvalues.set_aspect("equal", adjustable="datalim")
        _label(eigenvalues, "eigenvalues", "real")
    figure.suptitle(title)
    return figure


def draw_mixing(mixing: Tensor, title: str) -> Figure:
    """W_mix (H, M, N) of each head for one sample."""
    heads = len(mixing)
    columns = min(_COLUMNS, heads)
    figure, grid = _grid(-(-heads // columns), columns, 3.6)
    distance = simplex_distance(mixing)
    for axis in grid.ravel()[heads:]:
        axis.set_axis_off()
    for head, axis in enumerate(grid.ravel()[:heads]):
        one = mixing[head].numpy()
        sums = one.sum(1)
        _draw_entries(
            axis,
            one,
            f"head {head + 1}: {(one < 0).mean():.0%} negative\n"
            f"row sums {sums.min():.2f} to {sums.max():.2f}, simplex distance {distance[head]:.2f}",
        )
    figure.suptitle(title)
    return figure


def draw_importance(parts: Mapping[str, Mapping[str, float]], title: str) -> Figure:
    """Bars of shares, one panel per title."""
    most = max(map(len, parts.values()))
    figure = plt.figure(figsize=(5.5 * len(parts), 1.2 + 0.24 * most), layout="constrained")
    for axis, (name, rows) in zip(figure.subplots(1, len(parts), squeeze=False)[0], parts.items(), strict=True):
        axis.barh(range(len(rows)), list(rows.values()), color=BLUE)
        axis.set_yticks(range(len(rows)), list(rows), fontsize=7)
        axis.invert_yaxis()
        _label(axis, name, "share")
    figure.suptitle(title, fontsize=10)
    return figure


def _grid(rows: int, columns: int, side: float) -> tuple[Figure, np.ndarray]:
    """A figure and its axes; a fixed layout is many times faster than matplotlib's layout engines."""
    width = (side + 0.7) * columns
    height = (side + 0.3) * rows + 0.5
    figure = plt.figure(figsize=(width, height))
    axes = figure.subplots(rows, columns, squeeze=False)
    edges = {"left": 0.45 / width, "right": 1.0 - 0.15 / width, "bottom": 0.5 / height, "top": 1.0 - 0.95 / height}
    figure.subplots_adjust(**edges, wspace=0.22, hspace=0.34)
    return figure, axes


def _label(axis: Axes, title: str, across: str) -> None:
    axis.set_title(title, fontsize=9)
    axis.set_xlabel(across, fontsize=8)
    axis.tick_params(labelsize=7)


def _draw_entries(axis: Axes, matrix: np.ndarray, title: str) -> None:
    limit = draw_matrix(axis, matrix, aspect="auto")
    # instead of a colour bar
    _label(axis, title, f"key; full colour at ±{limit:.2g}")


def _draw_curve(axis: Axes, x: np.ndarray, y: np.ndarray, colour: str) -> None:
    axis.axhline(1.0, color="0.7", linewidth=0.8)
    axis.plot(x, y, color=colour, linewidth=1.0, marker="." if len(y) <= 32 else "")


def write_explanation(
    layers: Sequence[LayerView],
    folder: Path,
    *,
    heading: str,
    lead: str,
    sample: str = "",
    ordered: bool = True,
    facts: Rows = (),
    importance: tuple[str, Mapping[str, Mapping[str, float]]] | None = None,
) -> list[Path]:
    """Draw every layer and write a page with the pictures; returns the files, the page last.

    Args:
        sample: Description of the sample, or why there is none.
        ordered: Whether tokens are ordered in time.
        importance: What the network looked at: a description, and shares by title and name.
    """
    text = TEXTS["explain"]
    mixed = any(layer.mixing is not None for layer in layers)
    reading = text["operators"] + text["unordered"] * (not ordered) + text["mixing"] * mixed if layers else ""
    about = Section(lead=f"{lead} {sample}", reading=reading, details=facts, details_title="About the model")
    sections = []
    if importance is not None:
        words, parts = importance
        drawn = save_figure(draw_importance(parts, "what the network looked at"), folder / "importance.png")
        sections.append(Section(title="What the network looked at", lead=words, pictures=[(drawn, "shares of lags")]))
    sections += [_layer_section(number, layer, folder, ordered) for number, layer in enumerate(layers, 1)]
    page = write_sections(heading, [about, *sections], folder / "index.html")
    return [*(path for section in sections for path, _ in section.pictures), page]


def _layer_section(number: int, layer: LayerView, folder: Path, ordered: bool) -> Section:
    pictures = []
    for operator in layer.operators:
        title = OPERATOR_TITLES.get(operator.name, operator.name)
        figure = draw_operator(operator, f"layer {number}: {title}", ordered=ordered)
        pictures.append((save_figure(figure, folder / f"layer{number}-{operator.name}.png"), f"operator {title}"))
    if layer.mixing is not None:
        figure = draw_mixing(layer.mixing, f"layer {number}: W_mix for one sample")
        pictures.append((save_figure(figure, folder / f"layer{number}-mixing.png"), "W_mix for one sample"))
    return Section(
        title=f"Layer {number}: {layer.name}",
        pictures=pictures,
        details=layer_table(layer),
        details_title="Numbers",
        stacked=True,
    )

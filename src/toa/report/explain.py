"""What a model's operators have learned, to look at: pictures a layer, and a page that holds them with the numbers."""

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from toa.report.operator_views import LayerView, OperatorView
from toa.report.page import Rows, Section, write_sections
from toa.theory import simplex_distance

# of the layers' own names
OPERATORS = {
    "s1": "S1, on the scores",
    "s2": "S2, on the values",
    "gate_s1": "S1 of the gate",
    "score_mixer": "mixer of the scores, all ranks on",
    "gate_mixer": "mixer of the gate, all ranks on",
    "value_mixer": "mixer of the values, all ranks on",
}
# mixing operators side by side
_COLUMNS = 4

READING = (
    "Each row of pictures is a head. Heat map: M = S - I, what was learned beside the identity; red adds, blue "
    "subtracts. Row sums: the answer to a constant, 1 for an average, 0 for a difference. Gain: the norm "
    "of what comes back of a wave of norm 1. Eigenvalues: 1 for the identity; outside the circle a pattern grows. "
    "Distance from the simplex: Frobenius distance of S to the nearest operator that can only average. Size of M: its "
    "Frobenius norm over the identity's. Negative: share of the entries of S below zero."
)
MIXING_READING = (
    "W_mix is what acts on the values for this sample: operators, scores and activation together. Rows are queries, "
    "columns keys. Softmax attention has no blue, row sums of 1 and distance 0 from the simplex."
)


def layer_table(layer: LayerView) -> list[tuple[str, ...]]:
    """A header and a row for each operator and head."""
    rows: list[tuple[str, ...]] = [
        ("operator", "head", "size of M", "negative", "row sums", "from the simplex", "largest |eigenvalue|")
    ]
    for operator in layer.operators:
        rows += [(operator.name, str(head), *facts) for head, facts in enumerate(_head_facts(operator), 1)]
    return rows


def _head_facts(operator: OperatorView) -> list[tuple[str, ...]]:
    n = operator.matrix.shape[-1]
    # of the identity it is 0, of noise with deviation s about s sqrt(N)
    sizes = operator.offset.square().sum((1, 2)).sqrt() / n**0.5
    negative = (operator.matrix < 0).double().mean((1, 2))
    sums, distance = operator.row_sums, operator.simplex_distance()
    radius = operator.eigenvalues().abs().amax(1)
    return [
        (
            f"{sizes[h]:.3f}",
            f"{negative[h]:.0%}",
            f"{sums[h].min():.2f} to {sums[h].max():.2f}",
            f"{distance[h]:.2f}",
            f"{radius[h]:.2f}",
        )
        for h in range(operator.heads)
    ]


def draw_operator(operator: OperatorView, title: str, *, ordered: bool = True) -> Figure:
    """A row for each head: heat map of M, row sums, gain at each frequency, eigenvalues.

    Args:
        operator: What is drawn.
        title: Above all.
        ordered: Whether tokens follow one another, so that frequencies mean something.
    """
    offset, sums, values = operator.offset.numpy(), operator.row_sums.numpy(), operator.eigenvalues().numpy()
    distance, response = operator.simplex_distance(), operator.response().numpy()
    draw: list[Callable[[Axes, int], None]] = [
        lambda axis, h: _draw_matrix(axis, offset[h], f"head {h + 1}: M, simplex distance {distance[h]:.2f}"),
        lambda axis, h: _draw_sums(axis, sums[h]),
        *([lambda axis, h: _draw_response(axis, response[h])] if ordered else []),
        lambda axis, h: _draw_eigenvalues(axis, values[h]),
    ]
    figure, axes = _grid(operator.heads, len(draw), 2.9)
    for head in range(operator.heads):
        for axis, one in zip(axes[head], draw, strict=True):
            one(axis, head)
    figure.suptitle(title)
    return figure


def _grid(rows: int, columns: int, side: float) -> tuple[Figure, np.ndarray]:
    """Axes with room for titles; laid out by hand, which is many times quicker than by matplotlib's engines."""
    width, height = (side + 0.7) * columns, (side + 0.3) * rows + 0.5
    figure = plt.figure(figsize=(width, height))
    axes = figure.subplots(rows, columns, squeeze=False)
    figure.subplots_adjust(
        left=0.45 / width,
        right=1.0 - 0.15 / width,
        bottom=0.5 / height,
        top=1.0 - 0.95 / height,
        wspace=0.22,
        hspace=0.34,
    )
    return figure, axes


def draw_mixing(mixing: Tensor, title: str) -> Figure:
    """W_mix (H, M, N) of each head for one sample."""
    heads = len(mixing)
    columns = min(_COLUMNS, heads)
    rows = -(-heads // columns)
    figure, grid = _grid(rows, columns, 3.6)
    axes = grid.ravel()
    distance = simplex_distance(mixing)
    for head, axis in enumerate(axes):
        if head >= heads:
            axis.set_axis_off()
            continue
        one = mixing[head].numpy()
        sums = one.sum(1)
        _draw_matrix(
            axis,
            one,
            f"head {head + 1}: {(one < 0).mean():.0%} negative\n"
            f"row sums {sums.min():.2f} to {sums.max():.2f}, simplex distance {distance[head]:.2f}",
        )
    figure.suptitle(title)
    return figure


def _draw_matrix(axis: Axes, matrix: np.ndarray, title: str) -> None:
    # a few large entries must not wash out the rest
    limit = float(np.quantile(np.abs(matrix), 0.995)) or float(np.abs(matrix).max()) or 1.0
    axis.imshow(matrix, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest", aspect="auto")
    axis.set_title(title, fontsize=9)
    # in place of a bar of colours
    axis.set_xlabel(f"key; full colour at ±{limit:.2g}", fontsize=8)
    axis.tick_params(labelsize=7)


def _draw_sums(axis: Axes, sums: np.ndarray) -> None:
    axis.axhline(1.0, color="0.7", linewidth=0.8)
    axis.plot(sums, color="tab:blue", linewidth=1.0, marker="." if len(sums) <= 32 else "")
    axis.set_title("row sums", fontsize=9)
    axis.set_xlabel("token", fontsize=8)
    axis.tick_params(labelsize=7)


def _draw_response(axis: Axes, response: np.ndarray) -> None:
    frequency = np.arange(len(response)) / max(1, 2 * (len(response) - 1))
    axis.axhline(1.0, color="0.7", linewidth=0.8)
    axis.plot(frequency, response, color="tab:red", linewidth=1.0, marker="." if len(response) <= 32 else "")
    axis.set_ylim(bottom=min(0.0, float(response.min())))
    axis.set_title("gain at each frequency", fontsize=9)
    axis.set_xlabel("cycles per token", fontsize=8)
    axis.tick_params(labelsize=7)


def _draw_eigenvalues(axis: Axes, values: np.ndarray) -> None:
    angle = np.linspace(0.0, 2.0 * np.pi, 200)
    axis.plot(np.cos(angle), np.sin(angle), color="0.7", linewidth=0.8)
    axis.scatter(values.real, values.imag, s=10, color="tab:green")
    axis.set_aspect("equal", adjustable="datalim")
    axis.set_title("eigenvalues", fontsize=9)
    axis.set_xlabel("real", fontsize=8)
    axis.tick_params(labelsize=7)


def write_explanation(
    layers: Sequence[LayerView],
    folder: Path,
    *,
    heading: str,
    lead: str,
    sample: str = "",
    ordered: bool = True,
    facts: Rows = (),
) -> list[Path]:
    """Draw every layer, and write the page that holds the pictures; the page is the last of the files.

    Args:
        layers: What `toa.report.operator_views.view_layers` saw.
        folder: Where index.html and the pictures go.
        heading: Of the page.
        lead: Which model it is.
        sample: What the sample was, or why there is none.
        ordered: Whether tokens follow one another in time.
        facts: A header and rows on the model, to be folded away.
    """
    folder.mkdir(parents=True, exist_ok=True)
    unordered = "" if ordered else " Tokens are channels here, in no order: frequencies would mean nothing."
    mixed = f" {MIXING_READING}" if any(layer.mixing is not None for layer in layers) else ""
    about = Section(
        title="",
        lead=f"{lead} {sample}",
        table=(),
        pictures=[],
        reading=f"{READING}{unordered}{mixed}",
        runs=facts,
        folded="About the model",
    )
    sections = [_layer_section(number, layer, folder, ordered) for number, layer in enumerate(layers, 1)]
    page = write_sections(heading, [about, *sections], folder / "index.html")
    return [*(path for section in sections for path, _ in section.pictures), page]


def _layer_section(number: int, layer: LayerView, folder: Path, ordered: bool) -> Section:
    """Pictures of a layer, drawn beside the page, and its numbers."""
    pictures = []
    for operator in layer.operators:
        title = OPERATORS.get(operator.name, operator.name)
        figure = draw_operator(operator, f"layer {number}: {title}", ordered=ordered)
        pictures.append((_write(figure, folder / f"layer{number}-{operator.name}.png"), f"operator {title}"))
    if layer.mixing is not None:
        figure = draw_mixing(layer.mixing, f"layer {number}: W_mix for one sample")
        pictures.append((_write(figure, folder / f"layer{number}-mixing.png"), "mixing of one sample"))
    return Section(
        title=f"Layer {number}: {layer.name}",
        lead="",
        table=(),
        pictures=pictures,
        reading="",
        runs=layer_table(layer),
        stacked=True,
        folded="In numbers",
    )


def _write(figure: Figure, path: Path) -> Path:
    try:
        figure.savefig(path, dpi=100)
    finally:
        plt.close(figure)
    return path

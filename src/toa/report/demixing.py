"""Demixing results to look at: the paper's 3 x 3 figure, a table, and a page that holds both."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from toa.experiments.demixing import PUBLISHED, DemixingResult, VariantView
from toa.report.page import Section, write_sections

TITLES = {
    "toa-gated": "TOA-Gated",
    "toa-relu": "TOA-ReLU",
    "toa-softmax": "TOA-Softmax",
    "softmax": "Softmax attention",
}


def system_title(name: str) -> str:
    """How a variant is called in print."""
    if name.endswith("-no-sor"):
        return f"{system_title(name.removesuffix('-no-sor'))}, no SOR"
    return TITLES.get(name, name)


def table(result: DemixingResult, *, published: bool) -> list[tuple[str, ...]]:
    """A header and a row for each system: median MSE over seeds, ratio to the oracle, published MSE if asked for."""
    oracle = result.reference["oracle"]
    rows: list[tuple[str, ...]] = [("system", "seeds", "MSE", "x oracle", "published")]
    for name, mse in result.medians().items():
        seeds = sum(record["name"] == name for record in result.records)
        paper = f"{PUBLISHED[name]:.4f}" if published and name in PUBLISHED else "-"
        rows.append((system_title(name), str(seeds), f"{mse:.5f}", f"{mse / oracle:.2f}", paper))
    told = {"oracle": "linear oracle, told the warp", "filter": "best fixed linear filter"}
    rows += [(told[k], "-", f"{v:.5f}", f"{v / oracle:.2f}", "-") for k, v in result.reference.items()]
    return rows if published else [row[:-1] for row in rows]


def draw(result: DemixingResult) -> Figure:
    """Mixing operators, reconstructions and frequency responses, a column for each model."""
    views = result.views
    figure = plt.figure(figsize=(4.0 * len(views), 9.0), layout="constrained")
    axes = figure.subplots(3, len(views), squeeze=False)
    for column, view in enumerate(views):
        _draw_operator(axes[0, column], view)
        _draw_signal(axes[1, column], view, result)
        _draw_response(axes[2, column], view, result)
    for row in (1, 2):
        low = min(axis.get_ylim()[0] for axis in axes[row])
        high = max(axis.get_ylim()[1] for axis in axes[row])
        for axis in axes[row]:
            axis.set_ylim(low, high)
    return figure


def _draw_operator(axis: Axes, view: VariantView) -> None:
    operator = view.operator.numpy()
    # a few large entries must not wash out the rest
    limit = float(np.quantile(np.abs(operator), 0.995)) or 1.0
    image = axis.imshow(operator, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    negative = float((operator < 0).mean())
    layer, head = view.place
    axis.set_title(f"{system_title(view.name)}\nmixing operator {layer}.{head}, {negative:.0%} negative")
    axis.set_xlabel("key")
    axis.set_ylabel("query")
    plt.colorbar(image, ax=axis, shrink=0.8)


def _draw_signal(axis: Axes, view: VariantView, result: DemixingResult) -> None:
    axis.plot(result.noisy, color="0.8", linewidth=0.8, label="noisy")
    axis.plot(result.clean, color="black", linewidth=1.4, label="clean")
    axis.plot(view.estimate, color="tab:red", linewidth=1.2, linestyle="--", label="recovered")
    axis.set_title(f"reconstruction, MSE {view.mse:.4f}")
    axis.set_xlabel("time")
    axis.margins(y=0.15)
    axis.legend(fontsize=8, ncols=3, loc="upper center")


def _draw_response(axis: Axes, view: VariantView, result: DemixingResult) -> None:
    length = result.signals.length
    frequency = np.arange(length // 2 + 1) / length
    for period in result.signals.periods:
        axis.axvline(1.0 / period, color="tab:green", linewidth=0.8, alpha=0.6)
    axis.plot(frequency, result.oracle_response, color="black", linewidth=1.4, label="oracle")
    axis.plot(frequency, view.response, color="tab:red", linewidth=1.2, linestyle="--", label="model")
    axis.set_xlim(0.0, min(0.5, 2.5 / min(result.signals.periods)))
    axis.set_title("frequency response (lines: harmonics)")
    axis.set_xlabel("cycles per step")
    axis.set_ylabel("gain")
    axis.legend(fontsize=8)


def write_figure(result: DemixingResult, path: Path) -> Path:
    """Draw the figure into a PNG file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure = draw(result)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def demixing_section(result: DemixingResult, figure: Path, *, title: str = "", published: bool = False) -> Section:
    """The part of a page on demixing: table, figure, and how each run was made."""
    signals = result.signals
    periods = ", ".join(f"{p:g}" for p in signals.periods)
    runs = [
        (
            system_title(record["name"]),
            str(record["seed"]),
            f"{record['metrics']['mse']:.5f}",
            f"{record['wall_s']:.0f} s",
            record["device"],
            record["command"],
        )
        for record in result.records
    ]
    return Section(
        title=title,
        lead=f"Recover a sum of harmonics (periods {periods}) of length {signals.length} from noise of deviation "
        f"{signals.noise:g} under a hidden warp of time. Two layers, two heads; only the attention differs.",
        table=table(result, published=published),
        pictures=[(figure, "mixing operators, reconstructions and frequency responses of each model")],
        reading="Top: the mixing operator (layer.head) that subtracts most, for one signal; blue is negative. Softmax "
        "attention can only average, so its operators have no blue. Middle: that signal, noisy, clean and recovered. "
        "Bottom: gain at each frequency.",
        runs=[("system", "seed", "MSE", "time", "device", "command"), *runs],
    )


def write_page(result: DemixingResult, figure: Path, path: Path, *, heading: str, published: bool) -> Path:
    """Write a self-contained HTML page: table, figure, and how each run was made."""
    return write_sections(heading, [demixing_section(result, figure, published=published)], path)

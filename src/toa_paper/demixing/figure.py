"""The figure of the demixing experiment."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from toa.report.figures import GREEN, RED, SMALL, draw_matrix, system_title
from toa_paper.demixing.experiment import DemixingResult


def draw_demixing(result: DemixingResult) -> Figure:
    """Mixing operators, reconstructions and frequency responses, one column per model."""
    views = result.views
    periods = result.signals.periods
    length = result.signals.length
    frequency = np.arange(length // 2 + 1) / length
    figure = plt.figure(figsize=(4.0 * len(views), 9.0), layout="constrained")
    axes = figure.subplots(3, len(views), squeeze=False)
    for column, view in enumerate(views):
        operator = view.operator.numpy()
        layer, head = view.place
        draw_matrix(axes[0, column], operator)
        title = f"{system_title(view.name)}\nmixing operator {layer}.{head}, {(operator < 0).mean():.0%} negative"
        axes[0, column].set(title=title, xlabel="key", ylabel="query")
        plt.colorbar(axes[0, column].images[0], ax=axes[0, column], shrink=0.8)
        signal, response = axes[1:, column]
        signal.plot(result.noisy, color="0.8", linewidth=0.8, label="noisy")
        signal.plot(result.clean, color="black", linewidth=1.4, label="clean")
        signal.plot(view.estimate, color=RED, linewidth=1.2, linestyle="--", label="recovered")
        signal.set(title=f"reconstruction, MSE {view.mse:.4f}", xlabel="time")
        signal.margins(y=0.15)
        signal.legend(fontsize=SMALL, ncols=3, loc="upper center")
        for period in periods:
            response.axvline(1.0 / period, color=GREEN, linewidth=0.8, alpha=0.6)
        response.plot(frequency, result.oracle_response, color="black", linewidth=1.4, label="oracle")
        response.plot(frequency, view.response, color=RED, linewidth=1.2, linestyle="--", label="model")
        response.set_xlim(0.0, min(0.5, 2.5 / min(periods)))
        response.set(title="frequency response (lines: harmonics)", xlabel="cycles per step", ylabel="gain")
        response.legend(fontsize=SMALL)
    for row in axes[1:]:
        limits = [axis.get_ylim() for axis in row]
        for axis in row:
            axis.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    return figure

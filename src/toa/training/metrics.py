"""Metrics of tensors and their exact means over batches; scores of forecasts and classes that people compare.

    found = score_forecasts(forecast, actual, scale=seasonal_error(history, 24), columns=("load", "price"))
    found.overall["mase"], found.by_column["load"]["mae"]

Actual values that are NaN are left out of scores. Alphabet: N windows, T rows, P horizon, C columns, Q levels.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64
from torch import Tensor, nn

from toa._checks import ArgumentError, check_at_least

squared_error = partial(F.mse_loss, reduction="none")
FORECAST_METRICS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": squared_error,
    "mae": partial(F.l1_loss, reduction="none"),
}


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, without gradients, inside the context."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def pinball_error(estimate: Tensor, target: Tensor, levels: Tensor) -> Tensor:
    """max(q e, (q - 1) e) with e = y - ŷ, elementwise. Its mean is smallest if ŷ is the q-quantile of y."""
    error = target.unsqueeze(2) - estimate
    q = levels.view(-1, 1)
    return torch.maximum(q * error, (q - 1.0) * error)


def mean_metrics(
    metrics: Mapping[str, Callable[[Tensor, Tensor], Tensor]], pairs: Iterable[tuple[Tensor, Tensor]]
) -> dict[str, float]:
    """Means of metrics over all entries of all batches; synchronises with the device only at the end."""
    sums: dict[str, Tensor | float] = dict.fromkeys(metrics, 0.0)
    count = 0
    for estimate, target in pairs:
        for name, metric in metrics.items():
            sums[name] = sums[name] + metric(estimate.float(), target.float()).sum(dtype=torch.float64)
        count += target.numel()
    if count == 0:
        raise ValueError("means need at least one entry, got none; the split has no window.")
    return {name: float(total) / count for name, total in sums.items()}


def confusion_matrix(labels: Tensor, predictions: Tensor, num_classes: int) -> np.ndarray:
    """Number of cases per true class (row) and predicted class (column), (K, K)."""
    # imported on use: scikit-learn takes long to import
    from sklearn import metrics

    counts: np.ndarray = metrics.confusion_matrix(labels.cpu(), predictions.cpu(), labels=range(num_classes))
    return counts


def class_scores(labels: Tensor, predictions: Tensor) -> dict[str, float]:
    """Accuracy, balanced accuracy and macro F1, as scikit-learn defines them."""
    from sklearn import metrics

    if not len(labels):
        raise ValueError("scores need at least one case, got none; the split is empty.")
    true, predicted = labels.cpu().numpy(), predictions.cpu().numpy()
    # the mean recall of the classes that have cases; scikit-learn's own balanced accuracy warns about other predictions
    recall = metrics.recall_score(true, predicted, labels=np.unique(true), average="macro")
    return {
        "accuracy": float(metrics.accuracy_score(true, predicted)),
        "balanced_accuracy": float(recall),
        "macro_f1": float(metrics.f1_score(true, predicted, average="macro")),
    }


class Scores(NamedTuple):
    """Scores by name, over all columns and per column; a score that is not defined for the data is NaN."""

    overall: dict[str, float]
    by_column: dict[str, dict[str, float]]


def seasonal_error(history: Float[np.ndarray, "n t"], season: int) -> Float64[np.ndarray, " n"]:
    """Mean of |y[t] - y[t - season]| per row of history, the scale of MASE; NaN if there is no such pair."""
    check_at_least("season", season, 1)
    with warnings.catch_warnings():
        # the mean of nothing is NaN
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmean(np.abs(history[:, season:] - history[:, :-season]), axis=1), dtype=np.float64)


def score_forecasts(
    forecast: Float[np.ndarray, "n p c"],
    actual: Float[np.ndarray, "n p c"],
    *,
    columns: Sequence[str],
    scale: Float[np.ndarray, "n c"] | None = None,
    lower: Float[np.ndarray, "n p c"] | None = None,
    upper: Float[np.ndarray, "n p c"] | None = None,
    quantiles: Float[np.ndarray, "n p q c"] | None = None,
    levels: Sequence[float] = (),
) -> Scores:
    """All scores that the given parts allow.

    Args:
        actual: Actual values; NaN where there is none.
        scale: Scale of MASE per window and column, see `seasonal_error`. Windows whose scale is 0 or NaN are left out.
    """
    if forecast.shape != actual.shape or len(columns) != actual.shape[2]:
        raise ArgumentError(
            "forecast",
            f"have the shape of actual, {actual.shape}, and {actual.shape[2]} names of columns",
            f"{forecast.shape} and {len(columns)} names",
        )
    if not np.isfinite(actual).any():
        raise ValueError("scores need at least one actual value, got none; test more rows.")
    parts: dict[str, np.ndarray] = {"forecast": forecast, "actual": actual}
    if scale is not None:
        usable = np.isfinite(scale) & (scale > 0)
        parts["scale"] = np.broadcast_to(np.where(usable, scale, np.nan)[:, None], actual.shape)
    if lower is not None and upper is not None:
        inside = (actual >= lower) & (actual <= upper)
        parts["inside"] = np.where(np.isfinite(actual), inside, np.nan)
    if quantiles is not None:
        tensors = (torch.from_numpy(np.asarray(part, dtype=np.float64)) for part in (quantiles, actual, levels))
        parts["pinball"] = pinball_error(*tensors).mean(2).numpy()  # (N, P, C)
    by_column = {
        name: _scores({key: part[:, :, index] for key, part in parts.items()}) for index, name in enumerate(columns)
    }
    return Scores(_scores(parts), by_column)


def _scores(parts: dict[str, np.ndarray]) -> dict[str, float]:
    actual, forecast = parts["actual"], parts["forecast"]
    error = np.abs(forecast - actual)
    size = np.nansum(np.abs(actual))
    both = np.abs(actual) + np.abs(forecast)
    scores = {"mae": _mean(error), "rmse": float(np.sqrt(_mean(error**2)))}
    if "scale" in parts:
        scores["mase"] = _mean(error / parts["scale"])
    scores["wape"] = float(np.nansum(error) / size) if size else float("nan")
    # a correct forecast of 0 has no error
    scores["smape"] = _mean(np.where(both == 0, 0.0, 2 * error / np.where(both == 0, 1.0, both)))
    if "pinball" in parts:
        loss = _mean(parts["pinball"])
        scores |= {"pinball": loss, "crps": 2 * loss}
        scores["wql"] = float(2 * np.nansum(parts["pinball"]) / size) if size else float("nan")
    if "inside" in parts:
        scores["coverage"] = _mean(parts["inside"])
    return scores


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean(dtype=np.float64)) if known.size else float("nan")

"""How a detector is fitted, from a panel to a frozen value.

    inputs     = fit_inputs(panel, window)                   # scales of the series
    series     = inputs.scale_panel(panel)                   # standardised rows
    split      = split_series(series, window, share)         # rows to train on, and held-out ones
    methods    = fit_methods(split, …)                       # network, baselines and their combination
    held       = held_scores(methods, series, …)             # scores of held-out rows
    score      = replace(methods.score, baselines=…)         # baselines fitted again, to all rows
    normal     = score.of_normal_rows(series, …)             # scores of all rows
    thresholds = higher_thresholds(normal, held, choose)
    thresholds = settings.threshold.limit(thresholds, …)     # of a combination
    fitted     = FittedDetector(…)                           # frozen

Alphabet: T rows, C channels, S series.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from toa._console import show_steps
from toa.data.panel import Panel
from toa.estimators.architecture import NETWORK
from toa.estimators.combination import Combination, inject_anomalies
from toa.estimators.detector_inputs import constant_channels, fit_inputs, window_of_fit
from toa.estimators.detector_score import MEAN, DetectorScore
from toa.estimators.detector_settings import DetectorSettings
from toa.estimators.effort import Ceiling
from toa.estimators.fitted_detector import FittedDetector
from toa.estimators.reconstruction import (
    FittedReconstruction,
    WindowShape,
    check_reconstruction,
    limit_plan,
    plan_reconstruction,
    train_reconstruction,
    training_seconds,
)
from toa.estimators.scorers import SCORERS, fit_baselines
from toa.estimators.scoring import Baseline, NormalRows, Score, Series
from toa.estimators.thresholds import NormalScores, higher_thresholds

# at the end the other methods are fitted again, and score all rows: in times that have passed when the network begins
_REMAINING_WORK = 2.0
# stages of a fit that are shown
_STAGES = 3


@dataclass(frozen=True, slots=True, eq=False)
class TrainAndHeld:
    """Rows of series to train on, and held-out ends; a series that is too short for both parts only trains."""

    train: Sequence[Series]
    held: Sequence[Series]


@dataclass(frozen=True, slots=True, eq=False)
class Methods:
    """Methods that were not fitted to the held-out rows.

    Attributes:
        score: The methods, and how they score rows.
        halves: Combinations for equal parts of the held-out rows, each fitted to the other parts; None for one method.
    """

    score: DetectorScore
    halves: Sequence[Combination | None]


def fit_detector(panel: Panel, settings: DetectorSettings, ceiling: Ceiling, *, stacklevel: int = 2) -> FittedDetector:
    """Fit the methods, combine them, and set the thresholds.

    Args:
        ceiling: Limit on the time, which notes what it leaves out.
        stacklevel: Of the warning about anomalies in the held-out rows.
    """
    settings.threshold.check_dates(panel)
    window = window_of_fit(panel, settings.window)
    shape = WindowShape(rows=window, channels=len(panel.columns), largest=settings.largest)
    check_reconstruction(settings.network, shape)
    inputs = fit_inputs(panel, window)
    series = inputs.scale_panel(panel)
    shape = replace(shape, constant=constant_channels(series))
    split = split_series(series, window, settings.validation_share)
    with show_steps("detector", _STAGES, shown=settings.network.progress) as begin:
        begin("fit methods")
        methods = fit_methods(split, settings, shape, ceiling)
        begin("score held-out rows")
        held = held_scores(methods, series, split.train, inputs.context)
        begin("score all rows")
        score = replace(methods.score, baselines=_fit_baselines(series, settings, shape))
        normal = score.of_normal_rows(series, inputs.context)
    thresholds = higher_thresholds(
        normal,
        held,
        lambda scores: settings.threshold.choose(scores, panel),
        stacklevel=stacklevel + 1,
    )
    if score.combination is not None:
        thresholds = settings.threshold.limit(thresholds, sum(map(len, split.held or split.train)))
    return FittedDetector(
        freq=panel.freq,
        day_first=panel.day_first,
        inputs=inputs,
        constant=shape.constant,
        largest=settings.largest,
        score=score,
        thresholds=settings.threshold.add_levels(thresholds, normal, max(panel.lengths)),
        truncated=tuple(ceiling.left_out),
    )


def split_series(series: Sequence[Series], window: int, share: float) -> TrainAndHeld:
    """Hold out the end of each series, at least a window."""
    train = []
    held = []
    for values in series:
        border = len(values) - max(window, int(len(values) * share))
        train.append(values[:border] if border >= window else values)
        if border >= window:
            held.append(values[border:])
    return TrainAndHeld(train, held)


def fit_methods(split: TrainAndHeld, settings: DetectorSettings, shape: WindowShape, ceiling: Ceiling) -> Methods:
    """Fit the network and the baselines to the rows to train on; for "auto", make their scores comparable."""
    if settings.model == NETWORK:
        network = _fit_network(split, settings, shape, ceiling, needed=True)
        return Methods(DetectorScore(model=NETWORK, window=shape.rows, baselines={}, network=network), [None])
    baselines = _fit_baselines(split.train, settings, shape)
    score = DetectorScore(model=settings.model, window=shape.rows, baselines=baselines)
    if not settings.combines:
        return Methods(score, [None])
    return _combine(score, split, settings, shape, ceiling)


def _combine(
    score: DetectorScore, split: TrainAndHeld, settings: DetectorSettings, shape: WindowShape, ceiling: Ceiling
) -> Methods:
    """Add the network, and choose methods by the anomalies that they find among those injected into held-out rows."""
    window = shape.rows
    held = split.held or split.train
    generator = np.random.default_rng(settings.seed)
    changed = [inject_anomalies(values.astype(np.float64), window, generator) for values in held]
    labels = [injected for _, injected in changed]
    anomalous_rows = [values.astype(np.float32) for values, _ in changed]
    normal = _member_scores(score, score.baselines, held)
    anomalous = _member_scores(score, score.baselines, anomalous_rows)
    network = _fit_network(TrainAndHeld(split.train, held), settings, shape, ceiling, needed=False)
    if network is not None:
        score = replace(score, network=network)
        normal |= _member_scores(score, [NETWORK], held)
        anomalous |= _member_scores(score, [NETWORK], anomalous_rows)
    combination = Combination.fit(normal, anomalous, labels, window)
    # tails are too flattering for the rows that they were fitted to
    return Methods(replace(score, combination=combination), combination.halves(normal, window))


def _member_scores(
    score: DetectorScore, names: Sequence[str] | Mapping[str, Baseline], series: Sequence[Series]
) -> dict[str, list[Score]]:
    """Scores of series by each of several methods."""
    return {name: [score.member(name, values).sum(1) for values in series] for name in names}


def _fit_baselines(series: Sequence[Series], settings: DetectorSettings, shape: WindowShape) -> dict[str, Baseline]:
    """The baselines of a model, fitted to series."""
    if settings.model == NETWORK:
        return {}
    names = list(SCORERS) if settings.combines else [settings.model.removesuffix(MEAN)]
    normal = NormalRows(series=series, window=shape.rows, seed=settings.seed, largest=shape.largest)
    return fit_baselines(names, normal)


def _fit_network(
    split: TrainAndHeld, settings: DetectorSettings, shape: WindowShape, ceiling: Ceiling, *, needed: bool
) -> FittedReconstruction | None:
    """Train the network; None if that is too much work or takes too long, and it is not `needed`."""
    plan = plan_reconstruction(split.train, split.held, settings.network, shape)
    limited = limit_plan(plan, settings.effort, needed=needed)
    if limited is None:
        return None
    if ceiling.seconds is not None and not needed:
        seconds = training_seconds(limited)
        if not ceiling.allows(NETWORK, seconds + _REMAINING_WORK * ceiling.passed):
            return None
    return train_reconstruction(limited)


def held_scores(methods: Methods, series: Sequence[Series], train: Sequence[Series], context: int) -> NormalScores:
    """Scores of the rows of series after those of `train`, each part of them by the combination of the other parts."""
    rows: list[Score] = []
    stream: list[Score] = []
    count = len(methods.halves)
    for number, combination in enumerate(methods.halves):
        parts = []
        lengths = []
        for values, border in zip(series, map(len, train), strict=True):
            left_out = len(values) - border
            start = border + left_out * number // count
            stop = border + left_out * (number + 1) // count
            if start < stop:
                parts.append(values[max(0, start - context) : stop])
                lengths.append(stop - start)
        scores = replace(methods.score, combination=combination).of_normal_rows(parts, context)
        rows += [score[-length:] for score, length in zip(scores.rows, lengths, strict=True)]
        stream += scores.stream
    return NormalScores(rows=rows, stream=stream)

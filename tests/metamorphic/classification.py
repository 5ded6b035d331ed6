"""Properties of the classifier: pairs of probabilities that are related."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.metamorphic.promises import Fit, Pair, Property, refused, saved_and_loaded, tiny_effort
from toa.estimators import Classifier

CASES = 12
LENGTH = 10
CHANNELS = ["load", "heat", "flow"]
ORDER = ["flow", "kind", "step", "load", "case", "heat"]
CLASSES = ["slow", "medium", "quick"]
# a network that is trained in a tenth of a second
NETWORK: dict[str, Any] = {
    "model": "toa",
    "epochs": 2,
    "validation_share": 0.0,
    "settings": {
        "embed_dim": 8,
        "num_heads": 2,
        "num_layers": 1,
        "ff_dim": 8,
        "dropout": 0.0,
        "instance_norm": False,
    },
}
Cases = tuple[np.ndarray, np.ndarray]


def fit_members(cases: Any, labels: Any = None, **options: Any) -> Classifier:
    """All members but the network."""
    return Classifier(**{"effort": tiny_effort(), "device": "cpu"} | options).fit(cases, labels)


def fit_network(cases: Any, labels: Any = None, **options: Any) -> Classifier:
    """The network alone."""
    return fit_members(cases, labels, **NETWORK | options)


def draw_cases(random: np.random.Generator) -> Cases:
    """Waves of three channels (n, C, L) and their classes, by frequency."""
    codes = np.arange(CASES) % len(CLASSES)
    phase = random.uniform(0, 6, (CASES, len(CHANNELS), 1))
    waves = np.sin(np.array([0.4, 1.0, 2.0])[codes][:, None, None] * np.arange(LENGTH) + phase)
    return waves + 0.3 * random.normal(size=waves.shape), np.array(CLASSES)[codes]


def table_of(cases: np.ndarray, labels: np.ndarray) -> pd.DataFrame:
    """A row per step of each case."""
    parts = [
        pd.DataFrame(case.T, columns=CHANNELS).assign(case=f"c{number:02}", step=np.arange(LENGTH), kind=label)
        for number, (case, label) in enumerate(zip(cases, labels, strict=True))
    ]
    return pd.concat(parts, ignore_index=True)


def fit_table(fit: Fit, frame: Any, **options: Any) -> Classifier:
    model: Classifier = fit(frame, None, **{"id": "case", "time": "step", "label": "kind"} | options)
    return model


def shares(result: Any) -> np.ndarray:
    """The probabilities in a table of results."""
    return np.stack([result[name].to_numpy() for name in sorted(CLASSES)], 1)


def scale_values(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    (cases, labels), (new, _) = draw_cases(random), draw_cases(random)
    scale = 10.0 ** random.uniform(-3, 3, (len(CHANNELS), 1))
    yield fit(cases, labels).predict_proba(new), fit(cases * scale, labels).predict_proba(new * scale)


def shift_values(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    (cases, labels), (new, _) = draw_cases(random), draw_cases(random)
    shift = random.uniform(-100, 100, (len(CHANNELS), 1))
    yield fit(cases, labels).predict_proba(new), fit(cases + shift, labels).predict_proba(new + shift)


def rename_columns(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame, new = table_of(*draw_cases(random)), table_of(*draw_cases(random))
    names = {"load": "z", "heat": "y", "flow": "x", "step": "when", "case": "number", "kind": "class"}
    other = fit_table(fit, frame.rename(columns=names), id="number", time="when", label="class")
    yield shares(fit_table(fit, frame).predict_proba(new)), shares(other.predict_proba(new.rename(columns=names)))


def permute_columns(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    (cases, labels), (new, _) = draw_cases(random), draw_cases(random)
    yield fit(cases, labels).predict_proba(new), fit(cases[:, ::-1], labels).predict_proba(new[:, ::-1])


def permute_columns_after_fit(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame, new = table_of(*draw_cases(random)), table_of(*draw_cases(random))
    model = fit_table(fit, frame)
    yield shares(model.predict_proba(new)), shares(model.predict_proba(new[ORDER]))


def duplicate_columns(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    (cases, labels), (new, _) = draw_cases(random), draw_cases(random)
    twice = [np.concatenate((part, part), 1) for part in (cases, new)]
    yield fit(cases, labels).predict_proba(new), fit(twice[0], labels).predict_proba(twice[1])


def add_constant_column(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    (cases, labels), (new, _) = draw_cases(random), draw_cases(random)
    constant = np.full((CASES, 1, LENGTH), random.uniform(-10, 10))
    more = [np.concatenate((part, constant), 1) for part in (cases, new)]
    yield fit(cases, labels).predict_proba(new), fit(more[0], labels).predict_proba(more[1])


def rename_series(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame, new = table_of(*draw_cases(random)), table_of(*draw_cases(random))
    expected = shares(fit_table(fit, frame).predict_proba(new))
    renamed = [part.assign(case="case " + part["case"]) for part in (frame, new)]
    yield expected, shares(fit_table(fit, renamed[0]).predict_proba(renamed[1]))


def permute_series(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    (cases, labels), (new, _) = draw_cases(random), draw_cases(random)
    order = random.permutation(CASES)
    yield fit(cases, labels).predict_proba(new), fit(cases[order], labels[order]).predict_proba(new)


def duplicate_series(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    (cases, labels), (new, _) = draw_cases(random), draw_cases(random)
    twice = fit(np.concatenate((cases, cases)), np.concatenate((labels, labels)))
    yield fit(cases, labels).predict_proba(new), twice.predict_proba(new)


def permute_rows(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    frame, new = table_of(*draw_cases(random)), table_of(*draw_cases(random))
    model = fit_table(fit, frame)
    yield refused(lambda: fit_table(fit, frame.iloc[random.permutation(len(frame))]))
    yield refused(lambda: model.predict_proba(new.iloc[random.permutation(len(new))]))


def narrow_numbers(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    (cases, labels), (new, _) = draw_cases(random), draw_cases(random)
    narrow = [part.astype(np.float32) for part in (cases, new)]
    wide = [part.astype(np.float64) for part in narrow]
    yield fit(wide[0], labels).predict_proba(wide[1]), fit(narrow[0], labels).predict_proba(narrow[1])


def other_frames(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    pl = pytest.importorskip("polars")
    pa = pytest.importorskip("pyarrow")
    frame, new = table_of(*draw_cases(random)), table_of(*draw_cases(random))
    expected = shares(fit_table(fit, frame).predict_proba(new))
    for convert in (pl.from_pandas, pa.Table.from_pandas):
        yield expected, shares(fit_table(fit, convert(frame)).predict_proba(convert(new)))


def one_by_one(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    (cases, labels), (new, _) = draw_cases(random), draw_cases(random)
    model = fit(cases, labels)
    alone = [model.predict_proba(new[number : number + 1]) for number in range(CASES)]
    yield model.predict_proba(new), np.concatenate(alone)


def permute_series_after_fit(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    (cases, labels), (new, _) = draw_cases(random), draw_cases(random)
    model = fit(cases, labels)
    order = random.permutation(CASES)
    yield model.predict_proba(new)[order], model.predict_proba(new[order])


def save_and_load(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    (cases, labels), (new, _) = draw_cases(random), draw_cases(random)
    model = fit(cases, labels)
    yield model.predict_proba(new), saved_and_loaded(model, folder).predict_proba(new)


def rename_labels(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    (cases, labels), (new, _) = draw_cases(random), draw_cases(random)
    expected = fit(cases, labels).predict_proba(new)
    yield expected, fit(cases, np.unique(labels, return_inverse=True)[1]).predict_proba(new)


def permute_labels(fit: Fit, random: np.random.Generator, folder: Path) -> Iterator[Pair]:
    (cases, labels), (new, _) = draw_cases(random), draw_cases(random)
    codes = np.unique(labels, return_inverse=True)[1]
    order = random.permutation(len(CLASSES))
    yield fit(cases, codes).predict_proba(new), fit(cases, order[codes]).predict_proba(new)[:, order]


PROPERTIES: dict[str, Property] = {
    "scale": scale_values,
    "shift": shift_values,
    "renamed columns": rename_columns,
    "permuted columns": permute_columns,
    "permuted columns after fit": permute_columns_after_fit,
    "duplicated columns": duplicate_columns,
    "one more constant column": add_constant_column,
    "renamed series": rename_series,
    "permuted series": permute_series,
    "permuted series after fit": permute_series_after_fit,
    "duplicated series": duplicate_series,
    "row order": permute_rows,
    "float32": narrow_numbers,
    "pandas, polars, arrow": other_frames,
    "one by one": one_by_one,
    "save and load": save_and_load,
    "renamed labels": rename_labels,
    "permuted labels": permute_labels,
}

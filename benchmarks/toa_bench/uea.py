"""The UEA archive as a benchmark of classifiers: accuracy on TEST of methods that have seen TRAIN alone.

evaluate("RacketSports", "toa")        # {"accuracy": …, "validation": …, "cpu_seconds": …}
"""

import time
from pathlib import Path
from typing import Any

import numpy as np

from toa._checks import check_choice
from toa.data import CLASSIFICATION_SETS as KNOWN
from toa.data import locate_classification, read_ts
from toa.data.panel import Panel
from toa.estimators import Classifier
from toa.estimators.kernels import align_cases, compile_kernels

# sets with published figures of ROCKET and HC2, small ones first
SETS = (
    *("ERing", "AtrialFibrillation", "StandWalkJump", "BasicMotions", "RacketSports", "Libras", "NATOPS"),
    *("FingerMovements", "UWaveGestureLibrary", "Handwriting", "ArticularyWordRecognition", "HandMovementDirection"),
    *("SelfRegulationSCP2", "SelfRegulationSCP1", "Cricket", "LSST", "PenDigits"),
)
METHODS = ("toa", "toa-network", "multirocket-hydra")
# methods with a time limit, and scores to print
LIMITED = METHODS[:2]
# methods that only other packages have
RIVALS: tuple[str, ...] = ()
TITLES = {"accuracy": "accuracy", "validation": "cross-validated"}


def evaluate(
    dataset: str, method: str, *, data_dir: str | Path | None = None, seed: int = 2024, **options: Any
) -> dict[str, Any]:
    """Fit a method to TRAIN, and measure its accuracy on TEST.

    Args:
        method: "toa", the default classifier; "toa-network", its network alone; or "multirocket-hydra", that of aeon.
        options: Further parameters of `toa.Classifier`.

    Returns:
        "accuracy", "cpu_seconds" of fit and prediction and, for ours, "validation", the cross-validated accuracy on
        TRAIN, and for "toa" also "weights" and the cross-validated "accuracies".
    """
    check_choice("dataset", dataset, KNOWN)
    check_choice("method", method, METHODS)
    train, test = map(read_ts, locate_classification(KNOWN[dataset], data_dir))
    assert train.labels is not None
    assert test.labels is not None
    # compiled before the clock starts
    compile_kernels()
    begin = time.process_time()
    found: dict[str, Any] = {}
    if method == "multirocket-hydra":
        predicted = _multirocket_hydra(train, test, seed)
    else:
        model = Classifier(
            model="auto" if method == "toa" else "toa",
            length=max(*train.lengths, *test.lengths),
            missing="interpolate",
            seed=seed,
            **options,
        ).fit([case.T for case in train.values], train.labels)
        predicted = model.predict([case.T for case in test.values])
        found["validation"] = model.validation_
        if model.stack_ is not None:
            found |= {"weights": dict(model.weights_), "accuracies": dict(model.stack_.accuracies)}
    seconds = round(time.process_time() - begin, 1)
    return {"accuracy": float((predicted == test.labels).mean()), "cpu_seconds": seconds, **found}


def _multirocket_hydra(train: Panel, test: Panel, seed: int) -> np.ndarray:
    """Labels by aeon's classifier; cases of unequal or too few steps are stretched."""
    # imported on use: aeon takes seconds to import
    import torch
    from aeon.classification.convolution_based import MultiRocketHydraClassifier

    length = max(*train.lengths, *test.lengths)
    model = MultiRocketHydraClassifier(n_jobs=torch.get_num_threads(), random_state=seed)
    model.fit(align_cases(train.values, length), train.labels)
    return np.asarray(model.predict(align_cases(test.values, length)))

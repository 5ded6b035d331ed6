"""`toa.Classifier` and `toa.AnomalyDetector` as estimators of aeon, with its containers, tags and checks.

    from toa.integrations.aeon import TOAClassifier, TOADetector

    TOAClassifier().fit(X_train, y_train).predict(X_test)      # collections as aeon's loaders return them
    TOADetector().fit(series, axis=0).predict(series, axis=0)  # anomaly scores

They pass `aeon.testing.estimator_checking.check_estimator`. The fitted estimator of `toa` is `estimator_`; save this
one, which needs no pickle.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from aeon.anomaly_detection.series.base import BaseSeriesAnomalyDetector
from aeon.classification.base import BaseClassifier
from sklearn.utils import check_random_state

from toa.estimators import AnomalyDetector, Classifier
from toa.estimators.sizes import DEFAULT_ATTENTION

_RENAMED = {"n_epochs": "epochs", "verbose": "progress", "window_size": "window"}
_TEST_SIZES = {"embed_dim": 8, "num_heads": 2, "num_layers": 1, "ff_dim": 8}


@dataclass(eq=False, repr=False)
class TOAClassifier(BaseClassifier):  # type: ignore[misc]
    """Operator attention as a classifier of aeon: the network of `toa.Classifier` alone.

    Collections may be multivariate, of unequal length and with missing values, which are interpolated linearly.
    Arguments are those of `toa.Classifier`, under aeon's names: `n_epochs` is its `epochs`, `verbose` its `progress`.
    `random_state` gives its `seed`: a number, a generator of NumPy, or None for a random seed.
    """

    _tags = {  # noqa: RUF012  aeon reads it from the class
        "X_inner_type": ["np-list", "numpy3D"],
        "capability:multivariate": True,
        "capability:unequal_length": True,
        "capability:missing_values": True,
        "algorithm_type": "deeplearning",
    }

    backbone: str | None = None
    attention: str | Mapping[str, Any] = DEFAULT_ATTENTION
    settings: Mapping[str, Any] | None = None
    length: int | None = None
    n_epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float = 1e-3
    patience: int = 20
    validation_share: float = 0.2
    random_state: Any = 2024
    device: str = "auto"
    verbose: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def _fit(self, X: Any, y: np.ndarray) -> "TOAClassifier":
        self.estimator_ = Classifier(**_arguments(self), model="toa", missing="interpolate").fit(X, y)
        return self

    def _predict(self, X: Any) -> np.ndarray:
        return np.asarray(self.estimator_.predict(X))

    def _predict_proba(self, X: Any) -> np.ndarray:
        return np.asarray(self.estimator_.predict_proba(X))

    @classmethod
    def _get_test_params(cls, parameter_set: str = "default") -> dict[str, Any]:
        return {"n_epochs": 1, "settings": _TEST_SIZES}


@dataclass(eq=False, repr=False)
class TOADetector(BaseSeriesAnomalyDetector):  # type: ignore[misc]
    """Operator attention as an anomaly detector of aeon. Fit it on a series without, or with few, anomalies.

    Arguments are those of `toa.AnomalyDetector`, under aeon's names: `window_size` is its `window`; for others see
    `TOAClassifier`.
    """

    _tags = {  # noqa: RUF012  aeon reads it from the class
        "X_inner_type": "np.ndarray",
        "capability:univariate": True,
        "capability:multivariate": True,
        "capability:missing_values": False,
        "fit_is_empty": False,
        "learning_type:unsupervised": True,
        "learning_type:semi_supervised": True,
        "anomaly_output_type": "anomaly_scores",
    }

    window_size: int | None = None
    backbone: str | None = None
    attention: str | Mapping[str, Any] = DEFAULT_ATTENTION
    settings: Mapping[str, Any] | None = None
    n_epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float = 1e-3
    patience: int = 3
    validation_share: float = 0.2
    random_state: Any = 2024
    device: str = "auto"
    verbose: bool = False

    def __post_init__(self) -> None:
        # time is the first axis
        super().__init__(axis=0)

    def _fit(self, X: np.ndarray, y: np.ndarray | None = None) -> "TOADetector":
        self.estimator_ = AnomalyDetector(**_arguments(self)).fit(X)
        return self

    def _predict(self, X: np.ndarray) -> np.ndarray:
        return np.asarray(self.estimator_.scores(X))

    @classmethod
    def _get_test_params(cls, parameter_set: str = "default") -> dict[str, Any]:
        return {"window_size": 4, "n_epochs": 1, "settings": _TEST_SIZES}


def _arguments(estimator: BaseClassifier | BaseSeriesAnomalyDetector) -> dict[str, Any]:
    """Arguments of an estimator of `toa` from those of aeon's."""
    given = {_RENAMED.get(name, name): value for name, value in estimator.get_params(deep=False).items()}
    state = given.pop("random_state")
    # scikit-learn's convention: a number is the seed, anything else draws one
    drawn = state if isinstance(state, int | np.integer) else check_random_state(state).randint(2**31 - 1)
    return given | {"seed": int(drawn)}

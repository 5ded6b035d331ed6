"""Estimators of aeon's own kind: its containers, tags and checks around `toa.Classifier` and `toa.AnomalyDetector`.

    from toa.integrations.aeon import TOAClassifier, TOADetector

    TOAClassifier().fit(X_train, y_train).predict(X_test)    # collections, as aeon's loaders give them
    TOADetector().fit(series, axis=0).predict(series, axis=0)  # scores, the higher the more anomalous

They pass `aeon.testing.estimator_checking.check_estimator` whole. What they fitted is in `estimator_`, which saves to a
file that is no pickle.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from aeon.anomaly_detection.series.base import BaseSeriesAnomalyDetector
from aeon.classification.base import BaseClassifier
from sklearn.utils import check_random_state

from toa.estimators import AnomalyDetector, Classifier

_TEST_SIZES = {"embed_dim": 8, "num_heads": 2, "num_layers": 1, "ff_dim": 8}


class TOAClassifier(BaseClassifier):  # type: ignore[misc]
    """Operator attention as a classifier of aeon; what is not explained here is in `toa.Classifier`.

    Collections may be multivariate, of unequal length and with missing values, which are filled by lines within a case.

    Args:
        backbone: A name of `toa.models.BACKBONES`; None is by length.
        attention: A name of `toa.nn.ATTENTIONS`, or the fields of `toa.nn.AttentionSpec`.
        settings: Sizes and parts of the backbone.
        length: Longest case that can be classified; None is the longest of fit.
        n_epochs: Passes over the data at most; None is by size.
        batch_size: Cases a batch; None is by size.
        learning_rate: Highest of the schedule.
        patience: Epochs without a better held-out accuracy after which training ends.
        validation_share: Share of each class held out.
        random_state: A seed, a generator of NumPy, or None for another seed each time.
        device: "auto", "cpu", "cuda" or "cuda:N".
        verbose: Whether to show a bar while fitting.
    """

    _tags = {  # noqa: RUF012  aeon reads it from the class
        "X_inner_type": ["np-list", "numpy3D"],
        "capability:multivariate": True,
        "capability:unequal_length": True,
        "capability:missing_values": True,
        "algorithm_type": "deeplearning",
    }

    def __init__(
        self,
        backbone: str | None = None,
        attention: str | Mapping[str, Any] = "toa-gated",
        settings: Mapping[str, Any] | None = None,
        length: int | None = None,
        n_epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float = 1e-3,
        patience: int = 20,
        validation_share: float = 0.2,
        random_state: Any = 2024,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        self.backbone = backbone
        self.attention = attention
        self.settings = settings
        self.length = length
        self.n_epochs = n_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.patience = patience
        self.validation_share = validation_share
        self.random_state = random_state
        self.device = device
        self.verbose = verbose
        super().__init__()

    def _fit(self, X: Any, y: np.ndarray) -> "TOAClassifier":
        self.estimator_ = Classifier(
            backbone=self.backbone,
            attention=self.attention,
            settings=self.settings,
            length=self.length,
            epochs=self.n_epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            patience=self.patience,
            validation_share=self.validation_share,
            missing="interpolate",
            seed=_seed(self.random_state),
            device=self.device,
            progress=self.verbose,
        ).fit(X, y)
        return self

    def _predict(self, X: Any) -> np.ndarray:
        return np.asarray(self.estimator_.predict(X))

    def _predict_proba(self, X: Any) -> np.ndarray:
        return np.asarray(self.estimator_.predict_proba(X))

    @classmethod
    def _get_test_params(cls, parameter_set: str = "default") -> dict[str, Any]:
        return {"n_epochs": 1, "settings": _TEST_SIZES}


class TOADetector(BaseSeriesAnomalyDetector):  # type: ignore[misc]
    """Operator attention as an anomaly detector of aeon; what is not explained here is in `toa.AnomalyDetector`.

    Semi-supervised: it is fitted on a series whose behaviour is normal, or mostly so.

    Args:
        window_size: Rows of a window; None is by size.
        backbone: A name of `toa.models.BACKBONES`; None is by the number of channels.
        attention: A name of `toa.nn.ATTENTIONS`, or the fields of `toa.nn.AttentionSpec`.
        settings: Sizes and parts of the backbone.
        n_epochs: Passes over the data at most; None is by size.
        batch_size: Windows a batch.
        learning_rate: Highest of the schedule.
        patience: Epochs without a better reconstruction of held-out rows after which training ends.
        validation_share: Last part of the series held out.
        random_state: A seed, a generator of NumPy, or None for another seed each time.
        device: "auto", "cpu", "cuda" or "cuda:N".
        verbose: Whether to show a bar while fitting.
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

    def __init__(
        self,
        window_size: int | None = None,
        backbone: str | None = None,
        attention: str | Mapping[str, Any] = "toa-gated",
        settings: Mapping[str, Any] | None = None,
        n_epochs: int | None = None,
        batch_size: int = 64,
        learning_rate: float = 1e-3,
        patience: int = 3,
        validation_share: float = 0.2,
        random_state: Any = 2024,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        self.window_size = window_size
        self.backbone = backbone
        self.attention = attention
        self.settings = settings
        self.n_epochs = n_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.patience = patience
        self.validation_share = validation_share
        self.random_state = random_state
        self.device = device
        self.verbose = verbose
        # a row is a time step
        super().__init__(axis=0)

    def _fit(self, X: np.ndarray, y: np.ndarray | None = None) -> "TOADetector":
        self.estimator_ = AnomalyDetector(
            window=self.window_size,
            backbone=self.backbone,
            attention=self.attention,
            settings=self.settings,
            epochs=self.n_epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            patience=self.patience,
            validation_share=self.validation_share,
            seed=_seed(self.random_state),
            device=self.device,
            progress=self.verbose,
        ).fit(X)
        return self

    def _predict(self, X: np.ndarray) -> np.ndarray:
        return np.asarray(self.estimator_.scores(X))

    @classmethod
    def _get_test_params(cls, parameter_set: str = "default") -> dict[str, Any]:
        return {"window_size": 4, "n_epochs": 1, "settings": _TEST_SIZES}


def _seed(random_state: Any) -> int:
    """A seed as scikit-learn's habit has it: a number is itself, anything else draws one."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))

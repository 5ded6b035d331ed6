"""A method is one file with a family, and one line that registers it."""

from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from tests.estimators.signals import wide
from toa.estimators import Forecaster
from toa.estimators.families import FAMILIES
from toa.estimators.methods import Family, to_rows


@dataclass(frozen=True)
class FittedMeans:
    """The mean of all rows of fit, of each column."""

    means: np.ndarray
    horizon: int
    reads_panel: bool
    rows_read: int = 1

    def forecast(self, histories):
        if self.reads_panel:
            assert len(histories.places) > 0
            windows = len(histories.places)
        else:
            windows = len(histories.values) // len(self.means)
        return to_rows(np.tile(self.means, (windows, self.horizon, 1)))

    def refit(self, training):
        return Means(self.reads_panel).fit(training)


@dataclass(frozen=True)
class Means:
    reads_panel: bool

    def fit(self, training):
        return FittedMeans(np.nanmean(training.history, 1), training.horizon, self.reads_panel)

    def seconds(self, ceiling):
        return None


@dataclass(frozen=True)
class MeanFamily(Family):
    reads_panel: bool

    def candidates(self, settings, season):
        return {"mean": Means(self.reads_panel)}

    def save(self, fitted):
        if "mean" not in fitted:
            return {}, None
        return {"means": torch.from_numpy(fitted["mean"].means)}, {"reads_panel": self.reads_panel}

    def load(self, tensors, facts, season, horizon):
        return {"mean": FittedMeans(tensors["means"].numpy(), horizon, facts["reads_panel"])}


@pytest.mark.parametrize("reads_panel", [False, True])
def test_a_registered_family_is_weighted_fitted_again_saved_and_loaded(tmp_path, reads_panel) -> None:
    table = wide(200, noise=1.0)
    # without any order in time the mean is the best forecast
    random = np.random.default_rng(0)
    for name, level in (("load", 100.0), ("heat", -3.0)):
        table[name] = level + random.normal(size=200)
    with mock.patch.dict(FAMILIES):
        # the pretrained model is nearly as good on series without any order
        del FAMILIES["pretrained"]
        FAMILIES.register("means")(MeanFamily(reads_panel))
        model = Forecaster(6, season=12, effort="least", interval=0.5).fit(table)
        assert model.weights_["mean"] > 0.1
        tested = model.backtest(table, test_size=20)
        model.save(tmp_path / "m.toa")
        loaded = Forecaster.load(tmp_path / "m.toa")
        expected = model.predict(table)
        forecast = loaded.predict(table)
        # a file has the weights in another order
        np.testing.assert_allclose(forecast.drop(columns="date"), expected.drop(columns="date"), rtol=1e-12)
        np.testing.assert_allclose(loaded.backtest(table, test_size=20).forecast, tested.forecast, rtol=1e-12)
        # all rows, not those before the origins
        assert model.choice_ is not None
        methods: Any = {**model.choice_.ensemble.fitted, **model.fitted_.panel_methods}
        np.testing.assert_allclose(methods["mean"].means, table[["load", "heat"]].mean())
    with pytest.raises(ValueError, match=r"m\.toa must"):
        Forecaster.load(tmp_path / "m.toa")

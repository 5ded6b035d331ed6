"""Models of `toa` for NeuralForecast, with its frames, losses, cross-validation, files and hyperparameter search.

    forecaster = NeuralForecast(models=[TOA(h=12, input_size=36), AutoTOA(h=12, num_samples=20)], freq="ME")
    forecaster.fit(frame, val_size=12)  # columns unique_id, ds, y
    forecaster.predict()

Needs the extra `toa[neuralforecast]`. Import this module before `NeuralForecast.load`: it registers its classes.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from toa._checks import ArgumentError
from toa.models import BACKBONES, ForecastModel, build_forecaster
from toa.nn import AttentionSpec
from toa.training.forecast import HorizonModel

try:
    from neuralforecast.common._base_auto import BaseAuto
    from neuralforecast.common._base_model import BaseModel
    from neuralforecast.core import MODEL_FILENAME_DICT
    from neuralforecast.losses.pytorch import MAE
    from ray import tune
except ImportError as error:
    raise ImportError(
        f"{error.name} must be installed for toa.integrations.neuralforecast; install toa[neuralforecast]."
    ) from error

__all__ = ["TOA", "AutoTOA", "AutoTOAMultivariate", "TOAMultivariate", "default_space"]

# a search space: arguments of a model as domains of ray.tune, or a function from an Optuna trial to arguments
Space = dict[str, Any] | Callable[[Any], dict[str, Any]]

# defaults of arguments that the base class does not have defaults for
_TRAINING: Mapping[str, Any] = {
    "valid_loss": None,
    "learning_rate": 1e-3,
    "max_steps": 1000,
    "val_check_steps": 100,
    "batch_size": 32,
    "valid_batch_size": None,
    "windows_batch_size": 1024,
    "inference_windows_batch_size": 1024,
    "start_padding_enabled": False,
}


class TOA(BaseModel):  # type: ignore[misc]
    """A model of `toa` that forecasts each series separately.

    If the loss has several outputs per step (quantiles, parameters of a distribution), so does the model. With a
    distribution the default of the setting `instance_norm` is False, because its parameters are not in the units of the
    series. Set `scaler_type` for such a model instead.

    With `futr_exog_list`, `hist_exog_list` or `stat_exog_list` the model is a `toa.training.forecast.HorizonModel`, as
    in `toa.Forecaster`: a network of the future and static features, and a linear map of the past ones, both added.

    Args:
        backbone: A name of `toa.models.BACKBONES`.
        attention: A name of `toa.nn.ATTENTIONS`, or the fields of a `toa.nn.AttentionSpec` as a dict; None for a
            backbone without a choice of attention.
        settings: Settings of `toa.models.build_forecaster`.
        options: Arguments of every NeuralForecast model (`loss`, `max_steps`, `learning_rate`, `batch_size`,
            `scaler_type`, `early_stop_patience_steps`, `random_seed`, `alias`, ...) and of Lightning's `Trainer`.
    """

    EXOGENOUS_FUTR: ClassVar[bool] = True
    EXOGENOUS_HIST: ClassVar[bool] = True
    EXOGENOUS_STAT: ClassVar[bool] = True
    MULTIVARIATE: ClassVar[bool] = False
    RECURRENT: ClassVar[bool] = False

    def __init__(
        self,
        h: int,
        input_size: int,
        backbone: str = "patchtst",
        attention: str | Mapping[str, Any] | None = "toa-softmax",
        settings: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(h=h, input_size=input_size, **{"loss": MAE(), **_TRAINING, **options})
        settings = {} if settings is None else dict(settings)
        if self.loss.is_distribution_output and "instance_norm" in BACKBONES[backbone].settings("forecast"):
            settings = {"instance_norm": False, **settings}
        outputs = self.loss.outputsize_multiplier
        self.model: ForecastModel | HorizonModel = build_forecaster(
            backbone,
            lookback=self.input_size,
            horizon=h * outputs,
            channels=self.n_series,
            attention=AttentionSpec(**attention) if isinstance(attention, Mapping) else attention,
            settings=settings,
        )
        past = self.hist_exog_size * self.n_series
        features = (self.futr_exog_size + self.stat_exog_size) * self.n_series + past
        if features:
            sizes = {"features": features, "past_features": past, "channels": self.n_series}
            self.model = HorizonModel(self.model, levels=outputs, **sizes)
        self._penalty: Tensor | None = None

    def forward(self, windows_batch: Mapping[str, Any]) -> Tensor:
        """Forecasts (B, P, C * outputs); the outputs of a series are adjacent."""
        series = windows_batch["insample_y"]  # (B, L, C)
        marks = self._features(windows_batch) if isinstance(self.model, HorizonModel) else ()
        with_penalty = getattr(self.model, "forecast_and_penalty", None)
        if self.training and with_penalty is not None:
            forecast, self._penalty = with_penalty(series, *marks)
        else:
            forecast = self.model(series, *marks)
        levels = forecast if marks else forecast.unflatten(1, (self.h, -1))  # (B, P, outputs, C)
        return levels.mT.flatten(2)  # (B, P, C*outputs)

    def _features(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Features (B, L, F) of the look-back and (B, P, F) of the forecast steps, past ones last and there 0.

        A multivariate model has the features of all series side by side.
        """
        size = len(batch["insample_y"])
        steps = self.input_size + self.h
        known = [self._per_step(batch["futr_exog"])] if self.futr_exog_size else []
        if self.stat_exog_size:
            # (B, F), or (C, F) for the series of a multivariate model
            static = batch["stat_exog"].flatten().expand(size, -1) if self.MULTIVARIATE else batch["stat_exog"]
            known.append(static.unsqueeze(1).expand(-1, steps, -1))
        past = batch["insample_y"].new_zeros(size, self.input_size, 0)
        past = self._per_step(batch["hist_exog"]) if self.hist_exog_size else past
        whole = torch.cat([*known, nn.functional.pad(past, (0, 0, 0, self.h))], dim=2)  # (B, L + P, F)
        return whole[:, : self.input_size], whole[:, self.input_size :]

    def _per_step(self, features: Tensor) -> Tensor:
        """Features (B, T, F), from (B, F, T, C) for a multivariate model."""
        return features.transpose(1, 2).flatten(2) if self.MULTIVARIATE else features

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss, plus the auxiliary loss of a model that has one."""
        loss: Tensor = super().training_step(batch, batch_idx)
        # reset, because a model that holds a tensor of a graph cannot be copied
        penalty = self._penalty
        self._penalty = None
        return loss if penalty is None else loss + penalty


class TOAMultivariate(TOA):
    """A model of `toa` that forecasts all `n_series` series together; exogenous columns of each affect all.

    The series must end at the same time.

    Other arguments are those of `TOA`. A window holds all series, so the default batch has 32 windows.
    """

    MULTIVARIATE: ClassVar[bool] = True

    def __init__(
        self,
        h: int,
        input_size: int,
        n_series: int,
        backbone: str = "itransformer",
        attention: str | Mapping[str, Any] | None = "toa-softmax",
        settings: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        fewer = {"windows_batch_size": 32, "inference_windows_batch_size": 32}
        super().__init__(h, input_size, backbone, attention, settings, n_series=n_series, **{**fewer, **options})


def default_space(h: int) -> dict[str, Any]:
    """The default search space of `AutoTOA` and `AutoTOAMultivariate`."""
    return {
        "input_size": tune.choice([max(16, h * times) for times in (2, 3, 5)]),
        "attention": tune.choice(
            [
                "toa-softmax",
                {"name": "toa-relu", "score_norm": "rms"},
                {"name": "toa-gated", "score_norm": "rms", "gate_norm": "rms"},
            ]
        ),
        "settings": {
            "embed_dim": tune.choice([16, 64, 128]),
            "num_heads": tune.choice([4, 8]),
            "ff_dim": tune.choice([64, 256]),
            "dropout": tune.choice([0.1, 0.3]),
        },
        "learning_rate": tune.loguniform(1e-4, 1e-2),
        "max_steps": tune.choice([500, 1000]),
        "scaler_type": tune.choice(["identity", "standard", "robust"]),
        "random_seed": tune.randint(1, 20),
    }


class AutoTOA(BaseAuto):  # type: ignore[misc]
    """`TOA` with arguments found by Ray Tune or Optuna.

    Args:
        loss: Training loss; None is MAE.
        valid_loss: Loss on validation data that trials are compared by; None is `loss`.
        config: Search space: arguments of `TOA`, each a value or a domain of `ray.tune`; `settings` is a dict of these.
            None is `default_space(h)`. With Optuna, a required function from a trial to arguments.
        options: Other arguments of every NeuralForecast search: `num_samples`, `search_alg`, `time_budget`,
            `refit_with_val`, `ray_options`, `verbose`, `alias`, ...
    """

    def __init__(
        self,
        h: int,
        loss: Any = None,
        valid_loss: Any = None,
        config: Space | None = None,
        backend: str = "ray",
        **options: Any,
    ) -> None:
        super().__init__(TOA, h=h, **_search(h, loss, valid_loss, config, backend), **options)


class AutoTOAMultivariate(BaseAuto):  # type: ignore[misc]
    """`TOAMultivariate` for `n_series` series, with arguments found by Ray Tune or Optuna; see `AutoTOA`."""

    def __init__(
        self,
        h: int,
        n_series: int,
        loss: Any = None,
        valid_loss: Any = None,
        config: Space | None = None,
        backend: str = "ray",
        **options: Any,
    ) -> None:
        given = _search(h, loss, valid_loss, config, backend, n_series=n_series)
        super().__init__(TOAMultivariate, h=h, **given, **options)


def _search(h: int, loss: Any, valid_loss: Any, config: Space | None, backend: str, **fixed: Any) -> dict[str, Any]:
    """Arguments of `BaseAuto`; the search space has the fixed arguments too."""
    if config is None and backend != "ray":
        raise ArgumentError(
            "config",
            f"be given with backend={backend!r}",
            "None",
            "pass a function from a trial to arguments of the model",
        )
    space = default_space(h) if config is None else config
    whole: Space = (lambda trial: {**space(trial), **fixed}) if callable(space) else {**space, **fixed}
    return {"loss": MAE() if loss is None else loss, "valid_loss": valid_loss, "config": whole, "backend": backend}


# NeuralForecast finds the class of a saved model by its lower-case name
MODEL_FILENAME_DICT.update(
    {"toa": TOA, "autotoa": TOA, "toamultivariate": TOAMultivariate, "autotoamultivariate": TOAMultivariate}
)

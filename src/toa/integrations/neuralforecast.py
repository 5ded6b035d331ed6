"""The models of `toa` inside NeuralForecast: its frames, losses, cross-validation, files and search.

    forecaster = NeuralForecast(models=[TOA(h=12, input_size=36), AutoTOA(h=12, num_samples=20)], freq="ME")
    forecaster.fit(frame, val_size=12)  # columns unique_id, ds, y
    forecaster.predict()

It needs the extra `toa[neuralforecast]`. Importing this module enters its classes among those that
`NeuralForecast.load` knows: import it before loading.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from torch import Tensor

from toa.models import BACKBONES, ForecastModel, build_forecaster
from toa.nn import AttentionSpec

try:
    from neuralforecast.common._base_auto import BaseAuto
    from neuralforecast.common._base_model import BaseModel
    from neuralforecast.core import MODEL_FILENAME_DICT
    from neuralforecast.losses.pytorch import MAE
    from ray import tune
except ImportError as error:
    raise ImportError(
        f"toa.integrations.neuralforecast needs NeuralForecast, and {error.name} is not installed; "
        "install toa[neuralforecast]."
    ) from error

__all__ = ["TOA", "AutoTOA", "AutoTOAMultivariate", "TOAMultivariate", "default_space"]

# arguments of a model, to be searched: domains of ray.tune, or what a trial of Optuna makes of them
Space = dict[str, Any] | Callable[[Any], dict[str, Any]]

# what a model of NeuralForecast has to settle for its base class
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
    """A model of `toa` that forecasts each series by itself.

    Under a loss of several outputs a step (quantiles, parameters of a distribution) the model forecasts that many
    values a step. Instance norm, where the backbone has it to choose, is off under a distribution unless `settings`
    turns it on: parameters are not in the units of the series. Give such a model a `scaler_type` instead.

    Args:
        h: Steps to forecast.
        input_size: Steps seen.
        backbone: A name of `toa.models.BACKBONES`.
        attention: A name of `toa.nn.ATTENTIONS`, or the fields of a `toa.nn.AttentionSpec` as a dict; None for a
            backbone that has none to choose.
        settings: Settings of the backbone, as of `toa.models.build_forecaster`. What is left out is as published.
        options: What every model of NeuralForecast takes (`loss`, `max_steps`, `learning_rate`, `batch_size`,
            `scaler_type`, `early_stop_patience_steps`, `random_seed`, `alias`, ...) and, beyond that, arguments of
            Lightning's `Trainer`.
    """

    EXOGENOUS_FUTR: ClassVar[bool] = False
    EXOGENOUS_HIST: ClassVar[bool] = False
    EXOGENOUS_STAT: ClassVar[bool] = False
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
        self.model: ForecastModel = build_forecaster(
            backbone,
            lookback=self.input_size,
            horizon=h * self.loss.outputsize_multiplier,
            channels=self.n_series,
            attention=AttentionSpec(**attention) if isinstance(attention, Mapping) else attention,
            settings=settings,
        )
        self._penalty: Tensor | None = None

    def forward(self, windows_batch: Mapping[str, Any]) -> Tensor:
        """Forecasts (B, P, C * outputs), the outputs of a series side by side."""
        series = windows_batch["insample_y"]  # (B, L, C)
        with_penalty = getattr(self.model, "forecast_and_penalty", None)
        if self.training and with_penalty is not None:
            forecast, self._penalty = with_penalty(series)
        else:
            forecast = self.model(series)
        return forecast.unflatten(1, (self.h, -1)).mT.flatten(2)  # (B, P, outputs, C) to (B, P, C*outputs)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss, and the auxiliary one of a model that has it."""
        loss: Tensor = super().training_step(batch, batch_idx)
        # not kept: a tensor of a graph cannot be copied with the model
        penalty, self._penalty = self._penalty, None
        return loss if penalty is None else loss + penalty


class TOAMultivariate(TOA):
    """A model of `toa` that forecasts all series together; they must end at one time.

    Args:
        h: Steps to forecast.
        input_size: Steps seen.
        n_series: Number of series.
        backbone: A name of `toa.models.BACKBONES`.
        attention: As in `TOA`.
        settings: As in `TOA`.
        options: As in `TOA`. A window holds all series, so that a batch has 32 by default.
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
    """What the searches below search if nothing else is given."""
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
    """`TOA` with its settings found by Ray Tune, or by Optuna.

    Args:
        h: Steps to forecast.
        loss: What is minimised; None is MAE.
        valid_loss: What settings are compared by on validation; None is `loss`.
        config: Space to search: arguments of `TOA`, each a value or a domain of `ray.tune`, `settings` a dict of such.
            None is `default_space(h)`. With Optuna, a function of a trial that returns arguments; it has to be given.
        backend: "ray" or "optuna".
        options: What else every search of NeuralForecast takes: `num_samples`, `search_alg`, `time_budget`,
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
        super().__init__(
            TOA,
            h=h,
            loss=MAE() if loss is None else loss,
            valid_loss=valid_loss,
            config=_settled(config, h, backend),
            backend=backend,
            **options,
        )


class AutoTOAMultivariate(BaseAuto):  # type: ignore[misc]
    """`TOAMultivariate` with its settings found by Ray Tune, or by Optuna.

    Args:
        h: Steps to forecast.
        n_series: Number of series.
        loss: As in `AutoTOA`.
        valid_loss: As in `AutoTOA`.
        config: As in `AutoTOA`; the number of series is put into it.
        backend: As in `AutoTOA`.
        options: As in `AutoTOA`.
    """

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
        super().__init__(
            TOAMultivariate,
            h=h,
            loss=MAE() if loss is None else loss,
            valid_loss=valid_loss,
            config=_settled(config, h, backend, n_series=n_series),
            backend=backend,
            **options,
        )


def _settled(config: Space | None, h: int, backend: str, **fixed: Any) -> Space:
    """The space to search, with what is not searched put in."""
    if config is None and backend != "ray":
        raise ValueError(
            f"config must be given with backend={backend!r}, got None; "
            "pass a function of a trial that returns arguments of the model."
        )
    space = default_space(h) if config is None else config
    if callable(space):
        return lambda trial: {**space(trial), **fixed}
    return {**space, **fixed}


# how NeuralForecast finds the class of a file: by the name of what was saved, in small letters
MODEL_FILENAME_DICT.update(
    {
        "toa": TOA,
        "autotoa": TOA,
        "toamultivariate": TOAMultivariate,
        "autotoamultivariate": TOAMultivariate,
    }
)

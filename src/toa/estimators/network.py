"""The network of a forecaster: scaling, windows, training and forecasts at any origin.

Alphabet: B batch, L look-back, P horizon, C columns, F features, S series, T rows, W windows.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from toa._checks import check_choice
from toa._limits import most_windows
from toa.data.frames import match_panel, read_panel
from toa.data.panel import Panel
from toa.data.splits import StandardScaler, check_standardised
from toa.data.windows import Windows, place_series
from toa.estimators import sizes
from toa.estimators.base import NETWORK, Estimator, attention_spec
from toa.estimators.covariates import Covariates
from toa.estimators.effort import Ceiling
from toa.estimators.ensemble import RollingOrigins, series_scale
from toa.estimators.intervals import MeanModel, Prediction, UnitsModel, conformal_width, join_batches, spread, to_rows
from toa.models import BACKBONES, backbone_names
from toa.training.base import TaskData
from toa.training.distributed import resolve_device
from toa.training.forecast import HorizonForecasting, evaluation_batches
from toa.training.metrics import FORECAST_METRICS

# largest number of held-out windows times columns; if there are more, every second, third, … window is used
_HELD = 60_000
# windows per batch without gradients
_BATCH = 512


@dataclass(eq=False, repr=False)
class ForecastNetwork(Estimator):
    """Parameters and training of the network; see `Forecaster`, which adds the choice among methods."""

    _kind = "forecaster"
    _task = HorizonForecasting()
    _training: ClassVar[Mapping[str, Any]] = {"schedule": "onecycle", "weight_decay": 0.01, "clip_norm": 4.0}
    _rise = 0.3
    _counts = ("horizon", "lookback", "season", "seeds")
    _facts = ("lookback_", "freq_", "time_", "validation_", "architecture_", "schedule_")

    horizon: int
    _: KW_ONLY
    lookback: int | None = None
    backbone: str = "patchtst"
    attention: str | Mapping[str, Any] | None = None
    quantiles: Sequence[float] = ()
    interval: float | None = None
    season: int | None = None
    calendar: bool = False
    covariates: Sequence[str] = ()
    past_covariates: Sequence[str] = ()
    static: Sequence[str] = ()
    holidays: str | None = None
    loss: str = "mae"
    learning_rate: float = 2e-3
    operator_rate: float | None = None
    validation_share: float = 0.125
    freq: str | int | None = None
    seeds: int | None = None

    def _fit_network(
        self, panel: Panel, ceiling: Ceiling | None = None, *, plain: bool = False, given: Sequence[int] = ()
    ) -> Windows | None:
        """Choose and train the network; returns the held-out windows, or None if it would be too much work.

        For an interval of the network alone, training stops by the first half of the held-out rows, and the windows of
        the second half are returned.

        Args:
            ceiling: Limit on the time; None trains the network alone, without a limit on the counted work.
            plain: Whether to forecast the values themselves, not their difference from the last season.
            given: Lengths of the series with the rows of the rolling origins, for the error; those of `panel` if empty.
        """
        borders, alone = self._borders(panel), self.model == NETWORK
        # errors are scaled by the season, as in MASE; those of the network alone are standardised
        season, apart = None if alone else self.season_, alone and self.interval is not None
        self.lookback_ = int(self.lookback or sizes.choose_lookback(int(np.median(borders)), self.horizon, season))
        need = self.lookback_ + self.horizon
        # a given look-back is needed of every series; a chosen one of the longest, and shorter ones are padded
        least = min(borders) if self.lookback is not None else max(borders)
        if least < need:
            index = list(borders).index(least)
            rows = (given or panel.lengths)[index]
            raise ValueError(
                f"{panel.label(index)} must have at least lookback + horizon = {need} rows to train on besides the "
                f"{rows - borders[index]} held out, got {rows} rows in all; shorten lookback or horizon, or add "
                + ("rows (an interval holds out at least 4 horizons)." if apart else "rows.")
            )
        self.known_ = self._fit_covariates(panel, borders)
        train, stop, held = self._scale_and_split(panel, borders, apart=apart)
        rate = self._choose_architecture(len(train), season, plain=plain)
        wanted = {"batch_size": self.batch_size, "epochs": self.epochs}
        self.schedule_: dict[str, Any] = sizes.choose_schedule(len(train), len(self.columns_), **wanted)
        self.schedule_["operator_rate"] = rate if self.operator_rate is None else self.operator_rate
        data = self._data(train, stop)
        if ceiling is not None:
            limited = self._limit_schedule()
            if limited is None:
                return None
            self.schedule_ = limited
            # it is trained again on all rows
            if not ceiling.allows(NETWORK, 2.0 * self._training_seconds(data, ceiling)):
                return None
        seeds = range(self.seed, self.seed + ((self.seeds or 1) if alone else 1))
        self._average([self._trained(data, seed, self.schedule_) for seed in seeds])
        return held

    def _limit_schedule(self) -> dict[str, Any] | None:
        """The schedule with the steps that the effort allows; None if these are too few."""
        if self.epochs is not None:
            return self.schedule_
        per_step = self.schedule_["batch_size"] * len(self.columns_)
        return sizes.limit_schedule(
            self.schedule_, min(self._effort.network_steps, self._effort.network_windows // per_step)
        )

    def _training_seconds(self, data: TaskData, ceiling: Ceiling) -> float:
        """Expected time of the schedule; 0 where no time is limited."""
        if ceiling.seconds is None:
            return 0.0
        config = self._config(batch_size=self.schedule_["batch_size"])
        return sizes.training_seconds(self.schedule_, self._task.seconds_per_step(config, data, self.device))

    def _trained(self, data: TaskData, seed: int, schedule: Mapping[str, Any]) -> Self:
        """A copy with the network of this seed."""
        one = copy.copy(self)
        one.seed, one.schedule_ = seed, dict(schedule)
        loss = one._fit_model(data, schedule, f"forecaster, horizon {self.horizon}")
        one.validation_ = self.validation_ if data.val is None else loss
        return one

    def _average(self, networks: Sequence[Self]) -> None:
        """Become the first of the networks; several are averaged."""
        self.__dict__.update(networks[0].__dict__)
        self.seeds_: tuple[int, ...] = tuple(one.seed for one in networks)
        if len(networks) > 1:
            self.model_ = MeanModel([one.model_ for one in networks])
            self.validation_ = float(np.mean([one.validation_ for one in networks]))

    def _train_again(self, networks: Sequence[Self], panel: Panel) -> None:
        """Train the networks again, on all rows, for the epochs that were best; `model_` becomes their mean."""
        schedules = [one.schedule_ | {"epochs": min(one.schedule_["epochs"], one._best_epoch + 1)} for one in networks]
        # a copy, so that a fit that is stopped leaves the network as it was
        again = copy.copy(self)
        again.validation_ = float(np.mean([one.validation_ for one in networks]))
        again.known_ = self._fit_covariates(panel, self._borders(panel))
        train, *_ = again._scale_and_split(panel, panel.lengths)
        pairs = zip(networks, schedules, strict=True)
        self._average([again._trained(self._data(train), one.seed, schedule) for one, schedule in pairs])

    def _borders(self, panel: Panel) -> list[int]:
        """Per series the first row that is held out to stop training, and for the interval of the network alone."""
        least = self.horizon * (4 if self.model == NETWORK and self.interval is not None else 1)
        return [max(1, rows - max(least, int(rows * self.validation_share))) for rows in panel.lengths]

    def _validate_network(self, panel: Panel, origins: RollingOrigins, ceiling: Ceiling) -> np.ndarray | None:
        """Train the network on the rows before the first origins; its forecasts (W * C, P), or None without one.

        With more effort the network is trained also on the values themselves; the better one is kept.
        """
        earlier = panel.before(origins.held.tolist())
        usable = self._effort.has_networks and len(origins) and max(self._borders(earlier)) >= self.horizon + 2
        if usable and self._fit_network(earlier, ceiling, given=panel.lengths) is not None:
            if self.architecture_["season"] and self._effort.networks > 1:
                other = copy.copy(self)
                held = other._fit_network(earlier, ceiling, plain=True)
                if held is not None and (other.validation_ or 0.0) < (self.validation_ or 0.0):
                    self.__dict__.update(other.__dict__)
            return self._network_at_origins(panel, origins)
        self._leave_out_network()
        self.seeds_ = ()
        self.lookback_ = min(max(panel.lengths), max(2 * self.season_, self.horizon))
        self.schedule_ = {}
        self.known_ = self._fit_covariates(panel, panel.lengths)
        self.scaler_ = self._fit_scaler(panel)
        return None

    def _network_at_origins(self, panel: Panel, origins: RollingOrigins) -> np.ndarray:
        rows = torch.tensor(np.asarray(panel.lengths)[origins.series] - origins.back)
        return to_rows(self._network_at(panel, torch.from_numpy(origins.series), rows)["forecast"].numpy())

    def _validate_seeds(
        self,
        panel: Panel,
        origins: RollingOrigins,
        found: np.ndarray,
        error: Callable[[np.ndarray], float],
        ceiling: Ceiling,
    ) -> tuple[list[Self], np.ndarray]:
        """The network and those of further seeds, and their mean forecast (W * C, P) at the origins.

        `found` is the forecast of the first. One that raises the error of the mean is left out and ends the search.
        """
        networks = [self]
        earlier = panel.before(origins.held.tolist())
        while len(networks) < (self.seeds or self._effort.networks):
            windows = self._scale_and_split(earlier, self._borders(earlier))
            seconds = self._training_seconds(self._data(*windows[:2]), ceiling)
            # all networks are trained again on all rows
            if not ceiling.allows(f"network {len(networks) + 1}", (len(networks) + 2) * seconds):
                break
            other = self._trained(self._data(*windows[:2]), self.seed + len(networks), self.schedule_)
            del windows
            mean = found + (other._network_at_origins(panel, origins) - found) / (len(networks) + 1)
            if error(mean) > error(found):
                break
            networks, found = [*networks, other], mean
        return networks, found

    def _scale_and_split(self, panel: Panel, borders: Sequence[int], *, apart: bool = False) -> tuple[Windows, ...]:
        """Fit the scalers; standardised windows to train on, of the rows before the borders, and held-out ones twice.

        These are the same unless `apart`: then those of the first half of the held-out rows, and of the second.
        """
        targets = panel.take(self.columns_)
        self.scaler_ = self._fit_scaler(panel, list(enumerate(borders)))
        means, stds = self.scaler_["mean"].numpy(), self.scaler_["std"].numpy()
        scaled = [(values - mean) / std for values, mean, std in zip(targets, means, stds, strict=True)]
        # a series that is too short for a window gets rows before it: up to a horizon of windows, if it has values
        need, most = self.lookback_ + self.horizon, self.horizon
        pads = [need - stop + max(0, min(most, stop - most - 2)) if stop < need else 0 for stop in borders]
        device = resolve_device(self.device)
        values, marks = place_series(_join(scaled, pads), device=device), None
        if (past := self.known_.past(panel)) is not None:
            marks = torch.from_numpy(_join(past, pads)).float().to(device)
        size = self.lookback_, self.horizon
        lengths = [rows + pad for rows, pad in zip(panel.lengths, pads, strict=True)]
        ends = [stop + pad for stop, pad in zip(borders, pads, strict=True)]
        middles = [(end + rows) // 2 for end, rows in zip(ends, lengths, strict=True)]
        halves = [(ends, middles), (middles, lengths)] if apart else [(ends, lengths)] * 2
        train = window_starts(lengths, [0] * len(panel), ends, *size)
        held = [window_starts(lengths, firsts, stops, *size) for firsts, stops in halves]
        held = [own[:: -(-max(1, len(own)) * len(self.columns_) // _HELD)] for own in held]
        whole = values, marks, (0, len(values)), *size
        return tuple(Windows(*whole, starts=own, device=device) for own in (train, *held))

    def _fit_scaler(self, panel: Panel, ends: Sequence[tuple[int, int]] | None = None) -> dict[str, Tensor]:
        """Mean and std (S, C) of series, all or before a row each; with other methods, std is the seasonal error."""
        ends = list(enumerate(panel.lengths)) if ends is None else ends
        histories = panel.histories(self.columns_, ends)
        parts = [part[:, None] for part in histories]
        if panel.begins is None:
            values = panel.take(self.columns_)
            parts = [values[index][:stop] for index, stop in ends]
        scalers = [StandardScaler.fit(part, allow_constant=True) for part in parts]
        arrays = {name: np.stack([getattr(one, name) for one in scalers]) for name in ("mean", "std")}
        found = {name: torch.from_numpy(part.reshape(len(ends), -1)) for name, part in arrays.items()}
        if self.model != NETWORK:
            found["deviation"] = found["std"]
            scale = torch.from_numpy(series_scale(histories, self.season_))
            # regular series keep a part of their deviation
            found["std"] = scale.view_as(found["std"]).nan_to_num(0.0).maximum(0.01 * found["std"])
        return found

    def _network_at(
        self, panel: Panel, owners: Tensor, origins: Tensor, ahead: Sequence[np.ndarray] | None = None
    ) -> Prediction:
        """Forecasts of windows: of the series `owners`, from the rows `origins` on.

        Features come from the panel; those after the end of a series are `ahead`, (P, F) per series.
        """
        values, features = panel.take(self.columns_), self.known_.past(panel)
        if features is not None and ahead is not None:
            features = [np.concatenate(pair) for pair in zip(features, ahead, strict=True)]
        places = list(zip(owners.tolist(), origins.tolist(), strict=True))
        indices, size = self._owners(panel)[owners], min(_BATCH, most_windows(len(self.columns_), training=False))

        def windows(parts: Sequence[np.ndarray], piece: slice, later: int) -> Tensor:
            # the first row is repeated before a series
            steps = np.arange(-self.lookback_, later)
            return torch.from_numpy(np.stack([parts[one][(first + steps).clip(0)] for one, first in places[piece]]))

        model, found = self._add_units(self.model_), []
        for start in range(0, len(places), size):
            piece = slice(start, start + size)
            before = after = None
            if features is not None:
                before, after = windows(features, piece, self.horizon).float().tensor_split([self.lookback_], 1)
            found.append(model.predict(windows(values, piece, 0), indices[piece], before, after))
        return join_batches(found)

    def _validate_regressions(self, panel: Panel, origins: RollingOrigins) -> dict[str, np.ndarray]:
        """Forecasts (W * C, P) at the origins of the methods that see covariates, by the rows before all origins."""
        known, earlier = self._fit_covariates(panel, panel.lengths), panel.before(origins.held.tolist())
        scale = series_scale(earlier.histories(self.columns_), self.season_).reshape(len(panel), -1)
        scale = np.where(np.nan_to_num(scale) > 0, scale, 1.0)
        effect = known.fit_effect(earlier, self.columns_, scale, self.season_)
        firsts = np.asarray(panel.lengths)[origins.series] - origins.back
        places = list(zip(origins.series.tolist(), firsts.tolist(), strict=True))
        found = known.regressions(panel, self.columns_, places, effect, scale, self.season_, self.horizon)
        return {name: to_rows(part) for name, part in found.items()}

    def _regressions(
        self, panel: Panel, places: Sequence[tuple[int, int]], ahead: Sequence[np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Forecasts (W, P, C) of the methods that see covariates; none without covariates."""
        if self.effect_ is None or self.choice_ is None:
            return {}
        scale, how = self.choice_.scale[self._owners(panel).numpy()], (self.season_, self.horizon, ahead)
        found: dict[str, np.ndarray] = self.known_.regressions(panel, self.columns_, places, self.effect_, scale, *how)
        return found

    def _owners(self, panel: Panel) -> Tensor:
        """Index of each series in `ids_`."""
        indices = {one: index for index, one in enumerate(self.ids_)}
        return torch.tensor([0 if len(indices) == 1 else indices[one] for one in panel.ids])

    @property
    def _inputs(self) -> tuple[str, ...]:
        """Columns that are not forecast."""
        return (*self.covariates, *self.static, *self.past_covariates)

    def _fit_covariates(self, panel: Panel, borders: Sequence[int]) -> Covariates:
        kinds: dict[str, Any] = {n: tuple(getattr(self, n)) for n in ("covariates", "static", "past_covariates")}
        return Covariates(**kinds, holidays=self.holidays).fit(panel, borders, calendar=self.calendar)

    def check_future(self, data: Any, future: Any) -> None:
        """Raise ValueError, before training, if `future` does not fit the steps after data; see `predict`."""
        self._check_parameters()
        made = copy.copy(self)
        made.day_first_ = self.day_first
        panel = made._read(data, self.freq)
        made.day_first_ = panel.day_first
        made._fit_covariates(panel, panel.lengths).future(panel, future, self.horizon, made._table)

    def _read(self, data: Any, freq: str | int | None, known: Covariates | None = None) -> Panel:
        values = None if self.values is None else [*self.values, *self._inputs]
        kinds = dict.fromkeys(self._inputs) if known is None else known.categories
        panel = read_panel(data, values=values, freq=freq, late_columns=True, categories=kinds, **self._table)
        for name in self._inputs if panel.backend is not None else ():
            if name not in panel.columns:
                raise ValueError(f"data must have the covariate {name!r}, got {', '.join(map(repr, panel.columns))}.")
        return panel

    def _read_fitted(self, data: Any) -> Panel:
        """A panel with the columns, ids and frequency of fit."""
        panel = self._read(data, self.freq_, self.known_)
        wanted = (*self.columns_, *self._inputs)
        if panel.backend is None and len(panel.columns) == len(wanted):
            # arrays have no names: their columns are those of fit, covariates last
            panel = replace(panel, columns=wanted)
        # series of other ids can be forecast, but not a table without ids by a model with ids, nor the other way
        return match_panel(panel, wanted, self.ids_ if None in (*self.ids_, *panel.ids) else None)

    def _check_range(self, panel: Panel) -> None:
        """Raise ValueError for values that are too far from those of fit."""
        mean, std = self.scaler_["mean"].numpy(), self.scaler_.get("deviation", self.scaler_["std"]).numpy()
        for index, (own, values) in enumerate(zip(self._owners(panel), panel.take(self.columns_), strict=True)):
            check_standardised((values - mean[own]) / std[own], self.columns_, panel.label(index))

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choice("loss", self.loss, FORECAST_METRICS)
        for name in ("covariates", "past_covariates", "static"):
            if not isinstance(found := getattr(self, name), Sequence) or isinstance(found, str):
                raise ValueError(f"{name} must be a list of columns, got {found!r}.")
        shares = {"validation_share": self.validation_share}
        shares |= {} if self.interval is None else {"interval": self.interval}
        if not isinstance(self.quantiles, list | tuple | np.ndarray):
            raise ValueError(
                f"quantiles must be a list of levels in (0, 1), got {self.quantiles!r}; such as [0.1, 0.9]."
            )
        shares |= {f"quantiles[{index}]": level for index, level in enumerate(self.quantiles)}
        for name, share in shares.items():
            if not hasattr(share, "__float__") or not 0.0 < share < 1.0:
                raise ValueError(f"{name} must lie in (0, 1), got {share!r}.")

    def _choose_architecture(self, windows: int, season: int | None, *, plain: bool) -> float:
        """Backbone, attention and settings; unset ones are chosen by data size. Returns the factor of the rate."""
        check_choice("backbone", self.backbone, backbone_names("forecast"))
        attention = self.attention
        if attention is None and BACKBONES[self.backbone].takes_attention:
            attention = sizes.DEFAULT_ATTENTION
        spec = None if attention is None else attention_spec(attention)
        recipe = sizes.choose_recipe(self.backbone, None if spec is None else spec.name, windows)
        settings = sizes.choose_settings(self.backbone, self.lookback_, self.horizon, season)
        facts = None if spec is None else {"name": spec.name, **spec.options()}
        if recipe and facts and isinstance(attention, str):
            settings |= {"dropout": recipe["dropout"]} if "dropout" in recipe else {}
            # with one column, its only token minus the mean over tokens would be zero
            if len(self.columns_) > 1:
                facts["operator_init"] = recipe["operator_init"]
        # the network forecasts the difference from the last season, if the look-back has two
        own = {} if season is None else {"season": season if 1 < season <= self.lookback_ // 2 and not plain else 0}
        settings |= self.settings or {}
        self.architecture_ = {"backbone": self.backbone, "attention": facts, **own, "settings": settings}
        return float(recipe.get("operator_rate", 1.0))

    @property
    def _levels(self) -> tuple[float, ...]:
        """Trained levels: those of `quantiles` and the median; none without quantiles."""
        return tuple(sorted({*map(float, self.quantiles), 0.5})) if len(self.quantiles) else ()

    @property
    def _point(self) -> int:
        return self._levels.index(0.5) if self._levels else 0

    def _fields(self) -> dict[str, Any]:
        own = {"horizon": int(self.horizon), "lookback": self.lookback_, "loss": self.loss}
        own |= {"season": self.architecture_.get("season", 0), "steps": self.schedule_["steps"]}
        own |= {"features": self.known_.count, "past_features": self.known_.past_count}
        return own | {"levels": self._levels}

    @torch.no_grad()
    def _calibrate(self, held: Windows, level: float) -> Tensor:
        scores = []
        for x, y, *marks in evaluation_batches(held):
            forecast = self.model_(x, *marks).sort(2).values[:, :, self._point]  # (B, P, C)
            scores.append(((forecast - y).abs() / spread(x)).cpu())
        return conformal_width(torch.cat(scores), level).double()

    def _build(self) -> nn.Module:
        build = super()._build
        return MeanModel(build() for _ in self.seeds_) if len(self.seeds_) > 1 else build()

    def _add_units(self, model: nn.Module) -> UnitsModel:
        shown = tuple(self._levels.index(float(level)) for level in self.quantiles)
        scaler = self.scaler_["mean"], self.scaler_["std"]
        found = UnitsModel(model, *scaler, point=self._point, shown=shown, width=self.width_, counts=self.counts_)
        return found.to(next(model.parameters()).device).eval()


def window_starts(
    lengths: Sequence[int], firsts: Sequence[int], stops: Sequence[int], lookback: int, horizon: int
) -> Tensor:
    """First row of each window in the table of all series joined along time.

    `lengths` are the rows of each series; its windows may forecast the rows from `firsts` up to `stops`.
    """
    begins, found = np.cumsum([0, *lengths]).tolist(), []
    for begin, first, stop in zip(begins, firsts, stops, strict=False):
        low, high = max(0, first - lookback), stop - lookback - horizon + 1
        # a short series may have no window
        found.append(torch.arange(begin + low, begin + max(low, high)))
    return torch.cat(found)


def _join(parts: Sequence[np.ndarray], pads: Sequence[int]) -> np.ndarray:
    """Arrays (T, ·) one after another, each with its first row repeated before it."""
    pairs = zip(parts, pads, strict=True)
    return np.concatenate([np.pad(part, ((pad, 0), (0, 0)), mode="edge") if pad else part for part, pad in pairs])

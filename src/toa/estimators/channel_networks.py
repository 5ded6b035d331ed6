"""Networks that mix the columns of a table: iTransformer with TOA-Gated and with softmax, each one method.

    networks = ChannelNetworkMethod(settings, "toa-gated").fit(training)   # None with few columns or little effort
    networks.forecast(histories)                                           # (N, P)

Both attentions have equal trials: a short training with and one without instance norm. The better setting by the loss
on the held-out rows is trained for all steps. The rolling origins decide how much weight each attention gets. Values
are standardised by the rows of fit, and the loss is that of the forecaster.

Alphabet: N one per window and column, P horizon, C columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from torch import Tensor

from toa._checks import ArgumentError, Phrase, check_count, check_shape
from toa.data.panel import Panel
from toa.estimators import sizes
from toa.estimators.component_ridge import FEWEST_COLUMNS
from toa.estimators.covariates import Covariates
from toa.estimators.effort import EFFORTS, Ceiling, Effort
from toa.estimators.files import tensors_under
from toa.estimators.methods import Family, ForecastRows, Histories, Method, Training
from toa.estimators.network import (
    FittedNetwork,
    Inputs,
    NetworkPlan,
    build_network,
    fit_scaler,
    plan_network,
    train_network,
    training_seconds,
)
from toa.estimators.network_method import LEAST_ROWS, train_again
from toa.estimators.settings import ForecastSettings, NetworkSpec
from toa.training.checkpoint import model_with
from toa.training.distributed import resolve_device

# attentions that are compared, and how the methods are named
NETWORKS = {"columns by TOA-Gated": "toa-gated", "columns by softmax": "softmax"}
# most columns: attention is between all pairs
MOST_COLUMNS = 1_000
# look-back, at most
_LOOKBACK = 96
# sizes of the model
_SIZES: Mapping[str, Any] = {"embed_dim": 64, "num_heads": 4, "num_layers": 2, "ff_dim": 128, "dropout": 0.1}
_BATCH = 32
_EPOCHS = 20
_LEARNING_RATE = 1e-3
# steps of a trial, as a share of those of the training
_TRIAL = 0.25
# trainings of a method, in full ones: two trials, the training, and that on all rows
_TRAININGS = 2 * _TRIAL + 2.0


@dataclass(frozen=True, slots=True)
class ChannelNetworkMethod:
    """A network whose tokens are the columns, with one attention."""

    settings: ForecastSettings
    name: str

    def fit(self, training: Training) -> "FittedChannelNetwork | None":
        """See `Method`."""
        panel = training.panel
        if panel is None or not FEWEST_COLUMNS <= len(training.columns) <= MOST_COLUMNS:
            return None
        settings = self._settings(min(self.settings.borders(panel.lengths)))
        if settings is None:
            return None
        trials = [self._plan(training, settings, norm, share=_TRIAL) for norm in (True, False)]
        whole = self._plan(training, settings, instance_norm=True, share=1.0)
        if whole is None or None in trials:
            return None
        seconds = 0.0
        if training.ceiling.seconds is not None:
            seconds = _TRAININGS * training_seconds(whole, training.seed)
        if not training.ceiling.allows(self.name, seconds):
            return None
        networks = [train_network(plan, training.seed) for plan in trials if plan is not None]
        best = min(networks, key=lambda network: network.validation or 0.0)
        final = replace(whole, architecture=best.architecture)
        return FittedChannelNetwork(train_network(final, training.seed), settings)

    def seconds(self, ceiling: Ceiling) -> None:
        """It asks by itself, when it knows its schedule."""

    def _settings(self, rows: int) -> ForecastSettings | None:
        """The settings with this network; None if there are too few rows to train on."""
        horizon = self.settings.horizon
        lookback = min(_LOOKBACK, (rows - horizon) // 2)
        if lookback < LEAST_ROWS:
            return None
        spec = replace(
            self.settings.network,
            lookback=lookback,
            backbone="itransformer",
            attention=NETWORKS[self.name],
            settings=dict(_SIZES),
            quantiles=(),
            epochs=None,
            batch_size=_BATCH,
            learning_rate=_LEARNING_RATE,
            operator_rate=1.0,
        )
        return replace(self.settings, network=spec)

    def _plan(
        self, training: Training, settings: ForecastSettings, instance_norm: bool, *, share: float
    ) -> NetworkPlan | None:
        """The plan of a training of a share of the steps; None if these are too few."""
        panel = training.panel
        assert panel is not None
        spec = replace(settings.network, settings={**_SIZES, "instance_norm": instance_norm})
        # without a season values are standardised
        plan = plan_network(
            panel, training.columns, replace(settings, network=spec), None, plain=True, rows=training.rows
        )
        batches = -(-len(plan.train) // _BATCH)
        limit = limit_of(training.effort, spec.device)
        most = int(share * min(_EPOCHS * batches, limit // (_BATCH * len(training.columns))))
        schedule = sizes.limit_schedule({**plan.schedule, "steps": batches, "epochs": _EPOCHS}, most)
        return None if schedule is None else replace(plan, schedule=schedule)


def limit_of(effort: Effort, device: str) -> int:
    """Windows times columns that a network of columns sees in training: on a GPU those of thorough effort.

    An effort without networks has none on a GPU either.
    """
    if effort.has_networks and resolve_device(device).type == "cuda":
        return max(effort.channel_windows, EFFORTS["thorough"].channel_windows)
    return effort.channel_windows


@dataclass(frozen=True, slots=True, eq=False)
class FittedChannelNetwork:
    """A trained network of columns; without settings, as after loading, it cannot be trained again."""

    network: FittedNetwork
    settings: ForecastSettings | None = None
    reads_panel: bool = True

    @property
    def rows_read(self) -> int:
        """The look-back."""
        return self.network.inputs.lookback

    def forecast(self, histories: Histories) -> ForecastRows:
        """See `FittedMethod`."""
        panel = histories.panel
        assert panel is not None
        return _with_new_series(self.network, panel, histories.places).forecast(histories)

    def refit(self, training: Training) -> "FittedChannelNetwork":
        """Trained again, on all rows, for the epochs that were best."""
        assert self.settings is not None
        network = self.network
        again = train_again(network, self.settings, training, season=None, validation=network.validation or 0.0)
        return FittedChannelNetwork(again, self.settings)


def _with_new_series(network: FittedNetwork, panel: Panel, places: Sequence[tuple[int, int]]) -> FittedNetwork:
    """The network with the scales of series that fit has not seen, by their rows before their last window."""
    ids_of_fit = set(network.inputs.ids)
    stops: dict[int, int] = {}
    for index, stop in places:
        if panel.ids[index] not in ids_of_fit:
            stops[index] = max(stop, stops.get(index, 0))
    if not stops or len(ids_of_fit) == 1:
        return network
    scaler = fit_scaler(panel, network.inputs.columns, list(stops.items()), None)
    wider: FittedNetwork = replace(
        network, inputs=network.inputs.with_series([panel.ids[index] for index in stops], scaler)
    )
    return wider


class ChannelNetworks(Family):
    """One network of columns per attention, with enough effort or on a GPU."""

    def candidates(self, settings: ForecastSettings, season: int) -> dict[str, Method]:
        """One method per attention, or none."""
        if not limit_of(settings.effort, settings.network.device):
            return {}
        return {name: ChannelNetworkMethod(settings, name) for name in NETWORKS}

    def save(self, fitted: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        """Weights and scales, and per method what builds its network."""
        methods = {name: fitted[name] for name in NETWORKS if name in fitted}
        tensors: dict[str, Tensor] = {}
        facts: dict[str, Any] = {}
        for name, method in methods.items():
            network = method.network
            start = NETWORKS[name]
            tensors |= {f"{start}.model.{key}": part for key, part in network.model.state_dict().items()}
            tensors |= {f"{start}.scaler.{key}": part for key, part in network.inputs.scaler.items()}
            facts[name] = {
                "spec": asdict(network.spec),
                "ids": list(network.inputs.ids),
                "columns": list(network.inputs.columns),
                "lookback": network.inputs.lookback,
                "known": network.inputs.covariates.state(),
                "architecture": dict(network.architecture),
                "schedule": dict(network.schedule),
                "seeds": list(network.seeds),
                "validation": network.validation,
            }
        return tensors, facts or None

    def load(
        self, tensors: Mapping[str, Tensor], facts: Any, season: int, horizon: int
    ) -> Mapping[str, FittedChannelNetwork]:
        """From the result of `save`; raises ValueError for parts that do not fit one another."""
        return {
            name: FittedChannelNetwork(_load_network(tensors_under(tensors, f"{NETWORKS[name]}."), state, horizon))
            for name, state in facts.items()
        }


def _load_network(tensors: Mapping[str, Tensor], state: Mapping[str, Any], horizon: int) -> FittedNetwork:
    """The network of one method of a file."""
    values = {field.name: state["spec"][field.name] for field in fields(NetworkSpec)}
    # the machine that loads a file may have no GPU
    spec = NetworkSpec(**{**values, "quantiles": (), "device": "auto", "progress": False})
    inputs = Inputs(
        ids=tuple(state["ids"]),
        columns=tuple(state["columns"]),
        lookback=state["lookback"],
        covariates=Covariates.from_state(state["known"]),
        scaler=tensors_under(tensors, "scaler."),
    )
    check_count("lookback", inputs.lookback, 1)
    if spec.horizon != horizon:
        raise ArgumentError(Phrase("a network of columns"), f"have the horizon {horizon}", spec.horizon)
    for name in ("mean", "std"):
        check_shape(f"scaler.{name}", inputs.scaler[name], "(S, C)", (len(inputs.ids), len(inputs.columns)))
    seeds = tuple(state["seeds"])
    architecture = state["architecture"]
    model = model_with(
        lambda: build_network(spec, inputs, architecture, state["schedule"], seeds),
        tensors,
        architecture["settings"],
        "a network of columns",
    )
    return FittedNetwork(
        spec=spec,
        inputs=inputs,
        architecture=architecture,
        schedule=state["schedule"],
        model=model.to(resolve_device(spec.device)),
        seeds=seeds,
        validation=state["validation"],
    )

"""The methods that a forecaster chooses from: one line per family."""

from toa._registry import Registry
from toa.estimators.all_columns import AllColumns
from toa.estimators.channel_networks import ChannelNetworks
from toa.estimators.covariate_trees import CovariateTrees
from toa.estimators.lag_methods import Baselines, LinearModels, Trees
from toa.estimators.methods import Family, Method
from toa.estimators.network_method import Networks
from toa.estimators.pretrained_method import Pretrained
from toa.estimators.regressions import Regressions
from toa.estimators.settings import ForecastSettings
from toa.estimators.special_baselines import SpecialBaselines

FAMILIES: Registry[Family] = Registry("family of methods")
FAMILIES.register("baselines")(Baselines())
FAMILIES.register("special")(SpecialBaselines())
FAMILIES.register("linear")(LinearModels())
FAMILIES.register("trees")(Trees())
FAMILIES.register("columns")(AllColumns())
FAMILIES.register("covariates")(Regressions())
FAMILIES.register("covariate trees")(CovariateTrees())
FAMILIES.register("pretrained")(Pretrained())
FAMILIES.register("network")(Networks())
FAMILIES.register("channels")(ChannelNetworks())


def candidates(settings: ForecastSettings, season: int) -> dict[str, Method]:
    """All methods that are tried, by name."""
    methods: dict[str, Method] = {}
    for family in FAMILIES.values():
        methods |= family.candidates(settings, season)
    return methods

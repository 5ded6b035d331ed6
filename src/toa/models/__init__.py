"""Backbones by name, and the models that forecast, reconstruct and classify with them."""

from importlib import import_module
from pkgutil import iter_modules

from toa.models.base import Backbone, ForecastModel, SeriesModel
from toa.models.duet import DUET, DUETConfig
from toa.models.encoder_decoder import (
    Autoformer,
    AutoformerConfig,
    Informer,
    InformerConfig,
    Transformer,
    TransformerConfig,
)
from toa.models.heads import BackboneForecaster, ClassifyHeadConfig, ClassifyModel, ForecastHeadConfig, ReconstructModel
from toa.models.itransformer import ITransformer, ITransformerConfig
from toa.models.patchtst import PatchTST, PatchTSTConfig
from toa.models.point_encoder import PointBackbone, PointEncoder, PointEncoderConfig
from toa.models.registry import (
    BACKBONES,
    backbone_names,
    build_classifier,
    build_forecaster,
    build_reconstructor,
    complete_settings,
    register_backbone,
)
from toa.models.two_axis import TwoAxis, TwoAxisConfig
from toa.models.without_attention import DLinear, DLinearConfig, TSMixer, TSMixerConfig

__all__ = [
    "BACKBONES",
    "DUET",
    "Autoformer",
    "AutoformerConfig",
    "Backbone",
    "BackboneForecaster",
    "ClassifyHeadConfig",
    "ClassifyModel",
    "DLinear",
    "DLinearConfig",
    "DUETConfig",
    "ForecastHeadConfig",
    "ForecastModel",
    "ITransformer",
    "ITransformerConfig",
    "Informer",
    "InformerConfig",
    "PatchTST",
    "PatchTSTConfig",
    "PointBackbone",
    "PointEncoder",
    "PointEncoderConfig",
    "ReconstructModel",
    "SeriesModel",
    "TSMixer",
    "TSMixerConfig",
    "Transformer",
    "TransformerConfig",
    "TwoAxis",
    "TwoAxisConfig",
    "backbone_names",
    "build_classifier",
    "build_forecaster",
    "build_reconstructor",
    "complete_settings",
    "register_backbone",
]

# every file of this folder registers its backbones on import
for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

"""Forecasting models by name, most with any attention of `toa.nn`, and the backbones that some are built on."""

from toa.models.autoformer import Autoformer, AutoformerConfig
from toa.models.base import Backbone, ForecastModel
from toa.models.dlinear import DLinear, DLinearConfig
from toa.models.duet import DUET, DUETConfig
from toa.models.forecaster import Forecaster, ForecasterConfig
from toa.models.informer import Informer, InformerConfig
from toa.models.itransformer import ITransformer, ITransformerConfig
from toa.models.patchtst import PatchTST, PatchTSTConfig
from toa.models.point_encoder import PointEncoder, PointEncoderConfig
from toa.models.registry import MODELS, ModelEntry, build_forecaster, check_attention
from toa.models.transformer import Transformer, TransformerConfig
from toa.models.tsmixer import TSMixer, TSMixerConfig

__all__ = [
    "DUET",
    "MODELS",
    "Autoformer",
    "AutoformerConfig",
    "Backbone",
    "DLinear",
    "DLinearConfig",
    "DUETConfig",
    "ForecastModel",
    "Forecaster",
    "ForecasterConfig",
    "ITransformer",
    "ITransformerConfig",
    "Informer",
    "InformerConfig",
    "ModelEntry",
    "PatchTST",
    "PatchTSTConfig",
    "PointEncoder",
    "PointEncoderConfig",
    "TSMixer",
    "TSMixerConfig",
    "Transformer",
    "TransformerConfig",
    "build_forecaster",
    "check_attention",
]

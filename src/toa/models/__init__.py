"""Backbones, each with any attention of `toa.nn` by name, and forecasters built on them."""

from toa.models.base import Backbone
from toa.models.forecaster import Forecaster, ForecasterConfig
from toa.models.itransformer import ITransformer, ITransformerConfig
from toa.models.patchtst import PatchTST, PatchTSTConfig
from toa.models.point_encoder import PointEncoder, PointEncoderConfig
from toa.models.registry import MODELS, ModelEntry, build_forecaster

__all__ = [
    "MODELS",
    "Backbone",
    "Forecaster",
    "ForecasterConfig",
    "ITransformer",
    "ITransformerConfig",
    "ModelEntry",
    "PatchTST",
    "PatchTSTConfig",
    "PointEncoder",
    "PointEncoderConfig",
    "build_forecaster",
]

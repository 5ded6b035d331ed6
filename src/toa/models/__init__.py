"""Models by name for forecasting, reconstruction and classification, most with any attention, and their backbones."""

from toa.models.autoformer import Autoformer, AutoformerConfig
from toa.models.base import Backbone, ForecastModel
from toa.models.classifier import CLASSIFIERS, Classifier, ClassifierConfig, ClassifierEntry, build_classifier
from toa.models.dlinear import DLinear, DLinearConfig
from toa.models.duet import DUET, DUETConfig
from toa.models.forecaster import Forecaster, ForecasterConfig
from toa.models.informer import Informer, InformerConfig
from toa.models.itransformer import ITransformer, ITransformerConfig
from toa.models.patchtst import PatchTST, PatchTSTConfig
from toa.models.point_encoder import PointBackbone, PointEncoder, PointEncoderConfig
from toa.models.reconstructor import RECONSTRUCTORS, Reconstructor, ReconstructorEntry, build_reconstructor
from toa.models.registry import MODELS, ModelEntry, build_forecaster, check_attention
from toa.models.transformer import Transformer, TransformerConfig
from toa.models.tsmixer import TSMixer, TSMixerConfig

__all__ = [
    "CLASSIFIERS",
    "DUET",
    "MODELS",
    "RECONSTRUCTORS",
    "Autoformer",
    "AutoformerConfig",
    "Backbone",
    "Classifier",
    "ClassifierConfig",
    "ClassifierEntry",
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
    "PointBackbone",
    "PointEncoder",
    "PointEncoderConfig",
    "Reconstructor",
    "ReconstructorEntry",
    "TSMixer",
    "TSMixerConfig",
    "Transformer",
    "TransformerConfig",
    "build_classifier",
    "build_forecaster",
    "build_reconstructor",
    "check_attention",
]

"""Layers: learnable sequence operators, their regularization, attentions, blocks, embeddings, norms and heads."""

from toa.nn.attention import Attended, Attention, ScoreFactors, SoftmaxAttention, intercepted, mixing_operators
from toa.nn.baseline_attention import HyperGLUAttention
from toa.nn.block import ChannelBlock, DecoderBlock, EncoderBlock, EncoderStack, FeedForward
from toa.nn.clustering import ChannelMask, LinearExperts, NoisyTopKGate
from toa.nn.embedding import (
    PatchEmbedding,
    PointEmbedding,
    PointPositions,
    PointValues,
    VariateEmbedding,
    count_patches,
    sinusoidal_positions,
)
from toa.nn.informer_autoformer import AutoCorrelation, ProbSparseAttention
from toa.nn.layers import (
    ChannelDropout,
    Dropout,
    FlattenHead,
    LayerNorm,
    Linear,
    ReversibleInstanceNorm,
    SeriesDecomposition,
    TokenBatchNorm,
    check_kernel,
    make_norm,
    normalise_tokens,
)
from toa.nn.operator import (
    OPERATORS,
    BandedOperator,
    DenseOperator,
    DiagonalLowRankOperator,
    SequenceOperator,
    Structure,
    ToeplitzOperator,
    make_operator,
)
from toa.nn.operator_attention import TemporalOperatorAttention, Variant
from toa.nn.registry import ATTENTIONS, AttentionSpec, build_attention
from toa.nn.regularization import (
    Sharing,
    StochasticOperatorRegularization,
    drop_offset,
    own_generators,
    share_drop_rate,
)

__all__ = [
    "ATTENTIONS",
    "OPERATORS",
    "Attended",
    "Attention",
    "AttentionSpec",
    "AutoCorrelation",
    "BandedOperator",
    "ChannelBlock",
    "ChannelDropout",
    "ChannelMask",
    "DecoderBlock",
    "DenseOperator",
    "DiagonalLowRankOperator",
    "Dropout",
    "EncoderBlock",
    "EncoderStack",
    "FeedForward",
    "FlattenHead",
    "HyperGLUAttention",
    "LayerNorm",
    "Linear",
    "LinearExperts",
    "NoisyTopKGate",
    "PatchEmbedding",
    "PointEmbedding",
    "PointPositions",
    "PointValues",
    "ProbSparseAttention",
    "ReversibleInstanceNorm",
    "ScoreFactors",
    "SequenceOperator",
    "SeriesDecomposition",
    "Sharing",
    "SoftmaxAttention",
    "StochasticOperatorRegularization",
    "Structure",
    "TemporalOperatorAttention",
    "ToeplitzOperator",
    "TokenBatchNorm",
    "Variant",
    "VariateEmbedding",
    "build_attention",
    "check_kernel",
    "count_patches",
    "drop_offset",
    "intercepted",
    "make_norm",
    "make_operator",
    "mixing_operators",
    "normalise_tokens",
    "own_generators",
    "share_drop_rate",
    "sinusoidal_positions",
]

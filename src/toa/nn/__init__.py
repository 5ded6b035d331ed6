"""Layers: learnable sequence operators, their regularization, and attention by name."""

from toa.nn.attention import (
    Attended,
    Attention,
    ScoreFactors,
    SoftmaxAttention,
    TemporalOperatorAttention,
    Variant,
)
from toa.nn.hyperglu import HyperGLUAttention
from toa.nn.operator import (
    OPERATORS,
    DenseOperator,
    DiagonalLowRankOperator,
    SequenceOperator,
    Structure,
    ToeplitzOperator,
    make_operator,
)
from toa.nn.registry import ATTENTIONS, AttentionSpec, build_attention
from toa.nn.regularization import (
    Sharing,
    StochasticOperatorRegularization,
    drop_offset,
    share_drop_rate,
)

__all__ = [
    "ATTENTIONS",
    "OPERATORS",
    "Attended",
    "Attention",
    "AttentionSpec",
    "DenseOperator",
    "DiagonalLowRankOperator",
    "HyperGLUAttention",
    "ScoreFactors",
    "SequenceOperator",
    "Sharing",
    "SoftmaxAttention",
    "StochasticOperatorRegularization",
    "Structure",
    "TemporalOperatorAttention",
    "ToeplitzOperator",
    "Variant",
    "build_attention",
    "drop_offset",
    "make_operator",
    "share_drop_rate",
]

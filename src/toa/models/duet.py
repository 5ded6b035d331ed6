"""DUET: experts chosen by the temporal pattern, attention between channels of a cluster (Qiu et al., 2025)."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from toa.models.base import ForecastModel, ModelConfig, encoder_stack
from toa.models.registry import register_backbone
from toa.nn import (
    AttentionSpec,
    ChannelMask,
    FlattenHead,
    LayerNorm,
    LinearExperts,
    NoisyTopKGate,
    ReversibleInstanceNorm,
    check_kernel,
)
from toa.nn.clustering import Sampling, check_top_k


@dataclass(frozen=True, kw_only=True, slots=True)
class DUETConfig(ModelConfig):
    """Sizes of a `DUET`; operators act on channels. Defaults are the authors', except `mask_sampling`.

    Attributes:
        head_dropout: Dropout on the forecasts, before the instance norm is undone.
        top_k: Number of experts per series.
        gate_dim: Hidden width of the gate's perceptrons.
        noisy_gating: Whether the gate is noisy in training.
        channel_independent: Whether experts are chosen per channel, rather than by the mean of all channels.
        moving_average: Window of the moving average that splits a series into seasonal part and trend.
        mask_sampling: When the channel mask is random: "always" (the authors' choice), "training" (evaluation is
            deterministic) or "never"; see `toa.nn.ChannelMask`.
    """

    lookback: int
    horizon: int
    channels: int
    attention: AttentionSpec
    embed_dim: int = 512
    num_heads: int = 8
    num_layers: int = 2
    ff_dim: int = 2048
    dropout: float = 0.2
    head_dropout: float = 0.2
    num_experts: int = 4
    top_k: int = 1
    gate_dim: int = 256
    noisy_gating: bool = True
    channel_independent: bool = True
    moving_average: int = 25
    mask_sampling: Sampling = "training"

    def __post_init__(self) -> None:
        ModelConfig.__post_init__(self)
        check_top_k(self.top_k, self.num_experts)
        check_kernel("moving_average", self.moving_average, self.lookback)


@register_backbone("duet", DUETConfig, "forecast")
class DUET(ForecastModel):
    """Series (B, L, C) to (B, P, C): experts map each channel to a token, masked attention mixes the tokens.

    Gate and channel mask read the raw series. Experts read it standardised over time, with a learnable scale and shift
    per channel. Attention is between channels, N = C. A pair that the sampled mask hides keeps a small weight under
    softmax, and none under ReLU and gated scores, before S2; see `toa.ops.operator_attention`. Layer norm follows each
    sub-layer and the stack. With one channel there is no attention.

    Compared with decisionintelligence/DUET at dcc6e6780a9138731b64b9b5398a94a1d97033f0: outputs, penalty and gradients,
    softmax attention, with the same noise in training. Its names are d_model (embed_dim), fc_dropout (head_dropout), k
    (top_k), hidden_size (gate_dim) and CI (channel_independent).
    """

    def __init__(self, config: DUETConfig) -> None:
        super().__init__(lookback=config.lookback, horizon=config.horizon, channels=config.channels)
        self.config = config
        width = config.embed_dim
        self.norm = ReversibleInstanceNorm(config.channels)
        self.gate = NoisyTopKGate(
            config.lookback, config.num_experts, config.top_k, hidden_dim=config.gate_dim, noisy=config.noisy_gating
        )
        self.experts = LinearExperts(config.lookback, width, config.num_experts, moving_average=config.moving_average)
        several = config.channels > 1
        self.mask = ChannelMask(config.lookback, sampling=config.mask_sampling) if several else None
        self.blocks = encoder_stack(config, config.channels) if several else nn.ModuleList()
        self.token_norm = LayerNorm(width) if several else nn.Identity()
        self.head = FlattenHead(1, width, config.horizon, dropout=config.head_dropout)

    def forward(
        self,
        series: Tensor,
        marks: Tensor | None = None,
        future_marks: Tensor | None = None,
        *,
        with_penalty: bool = False,
    ) -> Any:
        """The forecast (B, P, C) or, with `with_penalty`, the result of `forecast_and_penalty`."""
        self.check_inputs(series, marks, future_marks)
        forecast, penalty = self._forecast(series, marks, future_marks)
        return (forecast, penalty) if with_penalty else forecast

    def forecast_and_penalty(
        self, series: Tensor, marks: Tensor | None = None, future_marks: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The forecast (B, P, C), and the gate's load-balancing penalty, which training adds to its loss."""
        # calls the module itself, so that its forward hooks run: `share_drop_rate` draws a new rate in one
        forecast, penalty = self(series, marks, future_marks, with_penalty=True)
        return forecast, penalty

    def _forecast(self, series: Tensor, marks: Tensor | None, future_marks: Tensor | None) -> Any:
        """The forecast and the penalty."""
        patterns = series.mT if self.config.channel_independent else series.mean(2).unsqueeze(1)  # (B, C or 1, L)
        gates, penalty = self.gate(patterns)
        normalised, statistics = self.norm.normalise(series)
        tokens = self.experts(normalised, gates)  # (B, C, E)
        if self.mask is not None:
            tokens = self.blocks(tokens, pair_mask=self.mask(series))
        forecast = self.head(self.token_norm(tokens).unsqueeze(2))  # (B, P, C)
        return self.norm.denormalise(forecast, statistics), penalty

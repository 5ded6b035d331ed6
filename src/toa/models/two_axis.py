"""Two-axis Transformer: patches of a channel attend to each other along time, and channels to each other."""

from dataclasses import dataclass, replace

from torch import Tensor, nn

from toa._checks import ArgumentError, check_choice
from toa.models.base import ModelConfig, PatchBackbone
from toa.models.registry import register_backbone
from toa.nn import ATTENTIONS, AttentionSpec, ChannelBlock, EncoderBlock, LayerNorm, count_patches

# operators over more channels have low rank, if the attention names no structure
MOST_DENSE_CHANNELS = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class TwoAxisConfig(ModelConfig):
    """Sizes of a `TwoAxis`. `attention` acts along channels; its operators act on channels.

    Attributes:
        time_attention: Attention along time: a name of `toa.nn.ATTENTIONS`, "none", or "same" for that of `attention`.
        mix_channels: Whether channels attend to each other. If False, `attention` must act along time
            (time_attention="same").
        channel_dropout: Rate at which a channel of a window, in training, receives nothing from the others in a layer.
    """

    lookback: int
    channels: int
    attention: AttentionSpec
    patch_len: int = 16
    stride: int = 16
    embed_dim: int = 32
    num_heads: int = 4
    num_layers: int = 2
    ff_dim: int = 64
    dropout: float = 0.2
    time_attention: str = "softmax"
    mix_channels: bool = True
    channel_dropout: float = 0.1

    def __post_init__(self) -> None:
        ModelConfig.__post_init__(self)
        count_patches(self.lookback, self.patch_len, self.stride)
        check_choice("time_attention", self.time_attention, ("none", "same", *ATTENTIONS))
        if not self.mix_channels and self.time_attention != "same":
            raise ArgumentError(
                "time_attention",
                "be 'same' if mix_channels is False",
                repr(self.time_attention),
                "otherwise nothing uses the chosen attention",
            )


@register_backbone(
    "two-axis", TwoAxisConfig, "forecast", head=lambda config: {"shortcut": True, "shortcut_start": "ridge"}
)
@register_backbone("two-axis", TwoAxisConfig, "reconstruct")
@register_backbone("two-axis", TwoAxisConfig, "classify", head=lambda config: {"head_dropout": config.dropout})
class TwoAxis(PatchBackbone):
    """Encoder of patches with attention along two axes: (B, L, C) to (B, C, N, E).

    A layer lets the patches of each channel attend to each other, and then the channels; a feed-forward network follows
    each. Along channels there is one matrix of weights per window and head, the same at every position in time. All
    weights but the operators are shared by channels and positions. Layer norm comes before each sub-layer and after the
    stack.

    In forecasting, a linear map from look-back to horizon is added, which starts as a ridge regression, and the map of
    the tokens starts at zero: see `ForecastHeadConfig.shortcut`.

    The model is ours; docs/two_axis.md describes it.
    """

    def __init__(self, config: TwoAxisConfig) -> None:
        super().__init__(config, channels=config.channels)
        width, heads, p = config.embed_dim, config.num_heads, config.dropout
        layers = range(config.num_layers)
        across = config.attention
        time = config.time_attention
        along: AttentionSpec | None = across
        if time != "same":
            along = None if time == "none" else AttentionSpec(name=time)
        many = config.channels > MOST_DENSE_CHANNELS and across.structure is None
        if many and "structure" in ATTENTIONS[across.name].options:
            across = replace(across, structure="dplr")
        self.time_blocks = nn.ModuleList(
            EncoderBlock(along.build(width, heads, self.num_tokens, dropout=p), config.ff_dim, dropout=p)
            for _ in layers
            if along is not None
        )
        self.channel_blocks = nn.ModuleList(
            ChannelBlock(
                across.build(width, heads, config.channels, dropout=p),
                config.ff_dim,
                dropout=p,
                channel_dropout=config.channel_dropout,
            )
            for _ in layers
            if config.mix_channels
        )
        self.norm = LayerNorm(width)

    def _encode(self, series: Tensor, marks: Tensor | None, padding: Tensor | None) -> Tensor:
        split = (series.shape[0], series.shape[2])
        hidden = None if padding is None else padding.repeat_interleave(split[1], 0)  # (B*C, N)
        x = self.embed(series)  # (B, C, N, E)
        for layer in range(self.config.num_layers):
            for block in self.time_blocks[layer : layer + 1]:
                x = block(x.flatten(0, 1), hidden).unflatten(0, split)
            for block in self.channel_blocks[layer : layer + 1]:
                x = block(x, padding)
        return self.norm(x)

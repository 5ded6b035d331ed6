"""The pretrained forecaster: a context of any series in, quantiles of its future out, without training on that series.

    model = PretrainedForecaster.from_pretrained("folder")   # config.json and model.safetensors, never a network
    quantiles = model(context, horizon=24)                   # (B, L) with NaN for missing, to (B, 24, Q)

A context is scaled by its median and spread, cut into patches, and encoded by operator attention with rotary positions.
Tokens are counted from the newest patch, so that row i of an operator always belongs to the patch i before the end,
whatever the length. Future tokens are queries alone: each decodes its own block of steps, all in one pass, and no
forecast depends on how many blocks are asked for.

Alphabet: B batch, L context, P horizon, N patches, F future blocks, S steps per patch, E embedding, Q quantiles.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from toa._checks import ArgumentError, Name, check_at_least, check_at_most, check_choice, check_shape
from toa._files import parse_json, read_together, seal, unseal, write_together
from toa._limits import check_sizes, shorten
from toa.models.base import ModelConfig
from toa.nn import AttentionSpec, FeedForward, LayerNorm, Linear

# format of config.json
FORMAT = 1
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
# smallest spread of a context, relative to the size of its median: below, differences are rounding
SPREAD_FLOOR = 1e-6
# smallest spread of a context of zeros
LEAST_SPREAD = 1e-30
# largest scaled value that is decoded: sinh(12) is 80,000 spreads
LARGEST = 12.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PretrainedConfig(ModelConfig):
    """Sizes of the model and its attention.

    Args:
        context: Longest context in steps, a multiple of `patch_len`; the model reads the newest steps of a longer one.
        horizon: Longest horizon in steps, a multiple of `patch_len`.
        patch_len: Steps per token, of the context and of the future.
        attention: A name of `toa.nn.ATTENTIONS` that has rotary positions; "softmax" is the control without operators.
        structure: Structure of the operators, "dense" if None: "dense", "toeplitz" (in lag space), "dplr" or "banded".
        rank: Rank of the "dplr" structure.
        operator_std: Initial standard deviation of the operators' offsets; None is the default of the layer.
        operator_init: Initial S2, see `toa.nn.TemporalOperatorAttention`.
        score_norm, gate_norm: Normalisers of the scores, see `toa.ops.operator_attention`.
        rotary_base: Slowest turn of the rotary positions, which are counted in patches.
        quantiles: Levels, increasing, with 0.5 among them.
    """

    context: int = 2048
    horizon: int = 512
    patch_len: int = 32
    embed_dim: int = 256
    num_heads: int = 8
    num_layers: int = 7
    ff_dim: int = 512
    attention: str = "toa-softmax"
    structure: str | None = None
    rank: int | None = None
    operator_std: float | None = None
    operator_init: str | None = None
    score_norm: str | None = None
    gate_norm: str | None = None
    rotary_base: int = 10_000
    quantiles: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

    def __post_init__(self) -> None:
        ModelConfig.__post_init__(self)
        for name in ("context", "horizon"):
            if getattr(self, name) % self.patch_len:
                raise ArgumentError(
                    name, f"be a multiple of patch_len={self.patch_len}", getattr(self, name), "change one of them"
                )
        levels = self.quantiles
        if list(levels) != sorted(set(levels)) or 0.5 not in levels or not 0.0 < levels[0] <= levels[-1] < 1.0:
            raise ArgumentError(
                "quantiles", "increase within (0, 1) and contain 0.5", shorten(levels), "sort them, add 0.5"
            )
        self.attention_spec()

    @property
    def patches(self) -> int:
        """Tokens of the longest context."""
        return self.context // self.patch_len

    @property
    def blocks(self) -> int:
        """Future tokens of the longest horizon."""
        return self.horizon // self.patch_len

    def attention_spec(self) -> AttentionSpec:
        """The attention of each layer. Operators are not regularized: synthetic series never repeat."""
        options = {
            name: getattr(self, name)
            for name in ("structure", "rank", "operator_std", "operator_init", "score_norm", "gate_norm")
        }
        if self.attention.startswith("toa-"):
            options["sor"] = False
        return AttentionSpec(name=self.attention, rotary_base=float(self.rotary_base), **options)

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: Name) -> "PretrainedConfig":
        """From the result of `to_json`; raises ValueError for unknown fields."""
        unknown = set(values) - {field.name for field in fields(cls)}
        if unknown:
            raise ArgumentError(
                where,
                "have the fields of a config of this version",
                shorten(sorted(unknown)),
                "install the version of toa that wrote it",
            )
        values = dict(values)
        if "quantiles" in values:
            values["quantiles"] = tuple(values["quantiles"])
        try:
            return cls(**values)
        except TypeError as error:
            raise ArgumentError(where, "have valid fields", f"an error: {error}", "restore the file") from None


# two sizes with the same context and horizon, about 1 M and 4.3 M weights with dense operators
SIZES: Mapping[str, Mapping[str, Any]] = {
    "small": {"embed_dim": 128, "num_heads": 4, "num_layers": 5, "ff_dim": 384},
    "large": {"embed_dim": 256, "num_heads": 8, "num_layers": 7, "ff_dim": 512},
}


class Scaled(NamedTuple):
    """A context (B, L) in scaled values, zero where missing, and what undoes the scaling."""

    values: Tensor
    observed: Tensor
    median: Tensor
    spread: Tensor


def scale_context(context: Tensor) -> Scaled:
    """Scale by median and spread: arcsinh((x - median) / spread), with NaN for missing values.

    The spread is the mean distance from the median, at least a small share of the median. A context without any value
    has median 0 and spread 1.
    """
    # infinite values are missing too
    observed = context.isfinite()
    values = context.masked_fill(~observed, 0.0)
    count = observed.sum(-1, keepdim=True)
    median = _median(context, observed, count)
    distance = ((values - median).abs() * observed).sum(-1, keepdim=True) / count.clamp(min=1)
    spread = torch.maximum(distance, SPREAD_FLOOR * median.abs()).clamp(min=LEAST_SPREAD)
    spread = spread.masked_fill(count == 0, 1.0)
    return Scaled(torch.asinh((values - median) / spread) * observed, observed, median, spread)


def _median(context: Tensor, observed: Tensor, count: Tensor) -> Tensor:
    """Mean of the two middle values that are observed, (B, 1); zero without any."""
    ordered = context.masked_fill(~observed, float("inf")).sort(-1).values
    low = ordered.gather(-1, ((count - 1) // 2).clamp(min=0))
    high = ordered.gather(-1, (count // 2).clamp(max=context.shape[-1] - 1))
    # halves first: the sum of two large numbers may overflow
    return (0.5 * low + 0.5 * high).masked_fill(count == 0, 0.0)


def scale_target(target: Tensor, scaled: Scaled) -> Tensor:
    """Values (B, P) that follow a context, scaled like it; NaN stays NaN."""
    return torch.asinh((target - scaled.median) / scaled.spread)


class FutureBlock(nn.Module):
    """Pre-norm attention and feed-forward, where context tokens are keys and all tokens are queries."""

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__()
        self.attention = config.attention_spec().build(config.embed_dim, config.num_heads, config.patches)
        self.attention_norm = LayerNorm(config.embed_dim)
        self.ff = FeedForward(config.embed_dim, config.ff_dim)
        self.ff_norm = LayerNorm(config.embed_dim)

    def forward(self, tokens: Tensor, padding: Tensor, positions: Tensor, *, future_only: bool = False) -> Tensor:
        """Encode tokens (B, N + F, E), those of the context first; return all, or those of the future alone.

        Args:
            padding: (B, N), True for patches without a value.
            positions: (N + F,), in patches.
        """
        count = padding.shape[1]
        first = count if future_only else 0
        normed = self.attention_norm(tokens)
        keys = normed[:, :count]
        attended = self.attention.attend(
            normed[:, first:], keys, keys, padding, positions=(positions[first:], positions[:count])
        )
        tokens = tokens[:, first:] + attended.output
        return tokens + self.ff(self.ff_norm(tokens))


class PretrainedForecaster(nn.Module):
    """Quantile forecasts of any series; see the description of this file.

    Args:
        facts: How the weights were trained, as JSON values; stored in config.json.
    """

    def __init__(self, config: PretrainedConfig, *, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.config = config
        self.facts: dict[str, Any] = dict(facts or {})
        inputs = 2 * config.patch_len
        self.embed = Linear(inputs, config.embed_dim)
        self.embed_ff = FeedForward(config.embed_dim, config.ff_dim)
        self.future = nn.Parameter(torch.empty(config.blocks, config.embed_dim).normal_(std=0.02))
        self.layers = nn.ModuleList(FutureBlock(config) for _ in range(config.num_layers))
        self.norm = LayerNorm(config.embed_dim)
        self.head = Linear(config.embed_dim, config.patch_len * len(config.quantiles))

    def forward(self, context: Tensor, horizon: int | None = None) -> Tensor:
        """Quantiles (B, P, Q) of the next values in the units of the context, in increasing order.

        Args:
            context: (B, L), at least one step, newest last; NaN for missing values.
            horizon: Steps to forecast; the longest horizon if None.
        """
        horizon = self.config.horizon if horizon is None else horizon
        check_at_least("horizon", horizon, 1)
        check_at_most("horizon", horizon, "that of the model", self.config.horizon, "forecast fewer steps")
        check_shape("context", context, "(B, L)", (None, None))
        check_at_least("length of the context", context.shape[1], 1)
        scaled = scale_context(context[:, -self.config.context :])
        blocks = -(-horizon // self.config.patch_len)
        decoded = self.forecast_scaled(scaled.values, scaled.observed, blocks)[:, :horizon]
        ordered = decoded.clamp(-LARGEST, LARGEST).sort(-1).values
        return scaled.median.unsqueeze(-1) + scaled.spread.unsqueeze(-1) * torch.sinh(ordered)

    def forecast_scaled(self, values: Tensor, observed: Tensor, blocks: int) -> Tensor:
        """Quantiles (B, F*S, Q) in scaled values, not in order, from a scaled context (B, L)."""
        size = self.config.patch_len
        missing = -values.shape[1] % size
        patches = F.pad(values, (missing, 0)).unflatten(1, (-1, size)).flip(1)  # (B, N, S), newest first
        seen = F.pad(observed, (missing, 0)).unflatten(1, (-1, size)).flip(1)
        tokens = self.embed(torch.cat((patches, seen.to(patches.dtype)), -1))
        tokens = tokens + self.embed_ff(tokens)  # (B, N, E)
        count = tokens.shape[1]
        future = self.future[:blocks].to(tokens.dtype).expand(tokens.shape[0], -1, -1)
        tokens = torch.cat((tokens, future), 1)  # (B, N + F, E)
        # the newest patch is always a key: attention needs one, and a context may hold no value
        padding = torch.cat((seen.new_zeros(seen.shape[0], 1), ~seen[:, 1:].any(-1)), 1)
        before = -torch.arange(count, device=tokens.device)
        after = torch.arange(1, blocks + 1, device=tokens.device)
        positions = torch.cat((before, after))
        for number, layer in enumerate(self.layers, 1):
            # nothing reads the context after the last layer
            tokens = layer(tokens, padding, positions, future_only=number == len(self.layers))
        decoded = self.head(self.norm(tokens))
        # products may run in 16 bits
        exact = decoded.to(torch.promote_types(decoded.dtype, torch.float32))
        return exact.unflatten(-1, (size, -1)).flatten(1, 2)

    def save_pretrained(self, folder: str | Path, *, dtype: torch.dtype = torch.float32) -> None:
        """Write config.json and model.safetensors; bfloat16 halves the file."""
        from safetensors.torch import save

        check_choice("dtype", str(dtype), ("torch.float32", "torch.bfloat16"))
        folder = Path(folder)
        weights = {name: value.detach().cpu().to(dtype).contiguous() for name, value in self.state_dict().items()}
        content = {"format": FORMAT, "config": self.config.to_json(), "facts": self.facts}
        text = json.dumps(seal(content, weights), indent=2, sort_keys=True) + "\n"
        write_together(folder, {WEIGHTS_FILE: save(weights), CONFIG_FILE: text.encode()})

    @classmethod
    def from_pretrained(cls, name: str | Path) -> "PretrainedForecaster":
        """Load weights in float32 from a folder, or by a name of `shipped_names`; the checksum must fit.

        Raises:
            ValueError: If there is no such folder or name, or a file was damaged.
        """
        folder = find_pretrained(name)
        contents = read_together(folder, (CONFIG_FILE, WEIGHTS_FILE))
        content = parse_json(contents[CONFIG_FILE], str(folder / CONFIG_FILE))
        weights = _read_weights(contents[WEIGHTS_FILE], folder / WEIGHTS_FILE)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ArgumentError(
                folder / CONFIG_FILE,
                f"have format {FORMAT} of a pretrained forecaster",
                "another file",
                "install the version of toa that wrote it",
            )
        plain, verified = unseal(content, str(folder), weights)
        if not verified:
            raise ArgumentError(folder / CONFIG_FILE, "have a checksum", "none", "restore the file")
        try:
            model = load_weights(plain["config"], weights, folder, facts=plain["facts"])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
            if isinstance(error, ValueError) and str(folder) in str(error):
                raise
            raise ArgumentError(
                folder,
                "hold a complete pretrained forecaster",
                f"one that does not fit this version of toa ({shorten(error)})",
                "restore the folder, or install the version of toa that wrote it",
            ) from None
        return model


def model_to_fill(config: PretrainedConfig, *, facts: Mapping[str, Any] | None = None) -> PretrainedForecaster:
    """A model whose random weights are to be replaced; the global random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        return PretrainedForecaster(config, facts=facts)


def load_weights(
    config: Mapping[str, Any], weights: Mapping[str, Tensor], where: Name, *, facts: Mapping[str, Any]
) -> PretrainedForecaster:
    """A model of a config in JSON values with these weights, in float32.

    Raises:
        ValueError: If the config is wrong, or does not fit the weights; before memory is taken for it.
    """
    for name, value in weights.items():
        if not value.isfinite().all():
            raise ArgumentError(where, "hold finite numbers", f"NaN or infinite ones in {name!r}", "restore the file")
    checked = PretrainedConfig.from_json(config, where)
    check_sizes({name: value for name, value in config.items() if name != "rotary_base"}, weights, where)
    model = model_to_fill(checked, facts=facts)
    try:
        model.load_state_dict({name: value.float() for name, value in weights.items()})
    except RuntimeError as error:
        reason = shorten(" ".join(str(error).split()))
        raise ArgumentError(where, "hold the weights of its config", f"others ({reason})") from None
    return model.eval()


def _read_weights(content: bytes, path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(content)
    except SafetensorError as error:
        raise ArgumentError(path, "hold the weights of a pretrained forecaster", f"an error: {error}") from None


# folder of the weights that are part of this package, one folder per model
SHIPPED = Path(__file__).parent / "weights"
# the model that is used unless another is named
DEFAULT_NAME = "small"


def shipped_names() -> tuple[str, ...]:
    """Names of the models whose weights are part of this package."""
    return tuple(sorted(path.parent.name for path in SHIPPED.glob(f"*/{CONFIG_FILE}")))


def find_pretrained(name: str | Path) -> Path:
    """The folder of a shipped model, or a folder that `save_pretrained` wrote."""
    shipped = shipped_names()
    if str(name) in shipped:
        return SHIPPED / str(name)
    folder = Path(name)
    if not (folder / CONFIG_FILE).is_file() or not (folder / WEIGHTS_FILE).is_file():
        listed = ", ".join(shipped) or "none are part of this version"
        raise ArgumentError(
            "model",
            f"be a folder with {CONFIG_FILE} and {WEIGHTS_FILE}, or the name of shipped weights ({listed})",
            repr(str(name)),
            "name a folder that save_pretrained wrote",
        )
    return folder


def pinball_loss(quantiles: Tensor, target: Tensor, levels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Mean pinball loss of quantiles (B, P, Q) of a target (B, P), over values that are not NaN.

    Per value and level q: max(q e, (q - 1) e) with e = target - quantile, times two, so that the median's is |e|.

    Args:
        levels: (Q,), on the device of the quantiles.
        weights: Weight of each step (P,); all equal if None.
    """
    observed = target.isfinite()
    error = target.masked_fill(~observed, 0.0).unsqueeze(-1) - quantiles
    loss = 2.0 * torch.maximum(levels * error, (levels - 1.0) * error).mean(-1)  # (B, P)
    share = observed.to(loss.dtype)
    if weights is not None:
        share = share * weights
    return (loss * share).sum() / share.sum().clamp(min=1e-12)


def step_weights(blocks: int, patch_len: int, exponent: float) -> Tensor:
    """Weight of each step (P,) in training: block j counts (j + 1)^-exponent, because most forecasts are short."""
    return torch.arange(1.0, blocks + 1.0).pow(-exponent).repeat_interleave(patch_len)

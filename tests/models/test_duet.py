from typing import Any

import pytest
import torch
from torch import Tensor

from tests.nn.test_sor import record_rates
from tests.support import assert_near, message, scatter_parameters
from toa.models import DUET, DUETConfig
from toa.nn import ATTENTIONS, AttentionSpec, SeriesDecomposition, share_drop_rate

# steps that a model reads
LOOKBACK = 12
# steps that it forecasts
HORIZON = 5
# number of channels
CHANNELS = 4
SIZES: dict[str, Any] = {
    "lookback": LOOKBACK,
    "horizon": HORIZON,
    "channels": CHANNELS,
    "embed_dim": 8,
    "num_heads": 2,
    "num_layers": 2,
    "ff_dim": 12,
    "num_experts": 3,
    "top_k": 2,
    "gate_dim": 6,
    "moving_average": 5,
}


def build(name: str = "softmax", **settings: Any) -> DUET:
    # a drop rate near one drops the whole operators, and with them the gradient
    attention = AttentionSpec(name=name, sor=False if name.startswith("toa") else None)
    return DUET(DUETConfig(**SIZES | settings, attention=attention))


def scattered(name: str = "softmax", **settings: Any) -> Any:
    """A model in float64 with all parameters changed from their start."""
    model = build(name, **settings)
    scatter_parameters(model, 0.5)
    with torch.no_grad():
        for parameter in (*model.norm.parameters(), *model.experts.parameters()):
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.double().eval()


def split(x: Tensor) -> Tensor:
    return x.unflatten(-1, (2, 4)).transpose(1, 2)


@pytest.mark.parametrize("channel_independent", [True, False])
def test_softmax_model_equals_its_formula(channel_independent):
    model = scattered(channel_independent=channel_independent)
    series = torch.randn(3, LOOKBACK, CHANNELS, dtype=torch.float64)
    mean = series.mean(1, keepdim=True)
    std = (series.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
    normalised = (series - mean) / std * model.norm.weight + model.norm.bias
    # the gate reads the raw series
    logits = model.gate.logits(series.mT if channel_independent else series.mean(2).unsqueeze(1)).softmax(-1)
    chosen = logits >= logits.topk(2, -1).values[..., -1:]
    gates = torch.where(chosen, logits, 0.0)
    gates = gates / (gates.sum(-1, keepdim=True) + 1e-6)
    parts = SeriesDecomposition(5)(normalised)
    x: Tensor = torch.zeros(())
    for e in range(3):
        token = sum(part.mT @ model.experts.weight[e, j] + model.experts.bias[e, j] for j, part in enumerate(parts))
        x = x + gates[..., e : e + 1] * token
    mask = (model.mask.probabilities(series) >= 0.5).double().unsqueeze(1)
    for block in model.blocks:
        attention = block.attention
        q, k, v = (split(p(x)) for p in (attention.q_proj, attention.k_proj, attention.v_proj))
        scores = (q @ k.mT) * mask + torch.log(torch.tensor(1e-10, dtype=torch.float64)) * (1 - mask)
        mixed = ((scores / 2.0).softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = block.attention_norm(x + attention.out_proj(mixed))
        x = block.ff_norm(x + block.ff(x))
    forecast = (model.token_norm(x) @ model.head.weight.T + model.head.bias).mT
    expected = (forecast - model.norm.bias) / (model.norm.weight + 1e-10) * std + mean
    assert_near(model(series), expected)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_the_mask_decides_which_channels_a_forecast_sees(name):
    model = scattered(name, num_layers=1, mask_sampling="never")
    series = torch.randn(2, LOOKBACK, CHANNELS, dtype=torch.float64)
    masks = []
    forward = model.blocks.forward

    def recorded(tokens: Tensor, *, pair_mask: Tensor) -> Any:
        masks.append(pair_mask)
        return forward(tokens, pair_mask=pair_mask)

    model.blocks.forward = recorded
    out = model(series)
    assert_near(masks[0], model.mask(series))
    model.mask.forward = lambda _: torch.ones(1, CHANNELS, CHANNELS, dtype=torch.float64)
    assert not torch.allclose(model(series), out)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_forecast_and_penalty_returns_the_penalty_of_the_gate(name):
    model = scattered(name)
    series = torch.randn(3, LOOKBACK, CHANNELS, dtype=torch.float64)
    forecast, penalty = model.forecast_and_penalty(series)
    assert_near(forecast, model(series))
    assert_near(penalty, model.gate(series.mT).penalty)
    assert penalty.shape == ()
    model.train().forecast_and_penalty(series)[1].backward()
    assert {n for n, p in model.named_parameters() if p.grad is not None and (p.grad != 0).any()} == {
        n for n, _ in model.named_parameters() if n.startswith("gate.")
    }


def test_a_training_pass_draws_one_drop_rate_for_all_layers(monkeypatch):
    spec = AttentionSpec(name="toa-gated")
    model = DUET(DUETConfig(**SIZES, attention=spec)).train()
    assert share_drop_rate(model) == 2
    rates = record_rates(monkeypatch)
    for _ in range(3):
        model.forecast_and_penalty(torch.randn(2, LOOKBACK, CHANNELS))
    # three operators in each of two layers
    passes = [{rate.item() for rate in rates[i : i + 6]} for i in (0, 6, 12)]
    assert [len(drawn) for drawn in passes] == [1, 1, 1]
    assert len(set.union(*passes)) == 3


@pytest.mark.parametrize("name", ATTENTIONS)
def test_autocast_and_a_series_in_bfloat16_train(name):
    model = build(name)
    series = torch.randn(4, LOOKBACK, CHANNELS)
    for given in (series, series.bfloat16()):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            forecast, penalty = model.forecast_and_penalty(given)
        assert penalty.dtype == torch.float32
        (forecast.float().square().mean() + penalty).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", ATTENTIONS)
def test_every_parameter_learns_from_forecast_and_penalty(name):
    model = scattered(name).train()
    forecast, penalty = model.forecast_and_penalty(torch.randn(6, LOOKBACK, CHANNELS, dtype=torch.float64))
    (forecast.square().mean() + penalty).backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert (parameter.grad != 0).any(), parameter_name


@pytest.mark.parametrize("channel_independent", [True, False])
def test_channels_in_another_order_are_forecast_in_that_order(channel_independent):
    model = build(channel_independent=channel_independent).double().eval()
    series = torch.randn(2, LOOKBACK, CHANNELS, dtype=torch.float64)
    order = [2, 0, 3, 1]
    assert_near(model(series[..., order]), model(series)[..., order])


def test_one_channel_has_no_attention():
    models = [build(name, channels=1, mask_sampling="always").eval() for name in ATTENTIONS]
    assert {len(list(model.named_parameters())) for model in models} == {11}
    series = torch.randn(2, LOOKBACK, 1)
    for model in models:
        model.load_state_dict(models[0].state_dict())
        assert torch.equal(model(series), models[0](series))
    assert models[0](series).shape == (2, HORIZON, 1)


def test_mask_sampling_decides_whether_evaluation_is_random():
    series = torch.randn(20, LOOKBACK, CHANNELS, dtype=torch.float64)
    random, fixed = (scattered(mask_sampling=sampling) for sampling in ("always", "training"))
    assert not torch.equal(random(series), random(series))
    assert torch.equal(fixed(series), fixed(series))


def test_settings_reach_their_layers():
    model: Any = build(dropout=0.3, head_dropout=0.4, noisy_gating=False, mask_sampling="never")
    assert [(b.attention.dropout, b.attention_dropout.p, b.ff[2].p, b.ff[4].p) for b in model.blocks] == [
        (0.3,) * 4
    ] * 2
    assert not any(block.norm_first for block in model.blocks)
    assert model.head.dropout.p == 0.4
    assert model.gate.noise is None
    assert model.mask.sampling == "never"
    assert (model.gate.num_experts, model.gate.top_k, model.gate.logits[0].out_features) == (3, 2, 6)
    assert model.experts.decompose.kernel == 5


BAD: list[tuple[dict[str, Any], str]] = [
    ({"top_k": 4}, "top_k must be at most num_experts=3, got 4; use top_k=3, which gates all of them, or more"),
    ({"moving_average": 13}, "moving_average must be at most the length of the series, 12, got 13; use a shorter"),
    ({"moving_average": 4}, "moving_average must be odd, so that it has a middle, got 4; use 5, for instance."),
    ({"mask_sampling": "eval"}, "unknown mask_sampling 'eval'; known: always, training, never."),
]


@pytest.mark.parametrize(("settings", "text"), BAD, ids=str)
def test_bad_settings_raise(settings, text):
    with pytest.raises(ValueError, match=message(text)):
        build(**settings)


def test_other_channels_and_marks_raise():
    text = "series must have channels=4, got 3: shape (2, 12, 3); build the model with channels=3."
    series = torch.zeros(2, LOOKBACK, CHANNELS)
    for call in (build(), build().forecast_and_penalty):
        with pytest.raises(ValueError, match=message(text)):
            call(series[..., 1:])
        with pytest.raises(ValueError, match=message("marks must be None", "got shape (2, 12, 4); leave them out.")):
            call(series, series)

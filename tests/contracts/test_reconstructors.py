import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support import assert_near, message, scatter_parameters
from toa.models import ReconstructModel, backbone_names, build_reconstructor
from toa.nn import ATTENTIONS, AttentionSpec

# steps of a window
LENGTH = 36
# number of channels
CHANNELS = 3
SIZES = {"embed_dim": 8, "num_heads": 2, "num_layers": 2, "ff_dim": 12}

every_model = pytest.mark.parametrize("model", backbone_names("reconstruct"))
PAIRS = [(model, attention) for model in backbone_names("reconstruct") for attention in ATTENTIONS]
# quick ones are every model with two attentions, and one model with every attention
every_pair = pytest.mark.parametrize(
    ("model", "attention"),
    [
        pytest.param(
            *pair, marks=() if pair[1] in ("softmax", "toa-gated") or pair[0] == "patchtst" else pytest.mark.slow
        )
        for pair in PAIRS
    ],
)
# a claim about models alone is checked with one attention; the others are slow tests
every_style = pytest.mark.parametrize(
    ("model", "attention"),
    [pytest.param(*pair, marks=() if pair[1] == "toa-gated" else pytest.mark.slow) for pair in PAIRS],
)


def build(model: str, attention: str = "softmax", *, sor: bool | None = None, **settings: Any) -> ReconstructModel:
    spec = AttentionSpec(name=attention, sor=sor if attention.startswith("toa") else None)
    return build_reconstructor(
        model, lookback=LENGTH, channels=CHANNELS, attention=spec, settings={**SIZES, "dropout": 0.0, **settings}
    )


def series(batch: int = 4) -> Tensor:
    return torch.randn(batch, LENGTH, CHANNELS)


@every_pair
def test_a_series_comes_back_with_its_shape_and_every_parameter_a_finite_gradient(model: str, attention: str):
    built = build(model, attention)
    for batch in (1, 4):
        out = built(series(batch))
        assert out.shape == (batch, LENGTH, CHANNELS)
    out.square().mean().backward()
    for name, parameter in built.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@every_pair
def test_evaluation_is_deterministic_and_does_not_mix_the_batch(model: str, attention: str):
    built = build(model, attention, dropout=0.5).eval()
    scatter_parameters(built, 0.1)
    x = series()
    out = built(x)
    assert torch.equal(built(x), out)
    assert_near(built(x[1:2]), out[1:2], 1e-5)


@every_style
def test_state_and_copies_contain_the_complete_model(model: str, attention: str):
    built, other = build(model, attention), build(model, attention)
    x = series()
    built(x)
    scatter_parameters(built, 0.1)
    other.load_state_dict(built.state_dict())
    expected = built.eval()(x)
    assert torch.equal(other.eval()(x), expected)
    assert torch.equal(copy.deepcopy(built).eval()(x), expected)


@every_style
def test_a_few_steps_of_training_lower_the_error(model: str, attention: str):
    built = build(model, attention, sor=False)
    x = series(8)
    optimizer = torch.optim.Adam(built.parameters(), lr=1e-2)
    errors = []
    for _ in range(8):
        optimizer.zero_grad()
        error = (built(x) - x).square().mean()
        error.backward()
        optimizer.step()
        errors.append(error.item())
    assert errors[-1] < 0.9 * errors[0]


@every_model
def test_settings_that_are_left_out_are_the_librarys(model: str):
    body: Any = build(model).body
    if model == "transformer":
        config = body.config
        assert (config.values, config.positions, config.norm_first) == ("conv", "sinusoidal", False)
        assert not any(isinstance(module, nn.BatchNorm1d) for module in body.modules())
    else:
        # level and scale of a window are removed and restored
        assert body.config.instance_norm
        assert body.horizon == LENGTH
        assert getattr(body.backbone.config, "style", "tslib") == "tslib"


@every_model
def test_only_a_model_with_instance_norm_follows_level_and_scale(model: str):
    built = build(model).double().eval()
    x = series().double() * 100.0
    moved = built(2.0 * x + 7.0)
    expected = 2.0 * built(x) + 7.0
    same = torch.allclose(moved, expected, rtol=1e-6)
    assert same == (model != "transformer")


@every_model
def test_wrong_series_raise(model: str):
    built = build(model)
    with pytest.raises(ValueError, match=message(f"series must have lookback={LENGTH} steps, got 5")):
        built(torch.zeros(2, 5, CHANNELS))
    with pytest.raises(ValueError, match=message("series must have 3 axes (B, L, C), got 2")):
        built(torch.zeros(LENGTH, CHANNELS))
    if model != "patchtst":
        with pytest.raises(ValueError, match=message(f"series must have channels={CHANNELS}, got 4")):
            built(torch.zeros(2, LENGTH, 4))


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match=message("unknown backbone 'dlinear'; known: itransformer, patchtst, tr")):
        build("dlinear")
    with pytest.raises(ValueError, match=message("unknown setting 'd_model' of model 'transformer'; known: embed_dim")):
        build("transformer", d_model=8)
    with pytest.raises(ValueError, match=message("unknown attention 'toa'")):
        build("patchtst", "toa")
    with pytest.raises(ValueError, match=message("lookback must be at least patch_len=16, got 15")):
        build_reconstructor("patchtst", lookback=15, channels=1, attention="softmax", settings=SIZES)

from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.support import message
from toa import ops
from toa.nn import (
    ATTENTIONS,
    Attention,
    AttentionSpec,
    DiagonalLowRankOperator,
    HyperGLUAttention,
    SoftmaxAttention,
    TemporalOperatorAttention,
    build_attention,
    registry,
)

NAMES = ("softmax", *(f"toa-{name}" for name in ops.ACTIVATIONS), "hyperglu")


def test_every_attention_is_registered_once() -> None:
    assert {*NAMES, "relu", "gated", "output-gated", "differential", "sigmoid", "cog"} == set(ATTENTIONS)


@pytest.mark.parametrize("name", NAMES)
def test_name_builds_its_layer(name) -> None:
    layer = build_attention(name, 8, 2, 5, dropout=0.25)
    kinds: dict[str, type[Attention]] = {"softmax": SoftmaxAttention, "hyperglu": HyperGLUAttention}
    expected = kinds.get(name, TemporalOperatorAttention)
    assert type(layer) is expected
    assert (layer.embed_dim, layer.num_heads, layer.num_tokens, layer.dropout) == (8, 2, 5, 0.25)
    if isinstance(layer, TemporalOperatorAttention):
        assert f"toa-{layer.variant}" == name


def test_unknown_name_lists_the_choices() -> None:
    pattern = message("unknown attention 'toa-tanh'", "toa-relu", "cog")
    with pytest.raises(ValueError, match=pattern):
        build_attention("toa-tanh", 8, 2, 5)
    with pytest.raises(ValueError, match=pattern):
        AttentionSpec(name="toa-tanh")


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("softmax", "score_norm", "l2"),
        ("softmax", "sor", False),
        ("softmax", "structure", "dense"),
        ("toa-relu", "gate_norm", "l2"),
        ("toa-softmax", "gate_norm", "none"),
        ("hyperglu", "scale", 1.0),
        ("hyperglu", "sor_max_rate", 0.5),
    ],
)
def test_unknown_option_of_an_attention_raises(name, option, value) -> None:
    known = ", ".join(ATTENTIONS[name].options)
    pattern = message(f"{option} is not an option of attention '{name}', got {value!r}; its options: {known}.")
    with pytest.raises(ValueError, match=pattern):
        AttentionSpec(name=name, **{option: value})


def test_spec_passes_every_option_to_the_layer() -> None:
    options: dict[str, Any] = {
        "score_norm": "l2",
        "gate_norm": "l2",
        "scale": 0.3,
        "structure": "dplr",
        "rank": 3,
        "operator_std": 0.5,
        "sor": True,
        "sor_sharing": "operator",
        "sor_max_rate": 0.5,
        "bandwidth": None,
        "operator_init": "identity",
        "rotary_base": 100.0,
        "qk_dim": 6,
        "bias": False,
        "dropout": 0.3,
        "backend": "reference",
    }
    # every field, so that a new one cannot be forgotten
    assert {"name", *options} == {f.name for f in fields(AttentionSpec)}
    assert set(options) == set(ATTENTIONS["toa-gated"].options)
    layer = AttentionSpec(name="toa-gated", **options).build(8, 2, 5, causal=True)
    assert isinstance(layer, TemporalOperatorAttention)
    assert isinstance(layer.s1, DiagonalLowRankOperator)
    assert layer.sor is not None
    assert (layer.score_norm, layer.gate_norm, layer.scale, layer.qk_dim) == ("l2", "l2", 0.3, 6)
    assert layer.rotary_base == 100.0
    assert (layer.s1.rank, layer.s1.init_std) == (3, 0.5)
    assert (layer.sor.sharing, layer.sor.max_rate) == ("operator", 0.5)
    assert "bias" not in " ".join(layer.state_dict())
    assert (layer.backend, layer.causal) == ("reference", True)


def test_spec_without_options_keeps_the_layers_defaults() -> None:
    layer = AttentionSpec(name="toa-gated").build(8, 2, 5)
    default = TemporalOperatorAttention(8, 2, 5)
    assert isinstance(layer, TemporalOperatorAttention)
    assert repr(layer) == repr(default)
    assert (layer.scale, layer.score_norm) == (default.scale, default.score_norm) == (0.5, "none")


def test_spec_is_frozen_data() -> None:
    spec = AttentionSpec(name="toa-relu", score_norm="l2", sor=False)
    assert spec.options() == {"score_norm": "l2", "sor": False}
    assert spec == AttentionSpec(name="toa-relu", score_norm="l2", sor=False)
    assert replace(spec, score_norm="mean").options()["score_norm"] == "mean"
    with pytest.raises(FrozenInstanceError):
        spec.name = "softmax"  # type: ignore[misc]


def test_false_and_zero_count_as_set_options() -> None:
    layer = AttentionSpec(name="toa-relu", sor=False, operator_std=0.0, bias=False).build(8, 2, 5)
    assert isinstance(layer, TemporalOperatorAttention)
    assert layer.sor is None
    assert torch.equal(layer.s1.dense(), torch.eye(5).expand(2, 5, 5))


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_gets_a_gradient(name) -> None:
    layer = build_attention(name, 8, 2, 5)
    layer.eval()  # SOR may drop a whole operator
    x = torch.randn(4, 5, 8)
    layer(x, x, x)[0].square().sum().backward()
    assert [n for n, p in layer.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []


@pytest.mark.parametrize("name", NAMES)
def test_state_dict_round_trip_restores_the_layer(name) -> None:
    first, second = (build_attention(name, 8, 2, 5).eval() for _ in range(2))
    x = torch.randn(2, 5, 8)
    assert not torch.equal(first(x, x, x)[0], second(x, x, x)[0])
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x, x, x)[0], second(x, x, x)[0])


@pytest.mark.parametrize("name", NAMES)
def test_layer_reports_its_backend_and_activation(monkeypatch, name) -> None:
    layer = build_attention(name, 8, 2, 5)
    seen = []

    def recorded(*args, **options):
        seen.append((options.get("activation", "softmax"), options["backend"]))
        return run(*args, **options)

    run = ops.operator_attention
    monkeypatch.setattr(ops, "operator_attention", recorded)
    x = torch.randn(1, 5, 8)
    layer(x, x, x)
    assert seen == [(layer.activation, "auto")]
    assert layer.chosen_backend() == "folded"
    layer.backend = "reference"
    assert layer.chosen_backend() == "reference"


@pytest.mark.parametrize("name", ATTENTIONS)
def test_dropout_of_a_spec_overrides_that_of_the_backbone(name):
    assert build_attention(name, 8, 2, 5, dropout=0.1).dropout == 0.1
    spec = AttentionSpec(name=name, dropout=0.4)
    assert spec.build(8, 2, 5, dropout=0.1).dropout == 0.4
    assert spec.resolved().dropout == 0.4
    assert AttentionSpec(name=name).resolved().dropout is None


def test_new_attention_needs_one_class_and_one_line(monkeypatch):
    class ScaledAttention(SoftmaxAttention):
        def __init__(self, *sizes: int, scale: float = 0.5, **options: Any) -> None:
            super().__init__(*sizes, **options)
            self.scale = scale

    # the entry is removed again after the test
    monkeypatch.setitem(ATTENTIONS, "scaled", None)
    del ATTENTIONS["scaled"]
    registry._register("scaled", ScaledAttention)
    assert list(ATTENTIONS["scaled"].options) == ["scale", "qk_dim", "bias", "dropout", "backend", "rotary_base"]
    assert AttentionSpec(name="scaled").resolved().scale == 0.5
    layer: Any = AttentionSpec(name="scaled", scale=2.0, qk_dim=3).build(8, 2, 5)
    assert (layer.scale, layer.qk_dim) == (2.0, 3)


@pytest.mark.parametrize(
    ("option", "value", "parts"),
    [
        ("scale", "x", ("scale must be of type float", "'x'")),
        ("operator_std", True, ("operator_std must be of type float", "True")),
        ("rank", 1.5, ("rank must be of type int", "1.5")),
        ("sor", 1, ("sor must be of type bool", "1")),
        ("operator_init", "wavelet", ("unknown operator_init 'wavelet'", "centering")),
        ("structure", 3, ("unknown structure 3", "dense")),
    ],
)
def test_an_option_of_the_wrong_type_is_refused(option: str, value: Any, parts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=message(*parts)):
        AttentionSpec(name="toa-gated", **{option: value})


def test_numbers_of_numpy_are_numbers() -> None:
    options: dict[str, Any] = {"rank": np.int64(3), "structure": "dplr", "dropout": np.float32(0.5), "scale": 1}
    assert AttentionSpec(name="toa-relu", **options).options() == options

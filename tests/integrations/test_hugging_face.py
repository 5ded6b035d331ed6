import copy
from typing import Any

import pytest
import torch
from torch import nn

from tests.support import assert_near, message, scatter_parameters
from toa.integrations import convert

pytest.importorskip("transformers", reason="transformers is not installed; it comes with toa[hf]")

import transformers

# steps of a patch
PATCHES = 4
# steps that a model reads
CONTEXT = 32
# steps that it forecasts
HORIZON = 5
# number of channels
CHANNELS = 3
SMALL: dict[str, Any] = {"intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16}


def patchtst(attention: str = "sdpa", **settings: Any) -> nn.Module:
    # every model's config takes this argument, although its type does not list it
    settings["attn_implementation"] = attention
    config = transformers.PatchTSTConfig(
        num_input_channels=CHANNELS,
        context_length=CONTEXT,
        patch_length=CONTEXT // PATCHES,
        patch_stride=CONTEXT // PATCHES,
        prediction_length=HORIZON,
        d_model=16,
        num_attention_heads=2,
        num_hidden_layers=2,
        ffn_dim=16,
        **settings,
    )
    return transformers.PatchTSTForPrediction(config)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"pre_norm": False}, {"use_cls_token": True}, {"channel_attention": True}, {"bias": False}],
    ids=str,
)
def test_converted_patchtst_has_the_same_outputs(attention, settings) -> None:
    old = patchtst(attention, **settings).eval()
    new = copy.deepcopy(old)
    report = convert(new, num_tokens=PATCHES + 1)
    assert [entry.path for entry in report.replaced] == [f"model.encoder.layers.{i}.self_attn" for i in (0, 1)]
    assert report.kept == ()
    assert report.unchanged
    series = torch.randn(7, CONTEXT, CHANNELS)
    assert_near(new(series).prediction_outputs, old(series).prediction_outputs, 1e-5)
    scatter_parameters(new)
    assert (new(series).prediction_outputs - old(series).prediction_outputs).abs().max() > 1e-2


def test_a_converted_patchtst_returns_its_mixing_operators_as_attentions() -> None:
    old = patchtst("eager").eval()
    series = torch.randn(2, CONTEXT, CHANNELS)
    expected = old(series, output_attentions=True).attentions
    convert(old, num_tokens=PATCHES)
    for got, exact in zip(old(series, output_attentions=True).attentions, expected, strict=True):
        assert_near(got, exact, 1e-5)


@pytest.mark.parametrize("variant", ["toa-softmax", "toa-gated"])
def test_further_training_lowers_the_loss_and_learns_the_operators(variant) -> None:
    model = convert(patchtst(), variant, num_tokens=PATCHES).model.train()
    series, target = torch.randn(16, CONTEXT, CHANNELS), torch.randn(16, HORIZON, CHANNELS)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = model(past_values=series, future_values=target).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.95 * losses[0]
    offsets = [p for name, p in model.named_parameters() if name.endswith(".offset")]
    assert len(offsets) == (6 if variant == "toa-gated" else 4)
    assert all(offset.abs().max() > 0 for offset in offsets)


def test_converted_bert_has_the_same_outputs_with_padding() -> None:
    old = transformers.BertModel(transformers.BertConfig(vocab_size=50, **SMALL)).eval()
    report = convert(new := copy.deepcopy(old), num_tokens=8)
    assert [entry.kind for entry in report.replaced] == ["BertSelfAttention"] * 2
    tokens = torch.randint(50, (2, 7))
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[1, 5:] = 0
    got, exact = (model(tokens, attention_mask=mask)[0] for model in (new, old))
    assert_near(got[mask.bool()], exact[mask.bool()], 1e-5)


def test_rotary_attention_is_kept_with_a_reason() -> None:
    model = transformers.LlamaModel(transformers.LlamaConfig(vocab_size=50, num_key_value_heads=2, **SMALL))
    with pytest.raises(ValueError, match=message("layers.0.self_attn (LlamaAttention): it")):
        convert(model, num_tokens=8)

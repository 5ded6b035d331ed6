"""Operator attention by name in unmodified models of transformers."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support import assert_near, message
from toa import ops

pytest.importorskip("transformers", reason="transformers is not installed; it comes with toa[hf]")

import transformers

from toa.integrations import hugging_face

SMALL: dict[str, Any] = {"intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 16}
TOKENS = torch.randint(1, 50, (2, 9), generator=torch.Generator().manual_seed(0))
NAMES = [f"toa-{name}" for name in ops.ACTIVATIONS]


def llama(attention: str = "sdpa", kind: str = "Llama", **settings: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=50, num_key_value_heads=2, attn_implementation=attention, **SMALL, **settings
    )
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


def with_operators(model: nn.Module, **options: Any) -> Any:
    return hugging_face.add_operators(model, {"input_ids": TOKENS[:, :2]}, num_tokens=16, **options)


def steps(model: nn.Module) -> Tensor:
    """Logits of five tokens at once, then one at a time with a cache."""
    past = None
    found = []
    for part in TOKENS.split((5, 1, 1, 1, 1), 1):
        out = model(part, past_key_values=past, use_cache=True)
        past = out.past_key_values
        found.append(out.logits)
    return torch.cat(found, 1)


@pytest.mark.parametrize("structure", ["dense", "toeplitz"])
@pytest.mark.parametrize("name", NAMES)
def test_decoding_with_the_models_cache_equals_the_full_pass(name, structure) -> None:
    model = with_operators(llama(name), operator_std=0.3, structure=structure, score_norm="rms")
    assert_near(steps(model), model(TOKENS).logits, 1e-6)


def test_a_cache_that_has_dropped_keys_raises() -> None:
    model = with_operators(llama("toa-relu", "Mistral", sliding_window=4), operator_std=0.3)
    with pytest.raises(ValueError, match=message("the cache must keep all tokens", "use_cache=False")):
        steps(model)


def test_keys_that_a_cache_has_dropped_are_counted() -> None:
    with pytest.raises(ValueError, match=message("dropped the first 3")):
        hugging_face._padding(2, q_length=1, kv_length=4, q_offset=6, kv_offset=3)


@pytest.mark.parametrize("name", NAMES)
def test_every_operator_learns_and_padding_changes_nothing(name) -> None:
    model = with_operators(llama(name), operator_std=0.3)
    mask = torch.ones_like(TOKENS)
    mask[1, 6:] = 0
    out = model(TOKENS, attention_mask=mask).logits
    assert_near(out[1, :6], model(TOKENS[1:, :6]).logits[0], 1e-6)
    added = {n: p for n, p in model.named_parameters() if "toa_operators" in n}
    assert len(added) == 2 * (5 if name == "toa-gated" else 2)
    for parameter, grad in zip(added, torch.autograd.grad(out.square().sum(), list(added.values())), strict=True):
        assert grad.abs().max() > 0, parameter


@pytest.mark.parametrize("kind", ["Llama", "Mistral"])
def test_softmax_with_zero_offsets_is_the_models_own_attention(kind) -> None:
    settings: dict[str, Any] = {"sliding_window": 3} if kind == "Mistral" else {}
    model = llama(kind=kind, **settings)
    expected = model(TOKENS).logits
    model.set_attn_implementation("toa-softmax")
    with_operators(model, operator_std=0.0)
    assert_near(model(TOKENS).logits, expected, 1e-5)


def test_an_encoder_of_series_takes_it() -> None:
    sizes: dict[str, Any] = {"num_input_channels": 3, "context_length": 32, "patch_length": 8, "patch_stride": 8}
    sizes |= {"prediction_length": 5, "d_model": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "ffn_dim": 16}
    config = transformers.PatchTSTConfig(**sizes | {"attn_implementation": "toa-softmax"})
    model = transformers.PatchTSTForPrediction(config).eval()
    series = torch.randn(2, 32, 3)
    hugging_face.add_operators(model, {"past_values": series}, num_tokens=4, operator_std=0.0)
    got = model(series).prediction_outputs
    model.set_attn_implementation("sdpa")
    assert_near(got, model(series).prediction_outputs, 1e-5)


def test_wrong_uses_raise_and_name_the_remedy() -> None:
    model = llama("toa-relu")
    with pytest.raises(ValueError, match=message("LlamaAttention must have operators for toa-relu, got none")):
        model(TOKENS)
    with_operators(model)
    with pytest.raises(ValueError, match=message("model must have no operators yet", "add them once")):
        with_operators(model)
    with pytest.raises(ValueError, match=message("unknown attn_implementation 'sdpa'; known: toa-softmax")):
        with_operators(llama())
    mask = torch.ones_like(TOKENS)
    mask[0, :3] = 0
    with pytest.raises(ValueError, match=message("attention_mask must pad at the end", "padding_side='right'")):
        model(TOKENS, attention_mask=mask)
    with pytest.raises(ValueError, match=message("an operator on at most 16 tokens, got a sequence of 18", "resize")):
        model(TOKENS.repeat(1, 2))
    model.set_attn_implementation("toa-gated")
    with pytest.raises(ValueError, match=message("operators for toa-gated, got those of toa-relu")):
        model(TOKENS)


def test_a_mask_of_another_pattern_raises() -> None:
    model = with_operators(llama("toa-relu"))
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]] * 2)
    with pytest.raises(ValueError, match=message("the mask must be full, causal", "no packed sequences")):
        model(TOKENS, position_ids=positions, use_cache=False)

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import toa
from tests.support import assert_near, message, scatter_parameters
from toa.integrations import MultiheadAdapter, ProjectionAdapter, convert
from toa.models import build_forecaster
from toa.nn import AttentionSpec, SequenceOperator, SoftmaxAttention, TemporalOperatorAttention

# embedding width
E = 8
# number of heads
H = 2
# number of tokens, or of keys
N = 6
# batch size
B = 3
VARIANTS = ("softmax", "toa-softmax", "toa-relu", "toa-gated")


def multihead(**settings: Any) -> nn.MultiheadAttention:
    module = nn.MultiheadAttention(E, H, **settings)
    for name, parameter in module.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter)
    return module.eval()


def converted(module: nn.Module, variant: str | AttentionSpec = "toa-softmax", num_tokens: int = N + 2) -> Any:
    return convert(copy.deepcopy(module), variant, num_tokens=num_tokens).model


def operators(module: nn.Module) -> list[SequenceOperator]:
    return [part for part in module.modules() if isinstance(part, SequenceOperator)]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("widths", [{}, {"kdim": 5, "vdim": 7}, {"kdim": 5}], ids=str)
@pytest.mark.parametrize("variant", ["softmax", "toa-softmax"])
def test_converted_multihead_attention_has_the_same_outputs(batch_first, bias, widths, variant) -> None:
    old = multihead(batch_first=batch_first, bias=bias, **widths).double()
    new = converted(old, variant)
    shape = (B, N) if batch_first else (N, B)
    inputs = [torch.randn(*shape, width, dtype=torch.float64) for width in (E, old.kdim, old.vdim)]
    for average in (True, False):
        for got, exact in zip(
            new(*inputs, average_attn_weights=average), old(*inputs, average_attn_weights=average), strict=True
        ):
            assert_near(got, exact)
    assert new(*inputs, need_weights=False)[1] is None
    assert new.attention.chosen_backend() == "folded"


def test_self_attention_and_inputs_without_a_batch_have_the_same_outputs() -> None:
    old = multihead(batch_first=True).double()
    new = converted(old)
    for x in (torch.randn(B, N, E, dtype=torch.float64), torch.randn(N, E, dtype=torch.float64)):
        for got, exact in zip(new(x, x, x), old(x, x, x), strict=True):
            assert_near(got, exact)
    mask = torch.zeros(N, dtype=torch.bool)
    mask[-2:] = True
    assert_near(new(x, x, x, key_padding_mask=mask)[0], old(x, x, x, key_padding_mask=mask)[0])


def padding(dtype: torch.dtype) -> Tensor:
    mask = torch.zeros(B, N, dtype=torch.bool)
    mask[1, -2:] = True
    return mask if dtype == torch.bool else torch.zeros(B, N, dtype=dtype).masked_fill(mask, -torch.inf)


def causal(dtype: torch.dtype, n: int = N) -> Tensor:
    mask = torch.ones(n, n, dtype=torch.bool).triu(1)
    return mask if dtype == torch.bool else torch.zeros(n, n, dtype=dtype).masked_fill(mask, -torch.inf)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("is_causal", [True, False])
def test_causal_and_padding_masks_have_the_same_effect(dtype, padded, is_causal) -> None:
    old = multihead(batch_first=True)
    x = torch.randn(B, N, E)
    masks = {"key_padding_mask": padding(dtype) if padded else None, "attn_mask": causal(dtype), "is_causal": is_causal}
    assert_near(converted(old)(x, x, x, **masks)[0], old(x, x, x, **masks)[0], 1e-6)
    per_head = {**masks, "attn_mask": causal(dtype).expand(B * H, -1, -1), "is_causal": False}
    assert_near(converted(old)(x, x, x, **per_head)[0], old(x, x, x, **per_head)[0], 1e-6)


def test_a_causal_mask_also_applies_to_the_operators() -> None:
    new = scatter_parameters(converted(multihead(batch_first=True)))
    x = torch.randn(B, N, E)
    changed = x.clone()
    changed[:, 4:] += 1.0
    before, after = (new(v, v, v, attn_mask=causal(torch.bool))[0] for v in (x, changed))
    assert_near(after[:, :4], before[:, :4], 1e-6)


def test_unsupported_masks_raise_at_the_call() -> None:
    new = converted(multihead(batch_first=True))
    x = torch.randn(B, N, E)
    bias = torch.zeros(N, N)
    bias[0, 1] = 0.5
    with pytest.raises(ValueError, match=message("attn_mask must hold only 0 and -inf", "1 other", "0.5")):
        new(x, x, x, attn_mask=bias)
    pair = torch.zeros(N, N, dtype=torch.bool)
    pair[3, 1] = True
    with pytest.raises(ValueError, match=message("attn_mask must be the causal mask", "hides 1 of 36 pairs")):
        new(x, x, x, attn_mask=pair)
    with pytest.raises(ValueError, match=message("attn_mask must be given with is_causal=True", "got None")):
        new(x, x, x, is_causal=True)
    for shape in ((N + 3, N + 3), (N, N + 1), (B, N, N)):
        with pytest.raises(ValueError, match=message("attn_mask must have shape (6, 6) or (6, 6, 6)", f"got {shape}")):
            new(x, x, x, attn_mask=torch.zeros(shape).bool())
    with pytest.raises(ValueError, match=message("key_padding_mask must hold only 0 and -inf", "18 other", "0.1")):
        new(x, x, x, key_padding_mask=torch.full((B, N), 0.1))
    with pytest.raises(ValueError, match=message("key_padding_mask must be bool or floating point, got torch.int64")):
        new(x, x, x, key_padding_mask=torch.zeros(B, N, dtype=torch.long))
    long = torch.randn(B, N + 3, E)
    with pytest.raises(ValueError, match=message("at most 8 tokens, got a sequence of 9", "resize(9)")):
        new(long, long, long)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
# a warning of PyTorch about its own fast path, which the encoder is compared with
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_transformer_encoder_has_the_same_outputs_on_every_path(batch_first, norm_first) -> None:
    layer = nn.TransformerEncoderLayer(E, H, 12, dropout=0.1, batch_first=batch_first, norm_first=norm_first)
    # the fast path turns padding into nested tensors
    old = nn.TransformerEncoder(layer, 2, enable_nested_tensor=batch_first and not norm_first).eval()
    new = converted(old)
    x = torch.randn(B, N, E) if batch_first else torch.randn(N, B, E)
    real = ~padding(torch.bool) if batch_first else ~padding(torch.bool).T
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            assert_near(new(x), old(x), 1e-5)
            for is_causal in (True, None):
                assert_near(
                    new(x, mask=causal(torch.float32), is_causal=is_causal), old(x, mask=causal(torch.float32)), 1e-5
                )
            got, exact = (m(x, src_key_padding_mask=padding(torch.bool)) for m in (new, old))
            assert_near(got[real], exact[real], 1e-5)


def test_the_fast_path_does_not_skip_the_operators() -> None:
    old = nn.TransformerEncoder(nn.TransformerEncoderLayer(E, H, 12, batch_first=True), 2).eval()
    new = scatter_parameters(converted(old))
    x = torch.randn(B, N, E)
    with_grad = new(x)
    with torch.no_grad():
        assert_near(new(x), with_grad, 1e-6)
        assert (new(x) - old(x)).abs().max() > 1e-2
        padded = new(x, src_key_padding_mask=padding(torch.bool))
    assert_near(padded, new(x, src_key_padding_mask=padding(torch.bool)), 1e-6)


def test_transformer_with_a_decoder_has_the_same_outputs() -> None:
    old = nn.Transformer(E, H, 1, 2, 12, batch_first=True).eval()
    report = convert(new := copy.deepcopy(old), num_tokens=N + 2)
    assert [entry.path for entry in report.replaced] == [
        "encoder.layers.0.self_attn",
        *(f"decoder.layers.{i}.{name}" for i in (0, 1) for name in ("self_attn", "multihead_attn")),
    ]
    source = torch.randn(B, N, E)
    target = torch.randn(B, 4, E)
    masks = {"tgt_mask": causal(torch.float32, 4), "memory_key_padding_mask": padding(torch.float32)}
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            assert_near(new(source, target, **masks), old(source, target, **masks), 1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_dtype_mode_dropout_and_requires_grad_are_kept(variant) -> None:
    old = multihead(dropout=0.25, batch_first=True).double()
    old.in_proj_weight.requires_grad_(False)
    old.out_proj.bias.requires_grad_(False)
    for mode in (True, False):
        new = converted(old.train(mode), variant)
        assert all(part.training is mode for part in new.modules())
        assert all(parameter.dtype == torch.float64 for parameter in new.parameters())
        layer = new.attention
        assert layer.dropout == 0.25
        assert [layer.v_proj.weight.requires_grad, layer.v_proj.bias.requires_grad] == [False, True]
        assert [layer.out_proj.weight.requires_grad, layer.out_proj.bias.requires_grad] == [True, False]
        assert layer.q_proj.weight.requires_grad is (variant == "toa-gated")
        assert all(parameter.requires_grad for s in operators(new) for parameter in s.parameters())


@pytest.mark.parametrize("variant", ["toa-relu", "toa-gated"])
@pytest.mark.parametrize("bias", [True, False])
def test_other_variants_keep_the_weights_and_have_finite_outputs(variant, bias) -> None:
    old = multihead(batch_first=True, bias=bias)
    report = convert(copy.deepcopy(old), variant, num_tokens=N)
    layer: Any = report.model.attention
    for name, weight in zip("qkv", old.in_proj_weight.chunk(3), strict=True):
        assert torch.equal(getattr(layer, f"{name}_proj").weight[:E], weight)
    assert not report.unchanged
    assert "outputs are new" in str(report)
    x = torch.randn(B, N, E)
    assert report.model(x, x, x)[0].isfinite().all()


def test_a_spec_sets_options_that_the_weights_do_not_determine() -> None:
    spec = AttentionSpec(name="toa-softmax", structure="dplr", rank=2, operator_std=0.1, dropout=0.5, sor=False)
    report = convert(multihead(), spec, num_tokens=N)
    layer: Any = report.model.attention
    assert (layer.dropout, layer.sor, layer.s1.rank) == (0.5, None, 2)
    assert not report.unchanged


def test_only_operators_learn_if_all_else_is_frozen() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(E, H, 12, dropout=0.0, batch_first=True), 1)
    model = convert(encoder.requires_grad_(False), num_tokens=N).model
    learning = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert learning == [f"layers.0.self_attn.attention.{s}.offset" for s in ("s1", "s2")]
    x, target = torch.randn(8, N, E), torch.randn(8, N, E)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.05)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(parameter.abs().max() > 0 for s in operators(model) for parameter in s.parameters())


def test_a_module_used_twice_is_replaced_by_one_module() -> None:
    shared = multihead(batch_first=True)
    model = nn.ModuleDict({"a": shared, "b": nn.ModuleList([shared])})
    report = convert(model, num_tokens=N)
    assert [entry.path for entry in report.replaced] == ["a", "b.0"]
    assert model["a"] is model["b"][0]  # type: ignore[index]
    assert isinstance(model["a"], MultiheadAdapter)


def test_softmax_attention_of_toa_models_is_replaced() -> None:
    sizes: dict[str, Any] = {"embed_dim": E, "num_heads": H, "num_layers": 2, "ff_dim": 12}
    old = build_forecaster("patchtst", lookback=32, horizon=5, channels=3, attention="softmax", settings=sizes).eval()
    report = toa.convert(new := copy.deepcopy(old), num_tokens=8)
    assert report.model is new
    assert len(report.replaced) == 2
    assert sum(isinstance(part, TemporalOperatorAttention) for part in new.modules()) == 2
    x = torch.randn(B, 32, 3)
    assert_near(new(x), old(x), 1e-5)
    with pytest.raises(ValueError, match=message("TemporalOperatorAttention", "not softmax attention")):
        convert(new, num_tokens=8)


def test_a_window_is_kept() -> None:
    old = nn.ModuleDict({"a": SoftmaxAttention(E, H, N, window=2)}).eval()
    report = convert(new := copy.deepcopy(old), num_tokens=N)
    assert report.unchanged
    x = torch.randn(B, N, E)
    assert_near(new["a"](x, x, x)[0], old["a"](x, x, x)[0], 1e-5)


class Projections(nn.Module):
    """Attention with projections under common names, and options that make it unusual."""

    def __init__(
        self,
        *,
        is_causal: bool = False,
        always_causal: bool = False,
        scaling: float = 0.5,
        twist: float = 0.0,
        key_bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_heads = H
        self.scaling = scaling
        self.is_causal = is_causal
        self.twist = twist
        self.always_causal = always_causal
        self.q_proj, self.v_proj, self.out_proj = (nn.Linear(E, E) for _ in range(3))
        self.k_proj = nn.Linear(E, E, bias=key_bias)
        self.dropout = nn.Dropout(0.1)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: object | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Tensor, None]:
        q, k, v = (
            layer(hidden_states).unflatten(-1, (H, -1)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        scores = q @ k.mT * self.scaling + self.twist * torch.arange(q.shape[2])
        if attention_mask is not None:
            scores = scores + attention_mask
        if self.always_causal or (self.is_causal and attention_mask is None):
            scores = scores + causal(scores.dtype, q.shape[2])
        weights = scores.softmax(-1)
        return self.out_proj((self.dropout(weights) @ v).transpose(1, 2).flatten(2)), weights, None


@pytest.mark.parametrize(
    "settings", [{}, {"is_causal": True}, {"always_causal": True}, {"scaling": 0.3}, {"key_bias": False}], ids=str
)
def test_projections_under_common_names_are_replaced(settings) -> None:
    old = nn.ModuleDict({"attn": Projections(**settings)}).train()
    report = convert(new := copy.deepcopy(old), num_tokens=N)
    assert str(report) == "replaced 1 of 1; outputs are as before\n  replaced attn (Projections): toa-softmax"
    layer: Any = new["attn"]
    assert isinstance(layer, ProjectionAdapter)
    assert layer.attention.dropout == 0.1
    assert layer.attention.training
    x = torch.randn(B, N, E)
    mask = padding(torch.float32)[:, None, None]
    low = torch.full_like(mask, torch.finfo(torch.float32).min).where(mask < 0, 0.0)
    both = (mask + causal(torch.float32)).clamp(min=torch.finfo(torch.float32).min)
    for given in (None, mask, low, both):
        exact = old.eval()["attn"](x, attention_mask=given, output_attentions=True)
        got = new.eval()["attn"](x, attention_mask=given, output_attentions=True)
        assert_near(got[0], exact[0], 1e-5)
        assert_near(got[1], exact[1], 1e-5)
        assert got[2] is None
    seen = (both == 0).clone()
    assert_near(new["attn"](x, seen)[0], old["attn"](x, both)[0], 1e-5)


def test_unsupported_arguments_of_a_converted_module_raise() -> None:
    layer: Any = convert(nn.Sequential(Projections()), num_tokens=N).model[0]  # type: ignore[index]
    x = torch.randn(B, N, E)
    with pytest.raises(ValueError, match=message("past_key_values must be None for a converted layer, got dict")):
        layer(x, past_key_values={})
    with pytest.raises(ValueError, match=message("attention_mask must have shape (B, 1, M, N) with M=6", "(3, 6)")):
        layer(x, torch.zeros(B, N))
    with pytest.raises(ValueError, match=message("attention_mask must be the causal mask, or hide whole keys")):
        layer(x, torch.ones(B, 1, N, N).tril(-1).bool() | torch.eye(N).bool().logical_not())


class Subclass(nn.MultiheadAttention):
    pass


class StrangeAttention(nn.Module):
    pass


def with_hook() -> nn.Module:
    module = multihead()
    module.register_forward_hook(lambda *_: None)
    return module


def with_a_part() -> nn.Module:
    module = Projections()
    module.rotary = nn.Linear(2, 2)
    return module


def with_grouped_keys() -> nn.Module:
    module = Projections()
    module.k_proj = nn.Linear(E, E // 2)
    return module


UNSUITABLE = {
    "bias_kv": (lambda: multihead(add_bias_kv=True), "add_bias_kv=True"),
    "zero_attn": (
        lambda: multihead(add_zero_attn=True),
        "add_zero_attn=True",
    ),
    "subclass": (lambda: Subclass(E, H), "Subclass is a subclass of nn.MultiheadAttention"),
    "hook": (with_hook, "it has hooks"),
    "part": (with_a_part, "it has parts besides its projections: rotary"),
    "keys": (with_grouped_keys, "its keys have width 4, its queries 8"),
    "twisted": (lambda: Projections(twist=0.5), "its output differs from softmax attention by"),
    "strange": (StrangeAttention, "its structure is unknown"),
}


@pytest.mark.parametrize("name", UNSUITABLE)
def test_unsuitable_modules_are_kept_and_reported_with_the_reason(name) -> None:
    make, reason = UNSUITABLE[name]
    model = nn.ModuleDict({"good": multihead(), "bad": make()})
    bad = model["bad"]
    report = convert(model, num_tokens=N)
    assert [entry.path for entry in report.replaced] == ["good"]
    (kept,) = report.kept
    assert (kept.path, kept.kind) == ("bad", type(bad).__name__)
    assert reason in kept.reason
    assert model["bad"] is bad
    assert f"  kept bad ({type(bad).__name__}): {reason}" in str(report)
    with pytest.raises(ValueError, match=message("model must have attention that can be replaced, got a", reason)):
        convert(make(), num_tokens=N)


def test_modules_with_shared_weights_are_kept() -> None:
    model = nn.ModuleList([multihead(), multihead(), multihead()])
    one, other, _ = model
    other.in_proj_weight = one.in_proj_weight
    report = convert(model, num_tokens=N)
    assert [entry.path for entry in report.replaced] == ["2"]
    assert {entry.reason for entry in report.kept} == {"its in_proj_weight is shared with another module"}


def test_bad_arguments_raise_and_leave_the_model_unchanged() -> None:
    model = nn.Sequential(multihead())
    before = model[0]
    with pytest.raises(ValueError, match=message("unknown attention 'toa-soft'; known: softmax, toa-softmax")):
        convert(model, "toa-soft", num_tokens=N)
    with pytest.raises(ValueError, match=message("variant must have projections q, k, v", "got 'hyperglu'")):
        convert(model, "hyperglu", num_tokens=N)
    with pytest.raises(ValueError, match=message("qk_dim must be None", "got 3")):
        convert(model, AttentionSpec(name="toa-relu", qk_dim=3), num_tokens=N)
    with pytest.raises(ValueError, match=message("num_tokens must be at least 1, got 0")):
        convert(model, num_tokens=0)
    assert model[0] is before
    with pytest.raises(ValueError, match=message("got a Linear")):
        convert(nn.Linear(2, 2), num_tokens=N)
    scaled = nn.Sequential(Projections(scaling=0.3))
    with pytest.raises(ValueError, match=message("factor 0.3", "softmax")):
        convert(scaled, "softmax", num_tokens=N)

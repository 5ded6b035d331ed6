import math
import re
from typing import Any

import matplotlib.pyplot as plt
import pytest
import torch
from torch import Tensor

from tests.support import message, scatter_parameters
from toa.models import build_classifier, build_forecaster
from toa.nn import Attended, AttentionSpec, TemporalOperatorAttention, intercepted
from toa.report.explain import draw_mixing, draw_operator, layer_table, write_explanation
from toa.report.operators import LayerView, OperatorView, tokens_have_order, view_layers

OWN: dict[str, dict[str, object]] = {
    "patchtst": {"num_layers": 2, "patch_len": 4, "stride": 4},
    "itransformer": {"num_layers": 1},
    "two-axis": {"num_layers": 1, "patch_len": 4, "stride": 4},
    "duet": {"num_layers": 1, "moving_average": 5},
    "transformer": {"num_layers": 1, "decoder_layers": 1, "label_len": 8},
}


def model(attention="toa-gated", name="patchtst") -> Any:
    sizes: dict[str, object] = {"embed_dim": 8, "num_heads": 2, "ff_dim": 8, **OWN[name]}
    return build_forecaster(name, lookback=16, horizon=4, channels=3, attention=attention, settings=sizes)


def difference(n: int) -> torch.Tensor:
    """x[t] - x[t-1], circular."""
    eye = torch.eye(n, dtype=torch.float64)
    return (eye - eye.roll(1, 0))[None]


def test_the_identity_has_gain_one_and_distance_zero():
    view = OperatorView(name="s1", matrix=torch.eye(6, dtype=torch.float64).expand(2, 6, 6))
    assert view.row_sums.equal(torch.ones(2, 6, dtype=torch.float64))
    assert view.simplex_distance().tolist() == [0.0, 0.0]
    assert torch.allclose(view.response(), torch.ones(2, 4, dtype=torch.float64))
    assert torch.allclose(view.eigenvalues().real, torch.ones(2, 6, dtype=torch.float64))
    assert layer_table(LayerView(name="x", operators=[view]))[1:] == [
        ("s1", head, "0.000", "0%", "1.00 to 1.00", "0.00", "1.00") for head in ("1", "2")
    ]


def test_a_difference_operator_is_a_high_pass():
    view = OperatorView(name="s2", matrix=difference(8))
    assert view.row_sums.abs().max() == 0
    # the projection of each row (1, -1) onto the simplex is e_t, at distance 1
    assert view.simplex_distance().item() == pytest.approx(math.sqrt(8))
    expected = [2.0 * math.sin(math.pi * f / 8) for f in range(5)]
    assert torch.allclose(view.response()[0], torch.tensor(expected, dtype=torch.float64), atol=1e-12)
    assert view.eigenvalues().abs().max().item() == pytest.approx(2.0)


def test_view_layers_returns_every_operator_matrix():
    layers = view_layers(scatter_parameters(model(), 0.1))
    assert [layer.name for layer in layers] == [f"backbone.blocks.{i}.attention" for i in range(2)]
    assert [operator.name for operator in layers[0].operators] == ["s1", "s2", "gate_s1"]
    source = scatter_parameters(model("toa-relu"), 0.1)
    seen = view_layers(source)
    attention = source.get_submodule(seen[1].name)
    assert isinstance(attention, TemporalOperatorAttention)
    assert seen[1].operators[1].matrix.equal(attention.s2.dense().detach().double())
    assert all(layer.mixing is None for layer in seen)


@pytest.mark.parametrize("attention", ["toa-softmax", "toa-relu", "toa-gated", "hyperglu"])
def test_mixing_equals_the_result_of_need_weights(attention):
    net: Any = scatter_parameters(model(attention), 0.3).eval()
    x = torch.randn(1, 16, 3)
    layers = view_layers(net, (x, None, None))
    queries = {}

    def keep(name: str, query: Tensor, attended: Attended) -> Attended:
        queries[name] = query
        return attended

    with intercepted(net, keep):
        net(x)
    for layer in layers:
        _, expected = net.get_submodule(layer.name)(*(queries[layer.name],) * 3, need_weights=True)
        assert layer.mixing is not None
        assert torch.allclose(layer.mixing.float(), expected[0], atol=1e-6)


def test_view_layers_does_not_change_the_model():
    net = model().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    view_layers(net, (torch.randn(1, 16, 3), None, None))
    assert net.training
    assert not any("attend" in vars(module) for module in net.modules())
    assert all(value.equal(before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize("name", ["itransformer", "duet", "two-axis"])
def test_channel_tokens_have_no_order(name):
    assert tokens_have_order(model())
    assert not tokens_have_order(model(name=name))


@pytest.mark.parametrize("name", ["transformer", "itransformer", "duet", "two-axis"])
def test_mixing_is_finite_for_other_backbones(name):
    net = model(name=name)
    layers = view_layers(net, (torch.randn(1, 16, 3), None, None))
    assert all(layer.mixing is not None and layer.mixing.isfinite().all() for layer in layers)


def test_padded_tokens_are_not_mixed():
    net = build_classifier(
        "transformer",
        lookback=6,
        channels=2,
        num_classes=3,
        attention=AttentionSpec(name="toa-gated"),
        settings={"embed_dim": 8},
    )
    mask = torch.tensor([[True] * 4 + [False] * 2])
    layers = view_layers(net, (torch.randn(1, 6, 2), mask))
    assert layers[0].mixing is not None
    assert layers[0].mixing[:, :, 4:].abs().max() == 0


def test_a_model_without_operators_raises():
    linear = build_forecaster("dlinear", lookback=16, horizon=4, channels=3, settings={"moving_average": 5})
    for net, found in (
        (model("softmax"), "SoftmaxAttention in BackboneForecaster"),
        (linear, "no attention in DLinear"),
    ):
        with pytest.raises(ValueError, match=message("must have operators to explain, got", found, "toa-gated")):
            view_layers(net)


def test_figures_have_one_row_per_head_and_frequencies_only_for_ordered_tokens():
    view = OperatorView(name="s1", matrix=torch.randn(3, 5, 5, dtype=torch.float64))
    for ordered, columns in ((True, 4), (False, 3)):
        figure = draw_operator(view, "title", ordered=ordered)
        assert len(figure.axes) == 3 * columns
        titles = [axis.get_title() for axis in figure.axes]
        assert titles.count("gain per frequency") == (3 if ordered else 0)
        # tokens are counted: entries have ticks on both axes, row sums on one
        for ticks in (figure.axes[0].get_xticks(), figure.axes[0].get_yticks(), figure.axes[1].get_xticks()):
            assert all(tick == round(tick) for tick in ticks)
        plt.close(figure)
    figure = draw_mixing(torch.full((5, 4, 4), 0.25, dtype=torch.float64), "title")
    assert "0% negative\nrow sums 1.00 to 1.00, simplex distance 0.00" in figure.axes[0].get_title()
    plt.close(figure)


def test_the_explanation_page_is_self_contained(tmp_path):
    net = scatter_parameters(model(), 0.1)
    layers = view_layers(net, (torch.randn(1, 16, 3), None, None))
    files = write_explanation(
        layers[:1], tmp_path, heading="<b>&", lead="lead", sample="Sample: one.", facts=[("metric", "value")]
    )
    assert [path.name for path in files] == [
        "layer1-s1.png",
        "layer1-s2.png",
        "layer1-gate_s1.png",
        "layer1-mixing.png",
        "index.html",
    ]
    page = files[-1].read_text()
    assert page.count("data:image/png;base64,") == 4
    assert "&lt;b&gt;&amp;" in page
    assert "Sample: one." in page
    assert "width=device-width" in page
    assert "prefers-color-scheme: dark" in page
    assert not re.search(r"(src|href)=\"(?!data:)|https?://", page)

import copy

import pytest
import torch
from torch import Tensor, nn

from tests.contracts.cases import (
    BACKBONE_CASES,
    CASES,
    CHANNELS,
    HORIZON,
    LOOKBACK,
    Case,
    with_one_attention,
    with_two_attentions,
)
from tests.support import assert_near, message, scatter_parameters
from toa.nn import LayerNorm, Linear, mixing_operators

every_backbone = pytest.mark.parametrize("case", with_two_attentions(BACKBONE_CASES))
every_model = pytest.mark.parametrize("case", with_two_attentions(CASES))
every_style = pytest.mark.parametrize("case", with_one_attention(CASES))


@every_model
def test_output_has_its_shape_and_every_parameter_a_finite_gradient(case: Case):
    model = case.build()
    for batch in (1, 4):
        model.zero_grad()
        out = model(*case.inputs(batch))
        assert out.shape == (batch, HORIZON, CHANNELS)
        out.square().mean().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name


@every_style
def test_layer_norms_and_maps_with_a_bias_are_those_with_kernels(case: Case):
    for name, module in case.build().named_modules():
        if isinstance(module, nn.LayerNorm):
            assert isinstance(module, LayerNorm), name
        if isinstance(module, nn.Linear) and module.bias is not None:
            assert isinstance(module, Linear), name


@pytest.mark.parametrize("case", with_one_attention(BACKBONE_CASES))
def test_backbone_returns_as_many_tokens_as_it_declares(case: Case):
    backbone = case.backbone()
    assert backbone(*case.inputs(2)[:2]).shape == (2, CHANNELS, backbone.num_tokens, backbone.embed_dim)
    assert backbone.lookback == LOOKBACK


@every_model
def test_evaluation_is_deterministic_and_does_not_mix_the_batch(case: Case):
    model = case.build(dropout=0.5).eval()
    inputs = case.inputs()
    out = model(*inputs)
    assert torch.equal(model(*inputs), out)
    assert_near(model(*(None if x is None else x[1:2] for x in inputs)), out[1:2], 1e-5)


@every_style
def test_state_and_copies_contain_the_complete_model(case: Case):
    model = case.build()
    inputs = case.inputs()
    model(*inputs)
    scatter_parameters(model, 0.1)
    other = case.build()
    other.load_state_dict(model.state_dict())
    twin = copy.deepcopy(model)
    expected = model.eval()(*inputs)
    assert torch.equal(other.eval()(*inputs), expected)
    assert torch.equal(twin.eval()(*inputs), expected)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1.0)
    assert torch.equal(model(*inputs), expected)


@every_model
def test_training_differs_from_evaluation_by_dropout_sor_and_batch_statistics_alone(case: Case):
    # a model that samples queries or delays, and differently in training, uses all of them here
    model = case.build(sor=False, dropout=0.0, factor=LOOKBACK).double().train()
    inputs = case.inputs(dtype=torch.float64)
    model(*inputs)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eval()
    trained = model(*inputs)
    assert_near(trained, model.eval()(*inputs))


@every_model
def test_dropout_and_sor_act_in_training(case: Case):
    inputs = case.inputs()
    if case.has_dropout:
        dropped = case.build(sor=False, dropout=0.5).train()
        assert not torch.equal(dropped(*inputs), dropped(*inputs))
    if case.takes_sor:
        regularized = case.build(dropout=0.0).train()
        scatter_parameters(regularized, 0.1)
        assert not torch.equal(regularized(*inputs), regularized(*inputs))


@every_backbone
def test_mixing_operators_are_those_of_the_forward_pass(case: Case):
    backbone = case.backbone()
    inputs = case.inputs()[:2]
    tokens = list[Tensor]()
    operators = mixing_operators(backbone, lambda: tokens.append(backbone(*inputs)))
    assert_near(tokens[0], backbone(*inputs), 1e-6)
    assert len(operators) >= 2
    assert all(o.isfinite().all() and o.shape[-1] == o.shape[-2] for o in operators.values())


@every_style
def test_a_series_of_another_length_raises(case: Case):
    series, *marks = case.inputs()
    with pytest.raises(ValueError, match=message("series must have lookback=32 steps, got 31", "with lookback=31.")):
        case.build()(series[:, 1:], *marks)


@every_style
def test_marks_of_other_sizes_raise(case: Case):
    series, marks, future = case.inputs()
    model = case.build()
    if marks is None or future is None:
        given = torch.zeros(4, LOOKBACK, 2), torch.zeros(4, HORIZON, 2)
        with pytest.raises(ValueError, match=message("marks must be None", "got shape (4, 32, 2); leave them out")):
            model(series, given[0])
        with pytest.raises(ValueError, match=message("future_marks must be None", "got shape (4, 5, 2); leave them")):
            model(series, None, given[1])
        return
    with pytest.raises(ValueError, match=message("marks must be given to a model with num_marks=2", "(B, L, 2)")):
        model(series)
    with pytest.raises(ValueError, match=message("marks must have shape (B, L, F)=(4, 32, 2), got (4, 5, 2)")):
        model(series, future, marks)
    with pytest.raises(ValueError, match=message("future_marks must have shape (B, P, F)=(4, 5, 2), got (4, 4, 2)")):
        model(series, marks, future[:, 1:])
    if model.uses_future_marks:
        with pytest.raises(ValueError, match=message("future_marks must be given", "got None; pass them as (B, P, 2)")):
            model(series, marks)


@every_style
def test_a_few_steps_of_training_lower_the_loss(case: Case):
    model = case.build(dropout=0.0, sor=False)
    inputs = case.inputs(8)
    target = torch.randn(8, HORIZON, CHANNELS)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = (model(*inputs) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]

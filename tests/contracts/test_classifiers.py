import copy
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from tests.contracts.cases import with_one_attention, with_two_attentions
from tests.support import assert_near, message, scatter_parameters
from toa.models import ClassifyModel, backbone_names, build_classifier
from toa.nn import ATTENTIONS, AttentionSpec

# steps of the longest case
LENGTH = 24
# number of channels
CHANNELS = 3
# number of classes
CLASSES = 4
# steps of each case
LENGTHS = (24, 9, 1, 17)
SIZES = {"embed_dim": 8, "num_heads": 2, "num_layers": 2, "ff_dim": 12}
PATCHES = {"patch_len": 8, "stride": 4}
STYLES: dict[str, dict[str, Any]] = {"patchtst": PATCHES, "two-axis": {**PATCHES, "channel_dropout": 0.0}}


class Case(NamedTuple):
    model: str
    attention: str
    style: dict[str, Any]

    def build(self, *, sor: bool = True, **settings: Any) -> ClassifyModel:
        takes_sor = self.attention.startswith("toa")
        return build_classifier(
            self.model,
            lookback=LENGTH,
            channels=CHANNELS,
            num_classes=CLASSES,
            attention=AttentionSpec(name=self.attention, sor=sor if takes_sor else None),
            settings={**SIZES, **self.style, **settings},
        )

    def __str__(self) -> str:
        return "-".join((self.model, self.attention, *map(str, self.style.values())))


CASES = [Case(model, name, STYLES.get(model, {})) for model in backbone_names("classify") for name in ATTENTIONS]
# batch norm in the blocks, which has to leave padding out
CASES.append(Case("patchtst", "toa-gated", {**PATCHES, "style": "official"}))
every_classifier = pytest.mark.parametrize("case", with_two_attentions(CASES))
every_style = pytest.mark.parametrize("case", with_one_attention(CASES))


def inputs(dtype: torch.dtype = torch.float32, fill: float = 0.0) -> tuple[Tensor, Tensor]:
    """Series of four lengths and their mask; the padding is filled with `fill`."""
    series = torch.randn(len(LENGTHS), LENGTH, CHANNELS, dtype=dtype)
    mask = torch.arange(LENGTH) < torch.tensor(LENGTHS)[:, None]
    return torch.where(mask.unsqueeze(-1), series, fill), mask


@every_classifier
def test_logits_have_their_shape_and_every_parameter_a_finite_gradient(case: Case):
    model = case.build()
    series, mask = inputs()
    for given in (None, mask):
        model.zero_grad()
        out = model(series, given)
        assert out.shape == (len(LENGTHS), CLASSES)
        out.square().mean().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name


@every_classifier
def test_values_in_the_padding_change_neither_prediction_nor_gradient(case: Case):
    results = []
    for fill in (0.0, 1e6, float("nan")):
        torch.manual_seed(3)
        model = scatter_parameters(case.build(sor=False, dropout=0.0).double(), 0.3).train()
        out = model(*inputs(torch.float64, fill))
        out.square().sum().backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        results.append([out.detach(), model.eval()(*inputs(torch.float64, fill)).detach(), *gradients])
    for other in results[1:]:
        # the second result is drawn again with the same state of the generator
        for one, two in zip(results[0], other, strict=True):
            assert_near(two, one, 1e-9)


@every_classifier
def test_batch_size_and_order_never_change_a_prediction(case: Case):
    model = scatter_parameters(case.build().double(), 0.3).eval()
    series, mask = inputs(torch.float64)
    out = model(series, mask)
    order = torch.tensor([2, 0, 3, 1])
    assert_near(model(series[order], mask[order]), out[order])
    for row in range(len(LENGTHS)):
        assert_near(model(series[row : row + 1], mask[row : row + 1]), out[row : row + 1])


@every_classifier
def test_a_mask_without_padding_changes_nothing(case: Case):
    model = scatter_parameters(case.build().double(), 0.3).eval()
    series, _ = inputs(torch.float64)
    assert_near(model(series, torch.ones(len(LENGTHS), LENGTH, dtype=torch.bool)), model(series))


@every_classifier
def test_real_steps_are_all_read(case: Case):
    model = scatter_parameters(case.build().double(), 0.3).eval()
    series, mask = inputs(torch.float64)
    series.requires_grad_()
    model(series, mask).square().sum().backward()
    assert series.grad is not None
    felt = series.grad.abs().sum(-1) > 0
    # instance norm removes everything from a series of one step
    rows = torch.tensor(LENGTHS) > 1
    assert torch.equal(felt[rows], mask[rows])


@every_style
def test_state_and_copies_contain_the_complete_model(case: Case):
    model = case.build()
    series, mask = inputs()
    model(series, mask)
    scatter_parameters(model, 0.1)
    other = case.build()
    other.load_state_dict(model.state_dict())
    expected = model.eval()(series, mask)
    assert torch.equal(other.eval()(series, mask), expected)
    assert torch.equal(copy.deepcopy(model)(series, mask), expected)
    assert torch.equal(model(series, mask), expected)


@every_classifier
def test_training_differs_from_evaluation_by_dropout_sor_and_batch_statistics_alone(case: Case):
    model = case.build(sor=False, dropout=0.0).double().train()
    series, mask = inputs(torch.float64)
    model(series, mask)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eval()
    trained = model(series, mask)
    assert_near(trained, model.eval()(series, mask))


@every_style
def test_a_few_steps_of_training_lower_the_loss(case: Case):
    model = case.build(dropout=0.0, sor=False)
    series, mask = inputs()
    target = torch.arange(len(LENGTHS))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(series, mask), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


@every_style
def test_series_and_masks_of_other_sizes_raise(case: Case):
    model = case.build()
    series, mask = inputs()
    with pytest.raises(ValueError, match=message("series must have lookback=24 steps, got 23", "lookback=23.")):
        model(series[:, 1:])
    with pytest.raises(ValueError, match=message("series must have channels=3, got 2", "with channels=2.")):
        model(series[..., :2])
    with pytest.raises(ValueError, match=message("mask must have shape (B, L)=(4, 24), got (4, 23).")):
        model(series, mask[:, 1:])
    with pytest.raises(ValueError, match=message("mask must be bool, True where a step is real, got torch.float32;")):
        model(series, mask.float())

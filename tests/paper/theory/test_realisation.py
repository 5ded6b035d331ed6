import pytest
import torch

from toa.nn import TemporalOperatorAttention, Variant
from toa_paper.theory import CASES, Case, realisation_error, realise

VARIANTS: tuple[Variant, ...] = ("relu", "gated", "softmax")
ADAPTIVE = ("D", "E")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", list(CASES))
def test_layer_equals_the_operator_up_to_rounding(name: str, variant: Variant) -> None:
    case = CASES[name]()
    generator = torch.Generator().manual_seed(1)
    assert realisation_error(case, variant, generator=generator) < 1e-6
    assert realisation_error(case, variant, dtype=torch.float64, generator=generator) < 1e-12


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["A", "D"])
def test_layer_is_complete_and_the_reference_backend_agrees(name: str, variant: Variant) -> None:
    case = CASES[name]()
    realisation = realise(case, variant, dtype=torch.float64)
    assert type(realisation.layer) is TemporalOperatorAttention
    assert realisation.layer.variant == variant
    n = case.operators.shape[-1]
    features = torch.randn(3, n, case.features, dtype=torch.float64)
    regime = torch.arange(3) % len(case.operators)
    folded = realisation(features, regime)
    realisation.layer.backend = "reference"
    assert torch.allclose(realisation(features, regime), folded, rtol=0.0, atol=1e-12)
    assert torch.allclose(folded, case.operators[regime] @ features, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ADAPTIVE)
def test_each_sample_of_a_mixed_batch_gets_the_operator_of_its_regime(name: str, variant: Variant) -> None:
    case = CASES[name]()
    realisation = realise(case, variant)
    z, _, n = case.operators.shape
    features = torch.randn(1, n, 1).expand(z, -1, -1)
    regime = torch.arange(z).flip(0)
    outputs = realisation(features, regime)
    for sample in range(z):
        exact = case.operators[regime[sample]] @ features[sample].double()
        assert (outputs[sample].double() - exact).abs().max() < 1e-6 * exact.abs().max()
        alone = realisation(features[sample : sample + 1], regime[sample : sample + 1])
        assert torch.allclose(alone[0], outputs[sample], rtol=0.0, atol=1e-6)
    assert (outputs[0] - outputs[1]).abs().max() > 0.1


@pytest.mark.parametrize("variant", ["relu", "gated"])
def test_heads_of_other_regimes_are_exactly_zero(variant: Variant) -> None:
    case = CASES["E"]()
    realisation = realise(case, variant)
    tokens = realisation.tokens(torch.randn(4, 48, 1), torch.arange(4))
    _, kernels = realisation.layer(tokens, tokens, tokens, need_weights=True)
    assert kernels is not None
    active = kernels.abs().amax((-2, -1)) > 0  # (B, H)
    assert active.tolist() == torch.eye(4, dtype=torch.bool).tolist()


def test_every_projection_of_the_layer_matters() -> None:
    case = CASES["E"]()
    for broken in ("q_proj", "k_proj", "v_proj", "out_proj"):
        realisation = realise(case, "gated")
        getattr(realisation.layer, broken).weight.zero_()
        features = torch.randn(4, 48, 1)
        exact = case.operators @ features.double()
        assert (realisation(features, torch.arange(4)) - exact).abs().max() > 0.1, broken


def test_without_positions_equal_tokens_give_equal_rows() -> None:
    realisation = realise(CASES["B"](), "relu")
    torch.nn.init.normal_(realisation.layer.q_proj.weight)
    torch.nn.init.normal_(realisation.layer.k_proj.weight)
    tokens = torch.ones(1, 48, realisation.layer.embed_dim)
    out, _ = realisation.layer(tokens, tokens, tokens)
    assert torch.allclose(out, out[:, :1].expand_as(out), rtol=1e-4)


def test_building_a_layer_does_not_use_the_global_generator() -> None:
    before = torch.get_rng_state()
    realisation_error(CASES["B"](), "gated")
    assert torch.equal(torch.get_rng_state(), before)


def test_error_is_the_same_at_every_call_without_a_generator() -> None:
    case = CASES["C"]()
    assert realisation_error(case, "relu") == realisation_error(case, "relu")


def test_error_detects_a_wrong_operator() -> None:
    case = CASES["B"]()
    other = Case(name="x", title="x", operators=1.001 * case.operators, features=1)
    features = torch.randn(2, 48, 1)
    error = (realise(other, "relu")(features).double() - case.operators @ features.double()).abs().max()
    assert error > 1e-4


@pytest.mark.parametrize("variant", VARIANTS)
def test_tokens_with_many_features_fit_every_head(variant: Variant) -> None:
    operators = torch.randn(3, 4, 4, dtype=torch.float64)
    case = Case(name="x", title="x", operators=operators, features=50)
    assert realisation_error(case, variant) < 1e-6


def test_wrong_inputs_raise() -> None:
    case = CASES["D"]()
    realisation = realise(case, "gated")
    features = torch.zeros(2, 96, 1)
    with pytest.raises(ValueError, match="case 'D' needs regime, one of 0 to 2 per sample, got None"):
        realisation(features)
    with pytest.raises(ValueError, match="regime must lie in 0 to 2, got 0 to 3"):
        realisation(features, torch.tensor([0, 3]))
    with pytest.raises(ValueError, match=r"regime must have shape \(B,\)"):
        realisation(features, torch.tensor([0]))
    with pytest.raises(ValueError, match=r"features must have shape \(B, N, F\)=\(any, 96, 1\), got \(2, 95, 1\)"):
        realisation(features[:, 1:], torch.zeros(2, dtype=torch.long))
    with pytest.raises(ValueError, match="positions of features must be at most N=96, got 97"):
        realisation.tokens(torch.zeros(2, 97, 1), torch.zeros(2, dtype=torch.long))
    with pytest.raises(ValueError, match="batch must be at least 3, got 2"):
        realisation_error(case, "relu", batch=2)
    with pytest.raises(ValueError, match="unknown variant 'tanh'; known: relu, gated, softmax"):
        realise(case, "tanh")


def test_softmax_raises_for_more_regimes_than_tokens() -> None:
    case = Case(name="x", title="x", operators=torch.randn(3, 2, 2, dtype=torch.float64), features=1)
    with pytest.raises(ValueError, match="a token for each regime, Z ≤ N=2, got Z=3; use 'relu' or 'gated'"):
        realise(case, "softmax")
    assert realisation_error(case, "relu") < 1e-6

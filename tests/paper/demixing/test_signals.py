import math

import pytest
import torch

from tests.support import message
from toa_paper.demixing import HarmonicDemixing


def sample(count: int, signals: HarmonicDemixing | None = None, seed: int = 0):
    signals = HarmonicDemixing() if signals is None else signals
    return signals.sample(count, generator=torch.Generator().manual_seed(seed))


def test_signals_follow_the_papers_formula():
    signals = HarmonicDemixing(noise=0.0)
    batch = sample(64, signals)
    t = torch.arange(672, dtype=torch.float64)
    warps = (t, t + 20 * torch.sin(4 * math.pi * t / 672), t + 40 * (t / 672) ** 2)
    for noisy, clean, regime in zip(*batch, strict=True):
        tau = warps[int(regime)]
        parts = [f(2 * math.pi / p * tau) for f in (torch.cos, torch.sin) for p in (24, 84, 168)]
        basis = torch.stack((sum(parts[:3]), sum(parts[3:])))  # type: ignore[arg-type]
        # one phase for all harmonics: the signal is cos φ times the cosines minus sin φ times the sines
        phase = torch.linalg.lstsq(basis.mT, clean.double()).solution
        assert torch.dist(phase @ basis, clean.double()) < 1e-3
        assert phase.norm().item() == pytest.approx(1.0, abs=1e-4)
        assert torch.equal(noisy, clean)


def test_noise_has_the_papers_deviation():
    batch = sample(512)
    assert (batch.noisy - batch.clean).std().item() == pytest.approx(0.5, abs=0.005)


def test_every_regime_is_as_likely():
    counts = sample(9000, HarmonicDemixing().scaled(84)).regime.bincount(minlength=3)
    assert (counts.double() / 9000 - 1 / 3).abs().max() < 0.02


def test_a_generator_makes_signals_reproducible():
    assert torch.equal(sample(4, seed=3).noisy, sample(4, seed=3).noisy)
    assert not torch.equal(sample(4, seed=3).noisy, sample(4, seed=4).noisy)


def test_oracle_error_is_noise_variance_by_dimensions_over_length():
    signals = HarmonicDemixing()
    batch = sample(900, signals)
    oracle = signals.oracle().float()
    error = torch.stack([oracle[z] @ (x - y) for x, y, z in zip(*batch, strict=True)]).square().mean().item()
    assert error == pytest.approx(0.25 * 6 / 672, rel=0.05)
    torch.testing.assert_close(oracle @ oracle, oracle, rtol=0, atol=1e-5)


def test_best_fixed_filter_beats_perturbed_filters():
    signals = HarmonicDemixing().scaled(84)
    batch = sample(4000, signals)
    best = signals.best_fixed_filter().float()

    def error(f: torch.Tensor) -> float:
        return (batch.noisy @ f.mT - batch.clean).square().mean().item()

    for _ in range(5):
        assert error(best) < error(best + 0.01 * torch.randn_like(best))
    assert error(best) < 0.25


def test_scaling_keeps_the_signals_shape():
    half = HarmonicDemixing().scaled(336)
    assert half.periods == (12.0, 42.0, 84.0)
    torch.testing.assert_close(half.warps() * 2, HarmonicDemixing().warps()[:, ::2])


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"amplitudes": (1.0,)}, ("amplitudes", "as many as periods", "1", "3", "one amplitude per period")),
        ({"periods": (1.0, 5.0, 6.0)}, ("periods", "at least 2", "1.0", "lengthen")),
        ({"length": 1}, ("length", "at least 2", "got 1")),
        ({"noise": -1.0}, ("noise", "at least 0", "-1.0")),
    ],
)
def test_wrong_signals_are_rejected(change, parts):
    with pytest.raises(ValueError, match=message(*parts)):
        HarmonicDemixing(**change)


def test_a_generator_on_another_device_is_rejected():
    with pytest.raises(ValueError, match=message("generator must be on", "meta", "torch.Generator(device=")):
        HarmonicDemixing().sample(2, generator=torch.Generator(), device="meta")

"""The demixing task: recover a clean sum of harmonics from a noisy one, whatever the hidden warp.

Alphabet: B batch, L length, H heads.
"""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from toa._checks import check_at_least, check_finite
from toa.data import DemixingBatch, HarmonicDemixing
from toa.models import PointEncoder, PointEncoderConfig
from toa.nn import AttentionSpec
from toa.tasks.optimization import TrainingConfig
from toa.tasks.training import Observer, TrainingState, make_fabric, train

# seeds of training are small; the test signals come from far away
_TEST_SEED = 1_000_000_007


@dataclass(frozen=True, kw_only=True, slots=True)
class DemixingConfig:
    """One run: the signals, the capacity-limited model, its training, and the seed.

    `tf32` lets CUDA round factors of float32 products to TF32.
    """

    attention: AttentionSpec
    steps: int
    learning_rate: float
    signals: HarmonicDemixing = field(default_factory=HarmonicDemixing)
    embed_dim: int = 64
    num_heads: int = 2
    num_layers: int = 2
    ff_dim: int = 128
    batch_size: int = 64
    test_signals: int = 4096
    seed: int = 2024
    tf32: bool = True

    def __post_init__(self) -> None:
        check_at_least("steps", self.steps, 1)
        check_at_least("batch_size", self.batch_size, 1)
        check_at_least("test_signals", self.test_signals, 1)
        check_at_least("seed", self.seed, 0)
        if self.seed >= 2**31:
            raise ValueError(f"seed must be below 2^31, got {self.seed}.")

    def training(self) -> TrainingConfig:
        """How the model is trained: fresh signals at every step, so one long epoch."""
        return TrainingConfig(
            epochs=1,
            learning_rate=self.learning_rate,
            betas=(0.9, 0.95),
            schedule="warmup-cosine",
            warmup=min(100, self.steps // 2),
            clip_norm=1.0,
        )

    def model(self) -> PointEncoderConfig:
        """The model's part of it."""
        return PointEncoderConfig(
            lookback=self.signals.length,
            attention=self.attention,
            embed_dim=self.embed_dim,
            num_heads=self.num_heads,
            num_layers=self.num_layers,
            ff_dim=self.ff_dim,
        )


def held_out_signals(config: DemixingConfig) -> DemixingBatch:
    """The signals every seed and variant is judged on, drawn on the CPU so that all devices see the same."""
    return config.signals.sample(config.test_signals, generator=torch.Generator().manual_seed(_TEST_SEED))


def checksum(batch: DemixingBatch) -> str:
    """SHA-256 of the signals."""
    digest = hashlib.sha256()
    for tensor in batch:
        digest.update(tensor.cpu().numpy().tobytes())
    return digest.hexdigest()


class FreshSignals:
    """Signals for training; a step's depend on the seed and the step alone."""

    def __init__(self, config: DemixingConfig, device: torch.device) -> None:
        self._config = config
        self._device = device
        self._generator = Generator(device=device)

    @property
    def steps_per_epoch(self) -> int:
        """All steps: there is one epoch."""
        return self._config.steps

    def at(self, epoch: int, step: int) -> tuple[Tensor, Tensor]:
        """Noisy and clean signals of a step, each (B, L)."""
        self._generator.manual_seed(self._config.seed * 1_000_003 + step)
        batch = self._config.signals.sample(self._config.batch_size, generator=self._generator, device=self._device)
        return batch.noisy, batch.clean


def train_demixer(
    config: DemixingConfig,
    *,
    device: torch.device | str = "cpu",
    key: str = "demixing",
    checkpoint: Path | None = None,
    observe: Observer | None = None,
) -> tuple[PointEncoder, TrainingState]:
    """Train a model on fresh signals at every step; a checkpoint that exists is resumed."""
    fabric = make_fabric(torch.device(device))
    torch.manual_seed(config.seed)
    model = PointEncoder(config.model())

    def loss_of(model: nn.Module, noisy: Tensor, clean: Tensor) -> Tensor:
        return F.mse_loss(model(noisy.unsqueeze(-1)).squeeze(-1), clean)

    state = train(
        model,
        FreshSignals(config, fabric.device),
        loss_of,
        config.training(),
        fabric=fabric,
        key=key,
        checkpoint=checkpoint,
        observe=observe,
    )
    return model, state


@torch.no_grad()
def demix(model: PointEncoder, noisy: Tensor, *, batch_size: int = 256) -> Tensor:
    """Clean signals (B, L), in batches on the model's device.

    Raises:
        ValueError: If `noisy` holds NaN or infinities.
    """
    check_finite("noisy", noisy)
    model.eval()
    device = next(model.parameters()).device
    parts = [model(part.to(device).unsqueeze(-1)).squeeze(-1).cpu() for part in noisy.split(batch_size)]
    return torch.cat(parts)


def regime_errors(estimate: Tensor, batch: DemixingBatch) -> dict[str, float]:
    """Mean squared error over all signals ("mse") and over each regime's ("mse_0", "mse_1", "mse_2")."""
    error = (estimate - batch.clean).square().mean(1)  # (B,)
    errors = {"mse": float(error.mean())}
    for regime in range(int(batch.regime.max()) + 1):
        errors[f"mse_{regime}"] = float(error[batch.regime == regime].mean())
    return errors


def oracle_estimates(signals: HarmonicDemixing, batch: DemixingBatch) -> dict[str, Tensor]:
    """What linear estimators make of the signals: told the warp ("oracle"), and the best fixed one ("filter")."""
    noisy = batch.noisy.double()
    projectors = signals.oracle()
    told = torch.empty_like(noisy)
    for regime, projector in enumerate(projectors):
        chosen = batch.regime == regime
        told[chosen] = noisy[chosen] @ projector.mT
    return {"oracle": told.float(), "filter": (noisy @ signals.best_fixed_filter().mT).float()}


def frequency_response(noisy: Tensor, estimate: Tensor) -> Tensor:
    """Gain of an estimator at each frequency of the DFT, (L // 2 + 1,): |E[Y X*]| / E[|X|²] over signals.

    The least-squares fit of one gain a frequency to what went in and what came out. White noise in the input makes
    every frequency visible.
    """
    x, y = torch.fft.rfft(noisy), torch.fft.rfft(estimate)
    return (y * x.conj()).mean(0).abs() / x.abs().square().mean(0)

"""
Operators for a trained model
=============================

`toa.convert` replaces the attention inside a model by operator attention and keeps the weights. S1 and S2 start as the
identity, so the outputs do not change; fine-tuning then learns the operators. It works on `nn.MultiheadAttention`,
PyTorch's Transformer layers, and modules of similar form, such as Hugging Face's PatchTST.
"""

import copy

import torch
from torch import Tensor, nn

import toa

# %%
# The model to convert: a Transformer encoder that forecasts 8 steps of a noisy wave from 24, after a short training.

# steps that the model reads
PAST = 24
# steps that it forecasts
HORIZON = 8
# width of a token
WIDTH = 8


class Encoder(nn.Module):
    """Series (B, L) to its next values (B, P)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(1, WIDTH)
        self.positions = nn.Parameter(torch.randn(PAST, WIDTH) * 0.1)
        layer = nn.TransformerEncoderLayer(WIDTH, nhead=2, dim_feedforward=16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2)
        self.head = nn.Linear(PAST * WIDTH, HORIZON)

    def forward(self, series: Tensor) -> Tensor:
        """Forecast."""
        tokens = self.embed(series.unsqueeze(-1)) + self.positions  # (B, L, E)
        return self.head(self.encoder(tokens).flatten(1))


def windows(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Past and future of waves of random phase, period and trend, with noise on the past."""
    time = torch.arange(PAST + HORIZON)
    phase, period, trend = torch.rand(3, count, 1, generator=generator).unbind()
    series = torch.sin(2 * torch.pi * (time / (6 + 10 * period) + phase)) + (trend - 0.5) * time / PAST
    noise = 0.3 * torch.randn(count, PAST, generator=generator)
    return series[:, :PAST] + noise, series[:, PAST:]


def train(model: nn.Module, steps: int, seed: int) -> None:
    """Fit to fresh windows."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    model.train()
    for _ in range(steps):
        past, future = windows(32, generator)
        loss = nn.functional.mse_loss(model(past), future)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def error(model: nn.Module) -> float:
    """Mean squared error on windows that training never saw."""
    past, future = windows(2000, torch.Generator().manual_seed(999))
    return float(nn.functional.mse_loss(model.eval()(past), future))


torch.manual_seed(0)
model = Encoder()
train(model, steps=120, seed=0)
before = error(model)
print(f"trained: {before:.4f}")

# %%
# The conversion changes the model in place. Its report lists what was replaced, and what was not and why.
# `num_tokens` is the longest sequence that the attention will receive.

original = copy.deepcopy(model)
report = toa.convert(model, "toa-softmax", num_tokens=PAST)
print(report)

# %%
# The outputs are the same up to rounding.

past, _ = windows(100, torch.Generator().manual_seed(1))
with torch.no_grad():
    difference = float((model.eval()(past) - original.eval()(past)).abs().max())
print(f"largest difference: {difference:.1e}")

# %%
# Fine-tuning moves the operators away from the identity. Create the optimizer after the conversion, as `train` does, so
# that it contains the new parameters. For comparison, the original model is trained for the same number of steps.

train(model, steps=200, seed=1)
train(original, steps=200, seed=1)
after = error(model)
unconverted = error(original)
print(f"fine-tuned: {after:.4f} with operators, {unconverted:.4f} without")

# %%
# The gated and ReLU variants keep the projections too, but compute another function: `report.unchanged` is then False,
# and the model needs training before use.

"""
The layer in your own model
===========================

A softmax attention head averages: its weights are positive and sum to one. A difference needs a negative weight. Here a
model with one head learns to compute differences of a series, first with softmax attention and then with operator
attention, which takes the same arguments.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

from toa.nn import AttentionSpec, TemporalOperatorAttention, build_attention

# %%
# `build_attention` makes a layer from a name, or from an `AttentionSpec` with options. All layers are called like
# `nn.MultiheadAttention` with `batch_first`: they take query, key and value, and return tokens and, on request,
# weights. They need the number of tokens when they are created, because the operators are matrices of that size.

# tokens of a sequence
LENGTH = 16
# width of a token
WIDTH = 8


class OneLayer(nn.Module):
    """One value per step in and out: embedding, positions, attention, head."""

    def __init__(self, attention: AttentionSpec) -> None:
        super().__init__()
        self.embed = nn.Linear(1, WIDTH)
        self.positions = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.1)
        self.attention = build_attention(attention, WIDTH, 1, LENGTH)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        """Series (B, L) to (B, L)."""
        tokens = self.embed(series.unsqueeze(-1)) + self.positions  # (B, L, E)
        mixed, _ = self.attention(tokens, tokens, tokens)
        return self.head(mixed).squeeze(-1)


# %%
# The target is y[t] = x[t] - x[t-1], with x[-1] the last step. Both models see the same signals.


def train(attention: AttentionSpec, steps: int = 300) -> tuple[OneLayer, float]:
    """Train a model; return it with its mean squared error on new series, relative to the target's variance."""
    torch.manual_seed(0)
    model = OneLayer(attention)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    for _ in range(steps):
        series = torch.randn(32, LENGTH)
        target = series - series.roll(1, 1)
        loss = nn.functional.mse_loss(model(series), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        series = torch.randn(512, LENGTH)
        target = series - series.roll(1, 1)
        return model, float((model(series) - target).square().mean() / target.var())


softmax_model, softmax_error = train(AttentionSpec(name="softmax"))
toa_model, toa_error = train(AttentionSpec(name="toa-softmax", sor=False))
print(f"softmax:     {softmax_error:.4f} of the variance remains")
print(f"toa-softmax: {toa_error:.4f}")

# %%
# By default each training pass drops a random part of the operators (SOR). Here it is off, `sor=False`, because
# signals that are new at every step cannot be overfitted. Two softmax heads with a signed output projection can
# compute differences too; `toa theory` shows what they cannot.
#
# `w_mix` is the matrix that mixed the values, one per head. With softmax attention it has no negative entries; with
# operators it takes a step and subtracts the one before (red adds, blue subtracts).


def mixing(model: OneLayer) -> torch.Tensor:
    """The matrix (L, L) that mixes the values of one series."""
    with torch.no_grad():
        tokens = model.embed(torch.randn(1, LENGTH, 1)) + model.positions
        _, w_mix = model.attention(tokens, tokens, tokens, need_weights=True)
    return w_mix[0, 0]


figure, axes = plt.subplots(1, 2, figsize=(8, 4), layout="constrained")
for axis, name, model in zip(axes, ("softmax", "toa-softmax"), (softmax_model, toa_model), strict=True):
    weights = mixing(model)
    limit = float(weights.abs().max())
    axis.imshow(weights.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit)
    axis.set(title=f"{name}\nweights from {float(weights.min()):.2f} to {limit:.2f}", xlabel="key", ylabel="query")
figure.savefig("weights.png")
print(f"smallest weight: softmax {float(mixing(softmax_model).min()):.2f}, toa {float(mixing(toa_model).min()):.2f}")

# %%
# Padding is masked as in PyTorch: True where a token is padding. It does not change the outputs of real tokens.

layer = TemporalOperatorAttention(embed_dim=WIDTH, num_heads=2, num_tokens=LENGTH, variant="gated").eval()
x = torch.randn(1, 10, WIDTH)
padded = torch.cat((x, torch.full((1, 3, WIDTH), 9.0)), 1)
mask = torch.tensor([[False] * 10 + [True] * 3])
with torch.no_grad():
    short, _ = layer(x, x, x)
    long, _ = layer(padded, padded, padded, key_padding_mask=mask)
print(f"padding changes real tokens by {float((short - long[:, :10]).abs().max()):.0e}")

# %%
# A shorter sequence uses the leading block of the operators, as above. A longer one raises an error until `resize`
# interpolates the operators.

layer.resize(48)
x = torch.randn(1, 48, WIDTH)
print(f"after resize(48): {tuple(layer(x, x, x)[0].shape)}")

# %%
# Scores of the ReLU and gated variants are unbounded. For data with spikes, bound them: `score_norm="rms"`, and
# `gate_norm="rms"` for the gate.

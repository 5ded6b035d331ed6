"""What the operators of the cases are made of: sampled sinusoids, local atoms, projectors. All in float64."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from toa._checks import check_at_least


def time_steps(length: int) -> Float[Tensor, " {length}"]:
    """0, 1, ..., length - 1."""
    return torch.arange(length, dtype=torch.float64)


def quadrature(angles: Float[Tensor, "k t"]) -> Float[Tensor, "t _columns"]:
    """Columns cos and sin of each row of angles."""
    return torch.cat([angles.cos(), angles.sin()]).mT


def projector(basis: Float[Tensor, "n r"]) -> Float[Tensor, "n n"]:
    """Φ (ΦᵀΦ)⁻¹ Φᵀ, computed from an orthonormal basis of the same span."""
    q = torch.linalg.qr(basis).Q
    return q @ q.mT


def local_atoms(
    num_tokens: int, window: int, cycles: int, centre: int, phase: float = 0.0
) -> Float[Tensor, "{num_tokens} 2"]:
    """The atom w(t - c) cos(ω(t - c) + φ) of case E and, as a second column, its quadrature at φ + π/2.

    w(u) = 1 - cos(2π(u + R/2 + ½)/R) > 0 on R samples, ω = 2π cycles/R. With 2 ≤ cycles ≤ (R - 3)/2 both have zero
    mean and equal norms and are orthogonal, exactly.
    """
    start = centre - window // 2
    check_at_least("cycles", cycles, 2)
    if 2 * cycles > window - 3:
        raise ValueError(f"window must be at least 2 cycles + 3 = {2 * cycles + 3}, got {window}; widen it.")
    if start < 0 or start + window > num_tokens:
        raise ValueError(
            f"centre must leave {window} samples inside num_tokens={num_tokens}, got {centre}; "
            f"use {window // 2} to {num_tokens - window + window // 2}."
        )
    samples = time_steps(window)
    envelope = 1.0 - (2.0 * math.pi * (samples + 0.5) / window).cos()
    angle = 2.0 * math.pi * cycles / window * (samples - window // 2) + phase
    atoms = torch.zeros(num_tokens, 2, dtype=torch.float64)
    atoms[start : start + window, 0] = envelope * angle.cos()
    atoms[start : start + window, 1] = envelope * (angle + math.pi / 2.0).cos()
    return atoms

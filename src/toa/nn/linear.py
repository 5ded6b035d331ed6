"""Linear layers."""

from torch import Tensor, nn

from toa.ops.linear import linear


class Linear(nn.Linear):
    """`torch.nn.Linear`, computed by `toa.ops.linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the map to the last axis."""
        return linear(x, self.weight, self.bias)


def is_plain(layer: nn.Module) -> bool:
    """Whether a layer only computes x Wᵀ + b, so that its weight and bias can be used directly."""
    return type(layer) in (nn.Linear, Linear)

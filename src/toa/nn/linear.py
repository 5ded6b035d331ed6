"""Linear maps as layers."""

from torch import Tensor, nn

from toa.ops.linear import linear


class Linear(nn.Linear):
    """`torch.nn.Linear`, by `toa.ops.linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """Map the last axis."""
        return linear(x, self.weight, self.bias)


def is_plain(layer: nn.Module) -> bool:
    """Whether a layer is a linear map and no more, so that its weight and bias may be used without it."""
    return type(layer) in (nn.Linear, Linear)

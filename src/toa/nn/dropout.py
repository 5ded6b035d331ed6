"""Dropout layer."""

from torch import Tensor, nn

from toa.ops.dropout import dropout


class Dropout(nn.Dropout):
    """`torch.nn.Dropout`, computed by `toa.ops.dropout`, which draws random numbers faster on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        """Drop entries in training."""
        return dropout(x, self.rate)

    @property
    def rate(self) -> float:
        """Current drop rate: zero in evaluation."""
        return self.p if self.training else 0.0

"""Dropout as a layer."""

from torch import Tensor, nn

from toa.ops.dropout import dropout


class Dropout(nn.Dropout):
    """`torch.nn.Dropout`, by `toa.ops.dropout` on a CPU, where drawing a number an entry is what it costs."""

    def forward(self, x: Tensor) -> Tensor:
        """Drop entries in training."""
        return dropout(x, self.rate)

    @property
    def rate(self) -> float:
        """What is dropped now."""
        return self.p if self.training else 0.0

"""Dropout layers."""

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


class ChannelDropout(Dropout):
    """Sets all features (B, C, ...) of a channel to zero in training, at rate p, and scales the others up."""

    def forward(self, x: Tensor) -> Tensor:
        """Drop channels in training."""
        return x * super().forward(x.new_ones(*x.shape[:2], *(1,) * (x.dim() - 2))) if self.rate else x

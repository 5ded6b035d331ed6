"""Heads: layers that map the tokens of a backbone to a series."""

import torch
from torch import Tensor, nn

from toa._checks import check_at_least, check_fraction, check_shape
from toa.nn.dropout import Dropout
from toa.ops.linear import linear


class FlattenHead(nn.Module):
    """Flattens the tokens of each channel and maps them linearly to `horizon` values: (B, C, N, E) to (B, P, C).

    Args:
        num_tokens: Number of tokens N per channel.
        embed_dim: Width E of a token.
        horizon: Length P of the output series.
        individual_channels: Number of channels C for one map per channel; None for one shared map.
        dropout: Dropout rate on the output, as in PatchTST.
    """

    def __init__(
        self,
        num_tokens: int,
        embed_dim: int,
        horizon: int,
        *,
        individual_channels: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        for name, size in (("num_tokens", num_tokens), ("embed_dim", embed_dim), ("horizon", horizon)):
            check_at_least(name, size, 1)
        check_fraction("dropout", dropout)
        if individual_channels is not None:
            check_at_least("individual_channels", individual_channels, 1)
        self.num_tokens, self.embed_dim, self.individual_channels = num_tokens, embed_dim, individual_channels
        maps = () if individual_channels is None else (individual_channels,)
        self.weight = nn.Parameter(torch.empty(*maps, horizon, num_tokens * embed_dim))
        self.bias = nn.Parameter(torch.empty(*maps, horizon))
        self.dropout = Dropout(dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw from U(-b, b) with b = 1 / sqrt(N E), as in `nn.Linear`."""
        bound = self.weight.shape[-1] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the series (B, P, C)."""
        shape = (None, self.individual_channels, self.num_tokens, self.embed_dim)
        check_shape("tokens", tokens, "(B, C, N, E)", shape)
        x = tokens.flatten(2)  # (B, C, N*E)
        if self.individual_channels is None:
            x = linear(x, self.weight, self.bias)  # (B, C, P)
        else:
            x = torch.einsum("bcf,cpf->bcp", x, self.weight) + self.bias  # (B, C, P)
        return self.dropout(x).mT  # (B, P, C)

    def extra_repr(self) -> str:
        """Options shown in the module's repr."""
        sizes = f"num_tokens={self.num_tokens}, embed_dim={self.embed_dim}, horizon={self.weight.shape[-2]}"
        return f"{sizes}, individual_channels={self.individual_channels}"

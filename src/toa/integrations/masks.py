"""What other libraries' masks say, in the words of `toa`: which keys are padding, and whether a call is causal.

Operators mix keys before a query is compared with them. So whole keys can be hidden, and the future, but not single
pairs of a query and a key. Masks are read on the host to tell these cases apart, as a padding mask is to be checked.
Alphabet: B batch, M queries, N keys.
"""

import torch
from torch import Tensor


def hidden_by(name: str, mask: Tensor) -> Tensor:
    """Where an additive mask hides something, as bool: minus infinity or the lowest numbers of its dtype.

    Args:
        name: The argument's name, for the error.
        mask: Zeros and numbers that low, or bool already, True where hidden.

    Raises:
        ValueError: If it holds any other number, which is a bias and no mask.
    """
    if mask.dtype == torch.bool:
        return mask
    if not mask.is_floating_point():
        raise ValueError(f"{name} must be bool or floating point, got {mask.dtype}; cast it with .bool().")
    hidden = mask <= torch.finfo(mask.dtype).min / 2
    if _can_read(mask):
        bias = ~hidden & (mask != 0)
        if bias.any():
            others = f"{int(bias.sum())} other values such as {mask[bias][0].item():g}"
            raise ValueError(
                f"{name} must hold 0 and -inf alone, got {others}; "
                "operator attention adds no bias to its scores: leave it out, or keep this layer as it was."
            )
    return hidden


def is_causal_mask(name: str, hidden: Tensor) -> bool:
    """Whether hidden pairs (..., M, N) are those of the future (True) or none (False).

    Raises:
        ValueError: If they are others.
    """
    if not hidden.any():
        return False
    if not (hidden == _future(hidden)).all():
        raise _pairs_error(name, hidden)
    return True


def split_hidden(name: str, hidden: Tensor) -> tuple[Tensor | None, bool]:
    """Hidden pairs (B, M, N) as the keys that are hidden from all, (B, N) or None, and whether the future is as well.

    Raises:
        ValueError: If pairs are hidden that neither explains.
    """
    # the last query sees every key that is no padding, causal or not
    padding = hidden[:, -1]  # (B, N)
    for causal in (False, True):
        explained = padding.unsqueeze(1).expand_as(hidden)
        if causal:
            explained = explained | _future(hidden)
        if torch.equal(hidden, explained):
            return (padding if padding.any() else None), causal
    raise _pairs_error(name, hidden)


def _future(hidden: Tensor) -> Tensor:
    return torch.ones(hidden.shape[-2:], dtype=torch.bool, device=hidden.device).triu(1)


def _can_read(mask: Tensor) -> bool:
    return not (torch.compiler.is_compiling() or (mask.is_cuda and torch.cuda.is_current_stream_capturing()))


def _pairs_error(name: str, hidden: Tensor) -> ValueError:
    return ValueError(
        f"{name} must be the causal mask, or hide whole keys, got one that hides {int(hidden.sum())} of "
        f"{hidden.numel()} pairs otherwise; an operator mixes keys, so pairs cannot be hidden one by one: "
        "leave it out, or keep this layer as it was."
    )

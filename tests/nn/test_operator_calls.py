"""Calls of PyTorch's operators per forward pass of a layer: each costs host time, whatever its size."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from toa.nn import build_attention

# calls that compute or copy, in evaluation and in training with SOR; lower a number when the code needs fewer
CEILINGS = {
    "softmax": (6, 6),
    "toa-softmax": (12, 24),
    "toa-relu": (20, 32),
    "toa-gated": (27, 44),
}
# a new description of the same memory
VIEWS = {
    "alias", "as_strided", "detach", "expand", "permute", "select", "slice", "split", "split_with_sizes", "squeeze",
    "t", "transpose", "unbind", "unsqueeze", "view", "_unsafe_view",
}  # fmt: skip


class CountCalls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in VIEWS:
            self.calls[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", CEILINGS)
def test_a_forward_pass_makes_few_calls(name, training) -> None:
    layer = build_attention(name, 64, 4, 96).train(training)
    x = torch.randn(2, 96, 64)
    with CountCalls() as count, torch.set_grad_enabled(training):
        layer(x, x, x)
    assert count.calls.total() <= CEILINGS[name][training], dict(count.calls)

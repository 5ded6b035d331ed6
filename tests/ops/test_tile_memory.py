"""Kernels compiled for GPUs that are not here need no more shared memory than those have."""

import itertools
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from tests.support import ROOT

# backend, architecture and threads of a warp; bytes of shared memory
GPUS = {
    ("cuda", 80, 32): 166912,
    ("cuda", 86, 32): 101376,
    ("cuda", 90, 32): 232448,
    ("hip", "gfx942", 64): 65536,
}


def compile_for(target: tuple[Any, ...], shared: int, widths: tuple[int, ...]) -> list[int]:
    """Shared memory of all kernels of long sequences, with normalisers, or with a window and dropout."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    from toa.ops.attention import tile_kernels, tiles
    from toa.ops.attention.blocked import Factors
    from toa.ops.attention.definitions import Band, RowNorm, RowNorms
    from toa.ops.triton_helpers import Launch

    properties = SimpleNamespace(get_device_properties=lambda _: {"max_shared_mem": shared})
    gpu = SimpleNamespace(
        get_current_target=lambda: GPUTarget(*target),
        get_current_device=lambda: 0,
        get_current_stream=lambda _: 0,
        utils=properties,
    )
    driver.set_active(gpu)
    used: list[int] = []

    def compile_only(launch: Any, *tensors: Any) -> None:
        kernel, grid, options = launch._first
        used.append(kernel.warmup(*tensors, *launch._numbers, grid=grid, **options).metadata.shared)

    replaced: Any = Launch
    replaced.__call__ = compile_only
    choose, module = tile_kernels.choose_blocks, cast(Any, tile_kernels)
    module.choose_blocks = lambda *sizes, **options: choose(*sizes, **{**options, "shared": shared})
    norm = RowNorm(share=1.0, floor=1.0, gain=1.0)
    for width, gated, normalised in itertools.product(widths, (False, True), (False, True)):
        tokens = [torch.zeros(1, 4096, 1, width, dtype=torch.bfloat16).requires_grad_() for _ in range(3 + 2 * gated)]
        options: dict[str, Any] = {"norms": RowNorms(norm, norm if gated else None)}
        if not normalised:
            options = {"band": Band(-50, 50), "dropout_p": 0.1}
        out = tiles.attend_tiles(Factors(*tokens), **options)
        torch.autograd.grad(out, tokens, out.detach())
    return used


@pytest.mark.slow
@pytest.mark.parametrize("target", GPUS, ids=str)
def test_kernels_fit_the_shared_memory_of_a_gpu(target) -> None:
    pytest.importorskip("triton", reason="needs Triton: pip install 'toa[triton]'")
    # a process keeps its driver
    code = f"from {__name__} import compile_for; print(*compile_for({target}, {GPUS[target]}, (128, 256)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    used = list(map(int, done.stdout.split()))
    # two widths, with and without a gate, two settings, three kernels
    assert len(used) == 2 * 2 * 2 * 3
    assert max(used) <= GPUS[target], used

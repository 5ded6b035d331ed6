"""Kernels compiled for GPUs that are not here fit their shared memory and their registers."""

import ast
import itertools
import re
import subprocess
import sys
import tempfile
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


def compile_for(
    target: tuple[Any, ...], shared: int, widths: tuple[int, ...], dtype: torch.dtype = torch.bfloat16
) -> list[tuple[int, int]]:
    """Memory of all kernels of long sequences, with normalisers, or with a window and dropout.

    Returns pairs: bytes of shared memory, and bytes per thread that are not in registers.
    """
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
    used: list[tuple[int, int]] = []

    def compile_only(launch: Any, *tensors: Any) -> None:
        kernel, grid, options = launch._first
        compiled = kernel.warmup(*tensors, *launch._numbers, grid=grid, **options)
        used.append((compiled.metadata.shared, stack(compiled.asm["cubin"]) if target[0] == "cuda" else 0))

    replaced: Any = Launch
    replaced.__call__ = compile_only
    choose = tile_kernels.choose_blocks
    module = cast(Any, tile_kernels)
    module.choose_blocks = lambda *sizes, **options: choose(*sizes, **{**options, "shared": shared})
    norm = RowNorm(share=1.0, floor=1.0, gain=1.0)
    for width, gated, normalised in itertools.product(widths, (False, True), (False, True)):
        tokens = [torch.zeros(1, 4096, 1, width, dtype=dtype).requires_grad_() for _ in range(3 + 2 * gated)]
        options: dict[str, Any] = {"norms": RowNorms(norm, norm if gated else None)}
        if not normalised:
            options = {"band": Band(-50, 50), "dropout_p": 0.1}
        out = tiles.attend_tiles(Factors(*tokens), **options)
        torch.autograd.grad(out, tokens, out.detach())
    return used


def stack(binary: bytes) -> int:
    """Bytes per thread that a compiled kernel keeps outside its registers."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (found,) = re.findall(r"STACK:(\d+)", printed)
    return int(found)


def compiled(target: tuple[Any, ...], widths: tuple[int, ...], dtype: torch.dtype) -> list[tuple[int, int]]:
    pytest.importorskip("triton", reason="needs Triton: pip install 'toa[triton]'")
    # a process keeps its driver
    words = f"{target}, {GPUS[target]}, {widths}, {dtype}"
    code = f"import torch; from {__name__} import compile_for; print(compile_for({words}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    used: list[tuple[int, int]] = ast.literal_eval(done.stdout.splitlines()[-1])
    # with and without a gate, two settings, three kernels
    assert len(used) == len(widths) * 2 * 2 * 3
    return used


@pytest.mark.slow
@pytest.mark.parametrize("target", GPUS, ids=str)
def test_kernels_fit_the_shared_memory_of_a_gpu(target) -> None:
    used = compiled(target, (128, 256), torch.bfloat16)
    assert max(shared for shared, _ in used) <= GPUS[target], used


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "widths"), [(torch.bfloat16, (32, 64, 128, 256)), (torch.float32, (64, 128))], ids=str
)
def test_kernels_fit_the_registers_of_hopper(dtype, widths) -> None:
    # where the sums of a program did not fit, a thread kept 20 KB outside, and a step took ten times as long
    used = compiled(("cuda", 90, 32), widths, dtype)
    assert max(outside for _, outside in used) <= 1024, used

"""Tune the tiles of the fused attention kernels: compile, check and time each tile of a grid, beside the current one.

    python benchmarks/tiles.py [--tokens 4096] [--batch 8] [--heads 8] [--width 64] [--dtype bfloat16] [--norm rms]
        [--activations relu gated] [--kernels forward keys queries] [--tiles 64,64,4,3 …] [--workers N] [--out FILE]

Enter the winners in `_TUNED` of `toa.ops.attention.tile_kernels`; programs do not search at run time. Compiling takes
longest, so several processes compile into Triton's cache. Timed is a CUDA graph of the forward kernel, or of forward
and both backward kernels with one of them varied. Tiles with wrong results, or that do not fit the chip, are listed as
unusable.
"""

import argparse
import itertools
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from toa import ops
from toa.ops.attention import tile_kernels, tiles
from toa.ops.attention.blocked import Factors
from toa.ops.attention.definitions import GATE_NORMS, SCORE_NORMS, RowNorms
from toa.ops.attention.tile_kernels import Blocks
from toa.ops.triton_helpers import needs_exact_products
from toa.training.distributed import numerics
from toa_bench.op_cost import DTYPES, graph_times
from toa_bench.script import command_line, make_console, make_parser, save

FUSED = [name for name, entry in ops.ACTIVATIONS.items() if entry.fused and not entry.softmax]
KERNELS = ("forward", "keys", "queries")
# tokens along one side of a tile
SIDES = (32, 64, 128)
# warps of a program
WARPS = (4, 8)
# stages of the pipeline of a loop
STAGES = (1, 2, 3)
GRID = tuple(itertools.starmap(Blocks, itertools.product(SIDES, SIDES, WARPS, STAGES)))
# largest relative difference between the results of two tiles, as a root mean square
TOLERANCE = 0.02
# time per tile
SECONDS = 0.05
_present = tile_kernels.choose_blocks


class Problem:
    """Inputs of one size, and the kernels on them."""

    def __init__(self, args: argparse.Namespace, activation: str, batch: int) -> None:
        shape = (batch, args.tokens, args.heads, args.width)
        generator = torch.Generator("cuda").manual_seed(0)

        def normal() -> Tensor:
            return torch.randn(shape, device="cuda", generator=generator).to(DTYPES[args.dtype])

        self._gated = ops.ACTIVATIONS[activation].gated
        self._inputs = [normal() for _ in range(5 if self._gated else 3)]
        self._grad = normal()
        norms = SCORE_NORMS[args.norm], GATE_NORMS[args.norm if self._gated else "none"]
        self._norms = RowNorms(*(norm.row_norm(args.tokens) for norm in norms))
        self._scales = (args.width**-0.5,) * 2

    def launcher(self, kernel: str) -> Callable[[], Sequence[Tensor]]:
        """A function that launches a kernel: forward, or forward and backward for the backward kernels."""
        if kernel == "forward":
            return torch.no_grad()(lambda: [self._forward(self._inputs)])
        return self._gradients

    def _gradients(self) -> Sequence[Tensor]:
        # new tensors: what a failed pass leaves of the old ones in autograd breaks the next capture
        inputs = [x.detach().requires_grad_() for x in self._inputs]
        return torch.autograd.grad(self._forward(inputs), inputs, self._grad)

    def _forward(self, inputs: Sequence[Tensor]) -> Tensor:
        return tiles.attend_tiles(Factors(*inputs), scales=self._scales, norms=self._norms)


def milliseconds(launch: Callable[[], object]) -> float:
    """Median time of a CUDA graph."""
    return statistics.median(graph_times(launch, torch.device("cuda"), SECONDS))


def take(kernel: str, blocks: Blocks | None) -> None:
    """Make a kernel use a tile; None restores the current one."""

    def choose(which: Any, *words: Any, **options: Any) -> Blocks:
        return blocks if blocks is not None and which == kernel else _present(which, *words, **options)

    tile_kernels.choose_blocks = choose  # type: ignore[assignment]


def compile_share(args: argparse.Namespace, jobs: list[tuple[str, str, Blocks]]) -> None:
    """Compile the tiles of this process; failures show up again when the tile is timed."""
    first, step = args.share
    for activation, kernel, blocks in jobs[first::step]:
        take(kernel, blocks)
        try:
            Problem(args, activation, batch=1).launcher(kernel)()
        except Exception as error:
            print(f"{activation} {kernel} {tuple(blocks)}: {type(error).__name__}", file=sys.stderr)


def time_tiles(args: argparse.Namespace, activation: str, kernel: str) -> dict[str, Any]:
    """Time every tile for one kernel; returns the usable ones, fastest first, and why the others are unusable."""
    problem = Problem(args, activation, args.batch)
    take(kernel, None)
    launch = problem.launcher(kernel)
    expected = launch()
    gated = ops.ACTIVATIONS[activation].gated
    dtype = DTYPES[args.dtype]
    exact = needs_exact_products(dtype)
    now = _present(kernel, args.tokens, args.tokens, args.width, dtype, gated=gated, exact=exact)
    ranked = [(milliseconds(launch), tuple(now))]
    unusable = {}
    for blocks in args.tiles:
        take(kernel, blocks)
        try:
            launch = problem.launcher(kernel)
            error = max(_distance(*pair) for pair in zip(launch(), expected, strict=True))
        except Exception as problem_found:
            unusable[str(tuple(blocks))] = type(problem_found).__name__
            continue
        if error > TOLERANCE:
            unusable[str(tuple(blocks))] = f"off by {error:.1e}"
        elif blocks != now:
            ranked.append((milliseconds(launch), tuple(blocks)))
    best = [{"milliseconds": time, "blocks": blocks} for time, blocks in sorted(ranked)]
    return {"kernel": kernel, "activation": activation, "now": tuple(now), "tiles": best, "unusable": unusable}


def _distance(got: Tensor, expected: Tensor) -> float:
    return float((got.float() - expected.float()).norm() / expected.float().norm())


def read_tile(text: str) -> Blocks:
    """A tile from four numbers."""
    try:
        queries, keys, warps, stages = map(int, text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"a tile is queries,keys,warps,stages such as 64,64,4,3, got {text!r}"
        ) from None
    return Blocks(queries, keys, warps, stages)


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__, "runs/tiles.json")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=64, help="per head")
    parser.add_argument("--dtype", choices=list(DTYPES), default="bfloat16")
    parser.add_argument("--norm", choices=["none", "l2", "rms"], default="rms", help="of the scores and of the gate")
    parser.add_argument("--activations", nargs="+", choices=FUSED, default=FUSED)
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=list(KERNELS))
    parser.add_argument("--tiles", nargs="+", type=read_tile, default=GRID, help="queries,keys,warps,stages per tile")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 1) - 1), help="compiling processes")
    parser.add_argument("--share", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.set_defaults(device="cuda")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> None:
    args = parse(words)
    if not torch.cuda.is_available():
        raise SystemExit("error: tiles.py needs a CUDA device, got a machine without one.")
    jobs = [(a, k, blocks) for a in args.activations for k in args.kernels for blocks in args.tiles]
    with numerics(torch.device("cuda"), tf32=args.tf32):
        if args.share:
            compile_share(args, jobs)
            return
        given = sys.argv[1:] if words is None else words
        shares = [[sys.executable, __file__, *given, "--share", str(i), str(args.workers)] for i in range(args.workers)]
        print(f"compiling {len(jobs)} tiles in {args.workers} processes …", flush=True)
        for process in [subprocess.Popen(share, stderr=subprocess.DEVNULL) for share in shares]:
            process.wait()
        found = []
        for activation, kernel in itertools.product(args.activations, args.kernels):
            found.append(time_tiles(args, activation, kernel))
            shown = ", ".join(f"{tile['milliseconds']:.3f} {tile['blocks']}" for tile in found[-1]["tiles"][:5])
            now = next(tile for tile in found[-1]["tiles"] if tile["blocks"] == found[-1]["now"])
            print(f"{activation} {kernel}: now {now['milliseconds']:.3f} {now['blocks']}; best {shown}", flush=True)
    record = {"task": "tiles", "settings": vars(args), "kernels": found}
    save(record, args, command_line(__file__, words), make_console())


if __name__ == "__main__":
    main()

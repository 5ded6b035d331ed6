"""Time and peak memory of `folded` against `reference`: forward and backward of a TOA layer, as ratios in one run.

    python benchmarks/operator_attention.py [--variant gated] [--batch 8] [--heads 8] [--width 64] [--tokens 1024]

Each backend runs in a process of its own, so that its peak memory is its own. A backend whose outputs or gradients
disagree with the reference is not timed.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

import torch

from toa.nn import TemporalOperatorAttention


def layer_and_input(args: argparse.Namespace, backend: str) -> tuple[TemporalOperatorAttention, torch.Tensor]:
    torch.manual_seed(0)
    layer = TemporalOperatorAttention(
        args.heads * args.width, args.heads, args.tokens, args.variant, backend=backend, sor=False
    )
    return layer.to(args.device), torch.randn(args.batch, args.tokens, layer.embed_dim, device=args.device)


def step(layer: TemporalOperatorAttention, x: torch.Tensor) -> torch.Tensor:
    layer.zero_grad(set_to_none=True)
    out, _ = layer(x, x, x)
    out.square().mean().backward()
    return out.detach()


def check(args: argparse.Namespace) -> None:
    """Refuse to time a backend that is wrong."""
    small = argparse.Namespace(**{**vars(args), "batch": 2, "tokens": 65})
    results = []
    for backend in ("reference", "folded"):
        layer, x = layer_and_input(small, backend)
        layer, x = layer.double(), x.double()
        out = step(layer, x)
        results.append([out, *(p.grad for p in layer.parameters())])
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


def measure(args: argparse.Namespace) -> dict[str, float]:
    """Median seconds of a step and peak bytes over what the layer and its input take."""
    layer, x = layer_and_input(args, args.measure)
    on_cuda = args.device.startswith("cuda")
    before = torch.cuda.memory_allocated() if on_cuda else _resident()
    times = []
    for _ in range(args.repeats):
        begin = time.perf_counter()
        step(layer, x)
        if on_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    peak = torch.cuda.max_memory_allocated() if on_cuda else _resident()
    return {"seconds": statistics.median(times), "bytes": peak - before}


def _resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", default="gated", choices=("softmax", "relu", "gated"))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=64, help="width of a head")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args)))
        return
    check(args)
    found = {}
    for backend in ("reference", "folded"):
        command = [sys.executable, __file__, *sys.argv[1:], "--measure", backend]
        found[backend] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"{backend:>9}: {found[backend]['seconds']:8.3f} s  {found[backend]['bytes'] / 2**20:8.0f} MiB")
    time_ratio, memory_ratio = (found["folded"][key] / found["reference"][key] for key in ("seconds", "bytes"))
    print(f"folded / reference: time {time_ratio:.3f}, peak memory {memory_ratio:.3f}")


if __name__ == "__main__":
    main()

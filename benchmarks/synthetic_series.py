"""How fast synthetic series are drawn, and what a batch costs: series per second, operations, bytes.

    python benchmarks/synthetic_series.py [--device cuda] [--count 4096] [--length 2048] [--batches 5] [--out FILE]

An operation is one call of PyTorch that computes something; on a GPU about one launch. Bytes are those of its inputs
and outputs. Both do not depend on the machine, so they bound the rate on another one: operations times the seconds of a
launch, and bytes divided by the bandwidth of the memory. The rate is that of the median batch.
"""

import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from toa._checks import check_at_least
from toa._console import make_table
from toa.data.synthetic import SOURCES, SyntheticSettings, draw_series
from toa.training.distributed import resolve_device
from toa_bench.script import command_line, exit_on_error, make_console, make_parser, save

# operations that only describe a tensor in another way
VIEWS = ("view", "expand", "unsqueeze", "slice", "select", "alias", "unbind", "unflatten", "detach")


def size_of(value: Any) -> int:
    """Bytes of all tensors in an argument or a result."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    return sum(map(size_of, value)) if isinstance(value, list | tuple) else 0


class Counter(TorchDispatchMode):
    """Counts operations and their bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.__name__.startswith(VIEWS):
            self.operations += 1
            self.bytes += size_of(args) + size_of(result)
        return result


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What a batch costs."""

    series_per_s: float
    operations: int
    gigabytes: float


def measure(settings: SyntheticSettings, count: int, length: int, batches: int, device: torch.device) -> Cost:
    """Cost of batches of `count` series."""

    def draw(step: int) -> None:
        draw_series(count, length, seed=0, step=step, device=device, settings=settings)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    with Counter() as counter:
        draw(0)
    seconds = []
    for step in range(1, batches + 1):
        begin = time.perf_counter()
        draw(step)
        seconds.append(time.perf_counter() - begin)
    rate = count / statistics.median(seconds)
    return Cost(series_per_s=rate, operations=counter.operations, gigabytes=counter.bytes / 1e9)


def main(words: list[str] | None = None) -> None:
    """Measure each kind alone, without changes, and the default mixture."""
    parser = make_parser(__doc__, "results/synthetic/rate.json")
    parser.add_argument("--count", type=int, default=4096, help="series per batch")
    parser.add_argument("--length", type=int, default=2048, help="steps per series")
    parser.add_argument("--batches", type=int, default=5, help="batches that are timed")
    args = parser.parse_args(words)
    console = make_console()
    with exit_on_error():
        check_at_least("--batches", args.batches, 1)
        device = resolve_device(args.device)
        settings = {name: SyntheticSettings(weights={name: 1.0}, changes={}) for name in SOURCES}
        settings["all, with changes"] = SyntheticSettings()
        costs = {name: measure(each, args.count, args.length, args.batches, device) for name, each in settings.items()}
    rows = [
        (name, f"{cost.series_per_s:,.0f}", f"{cost.operations:,}", f"{cost.gigabytes:.2f}")
        for name, cost in costs.items()
    ]
    console.print(make_table([("kind", "series per s", "operations", "GB"), *rows]))
    record = {
        "task": "synthetic",
        "count": args.count,
        "length": args.length,
        "threads": torch.get_num_threads(),
        "costs": {
            name: {
                "series_per_s": round(cost.series_per_s, 1),
                "operations": cost.operations,
                "gigabytes": round(cost.gigabytes, 4),
            }
            for name, cost in costs.items()
        },
    }
    save(record, args, command_line("benchmarks/synthetic_series.py", words), console)


if __name__ == "__main__":
    main(sys.argv[1:])

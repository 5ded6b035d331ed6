"""Time and memory of a training step of iTransformer with thousands of channels, by structure of the operators.

    python benchmarks/thousands_of_channels.py [--channels 1000 4000 16000] [--systems softmax ...] [--out FILE]

    softmax               no operators
    toa-gated             dense operators, H N^2 parameters each
    toa-gated-low-rank    S = I + diag(d) + L R', rank 16: H N 33 parameters
    toa-gated-banded      32 channels to either side: H N 65 parameters; channels must lie in an order

One layer of width 64 with 4 heads, batches of one window, look-back 96, 12 steps, random values. Each system has its
own process, so that memory is its own: that of PyTorch on a GPU, else the growth of the process. Memory grows linearly
if it is 16 times as large at 16 times as many channels. A system that does not fit is marked.
"""

import argparse
import json
import subprocess
import sys
import time
from statistics import median
from typing import Any

import torch

from toa._console import make_table
from toa._limits import peak_bytes
from toa.models import build_forecaster
from toa.nn import AttentionSpec
from toa.training.distributed import resolve_device
from toa_bench.script import command_line, exit_on_error, make_console, make_parser, save

NORMS: dict[str, Any] = {"score_norm": "rms", "gate_norm": "rms"}
SYSTEMS = {
    "softmax": AttentionSpec(name="softmax"),
    "toa-gated": AttentionSpec(name="toa-gated", **NORMS),
    "toa-gated-low-rank": AttentionSpec(name="toa-gated", structure="dplr", rank=16, **NORMS),
    "toa-gated-banded": AttentionSpec(name="toa-gated", structure="banded", bandwidth=32, **NORMS),
}
CHANNELS = (1_000, 4_000, 16_000)
LOOKBACK = 96
HORIZON = 12
MODEL: dict[str, Any] = {
    "num_layers": 1,
    "embed_dim": 64,
    "ff_dim": 128,
    "num_heads": 4,
    "dropout": 0.0,
    "instance_norm": True,
}
# steps before and in the measurement
WARM_UP = 2
STEPS = 5


def measure(system: str, channels: int, device: torch.device) -> dict[str, Any]:
    """Cost of a training step in this process."""
    torch.manual_seed(0)
    before = peak_bytes()
    model = build_forecaster(
        "itransformer",
        lookback=LOOKBACK,
        horizon=HORIZON,
        channels=channels,
        attention=SYSTEMS[system],
        settings=MODEL,
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(1, LOOKBACK, channels, device=device)
    y = torch.randn(1, HORIZON, channels, device=device)
    seconds = []
    for step in range(WARM_UP + STEPS):
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if step >= WARM_UP:
            seconds.append(time.perf_counter() - begin)
    memory = torch.cuda.max_memory_allocated() if device.type == "cuda" else peak_bytes() - before
    return {
        "milliseconds": round(1e3 * median(seconds), 2),
        "memory": memory,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def measure_apart(system: str, channels: int, device: str) -> dict[str, Any]:
    """The same in a process of its own; the last line of its errors if it failed."""
    words = [sys.executable, __file__, "--one", system, "--channels", str(channels), "--device", device]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["killed"])[-1]
        return {"failed": last[:200]}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def run(args: argparse.Namespace) -> None:
    if args.one:
        print(json.dumps(measure(args.one, args.channels[0], resolve_device(args.device))))
        return
    console = make_console()
    cases: dict[str, Any] = {}
    rows: list[tuple[str, ...]] = [("channels", "system", "ms per step", "memory, MB", "parameters")]
    for channels in args.channels:
        for system in args.systems:
            found = measure_apart(system, channels, args.device)
            cases.setdefault(str(channels), {})[system] = found
            if "failed" in found:
                rows.append((str(channels), system, "does not fit", "", ""))
            else:
                shown = (f"{found['milliseconds']:.1f}", f"{found['memory'] / 1e6:.0f}", f"{found['parameters']:,}")
                rows.append((str(channels), system, *shown))
            console.print(" ".join(rows[-1]))
    console.print(make_table(rows))
    settings = {"channels": args.channels, "systems": args.systems, "lookback": LOOKBACK, "model": MODEL}
    record = {"benchmark": "thousands_of_channels", "settings": settings, "cases": cases}
    save(record, args, command_line("benchmarks/thousands_of_channels.py", None), console)


def main() -> None:
    parser = make_parser(__doc__, "runs/thousands_of_channels.json")
    parser.add_argument("--channels", type=int, nargs="+", default=list(CHANNELS))
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--one", choices=SYSTEMS, help="measure one system in this process and print it as JSON")
    with exit_on_error():
        run(parser.parse_args())


if __name__ == "__main__":
    main()

"""Time of many tiny runs by `toa reproduce`: by a pool, by Ray, and by Ray on two nodes of one machine, then killed.

    python benchmarks/sweep_scale.py [--runs 100] [--out FILE]

Each run trains a tiny DLinear for two epochs on 150 random rows, so the times are those of starting, claiming, writing
and reading, not of training. In the last case the command is killed by SIGKILL and one node is lost when a third of the
records exist; the node comes back, and the same command resumes. No finished run may be repeated, and all metrics must
be those of the other cases.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toa._checks import ArgumentError
from toa.experiments.records import RECORD
from toa_bench.script import command_line, exit_on_error, make_console, make_parser, save

OPTIONS = "--horizon 4 --protocol tslib-96 --backbone dlinear --set lookback=8 --set batch_size=16"
OPTIONS += " --set training.epochs=2 --set model.moving_average=3 --set 'date_column=\"\"'"
WORKERS = 2
Stamps = dict[str, tuple[int, dict[str, float]]]


def write_runs(folder: Path, count: int) -> Path:
    """A data set, and a file with one run per seed."""
    values = np.random.default_rng(0).normal(size=(150, 2)).round(3)
    data, path = folder / "own.csv", folder / "runs.txt"
    data.write_text("a,b\n" + "".join(f"{a},{b}\n" for a, b in values), encoding="utf-8")
    lines = [f"--dataset {data} --seed {seed} {OPTIONS}\n" for seed in range(count)]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def records(out: Path) -> Stamps:
    """Time of writing and metrics of every record, by the name of its folder."""
    found = {}
    for path in out.glob(f"*/*/{RECORD}"):
        found[path.parent.name] = (path.stat().st_mtime_ns, json.loads(path.read_text(encoding="utf-8"))["metrics"])
    return found


def start(runs: Path, out: Path, options: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Begin `toa reproduce`."""
    words = [
        sys.executable,
        "-m",
        "toa",
        "reproduce",
        "--runs",
        str(runs),
        "--out",
        str(out),
        "--device",
        "cpu",
        *options,
    ]
    with out.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})


def timed(runs: Path, out: Path, options: Sequence[str], count: int) -> dict[str, Any]:
    """Run the list to its end."""
    begin = time.perf_counter()
    code = start(runs, out, options).wait()
    seconds = time.perf_counter() - begin
    if code or len(records(out)) != count:
        last = out.with_suffix(".log").read_text(encoding="utf-8").strip().splitlines()[-1:]
        raise ArgumentError(" ".join(options), f"make {count} records", f"{len(records(out))}, exit {code}: {last}")
    return {"seconds": seconds, "per_100_runs": 100 * seconds / count}


def killed(runs: Path, out: Path, cluster: Any, count: int) -> dict[str, Any]:
    """Kill the command and a node, bring the node back, and resume."""
    node = cluster.add_node(num_cpus=1, node_ip_address="127.0.0.1")
    options = ["--executor", "ray", "--address", cluster.address]
    process = start(runs, out, options)
    while len(records(out)) < count // 3:
        if process.poll() is not None:
            raise ArgumentError("the sweep", "run until it is killed", f"exit {process.returncode}", "see its log")
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    cluster.remove_node(node, allow_graceful=False)
    before = records(out)
    cluster.add_node(num_cpus=1, node_ip_address="127.0.0.1")
    resumed = timed(runs, out, options, count)
    after = records(out)
    repeated = sum(after[name] != found for name, found in before.items())
    rest = 100 * resumed["seconds"] / max(1, count - len(before))
    return {"records_before": len(before), "repeated": repeated, **resumed, "per_100_runs": rest}


def measure(count: int) -> dict[str, Any]:
    """All cases, each in a folder of its own."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    from ray.cluster_utils import Cluster

    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        runs = write_runs(folder, count)
        two = ["--workers", str(WORKERS)]
        found["pool"] = timed(runs, folder / "pool", ["--executor", "pool", *two], count)
        found["ray"] = timed(runs, folder / "ray", ["--executor", "ray", *two], count)
        options = {"num_cpus": 1, "include_dashboard": False, "node_ip_address": "127.0.0.1"}
        cluster = Cluster(initialize_head=True, head_node_args=options)
        try:
            second = cluster.add_node(num_cpus=1, node_ip_address="127.0.0.1")
            nodes = ["--executor", "ray", "--address", cluster.address]
            found["ray, two nodes"] = timed(runs, folder / "nodes", nodes, count)
            cluster.remove_node(second)
            found["ray, two nodes, killed and resumed"] = killed(runs, folder / "killed", cluster, count)
        finally:
            cluster.shutdown()
        metrics = [
            {name: one[1] for name, one in records(folder / name).items()}
            for name in ("pool", "ray", "nodes", "killed")
        ]
    return {"cases": found, "same_metrics": all(one == metrics[0] for one in metrics)}


def main(words: list[str] | None = None) -> None:
    parser = make_parser(__doc__, "runs/sweep_scale.json")
    parser.add_argument("--runs", type=int, default=100, help="number of runs")
    args = parser.parse_args(words)
    console = make_console()
    with exit_on_error():
        record = {"task": "sweep_scale", "runs": args.runs, "workers": WORKERS, **measure(args.runs)}
    for name, case in record["cases"].items():
        console.print(f"{name}: {case['seconds']:.1f} s, {case['per_100_runs']:.1f} s per 100 runs")
    save(record, args, command_line(__file__, words), console)


if __name__ == "__main__":
    main()

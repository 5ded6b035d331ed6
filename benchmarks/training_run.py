"""Wall time of a complete PatchTST training run on ETTh1, horizon 96: ours against Time-Series-Library's, in one run.

    python benchmarks/training_run.py --peer CHECKOUT [--epochs 10] [--data-dir DIR] [--device auto] [--out FILE]

Ours runs the protocol `tslib-96` with softmax and with TOA-Gated attention through `run_task`; the peer runs its
own `run.py` with the arguments of its ETTh1 script and its default of ten loader processes. Early stopping is off for
both, so that both do the same epochs. Each runs in a process of its own, one after another:

    epoch  a share of train
    train  ours: epochs with validation; the peer's: its `train`, which measures on test after each epoch as well
    run    reading the data, training, test; imports left out

On CUDA ours runs twice: the first run of a system on a machine compiles its kernels, later ones find them.
"""

import argparse
import contextlib
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from toa._files import write_atomically
from toa.data import DATASETS
from toa.data.location import locate
from toa.experiments import run_task
from toa.experiments.efficiency import ROWS, EfficiencyRun, row_config
from toa.experiments.peer import check_peer, stand_in_for_missing
from toa.experiments.records import provenance
from toa.tasks.device import resolve_device

Found = dict[str, Any]

PEER = "peer, softmax"
OURS = {"ours, softmax": "patchtst/softmax", "ours, toa-gated": "patchtst/toa-gated"}
FIRST = ", first run"
TIMES = ("epoch_s", "train_s", "run_s")
# what its script gives beside sizes and epochs
SCRIPT = "--task_name long_term_forecast --is_training 1 --model_id ETTh1_96_96 --model PatchTST --data ETTh1 "
SCRIPT += "--features M --seq_len 96 --label_len 48 --pred_len 96 --e_layers 1 --d_layers 1 --factor 3 --enc_in 7 "
SCRIPT += "--dec_in 7 --c_out 7 --des Exp --n_heads 2 --itr 1"


def wait_for_turn() -> None:
    """Say that imports are done, and wait: those of all systems may go on side by side, their runs may not."""
    print("ready", flush=True)
    sys.stdin.readline()


def run_ours(args: argparse.Namespace) -> Found:
    """Times of a run of ours, in this process."""
    # a run imports it when it starts
    import lightning.fabric  # noqa: F401

    config = row_config(EfficiencyRun(tf32=args.tf32), ROWS[OURS[args.child.removesuffix(FIRST)]])
    config = replace(
        config,
        model={**config.model, "embed_dim": args.width, "ff_dim": args.ff_width},
        training=replace(config.training, epochs=args.epochs, patience=None),
    )
    with tempfile.TemporaryDirectory() as folder:
        wait_for_turn()
        begin = time.perf_counter()
        record = run_task(config, Path(folder), data_dir=args.data_dir, device=args.device)
        seconds = time.perf_counter() - begin
    return {
        "train_s": record["wall_s"],
        "run_s": seconds,
        "epochs": len(record["history"]),
        "mse": record["metrics"]["mse"],
        "device": record["device"],
        "backend": record["backend"],
        "tf32": record["tf32"],
    }


def run_peer(args: argparse.Namespace) -> Found:
    """Times of a run of the peer's, in this process, in a folder of links to its checkout that takes what it writes."""
    source = locate(DATASETS["ETTh1"], args.data_dir).resolve()
    device = resolve_device(args.device)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for entry in args.peer.iterdir():
            Path(entry.name).symlink_to(entry)
        sys.path.insert(0, folder)
        stood_in = stand_in_for_missing()
        from exp import exp_long_term_forecasting  # type: ignore[import-not-found]

        kind = exp_long_term_forecasting.Exp_Long_Term_Forecast
        train, train_s = kind.train, []

        def timed(*words: Any) -> Any:
            begin = time.perf_counter()
            trained = train(*words)
            train_s.append(time.perf_counter() - begin)
            return trained

        kind.train = timed
        words = [*SCRIPT.split(), "--root_path", f"{source.parent}/", "--data_path", source.name]
        words += ["--train_epochs", str(args.epochs), "--patience", str(args.epochs + 1)]
        words += ["--d_model", str(args.width), "--d_ff", str(args.ff_width)]
        words += ["--gpu", str(device.index or 0)] if device.type == "cuda" else ["--no_use_gpu"]
        sys.argv = ["run.py", *words]
        wait_for_turn()
        begin = time.perf_counter()
        runpy.run_path("run.py", run_name="__main__")
        seconds = time.perf_counter() - begin
    return {"train_s": train_s[0], "run_s": seconds, "arguments": words, "stood_in": stood_in}


def start_child(name: str, kernels: str) -> "subprocess.Popen[str]":
    """A process that will do a run; compiled kernels are looked for, and left, in a folder."""
    command = [sys.executable, __file__, *sys.argv[1:], "--child", name]
    environment = {**os.environ, "TRITON_CACHE_DIR": kernels}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)


def find(name: str, child: "subprocess.Popen[str]", args: argparse.Namespace) -> Found:
    """What a run finds, now that it is its turn."""
    out, errors = child.communicate("\n")
    if child.returncode:
        raise SystemExit(f"{name} failed, nothing is compared:\n{out[-2000:]}{errors[-2000:]}")
    found: Found = json.loads(out.splitlines()[-1])
    if name == PEER:
        found["epochs"] = len(re.findall(r"^Epoch: \d+, Steps: \d+", out, flags=re.MULTILINE))
        found["mse"] = float(re.findall(r"^mse:([\d.e+-]+)", out, flags=re.MULTILINE)[-1])
    if found["epochs"] != args.epochs:
        raise SystemExit(f"{name} did {found['epochs']} epochs instead of {args.epochs}: nothing is compared.")
    found["epoch_s"] = found["train_s"] / found["epochs"]
    return found


def compare(args: argparse.Namespace) -> Found:
    """All runs, one after another, and their times over the peer's."""
    try:
        check_peer(args.peer)
        locate(DATASETS["ETTh1"], args.data_dir)
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
    found = {}
    twice = resolve_device(args.device).type == "cuda"
    ours = [one for name in OURS for one in ((name + FIRST, name) if twice else (name,))]
    with tempfile.TemporaryDirectory() as kernels:
        children = {name: start_child(name, kernels) for name in (PEER, *ours)}
        for child in children.values():
            # one that never gets there says why when its turn comes
            while child.stdout is not None and child.stdout.readline() not in ("ready\n", ""):
                pass
        for name, child in children.items():
            print(f"{name} …", end=" ", flush=True)
            found[name] = find(name, child, args)
            print(f"{found[name]['run_s']:.2f} s, {found[name]['train_s']:.2f} of them training", flush=True)
    ratios = {name: {key: found[name][key] / found[PEER][key] for key in TIMES} for name in ours}
    where = provenance(resolve_device(args.device), [Path(sys.executable).name, *sys.argv])
    return {"task": "training_run", "epochs": args.epochs, "runs": found, "ratios": ratios, **where}


def show(record: Found) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="seconds, and in brackets their ratio to the peer's")
    for title in ("system", "epochs", "epoch", "train", "run", "test MSE"):
        table.add_column(title, justify="left" if not table.columns else "right", no_wrap=True)
    for name, found in record["runs"].items():
        ratios = record["ratios"].get(name, {})
        times = [f"{found[key]:.2f}" + (f" ({ratios[key]:.3f})" if ratios else "") for key in TIMES]
        table.add_row(name, str(found["epochs"]), *times, f"{found['mse']:.4f}")
    # a table is not cut where no terminal says how wide it is
    console = Console(width=None if sys.stdout.isatty() else 110)
    console.print(table)
    stood_in = ", ".join(record["runs"][PEER]["stood_in"]) or "none"
    console.print(f"{record['device']}. Packages the peer does not use here, stood in for: {stood_in}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=lambda text: Path(text).resolve(), required=True, help="its checkout")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--width", type=int, default=512, help="of the model, on both sides")
    parser.add_argument("--ff-width", type=int, default=2048, help="of its feed-forward layers, on both sides")
    parser.add_argument("--tf32", action=argparse.BooleanOptionalAction, default=True, help="in ours")
    parser.add_argument("--out", type=Path, default=Path("runs/training_run.json"))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        found = run_peer(args) if args.child == PEER else run_ours(args)
        print("\n" + json.dumps(found))
        return
    record = compare(args)
    write_atomically(args.out, (json.dumps(record, indent=2, sort_keys=True) + "\n").encode())
    show(record)
    print(f"record: {args.out}")


if __name__ == "__main__":
    main()

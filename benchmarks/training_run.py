"""Wall time of a complete PatchTST training run on ETTh1, horizon 96: ours against Time-Series-Library's, in one run.

    python benchmarks/training_run.py --peer CHECKOUT [--epochs 10] [--data-dir DIR] [--device auto] [--out FILE]

Ours runs the protocol `tslib-96` with softmax and with TOA-Gated attention. The peer runs its own `run.py` with the
arguments of its ETTh1 script and its default of ten loader processes. Early stopping is off on both sides, so that both
run the same epochs, and both have the same TF32 setting. Each run has its own process, one after another:

    epoch  train, divided by the number of epochs
    train  ours: epochs with validation; the peer's: its `train`, which also evaluates on test after each epoch
    run    reading the data, training and test, without imports

On CUDA ours runs twice: the first run on a machine compiles the kernels, later ones load them.
"""

import argparse
import contextlib
import io
import re
import runpy
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from toa._checks import ArgumentError
from toa._console import make_table
from toa.data import DATASETS
from toa.data.files import locate
from toa.experiments import run_task
from toa.training.distributed import numerics, resolve_device
from toa_bench.efficiency import row_config
from toa_bench.peer import check_peer, stand_in_for_missing
from toa_bench.script import command_line, exit_on_error, make_console, make_parser, save
from toa_bench.tables import complete_run
from toa_bench.worker import Record, Worker, answering

PEER = "peer, softmax"
OURS = {"ours, softmax": "patchtst/softmax", "ours, toa-gated": "patchtst/toa-gated"}
FIRST = ", first run"
TIMES = ("epoch_s", "train_s", "run_s")
# arguments of the peer's script other than sizes and epochs
SCRIPT = "--task_name long_term_forecast --is_training 1 --model_id ETTh1_96_96 --model PatchTST --data ETTh1 "
SCRIPT += "--features M --seq_len 96 --label_len 48 --pred_len 96 --e_layers 1 --d_layers 1 --factor 3 --enc_in 7 "
SCRIPT += "--dec_in 7 --c_out 7 --des Exp --n_heads 2 --itr 1"


def work(args: argparse.Namespace) -> None:
    """In the process of a system: import, answer, wait for the turn, run, and answer with the times."""
    answer = answering()

    def wait_for_turn() -> None:
        answer({"ready": True})
        sys.stdin.readline()

    answer((run_peer if args.child == PEER else run_ours)(args, wait_for_turn))


def run_ours(args: argparse.Namespace, wait_for_turn: Any) -> Record:
    """Times of our run."""
    # imported now, because a run imports it late
    import lightning.fabric  # noqa: F401

    config = row_config(OURS[args.child.removesuffix(FIRST)], tf32=args.tf32)
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
    times = {"train_s": record["wall_s"], "run_s": seconds, "epochs": len(record["history"])}
    return times | {"mse": record["metrics"]["mse"]} | {name: record[name] for name in ("device", "backend", "tf32")}


def run_peer(args: argparse.Namespace, wait_for_turn: Any) -> Record:
    """Times of the peer's run, in a temporary folder of links to its checkout, where it writes its files."""
    source = locate(DATASETS["ETTh1"], args.data_dir).resolve()
    device = resolve_device(args.device)
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for entry in args.peer.iterdir():
            Path(entry.name).symlink_to(entry)
        sys.path.insert(0, folder)
        stood_in = stand_in_for_missing()
        from exp import exp_long_term_forecasting  # type: ignore[import-not-found]

        experiment = exp_long_term_forecasting.Exp_Long_Term_Forecast
        train = experiment.train
        train_s = []

        def timed(*words: Any) -> Any:
            begin = time.perf_counter()
            trained = train(*words)
            train_s.append(time.perf_counter() - begin)
            return trained

        experiment.train = timed
        words = [*SCRIPT.split(), "--root_path", f"{source.parent}/", "--data_path", source.name]
        words += ["--train_epochs", str(args.epochs), "--patience", str(args.epochs + 1)]
        words += ["--d_model", str(args.width), "--d_ff", str(args.ff_width)]
        words += ["--gpu", str(device.index or 0)] if device.type == "cuda" else ["--no_use_gpu"]
        sys.argv = ["run.py", *words]
        wait_for_turn()
        begin = time.perf_counter()
        with contextlib.redirect_stdout(printed), numerics(device, tf32=args.tf32):
            runpy.run_path("run.py", run_name="__main__")
        seconds = time.perf_counter() - begin
    # a record names no folder of a machine
    words[words.index("--root_path") + 1] = f"DATA/{source.parent.name}/"
    times = {"train_s": train_s[0], "run_s": seconds, "arguments": words, "stood_in": stood_in}
    return times | printed_results(printed.getvalue())


def printed_results(text: str) -> Record:
    """Number of epochs and test error, from the output of the peer."""
    epochs = re.findall(r"^Epoch: \d+, Steps: \d+", text, flags=re.MULTILINE)
    errors = re.findall(r"^mse:([\d.e+-]+)", text, flags=re.MULTILINE)
    return {"epochs": len(epochs), "mse": float(errors[-1])}


def start(name: str, kernels: str) -> Worker:
    """The process of a run; compiled kernels are cached in the folder `kernels`."""
    return Worker(name, [sys.executable, __file__, *sys.argv[1:], "--child", name], TRITON_CACHE_DIR=kernels)


def compare(args: argparse.Namespace) -> Record:
    """Run all systems one after another and relate their times to the peer's."""
    check_peer(args.peer)
    locate(DATASETS["ETTh1"], args.data_dir)
    found: dict[str, Record] = {}
    twice = resolve_device(args.device).type == "cuda"
    ours = [one for name in OURS for one in ((name + FIRST, name) if twice else (name,))]
    with contextlib.ExitStack() as stack:
        kernels = stack.enter_context(tempfile.TemporaryDirectory())
        # imports run side by side, runs do not
        workers = {name: stack.enter_context(start(name, kernels)) for name in (PEER, *ours)}
        for worker in workers.values():
            worker.answer()
        for name, worker in workers.items():
            print(f"{name} …", end=" ", flush=True)
            found[name] = worker.ask({})
            if found[name]["epochs"] != args.epochs:
                raise ArgumentError(name, f"run {args.epochs} epochs", found[name]["epochs"])
            found[name]["epoch_s"] = found[name]["train_s"] / args.epochs
            print(f"{found[name]['run_s']:.2f} s, {found[name]['train_s']:.2f} of them training", flush=True)
    ratios = {name: {key: found[name][key] / found[PEER][key] for key in TIMES} for name in ours}
    return {"task": "training_run", "epochs": args.epochs, "runs": found, "ratios": ratios}


def show(record: Record) -> None:
    console = make_console()
    console.print(make_table(complete_run(record)))
    stood_in = ", ".join(record["runs"][PEER]["stood_in"]) or "none"
    console.print(f"Packages that the peer does not need here, replaced by stand-ins: {stood_in}.")


def main() -> None:
    parser = make_parser(__doc__, "runs/training_run.json")
    parser.add_argument("--peer", type=lambda text: Path(text).resolve(), required=True, help="checkout of the peer")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--width", type=int, default=512, help="of the model, on both sides")
    parser.add_argument("--ff-width", type=int, default=2048, help="of the feed-forward layers, on both sides")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        work(args)
        return
    with exit_on_error():
        record = compare(args)
    show(record)
    save(record, args, command_line(__file__, None), make_console())


if __name__ == "__main__":
    main()

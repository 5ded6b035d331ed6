"""Pretrain the forecaster in pieces; every command can be repeated and resumes.

    python benchmarks/pretrain.py list
    python benchmarks/pretrain.py screen --folder runs/pretrain --seconds 540
    python benchmarks/pretrain.py train large --folder runs/pretrain --seconds 540
    python benchmarks/pretrain.py validate runs/pretrain/large/model --flip
    python benchmarks/pretrain.py export large --folder runs/pretrain --out runs/pretrain/large/weights
    python benchmarks/pretrain.py choose small --flip --record results/pretraining/small.json --out weights/small

The plan is benchmarks/pretrain.toml. `screen` trains the arms one after another, validates each that is done, and adds
its record to screen.jsonl of the folder. "NAME@1" is a training with another seed. `train` continues from `--weights`
if its checkpoint is lost. `export` writes the weights so far in bfloat16, with the options of inference that the
validation preferred, and a model card; `choose` writes given weights with other options. The data of the validation
list lie in the folder that `--data-dir` or $TOA_DATA names.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from toa._checks import ArgumentError
from toa._files import parse_json
from toa.estimators.pretrained_forecasts import InferenceOptions
from toa.experiments.records import Record, provenance, record_line
from toa.models.pretrained import PretrainedForecaster
from toa.training.distributed import resolve_device
from toa.training.parts import has_parts
from toa.training.pretraining import MODEL_FOLDER, RECORD_FILE, Pretraining, train_piece
from toa_bench.pretrain_card import write_card
from toa_bench.pretrain_plan import PLAN, Plan, make_run, read_plan
from toa_bench.pretrain_validation import read_validation, validate_model
from toa_bench.script import command_line, exit_on_error

SCREEN_FILE = "screen.jsonl"


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    for name in ("list", "screen", "train", "validate", "export", "choose"):
        action = actions.add_parser(name)
        action.add_argument("--plan", type=Path, default=PLAN, help="file of the plan")
        action.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
        action.add_argument("--data-dir", type=Path, help="folder of the data of the validation list")
        if name in ("train", "export"):
            action.add_argument("name", help="a training of the plan")
        if name in ("screen", "train", "export"):
            action.add_argument("--folder", type=Path, default=Path("runs/pretrain"), help="folder of all trainings")
        if name in ("screen", "train"):
            action.add_argument("--seconds", type=float, help="time of this piece; unlimited unless given")
        if name == "screen":
            action.add_argument("--arm", action="append", help="an arm, or ARM@SEED; all arms unless given")
        if name == "train":
            action.add_argument("--steps", type=int, help="steps of this piece")
            action.add_argument("--weights", type=Path, help="where to continue if the checkpoint is lost")
        if name == "export":
            action.add_argument("--out", type=Path, required=True, help="folder to write")
        if name in ("validate", "choose"):
            add_model(action, name)
        if name in ("validate", "export", "choose"):
            add_inference(action)
    return parser


def add_model(action: argparse.ArgumentParser, name: str) -> None:
    """The weights of an action that trains none."""
    action.add_argument("model", help="a folder of weights, or the name of shipped ones")
    if name == "validate":
        action.add_argument("--out", type=Path, help="file that the record is added to")
        action.add_argument("--list", type=Path, help="another validation list than that of the plan")
    else:
        action.add_argument("--record", type=Path, required=True, help="record of their training")
        action.add_argument("--out", type=Path, required=True, help="folder to write")


def add_inference(action: argparse.ArgumentParser) -> None:
    """The options of inference."""
    action.add_argument("--flip", action="store_true", help="average with the forecast of minus the series")
    action.add_argument("--context", type=int, action="append", default=[], help="average over these contexts")
    action.add_argument("--season-steps", type=int, help="resample to this length of a season")
    action.add_argument("--stretch", type=int, default=1, help="steps per step of a short series without a season")


def start(plan: Plan, name: str, device: torch.device, words: list[str] | None) -> Pretraining:
    """A training in memory, whose record names the command."""
    facts = provenance(device, command_line("benchmarks/pretrain.py", words))
    return make_run(plan, name, device, facts={"commit": facts["commit"], "command": facts["command"]})


def print_progress(step: int, loss: float, speed: float) -> None:
    """One line per entry of the loss curve."""
    print(f"step {step}: loss {loss:.4f}, {speed:.1f} steps per second", flush=True)


def folder_of(options: argparse.Namespace, name: str) -> Path:
    return Path(options.folder) / name.replace("@", "-seed")


def train(plan: Plan, options: argparse.Namespace, words: list[str] | None) -> None:
    device = resolve_device(options.device)
    run = start(plan, options.name, device, words)
    weights = None if options.weights is None else PretrainedForecaster.from_pretrained(options.weights)
    folder = folder_of(options, options.name)
    done = train_piece(
        run,
        folder,
        seconds=options.seconds,
        most_steps=options.steps,
        weights=weights,
        observe=print_progress,
    )
    rest = "done" if done else "repeat the command to continue"
    print(f"{run.state.step} of {run.config.steps} steps in {folder}; {rest}.")


def screen(plan: Plan, options: argparse.Namespace, words: list[str] | None) -> None:
    """Train and validate the arms in turn; those with a record are skipped."""
    device = resolve_device(options.device)
    end = None if options.seconds is None else time.perf_counter() + options.seconds
    target = Path(options.folder) / SCREEN_FILE
    sets = read_validation(plan.validation)
    for name in options.arm or plan.arms():
        lines = target.read_text(encoding="utf-8").splitlines() if target.exists() else []
        if name in {parse_json(line, str(target))["name"] for line in lines}:
            continue
        left = None if end is None else end - time.perf_counter()
        if left is not None and left <= 0:
            print("the time is over; repeat the command to continue.")
            return
        print(f"{name}", flush=True)
        folder = folder_of(options, name)
        run = start(plan, name, device, words)
        if not train_piece(run, folder, seconds=left, observe=print_progress):
            print("the time is over; repeat the command to continue.")
            return
        model = PretrainedForecaster.from_pretrained(folder / MODEL_FOLDER).to(device)
        record = parse_json((folder / RECORD_FILE).read_bytes(), RECORD_FILE)
        record |= {"name": name, "validation": validate_model(model, sets, options.data_dir)}
        with target.open("a", encoding="utf-8") as file:
            file.write(record_line(record))
        print_scores(name, record["validation"])


def print_scores(name: str, scores: dict[str, Any]) -> None:
    for each, values in scores["sets"].items():
        print(
            f"  {each}: MASE {values['mase']:.3f} ({values['mase_ratio']:.3f} of seasonal naive), pinball "
            f"{values['pinball_ratio']:.3f}, coverage {values['coverage']:.1%} of {values['windows']} windows"
        )
    mean = scores["geometric_mean"]
    print(f"{name}: geometric mean over real sets: MASE {mean['mase_ratio']:.4f}, pinball {mean['pinball_ratio']:.4f}")


def inference_of(options: argparse.Namespace) -> InferenceOptions:
    return InferenceOptions(
        flip=options.flip,
        contexts=tuple(options.context),
        season_steps=options.season_steps,
        stretch=options.stretch,
    )


def validate(plan: Plan, options: argparse.Namespace, words: list[str] | None) -> None:
    device = resolve_device(options.device)
    model = PretrainedForecaster.from_pretrained(options.model).to(device)
    how = inference_of(options)
    begin = time.perf_counter()
    sets = read_validation(options.list or plan.validation)
    scores = validate_model(model, sets, options.data_dir, how)
    seconds = time.perf_counter() - begin
    print_scores(str(options.model), scores)
    if options.out is not None:
        record = {
            "benchmark": "pretraining",
            "model": model.facts.get("name"),
            "step": model.facts.get("step"),
            **scores,
        }
        record |= {"options": how.to_json()}
        record |= {"seconds": round(seconds, 1)}
        record |= provenance(device, command_line("benchmarks/pretrain.py", words))
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with options.out.open("a", encoding="utf-8") as file:
            file.write(record_line(record))


def export(plan: Plan, options: argparse.Namespace, words: list[str] | None) -> None:
    """Weights of the checkpoint in bfloat16 and the options of inference, with their validation in a model card."""
    folder = folder_of(options, options.name)
    if not has_parts(folder):
        raise ArgumentError(folder, "hold a checkpoint", "none", "train it first")
    run = start(plan, options.name, torch.device("cpu"), words)
    run.resume(folder)
    result = run.result()
    record = parse_json((folder / RECORD_FILE).read_bytes(), RECORD_FILE)
    write_weights(plan, result, record, options)


def choose(plan: Plan, options: argparse.Namespace, words: list[str] | None) -> None:
    """Given weights with other options of inference, which are validated for the model card."""
    record = parse_json(options.record.read_bytes(), str(options.record))
    write_weights(plan, PretrainedForecaster.from_pretrained(options.model), record, options)


def write_weights(plan: Plan, result: PretrainedForecaster, record: Record, options: argparse.Namespace) -> None:
    """Weights in bfloat16 with options of inference, and a model card with their validation."""
    inference = inference_of(options)
    result.facts["inference"] = inference.to_json()
    result.save_pretrained(options.out, dtype=torch.bfloat16)
    model = PretrainedForecaster.from_pretrained(options.out)
    scores = validate_model(model, read_validation(plan.validation), options.data_dir, inference)
    write_card(options.out, record, scores, inference)
    print_scores(record["name"], scores)
    size = sum(path.stat().st_size for path in options.out.iterdir())
    print(f"{size / 2**20:.1f} MiB in {options.out}")


def list_trainings(plan: Plan, options: argparse.Namespace, words: list[str] | None) -> None:
    for name, entry in plan.entries.items():
        weights = sum(parameter.numel() for parameter in PretrainedForecaster(entry.model).parameters())
        series = entry.training.steps * entry.training.batch_size
        print(f"{name}: {weights:,} weights, {entry.training.steps:,} steps, {series:,} series")


ACTIONS = {
    "list": list_trainings,
    "screen": screen,
    "train": train,
    "validate": validate,
    "export": export,
    "choose": choose,
}


def main(words: Sequence[str] | None = None) -> None:
    given = None if words is None else list(words)
    options = make_parser().parse_args(given)
    with exit_on_error():
        ACTIONS[options.action](read_plan(options.plan), options, given)


if __name__ == "__main__":
    main(sys.argv[1:])

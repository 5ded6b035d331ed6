"""The files that the campaign damages and forges: what writes, reads and uses them, for each loader."""

import gzip
import hashlib
import io
import json
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file as load_safetensors
from safetensors.torch import save_file as save_safetensors
from torch import nn

from toa.cli.main import app
from toa.cli.sweep import read_runs
from toa.cli.terminal import read_data
from toa.data import DATASETS, read_csv_series, read_dataset, read_ts, read_values
from toa.data.collections import read_tsf
from toa.data.formats import write_frame
from toa.data.tables import read_labels
from toa.estimators import AnomalyDetector, Classifier, Forecaster
from toa.estimators.base import load_estimator
from toa.estimators.boosting import BoostedTrees
from toa.estimators.files import CONFIG, WEIGHTS, saved_columns
from toa.estimators.lag_methods import TREES, FittedTrees
from toa.estimators.pretrained_forecasts import forecast_quantiles
from toa.estimators.stack import Stack
from toa.experiments import resolve
from toa.experiments.records import config_hash, hashed_values, read_record, write_record
from toa.experiments.run import Job, read_error, read_plans, write_failure, write_plan
from toa.models.pretrained import PretrainedConfig, PretrainedForecaster
from toa.report.operators import read_pictures, write_pictures
from toa.training.checkpoint import load_checkpoint, save_checkpoint
from toa.training.distributed import make_fabric
from toa.training.loop import train
from toa.training.optimization import TrainingConfig
from toa_paper.report.evidence import read_evidence

_SMALL = {"embed_dim": 4, "num_heads": 2, "num_layers": 1, "ff_dim": 4}


class _Table:
    """Two steps of four numbers, for a model of four weights."""

    steps_per_epoch = 2

    def at(self, epoch: int, step: int) -> tuple[torch.Tensor, ...]:
        return (torch.ones(3, 4) * (step + 1),)


@cache
def _fabric() -> Any:
    return make_fabric(torch.device("cpu"))


def _train(path: Path) -> Any:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    config = TrainingConfig(epochs=1, learning_rate=1e-3)
    loss = lambda module, x: module(x).square().mean()  # noqa: E731
    state = train(model, _Table(), loss, config, fabric=_fabric(), key="fuzz", validate=_validate, checkpoint=path)
    return state.history, [parameter.tolist() for parameter in model.parameters()]


def _validate(model: nn.Module) -> float:
    return 1.0


def _config() -> Any:
    return resolve("forecast", "toa-paper", dataset="ETTh1", horizon=96, backbone="itransformer")


def _write_record(path: Path) -> None:
    config = _config()
    content: Any = {"task": "forecast", "name": config.name, "config": hashed_values(config), "seed": 2024}
    content |= {"config_hash": config_hash(config), "metrics": {"mse": 0.4, "mae": 0.3}, "wall_s": 1.0, "device": "cpu"}
    write_record(path, content | {"command": "toa run", "data_checksum": "0" * 64, "history": [], "best_epoch": 1})


def _write_csv(path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(40, 3))
    frame = pd.DataFrame(values, columns=["a", "b", "OT"])
    frame.insert(0, "date", pd.date_range("2024-01-01", periods=40, freq="h"))
    frame.to_csv(path, index=False)


def _write_error(path: Path) -> None:
    job = Job(config=_config(), label="x")
    write_failure(job, path.parent / "runs", "ValueError: no", "trace")
    (job.folder(path.parent / "runs") / "error.json").replace(path)


def _write_plan(path: Path) -> None:
    written = write_plan([Job(config=_config(), label="x", command=("toa", "run"))], path.parent.parent)
    assert written == path


def _read_plans(path: Path) -> Any:
    jobs, unreadable = read_plans(path.parent.parent)
    if unreadable:
        raise ValueError(unreadable[0])
    return [job.to_json() for job in jobs.values()]


def _read_evidence(path: Path) -> Any:
    found = read_evidence([path])
    if found.skipped:
        raise ValueError(found.skipped[0].where)
    return [run.record["metrics"] for run in found.runs]


def _write_evidence(path: Path) -> None:
    _write_record(path)
    path.write_text(json.dumps(json.loads(path.read_text())) + "\n")


def _rows(count: int, channels: int = 2) -> np.ndarray:
    return np.random.default_rng(count).normal(size=(count, channels))


def _forecaster(path: Path) -> None:
    Forecaster(2, lookback=8, epochs=1, backbone="dlinear", model="toa").fit(np.arange(60.0)).save(path)


def _chosen_forecaster(path: Path) -> None:
    Forecaster(2, epochs=1, time_limit=5.0, settings=_SMALL, quantiles=(0.1, 0.9)).fit(_rows(120)).save(path)


def _boosted_forecaster(path: Path) -> None:
    found = Forecaster(2, time_limit=1e-9).fit(_rows(120))
    assert found.choice_ is not None
    own = found.choice_.ensemble
    trees = BoostedTrees.fit(_rows(120).T, season=own.season, lookback=12)
    assert trees is not None
    ensemble = replace(own, weights={TREES: 1.0}, fitted={TREES: FittedTrees(trees, 2)})
    found.fitted_ = replace(found.fitted_, choice=replace(found.choice_, ensemble=ensemble))
    found.save(path)


def _detector(path: Path) -> None:
    found = AnomalyDetector(window=8, epochs=1, settings=_SMALL).fit(_rows(100))
    combination = found.choice_
    assert combination is not None
    # all methods, whatever the data would choose
    tails = dict.fromkeys((*found.scorers_, "toa"), combination.tails["pca"])
    score = replace(found.fitted_.score, combination=replace(combination, tails=tails))
    found.fitted_ = replace(found.fitted_, score=score)
    found.save(path)


def _plain_detector(path: Path) -> None:
    AnomalyDetector(model="mahalanobis mean", window=8).fit(_rows(60)).save(path)


def _network_detector(path: Path) -> None:
    AnomalyDetector(model="toa", window=8, epochs=1, settings=_SMALL).fit(_rows(60)).save(path)


def _cases() -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(24) % 2
    return np.random.default_rng(0).normal(size=(24, 2, 12)) + labels[:, None, None], labels


def _classifier(path: Path) -> None:
    found = Classifier(epochs=1, settings=_SMALL | {"instance_norm": False}).fit(*_cases())
    # all linear members, whatever the data would choose
    names = tuple(found.fitted_.ridge)
    stack = Stack(weights=dict.fromkeys(names, 1 / len(names)), factor=1.0, accuracies={"stack": 1.0})
    found.fitted_ = replace(found.fitted_, stack=stack)
    found.save(path)


def _network_classifier(path: Path) -> None:
    Classifier(model="toa", epochs=1, settings=_SMALL | {"instance_norm": False}).fit(*_cases()).save(path)


def _folder(path: Path) -> None:
    found = AnomalyDetector(model="toa", window=8, epochs=1, settings=_SMALL).fit(_rows(60))
    found.save_pretrained(path.parent)
    assert {CONFIG, WEIGHTS} <= {one.name for one in path.parent.iterdir()}


def _pretrained(path: Path) -> None:
    sizes: Any = {
        "context": 16,
        "horizon": 8,
        "patch_len": 4,
        "embed_dim": 8,
        "num_heads": 2,
        "num_layers": 2,
        "ff_dim": 8,
    }
    torch.manual_seed(0)
    facts = {"steps": 3, "inference": {"flip": True, "contexts": [8, 16], "season_steps": None}}
    PretrainedForecaster(PretrainedConfig(**sizes), facts=facts).save_pretrained(path.parent)


def _series() -> pd.DataFrame:
    """Two series with dates, a covariate and a property."""
    rows = 60
    parts = []
    for number, name in enumerate(("u", "v")):
        values = np.random.default_rng(number).normal(size=(rows, 2))
        part = pd.DataFrame({"id": name, "day": pd.date_range("2024-01-01", periods=rows)})
        parts.append(part.assign(load=values[:, 0], sun=values[:, 1], area=1.0 + number))
    return pd.concat(parts, ignore_index=True)


def _series_forecaster(path: Path) -> None:
    names: Any = {"id": "id", "time": "day", "covariates": ["sun"], "static": ["area"]}
    Forecaster(2, time_limit=1e-9, calendar=True, interval=0.8, **names).fit(_series()).save(path)


def _read_saved(path: Path) -> Any:
    """As commands read it: first the names of its columns, for the table, and then the estimator."""
    saved_columns(path)
    return load_estimator(path)


def _forecast_series(found: Any) -> Any:
    table = _series()
    last = table["day"].max()
    future = pd.DataFrame({"id": ["u", "u", "v", "v"], "day": [last + pd.Timedelta(days=day) for day in (1, 2)] * 2})
    forecast = found.predict(table, future=future.assign(sun=0.5, area=[1.0, 1.0, 2.0, 2.0]))
    return [_answers_of(forecast)]


def _answers_of(forecast: pd.DataFrame) -> pd.DataFrame:
    """Forecasts and, if the file holds what they need, bounds."""
    return forecast[[name for name in ("load", "load_lower", "load_upper") if name in forecast]]


def _forecast_by_command(path: Path) -> Any:
    """What a command writes that forecasts with this file; raises ValueError with its error."""
    table = path.with_name("rows.csv")
    future = path.with_name("future.csv")
    out = path.with_name("forecast.csv")
    if not table.exists():
        rows = _series()
        rows.to_csv(table, index=False)
        last = rows.groupby("id").tail(2)
        last.assign(day=last["day"] + pd.Timedelta(days=2)).drop(columns="load").to_csv(future, index=False)
    printed = io.StringIO()
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            words = ["forecast", str(table), "--model", str(path), "--future", str(future), "--out", str(out)]
            app(words, prog_name="toa")
    except SystemExit as end:
        if end.code:
            raise ValueError(" ".join(printed.getvalue().split())) from None
    return [_answers_of(pd.read_csv(out))]


def _forecast(found: Any) -> Any:
    return [found.predict(_rows(80, len(found.columns_)))]


def _detect(found: Any) -> Any:
    rows = _rows(40, len(found.columns_))
    found.reset_stream()
    return [found.scores(rows), found.channel_scores(rows), found.detect(rows[:3])["score"], found.predict(rows)]


def _classify(found: Any) -> Any:
    cases = np.random.default_rng(1).normal(size=(3, len(found.columns_), 12))
    return [found.predict_proba(cases)]


def _arrays(found: Any) -> Any:
    return [part.tolist() for part in found.values], list(found.columns)


def _write_ts(path: Path) -> None:
    cases = "".join(f"{i},{i + 1},{i + 2}:3,{i},5:{'ab'[i % 2]}\n" for i in range(8))
    path.write_text(f"@problemName x\n@timestamps false\n@univariate false\n@classLabel true a b\n@data\n{cases}")


def _write_tsf(path: Path) -> None:
    rows = "".join(f"T{i}:2020-01-0{i + 1} 00-00-00:1,2,3.5,{i}\n" for i in range(4))
    header = "@relation x\n@attribute series_name string\n@attribute start_timestamp date\n@frequency daily\n"
    path.write_text(f"{header}@horizon 2\n@missing false\n@equallength true\n@data\n{rows}")


def _write_frame(path: Path) -> None:
    times = pd.date_range("2024-01-01", periods=15, freq="D")
    values = {"day": [*times, *times], "id": ["a"] * 15 + ["b"] * 15, "v": np.arange(30.0)}
    write_frame(pd.DataFrame(values), path)


@cache
def _panel_model(folder: Path) -> Path:
    _write_frame(folder / "model.csv")
    frame = pd.read_csv(folder / "model.csv")
    Forecaster(2, id="id", time="day", time_limit=1e-9).fit(frame).save(folder / "model.toa")
    return folder / "model.toa"


def _forecast_part(path: Path) -> str:
    """The forecasts of a folder with this file."""
    # needs pyarrow, which not every machine has that collects the tests
    from toa.integrations.ray import forecast_parts

    out = path.parents[1] / "out"
    (out / path.name).unlink(missing_ok=True)
    forecast_parts(_panel_model(path.parents[1]), path.parent, out)
    return str(pd.read_parquet(out / path.name).to_csv())


_PLAN = hashlib.sha256(config_hash(_config()).encode()).hexdigest()[:16]
_PEMS = replace(DATASETS["PEMS03"], rows=12, channels=2)


@dataclass(frozen=True, kw_only=True)
class Loader:
    """A file name, what writes the file, what reads it, and how its content is structured."""

    name: str
    write: Callable[[Path], object]
    read: Callable[[Path], Any]
    structure: str = "bytes"
    sealed: bool = False
    # answers of what was read, as arrays
    use: Callable[[Any], Any] | None = None
    # of a folder: what reads and writes its tensors
    read_tensors: Callable[[Path], dict[str, torch.Tensor]] = lambda path: load_checkpoint(path, verify=False).tensors
    write_tensors: Callable[[Path, dict[str, torch.Tensor]], object] = lambda path, x: save_checkpoint(path, x, {})


@cache
def _good_files(kind: str) -> dict[str, bytes]:
    """What the loader's file needs, by name below its folder; a fit is not repeated."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / LOADERS[kind].name
        path.parent.mkdir(parents=True, exist_ok=True)
        LOADERS[kind].write(path)
        files = [file for file in Path(folder).rglob("*") if file.is_file()]
        return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def write_good(kind: str, folder: Path) -> Path:
    """Write a good file of a loader below a folder and return its path."""
    for name, content in _good_files(kind).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder / LOADERS[kind].name


def _write_packed(path: Path) -> None:
    np.save(path.with_suffix(""), np.arange(24.0).reshape(8, 3))
    path.write_bytes(gzip.compress(path.with_suffix("").read_bytes()))


def _model(write: Callable[[Path], object], use: Callable[[Any], Any]) -> Loader:
    return Loader(name="x.toa", write=write, read=load_estimator, use=use, structure="tensors", sealed=True)


LOADERS = {
    "csv": Loader(name="x.csv", write=_write_csv, read=lambda p: _arrays(read_csv_series(p)), structure="text"),
    "ts": Loader(name="x.ts", write=_write_ts, read=lambda p: _arrays(read_ts(p)), structure="text"),
    "tsf": Loader(name="x.tsf", write=_write_tsf, read=lambda p: _arrays(read_tsf(p)), structure="text"),
    "npy": Loader(name="x.npy", write=lambda p: np.save(p, np.arange(24.0).reshape(8, 3)), read=read_values),
    "npz": Loader(
        name="x.npz",
        write=lambda p: np.savez(p, data=np.arange(24.0).reshape(12, 2, 1)),
        read=lambda p: _arrays(read_dataset(_PEMS, p)),
    ),
    "npy.gz": Loader(name="x.npy.gz", write=_write_packed, read=read_values, structure="packed"),
    "csv.gz": Loader(
        name="x.csv.gz",
        write=lambda p: p.write_bytes(gzip.compress(b"date,a\n2020-01-01,1\n2020-01-02,2\n")),
        read=lambda p: read_data(p).to_csv(),
        structure="packed",
    ),
    "labels": Loader(name="x.txt", write=lambda p: p.write_text("0\n1\n0\n0\n"), read=read_labels, structure="text"),
    **{
        ending: Loader(
            name=f"x.{ending}",
            write=_write_frame,
            read=lambda p: read_data(p).to_csv(),
            structure="text" if ending == "jsonl" else "bytes",
        )
        for ending in ("parquet", "feather", "xlsx", "jsonl")
    },
    "file of a panel": Loader(name="panel/x.parquet", write=_write_frame, read=_forecast_part),
    "model": _model(_forecaster, _forecast),
    "model of series": replace(_model(_series_forecaster, _forecast_series), read=_read_saved),
    "forecast by a command": replace(_model(_series_forecaster, _forecast_by_command), read=lambda p: p),
    "trees": _model(_boosted_forecaster, _forecast),
    "ensemble": _model(_chosen_forecaster, _forecast),
    "detector": _model(_detector, _detect),
    "detector without network": _model(_plain_detector, _detect),
    "detector of one network": _model(_network_detector, _detect),
    "classifier": _model(_classifier, _classify),
    "classifier of one network": _model(_network_classifier, _classify),
    "folder": Loader(
        name=f"model/{CONFIG}",
        write=_folder,
        read=lambda p: load_estimator(p.parent),
        use=_detect,
        structure="folder",
        sealed=True,
    ),
    "pretrained": Loader(
        name=f"model/{CONFIG}",
        write=_pretrained,
        read=lambda p: PretrainedForecaster.from_pretrained(p.parent),
        use=lambda model: [forecast_quantiles(model, [np.arange(20.0), np.arange(3.0)], 6)],
        structure="folder",
        sealed=True,
        read_tensors=load_safetensors,
        write_tensors=lambda path, tensors: save_safetensors(tensors, path),
    ),
    "checkpoint": Loader(name="x.safetensors", write=_train, read=_train, structure="tensors", sealed=True),
    "record": Loader(name="record.json", write=_write_record, read=read_record, structure="json", sealed=True),
    "evidence": Loader(name="x.jsonl", write=_write_evidence, read=_read_evidence, structure="line", sealed=True),
    "error": Loader(name="error.json", write=_write_error, read=read_error, structure="json", sealed=True),
    "plan": Loader(name=f"plans/{_PLAN}.plan", write=_write_plan, read=_read_plans, structure="line", sealed=True),
    "operators": Loader(
        name="operators.json", write=lambda p: write_pictures([], p), read=read_pictures, structure="json"
    ),
    "run list": Loader(
        name="runs.txt",
        write=lambda p: p.write_text("--task forecast --dataset ETTh1 --backbone patchtst --horizon 96 # x\n"),
        read=lambda p: [job.key for job in read_runs(p)],
        structure="text",
    ),
}

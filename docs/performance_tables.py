"""Tables of speed and memory, made from the records in results/performance."""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from toa.experiments.records import Record
from toa.report.tables import markdown_table
from toa_bench.tables import (
    TableRows,
    complete_run,
    efficiency,
    growth,
    kernel_gains,
    memory,
    number,
    primitive,
    rates,
    steps,
    variants,
)

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results" / "performance"


def table(titles: Iterable[str], rows: Iterable[Iterable[str]], left: int = 1) -> str:
    """A Markdown table; columns after the first `left` are aligned to the right."""
    return "\n".join(markdown_table([list(titles), *map(list, rows)], left=left))


def speed_summary(folder: Path = RECORDS) -> str:
    """The README's table: the primitive, training steps and a complete run, each beside what it is compared with."""
    records = {name: read(f"{name}.json", folder) for name in ("operator_attention", "training_step", "training_run")}
    rows = []
    by_name = {row["name"]: row for row in records["operator_attention"]["rows"] if row["tokens"] == 4096}
    base = by_name["sdpa"]["cost"]["graph_ms"]
    for name, title in (("relu", "ReLU"), ("gated", "gated")):
        cost = by_name[f"{name} triton"]["cost"]["graph_ms"]
        shown = [f"{cost:.2f} ms", f"{base:.2f} ms", number(cost / base)]
        rows.append([f"{title} operator attention, 4,096 tokens, bfloat16", "softmax (SDPA)", *shown])
    steps_of = {row["name"]: row["systems"] for row in records["training_step"]["rows"]}
    for case, title in (("patchtst-128", "PatchTST"), ("itransformer-256", "iTransformer")):
        ours, peer = steps_of[case]["toa-gated"], steps_of[case]["peer-compiled"]
        shown = [f"{ours['milliseconds']:.2f} ms", f"{peer['milliseconds']:.2f} ms", number(ours["time_over_compiled"])]
        rows.append([f"{title} training step, TOA-Gated", "Time-Series-Library, softmax, compiled", *shown])
    runs = records["training_run"]["runs"]
    ours, peer = (runs[name]["run_s"] for name in ("ours, toa-gated", "peer, softmax"))
    shown = [f"{ours:.1f} s", f"{peer:.1f} s", number(ours / peer)]
    rows.append(["PatchTST run on ETTh1, 10 epochs, TOA-Gated", "Time-Series-Library, softmax", *shown])
    return table(["one H200", "compared with", "toa", "theirs", "ratio"], rows, left=2)


def cases(record: Record) -> TableRows:
    """Sizes of the models and batches of a training step."""
    names = {"lookback": "L", "batch_size": "batch", "channels": "channels"}
    sizes = {"num_layers": "layers", "embed_dim": "width", "num_heads": "heads", "ff_dim": "feed-forward"}
    table: TableRows = [["case", *names.values(), *sizes.values()]]
    for row in record["rows"]:
        case = row["case"]
        table.append(
            [row["name"], *(str(case[name]) for name in names), *(str(case["model"].get(n, "")) for n in sizes)]
        )
    return table


def sweeps(record: Record) -> TableRows:
    """Time of many tiny runs by each executor."""
    table: TableRows = [["executor", "seconds", "s per 100 runs", "records before the kill", "runs repeated"]]
    for name, case in record["cases"].items():
        times = [number(case[key], 1) for key in ("seconds", "per_100_runs")]
        table.append([name, *times, *(str(case.get(key, "")) for key in ("records_before", "repeated"))])
    return table


# settings of the primitive that its own table does not have
VARIANTS = tuple(f"operator_attention_{name}.json" for name in ("w32", "w128", "w256", "float16", "toeplitz", "banded"))
# each table: the function that makes it, and its records
MEASUREMENTS: dict[str, tuple[Callable[[Record], TableRows], *tuple[str, ...]]] = {
    "primitive": (primitive, "operator_attention.json"),
    "primitive-tf32": (primitive, "operator_attention_tf32.json"),
    "primitive-exact": (primitive, "operator_attention_exact.json"),
    "rates": (rates, "operator_attention.json"),
    "rates-tf32": (rates, "operator_attention_tf32.json"),
    "memory": (memory, "operator_attention.json"),
    "rivals": (primitive, "operator_attention_rivals.json"),
    "variants": (variants, *VARIANTS),
    "step-cases": (cases, "training_step.json"),
    "steps": (steps, "training_step.json"),
    "steps-cpu": (steps, "training_step_cpu.json"),
    "steps-cpu-compiled": (steps, "training_step_cpu_compiled.json"),
    "row-kernels": (kernel_gains, "row_kernels.json"),
    "efficiency": (efficiency, "efficiency.json"),
    "growth-channels": (growth, "growth_channels.json"),
    "growth-channels-cpu": (growth, "growth_channels_cpu.json"),
    "growth-batch": (growth, "growth_batch.json"),
    "run": (complete_run, "training_run.json"),
    "sweeps": (sweeps, "sweep_scale.json"),
}


def read(file: str, folder: Path = RECORDS) -> Record:
    """A record of results/performance."""
    record: Record = json.loads((folder / file).read_text(encoding="utf-8"))
    return record


def performance_table(name: str, folder: Path = RECORDS) -> str:
    """A table of `MEASUREMENTS`, and where its numbers come from."""
    make, *files = MEASUREMENTS[name]
    records = [read(file, folder) for file in files]
    joined = records[0]
    if len(records) > 1:
        joined = {"rows": [row for record in records for row in record["rows"]]}
    # columns of text, which are aligned to the left
    left = 1
    if make in (steps, variants):
        left = 3
    elif make is kernel_gains:
        left = 2
    parts = ["\n".join(markdown_table(make(joined), left=left))]
    for record in records:
        origin = f"{record['device']}, PyTorch {record['versions']['torch']}, commit {record['commit']}"
        parts.append(f"{origin}: `{record['command']}`")
    return "\n\n".join(parts)


TABLES: Mapping[str, Callable[[], str]] = {
    "speed-summary": speed_summary,
    **{name: partial(performance_table, name) for name in MEASUREMENTS},
}

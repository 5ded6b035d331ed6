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
    costs,
    efficiency,
    growth,
    kernel_gains,
    memory,
    number,
    primitive,
    product_counts,
    rates,
    steps,
    variants,
)
from toa_paper.report.costs import attention_costs, step_ratio

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results" / "performance"


def table(titles: Iterable[str], rows: Iterable[Iterable[str]], left: int = 1) -> str:
    """A Markdown table; columns after the first `left` are aligned to the right."""
    return "\n".join(markdown_table([list(titles), *map(list, rows)], left=left))


# training steps of the README: the case, and how it is called there
SUMMARY_CASES = {
    "patchtst-128": "training step, PatchTST, 7 channels",
    "itransformer-256": "training step, iTransformer, 7 channels",
    "itransformer-512": "training step, iTransformer, 862 channels",
}


def cost_records(folder: Path = RECORDS) -> list[Record]:
    """The records of what an attention costs; a case in both counts in the first."""
    return [read(f"{name}.json", folder) for name in ("training_step", "efficiency")]


def speed_summary(folder: Path = RECORDS) -> str:
    """The README's table: time over our own softmax first, then over the compiled peer with softmax."""
    by_name = {row["name"]: row for row in read("operator_attention.json", folder)["rows"] if row["tokens"] == 4096}
    base = by_name["sdpa"]["cost"]["graph_ms"]
    of_function = [number(by_name[f"{name} triton"]["cost"]["graph_ms"] / base) for name in ("relu", "gated")]
    rows = [["attention alone, 4,096 tokens, bfloat16; softmax: SDPA", *of_function, ""]]
    ratios = attention_costs(cost_records(folder))
    steps_of = {row["name"]: row["systems"] for row in read("training_step.json", folder)["rows"]}
    for case, title in SUMMARY_CASES.items():
        over_peer = step_ratio(steps_of[case]["toa-gated"], steps_of[case]["peer-compiled"])
        rows.append([title, *(str(ratios[case, name]) for name in ("toa-relu", "toa-gated")), str(over_peer)])
    titles = ["TOA-ReLU / softmax", "TOA-Gated / softmax", "TOA-Gated / softmax of the compiled peer"]
    return table(["time on one H200", *titles], rows)


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
    "cpu-products": (product_counts, "training_step_cpu.json", "growth_channels_cpu.json"),
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
    return "\n\n".join([*parts, *map(origin, records)])


def origin(record: Record) -> str:
    """Device, version, commit and command of a record."""
    where = f"{record['device']}, PyTorch {record['versions']['torch']}, commit {record['commit']}"
    return f"{where}: `{record['command']}`"


def cost_table(folder: Path = RECORDS) -> str:
    """What each attention costs in a training step, and where the numbers come from."""
    records = cost_records(folder)
    return "\n\n".join(["\n".join(markdown_table(costs(*records))), *map(origin, records)])


TABLES: Mapping[str, Callable[[], str]] = {
    "speed-summary": speed_summary,
    "costs": cost_table,
    **{name: partial(performance_table, name) for name in MEASUREMENTS},
}

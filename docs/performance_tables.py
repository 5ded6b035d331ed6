"""Tables of docs/performance.md and of the README, made from the records in results/performance."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results" / "performance"

Record = dict[str, Any]

# matrix products per head, forward and backward: the least that a fused kernel must compute
PRODUCTS = {"softmax": 7, "relu": 13, "gated": 20}
# aims for a step, as ratios to the peer's: time, and memory where there is an aim
STEP_TARGETS: dict[tuple[str, str], tuple[float, float | None]] = {
    ("patchtst-128", "toa-gated"): (0.5, None),
    ("patchtst-16", "toa-gated"): (0.25, None),
    ("itransformer-256", "toa-gated"): (0.08, None),
    ("itransformer-512", "toa-gated"): (1.0, 0.7),
    ("itransformer-512", "toa-relu"): (0.7, 0.7),
}


def table(titles: Iterable[str], rows: Iterable[Iterable[str]], left: int = 1) -> str:
    """A Markdown table; columns after the first `left` are aligned to the right."""
    titles = list(titles)
    rule = ["---" if i < left else "---:" for i in range(len(titles))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, rule, *rows))


def number(value: float | None, digits: int = 2, unit: float = 1.0) -> str:
    return "" if value is None else f"{value / unit:.{digits}f}"


def by_length(record: Record) -> dict[int, dict[str, Record]]:
    """Measurements of the primitive by length and name."""
    found: dict[int, dict[str, Record]] = {}
    for row in record["rows"]:
        found.setdefault(row["tokens"], {})[row["name"]] = row
    return found


def best_ratio(row: Record) -> float | None:
    """Time over SDPA: captured in a CUDA graph where possible, so that launches do not count."""
    over = row["over_sdpa"]
    found: float | None = over["graph"] if over["graph"] is not None else over["time"]
    return found


def primitive(record: Record) -> str:
    """Time of forward and backward, and its ratio to the lower bound."""
    names = ["sdpa", "relu triton", "gated triton", "relu folded", "gated folded", "relu reference", "gated reference"]
    names = [name for name in names if any(row["cost"] for row in record["rows"] if row["name"] == name)]
    titles = ["N", *names]
    for activation in ("relu", "gated"):
        floor = PRODUCTS[activation] / PRODUCTS["softmax"]
        titles += [f"{activation} / sdpa", f"/ lower bound {floor:.2f}"]
    rows = []
    for tokens, found in by_length(record).items():
        cells = [str(tokens)]
        for name in names:
            cost = (found.get(name) or {}).get("cost")
            cells.append("" if cost is None else number(cost["graph_ms"] or cost["milliseconds"], 3))
        for activation in ("relu", "gated"):
            fused = found.get(f"{activation} triton") or {"cost": None}
            ratio = best_ratio(fused) if fused["cost"] else None
            floor = PRODUCTS[activation] / PRODUCTS["softmax"]
            cells += [number(ratio), number(None if ratio is None else ratio / floor)]
        rows.append(cells)
    return table(titles, rows)


def memory(record: Record) -> str:
    """Memory beyond inputs, operators, output and gradients: MiB in all, KiB per token."""
    names = ["sdpa", "relu triton", "gated triton", "relu folded", "gated folded"]
    names = [name for name in names if any(row["cost"] for row in record["rows"] if row["name"] == name)]
    titles = ["N", *(f"{name}: {unit}" for name in names for unit in ("MiB", "KiB per token"))]
    rows = []
    for tokens, found in by_length(record).items():
        cells = [str(tokens)]
        for name in names:
            extra = ((found.get(name) or {}).get("cost") or {}).get("extra_bytes")
            cells += [number(extra, 1, 2**20), number(extra, 1, 2**10 * tokens)]
        rows.append(cells)
    return table(titles, rows)


def step_flops(case: Record, attention: str) -> float:
    """Floating-point operations of a step's matrix products, including backward and the recomputed scores."""
    model, gated = case["model"], attention == "toa-gated"
    width, ff_width, layers = model["embed_dim"], model["ff_dim"], model["num_layers"]
    if case["backbone"] == "patchtst":
        sequences, tokens = case["batch_size"] * case["channels"], (case["lookback"] - 16) // 8 + 2
        ends = 16 * width * tokens + tokens * width * 96
    else:
        # four calendar features are tokens as well
        sequences, tokens = case["batch_size"], case["channels"] + 4
        ends = (case["lookback"] + 96) * width * tokens
    linear = (6 if gated else 4) * width**2 + 2 * width * ff_width
    products = PRODUCTS[{"softmax": "softmax", "toa-softmax": "relu"}.get(attention, attention.removeprefix("toa-"))]
    return 2.0 * sequences * (3 * ends + layers * tokens * (3 * linear + products * tokens * width))


def steps(record: Record) -> str:
    """Time and memory of a training step, and their ratios to the peer's."""
    rows = []
    for row in record["rows"]:
        for name, system in row["systems"].items():
            if "refused" in system:
                rows.append([row["name"], name, "refused", *[""] * 7])
                continue
            time_target, memory_target = STEP_TARGETS.get((row["name"], name), (None, None))
            flops = None if name == "peer" else step_flops(row["case"], name)
            rows.append(
                [
                    row["name"],
                    name,
                    system["backend"] or "",
                    number(system["milliseconds"]),
                    number(system["time_over_peer"], 3),
                    number(time_target),
                    number(system["peak_memory"], 0, 2**20),
                    number(system["memory_over_peer"]),
                    number(memory_target),
                    "" if flops is None else number(flops / system["milliseconds"] / 1e9, 1),
                ]
            )
    titles = ["case", "system", "backend", "ms", "/ peer", "aim", "MiB", "/ peer", "aim", "TFLOP/s"]
    return table(titles, rows, left=3)


def efficiency(record: Record) -> str:
    """The paper's rows: time and memory of a step beside the peer's model of the same backbone."""
    rows = []
    for row in record["rows"]:
        peer = record["peer"][row["config"]["backbone"]]
        rows.append(
            [
                row["name"],
                number(row["milliseconds"]),
                number(peer["milliseconds"]),
                number(row["milliseconds"] / peer["milliseconds"], 3),
                number(row["peak_memory"], 0, 2**20),
                number(peer["peak_memory"], 0, 2**20),
                f"{row['parameters']:,}",
                number(row["published_ms"]),
            ]
        )
    titles = ["row", "ms", "peer, ms", "/ peer", "MiB", "peer, MiB", "parameters", "published, ms"]
    return table(titles, rows)


def growth(record: Record) -> str:
    """Milliseconds of a step by case, one column per system."""
    names = list(record["rows"][0]["systems"])
    rows = []
    for row in record["rows"]:
        found = [row["systems"][name] for name in names]
        rows.append([row["name"], *("" if "refused" in system else number(system["milliseconds"]) for system in found)])
    return table(["case", *(f"{name}, ms" for name in names)], rows)


def whole_run(record: Record) -> str:
    """A complete training run, loading included."""
    rows = []
    for name, run in record["runs"].items():
        ratios = record["ratios"].get(name, {})
        cells = [name, str(run["epochs"])]
        for key in ("epoch_s", "train_s", "run_s"):
            cells += [number(run[key]), number(ratios.get(key), 3)]
        rows.append([*cells, number(run["mse"], 4)])
    titles = ["system", "epochs", "epoch, s", "/ peer", "training, s", "/ peer", "run, s", "/ peer", "test MSE"]
    return table(titles, rows)


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
        ours, peer = steps_of[case]["toa-gated"], steps_of[case]["peer"]
        shown = [f"{ours['milliseconds']:.2f} ms", f"{peer['milliseconds']:.2f} ms", number(ours["time_over_peer"])]
        rows.append([f"{title} training step, TOA-Gated", "Time-Series-Library, softmax", *shown])
    runs = records["training_run"]["runs"]
    ours, peer = (runs[name]["run_s"] for name in ("ours, toa-gated", "peer, softmax"))
    shown = [f"{ours:.1f} s", f"{peer:.1f} s", number(ours / peer)]
    rows.append(["PatchTST run on ETTh1, 10 epochs, TOA-Gated", "Time-Series-Library, softmax", *shown])
    return table(["one H200", "compared with", "toa", "theirs", "ratio"], rows, left=2)


# table on the page: the function that makes it, and its record
TABLES: dict[str, tuple[Callable[[Record], str], str]] = {
    "primitive": (primitive, "operator_attention.json"),
    "primitive-tf32": (primitive, "operator_attention_tf32.json"),
    "memory": (memory, "operator_attention.json"),
    "steps": (steps, "training_step.json"),
    "steps-cpu": (steps, "training_step_cpu.json"),
    "steps-cpu-compiled": (steps, "training_step_cpu_compiled.json"),
    "efficiency": (efficiency, "efficiency.json"),
    "growth-channels": (growth, "growth_channels.json"),
    "growth-channels-cpu": (growth, "growth_channels_cpu.json"),
    "growth-batch": (growth, "growth_batch.json"),
    "run": (whole_run, "training_run.json"),
}


def read(file: str, folder: Path = RECORDS) -> Record:
    """A record of results/performance."""
    found: Record = json.loads((folder / file).read_text(encoding="utf-8"))
    return found


def performance_table(name: str, folder: Path = RECORDS) -> str:
    """A table of `TABLES`, and where its numbers come from."""
    make, file = TABLES[name]
    record = read(file, folder)
    origin = f"{record['device']}, PyTorch {record['versions']['torch']}, commit {record['commit']}"
    return f"{make(record)}\n\n{origin}: `{record['command']}`"

"""Write the tables of docs/performance.md from the records in results/performance: no number there is typed by hand.

    python benchmarks/performance_page.py [--check]

A table stands between `<!-- table NAME -->` and `<!-- end -->`; the text around it is left alone. With `--check`
nothing is written, and the exit code is 1 if the page and the records disagree.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
RECORDS = ROOT / "results" / "performance"

Record = dict[str, Any]

# products of matrices of a head, forward and backward: what a fused kernel must do at least
PRODUCTS = {"softmax": 7, "relu": 13, "gated": 20}
# what a step may take at most, over the peer's: time, and memory where it is bounded
STEP_TARGETS: dict[tuple[str, str], tuple[float, float | None]] = {
    ("patchtst-128", "toa-gated"): (0.5, None),
    ("patchtst-16", "toa-gated"): (0.25, None),
    ("itransformer-256", "toa-gated"): (0.08, None),
    ("itransformer-512", "toa-gated"): (1.0, 0.7),
    ("itransformer-512", "toa-relu"): (0.7, 0.7),
}
PRIMITIVE_TARGETS = {"relu": 2.2, "gated": 4.0}


def table(titles: Iterable[str], rows: Iterable[Iterable[str]], left: int = 1) -> str:
    """A table of Markdown, numbers to the right."""
    titles = list(titles)
    rule = ["---" if i < left else "---:" for i in range(len(titles))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, rule, *rows))


def number(value: float | None, digits: int = 2, unit: float = 1.0) -> str:
    return "" if value is None else f"{value / unit:.{digits}f}"


def by_length(record: Record) -> dict[int, dict[str, Record]]:
    """Rows of a run of the primitive by length and name."""
    found: dict[int, dict[str, Record]] = {}
    for row in record["rows"]:
        found.setdefault(row["tokens"], {})[row["name"]] = row
    return found


def best_ratio(row: Record) -> float | None:
    """Time over SDPA: as one graph where there is one, since launches are not the kernel's."""
    over = row["over_sdpa"]
    found: float | None = over["graph"] if over["graph"] is not None else over["time"]
    return found


def primitive(record: Record) -> str:
    """Time of forward and backward, and how far it is from the floor."""
    names = ["sdpa", "relu triton", "gated triton", "relu folded", "gated folded", "relu reference", "gated reference"]
    names = [name for name in names if any(row["cost"] for row in record["rows"] if row["name"] == name)]
    titles = ["N", *names]
    for activation in ("relu", "gated"):
        floor = PRODUCTS[activation] / PRODUCTS["softmax"]
        titles += [f"{activation} / sdpa", f"of its floor, {floor:.2f}"]
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
    """Memory beyond inputs, operators, output and gradients, in MiB and as a token's share in KiB."""
    names = ["sdpa", "relu triton", "gated triton", "relu folded", "gated folded"]
    names = [name for name in names if any(row["cost"] for row in record["rows"] if row["name"] == name)]
    titles = ["N", *(f"{name}: {unit}" for name in names for unit in ("MiB", "KiB a token"))]
    rows = []
    for tokens, found in by_length(record).items():
        cells = [str(tokens)]
        for name in names:
            extra = ((found.get(name) or {}).get("cost") or {}).get("extra_bytes")
            cells += [number(extra, 1, 2**20), number(extra, 1, 2**10 * tokens)]
        rows.append(cells)
    return table(titles, rows)


def step_flops(case: Record, attention: str) -> float:
    """Floating-point operations of a step's matrix products, backward and the scores formed again included."""
    model, gated = case["model"], attention == "toa-gated"
    width, ff_width, layers = model["embed_dim"], model["ff_dim"], model["num_layers"]
    if case["backbone"] == "patchtst":
        sequences, tokens = case["batch_size"] * case["channels"], (case["lookback"] - 16) // 8 + 2
        ends = 16 * width * tokens + tokens * width * 96
    else:
        # four marks of time are tokens as well
        sequences, tokens = case["batch_size"], case["channels"] + 4
        ends = (case["lookback"] + 96) * width * tokens
    linear = (6 if gated else 4) * width**2 + 2 * width * ff_width
    products = PRODUCTS[{"softmax": "softmax", "toa-softmax": "relu"}.get(attention, attention.removeprefix("toa-"))]
    return 2.0 * sequences * (3 * ends + layers * tokens * (3 * linear + products * tokens * width))


def steps(record: Record) -> str:
    """Time and memory of a training step, over the peer's."""
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
    """The paper's rows: a step's time and memory beside those of the peer's softmax model of the backbone."""
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
    """Milliseconds of a step by case, one column a system."""
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


# table on the page: how it is made, and from which record
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


def made(name: str, folder: Path) -> str:
    """A table and where its numbers come from, or that there are none."""
    make, file = TABLES[name]
    path = folder / file
    if not path.exists():
        return f"Not measured yet: `results/performance/{file}` is not there."
    record = json.loads(path.read_text(encoding="utf-8"))
    origin = (
        f"{record['device']}, PyTorch {record['versions']['torch']}, commit {record['commit']}: `{record['command']}`"
    )
    return f"{make(record)}\n\n{origin}"


def rendered(page: str, folder: Path = RECORDS) -> str:
    """The page with every table made anew."""

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        if name not in TABLES:
            raise SystemExit(f"error: unknown table {name!r} on the page; known: {', '.join(TABLES)}.")
        return f"<!-- table {name} -->\n\n{made(name, folder)}\n\n<!-- end -->"

    return re.sub(r"<!-- table ([\w-]+) -->.*?<!-- end -->", replace, page, flags=re.DOTALL)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page would change")
    args = parser.parse_args(words)
    before = PAGE.read_text(encoding="utf-8")
    after = rendered(before)
    if args.check:
        return int(before != after)
    PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

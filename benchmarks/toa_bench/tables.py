"""Tables of the records of benchmarks, for the terminal and for docs/performance.md."""

from collections.abc import Sequence

from toa import ops
from toa.experiments.records import Record
from toa_bench.rivals import RIVALS
from toa_paper.published import ROWS
from toa_paper.report.costs import BASE, attention_costs, step_ratio

TableRows = list[Sequence[str]]

# matrix products per head, forward and backward: the minimum work of a fused kernel
SDPA_PRODUCTS = 7
PRODUCTS = {name: 20 if entry.gated else 13 for name, entry in ops.ACTIVATIONS.items()}
# softmax is measured as PyTorch's attention
MEASURED = tuple(name for name, entry in ops.ACTIVATIONS.items() if not entry.softmax)
# target ratios of a step's time to that of the compiled peer
STEP_TARGETS = {
    ("patchtst-128", "toa-gated"): 0.75,
    ("patchtst-16", "toa-gated"): 0.75,
    ("itransformer-256", "toa-gated"): 0.75,
    ("itransformer-512", "toa-gated"): 1.0,
    ("itransformer-512", "toa-softmax"): 0.85,
}
# share of a step that a kernel beside attention must gain
LEAST_GAIN = 0.03
SYSTEMS = ("sdpa", *(f"{activation} {system}" for system in (*ops.BACKENDS, *RIVALS) for activation in MEASURED))


def number(value: float | None, digits: int = 2, unit: float = 1.0) -> str:
    """A number in a unit; empty if there is none."""
    return "" if value is None else f"{value / unit:.{digits}f}"


def measured(record: Record, systems: Sequence[str]) -> tuple[list[str], dict[int, dict[str, Record]]]:
    """Those of the systems that have a cost, and their rows by length and system."""
    found: dict[int, dict[str, Record]] = {}
    for row in record["rows"]:
        rows = found.setdefault(row["tokens"], {})
        if row["cost"]:
            rows[row["name"]] = row
    return [name for name in systems if any(name in rows for rows in found.values())], found


def primitive(record: Record) -> TableRows:
    """Time of forward and backward, and its ratio to the minimum."""
    names, lengths = measured(record, SYSTEMS)
    timed = [activation for activation in MEASURED if f"{activation} triton" in names]
    floors = {activation: PRODUCTS[activation] / SDPA_PRODUCTS for activation in timed}
    ends = [(f"{activation} / sdpa", f"of its floor, {floor:.2f}") for activation, floor in floors.items()]
    table: TableRows = [["N", *names, *(title for pair in ends for title in pair)]]
    for tokens, rows in lengths.items():
        costs = [rows[name]["cost"] if name in rows else None for name in names]
        cells = ["" if cost is None else number(cost["graph_ms"] or cost["milliseconds"], 3) for cost in costs]
        for activation, floor in floors.items():
            # a graph, where there is one: launch overhead is not part of the kernel
            over = rows[f"{activation} triton"]["over_sdpa"] if f"{activation} triton" in rows else {"graph": None}
            ratio = over["graph"] if over["graph"] is not None else over.get("time")
            cells += [number(ratio), number(ratio and ratio / floor)]
        table.append([str(tokens), *cells])
    return table


def rates(record: Record) -> TableRows:
    """Eager time, its ratio to one CUDA graph, and TFLOP/s of the matrix products in the graph."""
    names, lengths = measured(record, SYSTEMS)
    table: TableRows = [["N", *(f"{name}: {what}" for name in names for what in ("eager, ms", "/ graph", "TFLOP/s"))]]
    for tokens, rows in lengths.items():
        cells = [str(tokens)]
        for name in names:
            row = rows.get(name)
            eager, graph = (row["cost"]["milliseconds"], row["cost"]["graph_ms"]) if row else (None, None)
            flops = 0.0
            if row:
                products = SDPA_PRODUCTS if name == "sdpa" else PRODUCTS[row["activation"]]
                flops = 2.0 * products * row["batch"] * row["heads"] * tokens**2 * row["width"]
            cells += [number(eager, 3), number(graph and eager / graph), number(graph and flops / (graph * 1e9), 0)]
        table.append(cells)
    return table


def variants(record: Record) -> TableRows:
    """Time of one backend for other widths, dtypes and operators, and its memory per token."""
    table: TableRows = [["operators", "dtype", "norms", "B", "D", "N", "activation", "ms", "/ sdpa", "KiB per token"]]
    for row in record["rows"]:
        if row["cost"] and row["name"] != "sdpa":
            norms = [name for name in (row["score_norm"], row["gate_norm"]) if name != "none"]
            case = [row["structure"], row["dtype"], ", ".join(norms), *(str(row[key]) for key in ("batch", "width"))]
            cost = [number(row["cost"]["graph_ms"], 3), number(row["over_sdpa"]["graph"])]
            extra = number(row["cost"]["extra_bytes"], 1, 2**10 * row["tokens"])
            table.append([*case, str(row["tokens"]), row["activation"], *cost, extra])
    return table


def memory(record: Record) -> TableRows:
    """Memory in addition to inputs, operators, output and gradients, in MiB and in KiB per token."""
    names, lengths = measured(record, [name for name in SYSTEMS if not name.endswith(" reference")])
    table: TableRows = [["N", *(f"{name}: {unit}" for name in names for unit in ("MiB", "KiB per token"))]]
    for tokens, rows in lengths.items():
        cells = [str(tokens)]
        for name in names:
            extra = rows[name]["cost"]["extra_bytes"] if name in rows else None
            cells += [number(extra, 1, 2**20), number(extra, 1, 2**10 * tokens)]
        table.append(cells)
    return table


def step_flops(case: Record, attention: str) -> float:
    """Floating-point operations of the matrix products of a step, including the backward pass and recomputed scores."""
    model = case["model"]
    activation = attention.removeprefix("toa-")
    width, ff_width, layers = model["embed_dim"], model["ff_dim"], model["num_layers"]
    if case["backbone"] == "patchtst":
        sequences = case["batch_size"] * case["channels"]
        tokens = (case["lookback"] - 16) // 8 + 2
        ends = 16 * width * tokens + tokens * width * 96
    else:
        # the four time marks are tokens as well
        sequences = case["batch_size"]
        tokens = case["channels"] + 4
        ends = (case["lookback"] + 96) * width * tokens
    linear = (6 if ops.ACTIVATIONS[activation].gated else 4) * width**2 + 2 * width * ff_width
    products = SDPA_PRODUCTS if attention == "softmax" else PRODUCTS[activation]
    return 2.0 * sequences * (3 * ends + layers * tokens * (3 * linear + products * tokens * width))


def product_counts(record: Record) -> TableRows:
    """Time of a step with TOA-Gated beside the number of its matrix products, over softmax and over the eager peer.

    "At equal rate" is the time over the peer if the products of TOA-Gated ran as fast as those of our softmax.
    """
    gated = "toa-gated"
    heads = ["products, TOA-Gated / softmax", "time, TOA-Gated / softmax", "time, softmax / peer"]
    table: TableRows = [["case", *heads, "TOA-Gated / peer at equal rate", "TOA-Gated / peer"]]
    for row in record["rows"]:
        systems = row["systems"]
        products = step_flops(row["case"], gated) / step_flops(row["case"], BASE)
        base = systems[BASE]["time_over_peer"]
        ratios = [products, step_ratio(systems[gated], systems[BASE]).ratio, base, products * base]
        table.append([row["name"], *(number(ratio) for ratio in (*ratios, systems[gated]["time_over_peer"]))])
    return table


def costs(*records: Record) -> TableRows:
    """Time of a step with each attention over one with softmax, by case, with its spread."""
    ratios = attention_costs(records)
    measured_names = {name for _, name in ratios}
    attentions = [name for name in (f"toa-{activation}" for activation in ops.ACTIVATIONS) if name in measured_names]
    table: TableRows = [["case", *(f"{name} / {BASE}" for name in attentions)]]
    for case in dict.fromkeys(case for case, _ in ratios):
        cells = [ratios.get((case, name)) for name in attentions]
        table.append([case, *("" if cell is None else str(cell) for cell in cells)])
    return table


def steps(record: Record) -> TableRows:
    """Time and memory of a training step, and their ratios to our softmax, then to the peer, compiled and eager."""
    ratios = [f"/ {BASE}", "/ compiled peer", "aim", "/ eager peer"]
    table: TableRows = [["case", "system", "backend", "ms", *ratios, "MiB", "/ eager peer", "TFLOP/s"]]
    for row in record["rows"]:
        for name, system in row["systems"].items():
            if "refused" in system:
                table.append([row["name"], name, "refused", *[""] * 8])
                continue
            base = row["systems"].get(BASE, {})
            over_base = str(step_ratio(system, base)) if "milliseconds" in base and name.startswith("toa-") else ""
            # only the models that the peer has as well are counted
            counted = "time_over_peer" in system and not name.startswith("peer")
            flops = step_flops(row["case"], name) / system["milliseconds"] if counted else None
            table.append(
                [
                    row["name"],
                    name,
                    system["backend"] or "",
                    number(system["milliseconds"]),
                    over_base,
                    number(system.get("time_over_compiled"), 3),
                    number(STEP_TARGETS.get((row["name"], name))),
                    number(system.get("time_over_peer"), 3),
                    number(system["peak_memory"], 0, 2**20),
                    number(system.get("memory_over_peer")),
                    number(flops, 1, 1e9),
                ]
            )
    return table


def kernel_gains(record: Record) -> TableRows:
    """What the kernels beside attention gain: a step with some of them switched off."""
    table: TableRows = [["case", "switched off", "ms", "gain of the kernels", "at least 3 %", "MiB"]]
    for row in record["rows"]:
        gain = row.get("gain")
        words = ("", "") if gain is None else (f"{100 * gain:+.1f} %", "yes" if gain >= LEAST_GAIN else "no")
        memory = number(row["peak_memory"], 1, 2**20)
        table.append([row["case"], row["switched_off"], number(row["milliseconds"], 3), *words, memory])
    return table


def efficiency(record: Record) -> TableRows:
    """The paper's rows: time and memory of a step beside our softmax, then the peer's model of the same backbone.

    The paper's times are those of its own programs: only their ratio to softmax is shown.
    """
    theirs = ["eager peer, ms", "/ eager peer"]
    sizes = ["MiB", "peer, MiB", "parameters"]
    table: TableRows = [["row", "ms", f"/ {BASE}", f"published / {BASE}", *theirs, *sizes]]
    rows = {row["name"]: row for row in record["rows"]}
    for name, row in rows.items():
        peer = record["peer"][row["config"]["backbone"]]
        base = f"{row['config']['backbone']}/{BASE}"
        over_base = ["", ""]
        if base in rows and name != base:
            over_base = [str(step_ratio(row, rows[base])), number(ROWS[name].value / ROWS[base].value)]
        times = [number(peer["milliseconds"]), number(row["milliseconds"] / peer["milliseconds"], 3)]
        memories = [number(system["peak_memory"], 0, 2**20) for system in (row, peer)]
        table.append([name, number(row["milliseconds"]), *over_base, *times, *memories, f"{row['parameters']:,}"])
    return table


def growth(record: Record) -> TableRows:
    """Milliseconds per step by case, one column per system."""
    names = list(record["rows"][0]["systems"])
    table: TableRows = [["case", *(f"{name}, ms" for name in names)]]
    for row in record["rows"]:
        table.append([row["name"], *(number(row["systems"][name].get("milliseconds")) for name in names)])
    return table


def complete_run(record: Record) -> TableRows:
    """A complete training run, data loading included."""
    table: TableRows = [
        ["system", "epochs", "epoch, s", "/ peer", "training, s", "/ peer", "run, s", "/ peer", "test MSE"]
    ]
    for name, run in record["runs"].items():
        ratios = record["ratios"].get(name, {})
        cells = [name, str(run["epochs"])]
        for key in ("epoch_s", "train_s", "run_s"):
            cells += [number(run[key]), number(ratios.get(key), 3)]
        table.append([*cells, number(run["mse"], 4)])
    return table


def ops_rows(record: Record) -> list[tuple[str, ...]]:
    """A row per length and activation, a column per backend."""
    systems = record["settings"]["systems"]
    times = {
        (row["tokens"], row["activation"], row["system"]): row["cost"] and row["cost"]["milliseconds"]
        for row in record["rows"]
    }
    rows: list[tuple[str, ...]] = [("N", "activation", "auto", "sdpa", *systems)]
    for row in record["rows"]:
        if row["system"] == systems[0]:
            tokens, activation = row["tokens"], row["activation"]
            found = [times[tokens, "softmax", "sdpa"], *(times[tokens, activation, system] for system in systems)]
            cells = ["-" if value is None else f"{value:.3f}" for value in found]
            rows.append((str(tokens), activation, row["auto"], *cells))
    return rows


def efficiency_rows(record: Record) -> list[tuple[str, ...]]:
    """A row per system of the efficiency table."""
    titles = ("system", "ms", "MiB", "parameters", "paper ms")
    rows: list[tuple[str, ...]] = [(*titles, "peer ms", "ms / peer") if record["peer"] else titles]
    for row in record["rows"]:
        memory = "-" if row["peak_memory"] is None else f"{row['peak_memory'] / 2**20:.0f}"
        cells = [f"{row['milliseconds']:.2f}", memory, f"{row['parameters']:,}", f"{row['published_ms']:.2f}"]
        if record["peer"]:
            other = record["peer"][row["config"]["backbone"]]["milliseconds"]
            cells += [f"{other:.2f}", f"{row['milliseconds'] / other:.2f}"]
        rows.append((row["name"], *cells))
    return rows

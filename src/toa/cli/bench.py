"""The command `toa bench`: what training costs. Heavy imports wait until a command needs them."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toa._console import make_console
from toa.cli.terminal import clear_errors

if TYPE_CHECKING:
    from rich.table import Table

    from toa.experiments.records import Record

bench_app = typer.Typer(help="What training costs, in one run.", no_args_is_help=True, pretty_exceptions_enable=False)


@bench_app.callback()
def bench() -> None:
    """What training costs, in one run."""


@bench_app.command()
def efficiency(
    rows: Annotated[
        list[str] | None,
        typer.Option(
            help="Row to measure: autoformer, informer, or patchtst/… and itransformer/… with softmax, toa-softmax, "
            "toa-relu or toa-gated. Repeatable; all ten if not given."
        ),
    ] = None,
    dataset: Annotated[str, typer.Option(help="ETTh1, or the path of a CSV file.")] = "ETTh1",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    steps: Annotated[
        int | None, typer.Option(help="Steps a row that are timed; 100 on CUDA, and not below 50, 10 elsewhere.")
    ] = None,
    warmup: Annotated[int | None, typer.Option(help="Steps before them; 20 on CUDA, 2 elsewhere.")] = None,
    tf32: Annotated[bool, typer.Option(help="Let CUDA round factors of float32 products to TF32, in our rows.")] = True,
    peer: Annotated[
        Path | None,
        typer.Option(help="Checkout of Time-Series-Library; its softmax models are then timed in the same run."),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where data are looked for first.")] = None,
    out: Annotated[
        Path, typer.Option(help="File of the record; NAME-rows.jsonl beside it has one of each row.")
    ] = Path("runs/efficiency.json"),
) -> None:
    """Time and peak memory of a training step of the paper's ten systems, with their parameters."""
    with clear_errors():
        from toa.experiments.efficiency import ROWS, EfficiencyRun, run_efficiency
        from toa.experiments.records import write_records
        from toa.experiments.step_run import row_records

        run = EfficiencyRun(
            rows=tuple(rows or ROWS),
            dataset=dataset,
            device=device,
            steps=steps,
            warmup=warmup,
            tf32=tf32,
            peer=None if peer is None else str(peer.resolve()),
            data_dir=None if data_dir is None else str(data_dir),
        )
        console = make_console()
        with console.status("starting") as status:

            def watch(name: str, cost: "Record | None") -> None:
                if cost is None:
                    status.update(f"measuring {name}")
                else:
                    console.print(f"{name}: {cost['milliseconds']:.2f} ms")

            record = run_efficiency(run, out, command=["toa", *sys.argv[1:]], watch=watch)
        console.print(_table(record))
        settings = record["settings"]
        console.print(
            f"ms, MiB: median time and peak memory of a training step on {Path(settings['dataset']).stem}, horizon 96, "
            f"{settings['steps']} steps after {settings['warmup']}, {record['device']}. Paper: ETTh1, one H200."
        )
        if record["peer"]:
            missing = ", ".join(record["peer_stand_ins"]) or "none"
            console.print(
                "Peer: the same backbone with its own attention in Time-Series-Library, eager, the loader left out. "
                f"Packages that it does not use here and that were stood in for: {missing}."
            )
        rows_file = out.with_name(f"{out.stem}-rows.jsonl")
        write_records(rows_file, row_records(run, record))
        console.print(f"record: {out}; of each row, for `toa report`: {rows_file}", soft_wrap=True)


@bench_app.command(name="ops")
def bench_ops(
    tokens: Annotated[list[int] | None, typer.Option(help="Length N. Repeatable; 16, 64 and 256 if not given.")] = None,
    activation: Annotated[
        list[str] | None, typer.Option(help="softmax, relu or gated. Repeatable; all if not given.")
    ] = None,
    width: Annotated[int, typer.Option(help="Width of a head.")] = 64,
    heads: Annotated[int, typer.Option(help="Number of heads.")] = 8,
    batch: Annotated[int, typer.Option(help="Sequences.")] = 8,
    dtype: Annotated[
        str | None,
        typer.Option(help="bfloat16, float16, float32 or float64; bfloat16 on CUDA, else float32, if not given."),
    ] = None,
    tf32: Annotated[bool, typer.Option(help="Let CUDA round factors of float32 products to TF32.")] = True,
    seconds: Annotated[float, typer.Option(help="About so long each is timed.")] = 0.1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    out: Annotated[Path, typer.Option(help="File of the record.")] = Path("runs/ops.json"),
) -> None:
    """Which backend `auto` takes for device, dtype, length and width, and how fast each is, forward and backward."""
    with clear_errors():
        from toa.experiments.op_run import OpRun, refusals, run_ops

        run = OpRun(
            tokens=tuple(tokens or OpRun().tokens),
            activations=tuple(activation or ("softmax", "relu", "gated")),  # type: ignore[arg-type]
            width=width,
            heads=heads,
            batch=batch,
            dtype=dtype,
            tf32=tf32,
            seconds=seconds,
            device=device,
        )
        console = make_console()
        with console.status("starting") as status:
            record = run_ops(
                run, out, command=["toa", *sys.argv[1:]], watch=lambda name: status.update(f"measured {name}")
            )
        console.print(_ops_table(record))
        settings = record["settings"]
        console.print(
            f"ms, forward and backward, B={batch} H={heads} D={width}, {settings['dtype']}, {record['device']}; "
            "sdpa is scaled_dot_product_attention without operators."
        )
        for reason, names in refusals(record).items():
            console.print(f"{', '.join(names)}: {reason}", soft_wrap=True)
        console.print(f"record: {out}", soft_wrap=True)


def _ops_table(record: dict[str, Any]) -> "Table":
    from rich import box
    from rich.table import Table

    systems = record["settings"]["systems"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for title in ("N", "activation", "auto", "sdpa", *systems):
        table.add_column(title, justify="left" if title in ("activation", "auto") else "right", no_wrap=True)
    times = {
        (row["tokens"], row["activation"], row["system"]): row["cost"] and row["cost"]["milliseconds"]
        for row in record["rows"]
    }
    for row in record["rows"]:
        # one line for each problem: that of its first backend
        if row["system"] != systems[0]:
            continue
        problem = (row["tokens"], row["activation"])
        found = [times[row["tokens"], "softmax", "sdpa"], *(times[*problem, system] for system in systems)]
        cells = ["-" if value is None else f"{value:.3f}" for value in found]
        table.add_row(str(row["tokens"]), row["activation"], row["auto"], *cells)
    return table


def _table(record: dict[str, Any]) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("system", no_wrap=True)
    titles = ["ms", "MiB", "parameters", "paper ms"] + ["peer ms", "ms / peer"] * bool(record["peer"])
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for row in record["rows"]:
        cells = [_number(row["milliseconds"]), _mebibytes(row["peak_memory"]), f"{row['parameters']:,}"]
        cells.append(_number(row["published_ms"]))
        if record["peer"]:
            other = record["peer"][row["config"]["backbone"]]["milliseconds"]
            cells += [_number(other), f"{row['milliseconds'] / other:.2f}"]
        table.add_row(row["name"], *cells)
    return table


def _number(value: float) -> str:
    return f"{value:.2f}"


def _mebibytes(value: int | None) -> str:
    return "-" if value is None else f"{value / 2**20:.0f}"

"""The command `toa bench`: measure training steps and attention backends, and run public benchmarks."""

import sys
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toa._checks import check_choice
from toa._console import make_console, make_table
from toa.cli.terminal import Command, add_help, check_destinations

if TYPE_CHECKING:
    from toa.experiments.records import Record

add_help(files("toa_bench") / "help.toml")

# an entry point registers its command `bench`
app = typer.Typer(add_completion=False)
bench_app = typer.Typer(
    help="Measure training steps and attention backends; run public benchmarks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(bench_app, name="bench")


@bench_app.command(cls=Command)
def efficiency(
    rows: list[str] | None = None,
    dataset: str = "ETTh1",
    device: str = "auto",
    steps: int | None = None,
    warmup: int | None = None,
    tf32: bool = True,
    peer: Path | None = None,
    data_dir: Path | None = None,
    out: Path = Path("runs/efficiency.json"),
) -> None:
    """Time and peak memory of a training step of the paper's ten systems, and their parameters."""
    from toa.experiments.records import write_records
    from toa_bench.efficiency import EfficiencyRun, row_records, run_efficiency
    from toa_bench.tables import efficiency_rows

    run = EfficiencyRun(
        rows=tuple(rows or EfficiencyRun().rows),
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
    console.print(make_table(efficiency_rows(record)))
    settings = record["settings"]
    console.print(
        f"ms, MiB: median time and peak memory of a training step on {Path(settings['dataset']).stem}, horizon 96, "
        f"{settings['steps']} steps after {settings['warmup']}, {record['device']}. Paper: ETTh1, one H200."
    )
    if record["peer"]:
        missing = ", ".join(record["peer_stand_ins"]) or "none"
        console.print(
            "Peer: the same backbone with softmax attention in Time-Series-Library, eager, without its data "
            f"loader. Packages that it does not need here, replaced by stand-ins: {missing}."
        )
    rows_file = out.with_name(f"{out.stem}-rows.jsonl")
    write_records(rows_file, row_records(run, record))
    console.print(f"record: {out}; one record per row, for `toa report`: {rows_file}", soft_wrap=True)


@bench_app.command(name="agreement", cls=Command)
def agreement(peer: Annotated[list[Path], typer.Option()], out: Path = Path("runs/agreement.jsonl")) -> None:
    """Compare our backbones with their authors' code: same weights, same input, outputs and gradients."""
    from toa._files import check_writable
    from toa.experiments.records import write_records
    from toa_bench.agreement import run_agreement

    check_writable(out.parent)
    console = make_console()
    with console.status("comparing"):
        records = run_agreement(peer, ["toa", *sys.argv[1:]])
    rows: list[tuple[str, ...]] = [("backbone", "authors' code", "dtype", "output", "gradient")]
    rows += [(r["backbone"], r["peer"], r["dtype"], f"{r['output']:.1e}", f"{r['gradient']:.1e}") for r in records]
    console.print(make_table(rows, left=3))
    write_records(out, records)
    console.print(f"records: {out}", soft_wrap=True)


@bench_app.command(name="ops", cls=Command)
def bench_ops(
    tokens: list[int] | None = None,
    activation: list[str] | None = None,
    width: int = 64,
    heads: int = 8,
    batch: int = 8,
    dtype: str | None = None,
    tf32: bool = True,
    seconds: float = 0.1,
    device: str = "auto",
    out: Path = Path("runs/ops.json"),
) -> None:
    """Show which attention backend `auto` selects here, and the time of each backend, forward and backward."""
    from toa.ops import ACTIVATIONS
    from toa_bench.op_run import OpRun, refusals, run_ops
    from toa_bench.tables import ops_rows

    run = OpRun(
        tokens=tuple(tokens or OpRun().tokens),
        activations=tuple(activation or ACTIVATIONS),
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
        record = run_ops(run, out, command=["toa", *sys.argv[1:]], watch=lambda name: status.update(f"measured {name}"))
    console.print(make_table(ops_rows(record), left=3))
    console.print(
        f"ms, forward and backward, B={batch} H={heads} D={width}, {record['settings']['dtype']}, "
        f"{record['device']}; sdpa is scaled_dot_product_attention without operators."
    )
    for reason, names in refusals(record).items():
        console.print(f"{', '.join(names)}: {reason}", soft_wrap=True)
    console.print(f"record: {out}", soft_wrap=True)


@bench_app.command(name="gift-eval", cls=Command)
def gift_eval(
    configs: Annotated[list[str] | None, typer.Option("--config")] = None,
    methods: Annotated[list[str] | None, typer.Option("--method")] = None,
    effort: str = "quick",
    time_limit: float | None = None,
    earlier: int = 0,
    data_dir: Path | None = None,
    out: Path = Path("runs/gift-eval.jsonl"),
    submission: Path | None = None,
) -> None:
    """Run configurations of GIFT-Eval whose data are in a data folder: MASE and weighted quantile loss."""
    from toa_bench.gift_eval import CONFIGS, gift_eval_row
    from toa_bench.leaderboards import run_leaderboard, work_options

    check_destinations(out, submission)
    for name in configs or ():
        check_choice("configuration", name, CONFIGS)
    chosen = [CONFIGS[name] for name in configs or CONFIGS]
    work = work_options(effort, time_limit)
    run_leaderboard("gift-eval", chosen, methods, work, data_dir, out, (submission, gift_eval_row), earlier)


@bench_app.command(name="fev", cls=Command)
def fev(
    methods: Annotated[list[str] | None, typer.Option("--method")] = None,
    effort: str = "quick",
    time_limit: float | None = None,
    data_dir: Path | None = None,
    out: Path = Path("runs/fev.jsonl"),
    submission: Path | None = None,
) -> None:
    """Run the task ETT_1H of fev-bench: MASE and weighted quantile loss."""
    from toa_bench.gift_eval import ETT_1H, fev_row
    from toa_bench.leaderboards import run_leaderboard, work_options

    check_destinations(out, submission)
    run_leaderboard("fev", [ETT_1H], methods, work_options(effort, time_limit), data_dir, out, (submission, fev_row))


@bench_app.command(name="m3", cls=Command)
def m3(
    methods: Annotated[list[str] | None, typer.Option("--method")] = None,
    effort: str = "quick",
    time_limit: float | None = None,
    earlier: int = 0,
    data_dir: Path | None = None,
    out: Path = Path("runs/m3.jsonl"),
) -> None:
    """Run the monthly, quarterly and yearly series of the M3 competition: MASE and weighted quantile loss."""
    from toa_bench.gift_eval import M3
    from toa_bench.leaderboards import run_leaderboard, work_options

    check_destinations(out)
    run_leaderboard("m3", M3, methods, work_options(effort, time_limit), data_dir, out, earlier=earlier)


@bench_app.command(name="headline", cls=Command)
def headline(results: Path = Path("results")) -> None:
    """The headline numbers of the README, derived from stored records without a GPU or data."""
    from toa_bench.headline import headlines

    console = make_console()
    for line in headlines(results):
        console.print(f"{line.data}: {line.measured}", soft_wrap=True, highlight=False)
        console.print(f"    from {', '.join(line.files)}", soft_wrap=True, highlight=False)


@bench_app.command(name="submissions", cls=Command)
def submissions(results: Path = Path("results"), out: Path = Path("runs/submissions")) -> None:
    """Write files for GIFT-Eval, fev-bench and TSB-AD from stored records, in their formats."""
    from toa._files import check_writable
    from toa_bench.submissions import write_submissions

    check_writable(out)
    for path in write_submissions(results, out):
        typer.echo(f"written: {path}")


@bench_app.command(name="scale", cls=Command)
def scale(
    series: list[int] | None = None,
    executor: str = "process",
    workers: int | None = None,
    effort: str = "quick",
    time_limit: float | None = None,
    out: Path = Path("runs/scale.jsonl"),
) -> None:
    """Forecast generated panels of 100 steps from parquet files: series per second, and memory per process."""
    from toa_bench.leaderboards import work_options
    from toa_bench.scale import run_scale

    check_destinations(out)
    run_scale(
        series or [10_000, 100_000], executor=executor, workers=workers, work=work_options(effort, time_limit), out=out
    )


def _measure_sets(name: str, module: str, text: str) -> None:
    """Add the command that measures estimators on the sets of a benchmark."""

    @bench_app.command(name=name, cls=Command, help=text)
    def measure(
        datasets: Annotated[list[str] | None, typer.Option("--dataset")] = None,
        methods: Annotated[list[str] | None, typer.Option("--method")] = None,
        effort: str = "quick",
        time_limit: float | None = None,
        data_dir: Path | None = None,
        out: Path = Path(f"runs/{name}.jsonl"),
    ) -> None:
        from toa_bench.leaderboards import run_sets, work_options

        work = work_options(effort, time_limit)
        run_sets(name, import_module(f"toa_bench.{module}"), datasets, methods, work, data_dir, out)


_measure_sets(
    "uea", "uea", "Accuracy of the classifier, of its network alone and of MultiRocketHydra on sets of the UEA archive."
)
_measure_sets(
    "anomaly", "tsb_ad", "VUS-PR of the detector, of its network alone and of baselines, by the rules of TSB-AD."
)
_measure_sets(
    "covariates",
    "covariate_tables",
    "Errors of the forecaster with and without covariates, beside LightGBM with the same ones.",
)


@bench_app.command(name="tables", cls=Command)
def user_tables(
    parts: Annotated[list[str] | None, typer.Option("--part")] = None,
    datasets: Annotated[list[str] | None, typer.Option("--dataset")] = None,
    methods: Annotated[list[str] | None, typer.Option("--method")] = None,
    effort: str = "quick",
    time_limit: float | None = None,
    data_dir: Path | None = None,
    out: Path = Path("runs/tables.jsonl"),
    detection_out: Path = Path("runs/detection.jsonl"),
    classification_out: Path = Path("runs/uea.jsonl"),
) -> None:
    """Measure what people meet, beside simple methods: forecasts, alarms and classes on public data."""
    from toa_bench.leaderboards import work_options
    from toa_bench.user_parts import run_parts

    outs = {"forecasting": out, "detection": detection_out, "classification": classification_out}
    run_parts(parts, datasets, methods, work_options(effort, time_limit), data_dir, outs)

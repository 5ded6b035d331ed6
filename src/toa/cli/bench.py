"""The command `toa bench`: measure training steps and attention backends, and run public benchmarks."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toa._checks import check_choice
from toa._console import make_console, make_table
from toa.cli.terminal import Command, DeviceOption, check_destinations

if TYPE_CHECKING:
    from toa.experiments.records import Record

MethodOption = Annotated[
    list[str] | None,
    typer.Option(
        "--method", help="toa, toa-network, boosting or a baseline. Repeatable; default: toa and seasonal naive."
    ),
]
SubmissionOption = Annotated[
    Path | None, typer.Option(help="CSV file in the leaderboard's format, of all records of these methods.")
]
LimitOption = Annotated[float, typer.Option(help="Seconds for one fit of toa, approximately.")]
FolderOption = Annotated[Path | None, typer.Option(help="First folder to search for data.")]
RecordsOption = Annotated[Path, typer.Option(help="File of the records; those of other runs in it are kept.")]
UnfinishedOption = Annotated[Path, typer.Option(help="File of the records; sets that it has are not run again.")]

bench_app = typer.Typer(
    help="Measure training steps and attention backends; run public benchmarks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@bench_app.command(cls=Command)
def efficiency(
    rows: Annotated[
        list[str] | None,
        typer.Option(help="Row to measure: {efficiency_rows}. Repeatable; default: all."),
    ] = None,
    dataset: Annotated[str, typer.Option(help="ETTh1, or the path of a CSV file.")] = "ETTh1",
    device: DeviceOption = "auto",
    steps: Annotated[
        int | None, typer.Option(help="Timed steps per row; default: 100 on CUDA (at least 50), else 10.")
    ] = None,
    warmup: Annotated[int | None, typer.Option(help="Warm-up steps per row; default: 20 on CUDA, else 2.")] = None,
    tf32: Annotated[bool, typer.Option(help="Allow TF32 for float32 products on CUDA, in our rows.")] = True,
    peer: Annotated[
        Path | None,
        typer.Option(help="Checkout of Time-Series-Library; its softmax models are timed in the same run."),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="First folder to search for data.")] = None,
    out: Annotated[
        Path, typer.Option(help="File of the record; NAME-rows.jsonl beside it gets one record per row.")
    ] = Path("runs/efficiency.json"),
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
def agreement(
    peer: Annotated[
        list[Path],
        typer.Option(help="Checkout of Time-Series-Library, PatchTST or DUET, by their authors. Repeatable."),
    ],
    out: Annotated[Path, typer.Option(help="File of the records.")] = Path("runs/agreement.jsonl"),
) -> None:
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
    tokens: Annotated[list[int] | None, typer.Option(help="Length N. Repeatable; default: 16, 64 and 256.")] = None,
    activation: Annotated[list[str] | None, typer.Option(help="{activations}. Repeatable; default: all.")] = None,
    width: Annotated[int, typer.Option(help="Width per head.")] = 64,
    heads: Annotated[int, typer.Option(help="Number of heads.")] = 8,
    batch: Annotated[int, typer.Option(help="Number of sequences.")] = 8,
    dtype: Annotated[str | None, typer.Option(help="{dtypes}; default: bfloat16 on CUDA, else float32.")] = None,
    tf32: Annotated[bool, typer.Option(help="Allow TF32 for float32 products on CUDA.")] = True,
    seconds: Annotated[float, typer.Option(help="Approximate time per measurement.")] = 0.1,
    device: DeviceOption = "auto",
    out: Annotated[Path, typer.Option(help="File of the record.")] = Path("runs/ops.json"),
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
    configs: Annotated[
        list[str] | None,
        typer.Option("--config", help="Configuration, such as m4_weekly/W/short. Repeatable; default: all."),
    ] = None,
    methods: MethodOption = None,
    time_limit: LimitOption = 60.0,
    data_dir: FolderOption = None,
    out: RecordsOption = Path("runs/gift-eval.jsonl"),
    submission: SubmissionOption = None,
) -> None:
    """Run configurations of GIFT-Eval whose data are in a data folder: MASE and weighted quantile loss."""
    from toa_bench.gift_eval import CONFIGS, gift_eval_row
    from toa_bench.leaderboards import run_leaderboard

    check_destinations(out, submission)
    for name in configs or ():
        check_choice("configuration", name, CONFIGS)
    chosen = [CONFIGS[name] for name in configs or CONFIGS]
    run_leaderboard("gift-eval", chosen, methods, time_limit, data_dir, out, (submission, gift_eval_row))


@bench_app.command(name="fev", cls=Command)
def fev(
    methods: MethodOption = None,
    time_limit: LimitOption = 60.0,
    data_dir: FolderOption = None,
    out: RecordsOption = Path("runs/fev.jsonl"),
    submission: SubmissionOption = None,
) -> None:
    """Run the task ETT_1H of fev-bench: MASE and weighted quantile loss."""
    from toa_bench.gift_eval import ETT_1H, fev_row
    from toa_bench.leaderboards import run_leaderboard

    check_destinations(out, submission)
    run_leaderboard("fev", [ETT_1H], methods, time_limit, data_dir, out, (submission, fev_row))


@bench_app.command(name="m3", cls=Command)
def m3(
    methods: MethodOption = None,
    time_limit: LimitOption = 60.0,
    data_dir: FolderOption = None,
    out: RecordsOption = Path("runs/m3.jsonl"),
) -> None:
    """Run the monthly, quarterly and yearly series of the M3 competition: MASE and weighted quantile loss."""
    from toa_bench.gift_eval import M3
    from toa_bench.leaderboards import run_leaderboard

    check_destinations(out)
    run_leaderboard("m3", M3, methods, time_limit, data_dir, out)


@bench_app.command(name="scale", cls=Command)
def scale(
    series: Annotated[
        list[int] | None, typer.Option(help="Number of series. Repeatable; default: 10000 and 100000.")
    ] = None,
    executor: Annotated[str, typer.Option(help="process, pool or ray, as for `toa forecast` of a folder.")] = "process",
    workers: Annotated[int | None, typer.Option(help="Number of processes of pool and ray.")] = None,
    time_limit: LimitOption = 60.0,
    out: RecordsOption = Path("runs/scale.jsonl"),
) -> None:
    """Forecast generated panels of 100 steps from parquet files: series per second, and memory per process."""
    from toa_bench.scale import run_scale

    check_destinations(out)
    run_scale(series or [10_000, 100_000], executor=executor, workers=workers, time_limit=time_limit, out=out)


@bench_app.command(name="uea", cls=Command)
def uea(
    datasets: Annotated[
        list[str] | None,
        typer.Option("--dataset", help="Set of the UEA archive. Repeatable; default: the 17 with published figures."),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option("--method", help="toa, toa-network or multirocket-hydra. Repeatable; default: all."),
    ] = None,
    time_limit: LimitOption = 60.0,
    data_dir: FolderOption = None,
    out: UnfinishedOption = Path("runs/uea.jsonl"),
) -> None:
    """Accuracy of the classifier, of its network alone and of MultiRocketHydra on sets of the UEA archive."""
    from toa.data import CLASSIFICATION_SETS
    from toa_bench.leaderboards import run_pairs
    from toa_bench.uea import METHODS, SETS, evaluate

    for dataset in datasets or ():
        check_choice("dataset", dataset, CLASSIFICATION_SETS)
    for method in methods or ():
        check_choice("method", method, METHODS)
    titles = {"accuracy": "accuracy", "validation": "cross-validated"}
    run = partial(evaluate, data_dir=data_dir)
    limited = {method: time_limit for method in METHODS if method != "multirocket-hydra"}
    run_pairs("uea", run, datasets or SETS, methods or METHODS, limited, titles, out)


@bench_app.command(name="anomaly", cls=Command)
def anomaly(
    datasets: Annotated[
        list[str] | None,
        typer.Option("--dataset", help="Set of the catalogue. Repeatable; default: two machines of SMD, MSL and SMAP."),
    ] = None,
    methods: Annotated[
        list[str] | None, typer.Option("--method", help="{detection_methods}. Repeatable; default: all.")
    ] = None,
    time_limit: LimitOption = 60.0,
    data_dir: FolderOption = None,
    out: UnfinishedOption = Path("runs/anomaly.jsonl"),
) -> None:
    """VUS-PR of the detector, of its network alone and of baselines, by the rules of TSB-AD."""
    from toa.data import ANOMALY_SETS
    from toa_bench.leaderboards import run_pairs
    from toa_bench.tsb_ad import METHODS, SETS, evaluate

    for dataset in datasets or ():
        check_choice("dataset", dataset, ANOMALY_SETS)
    for method in methods or ():
        check_choice("method", method, METHODS)
    limited = {method: time_limit for method in METHODS if method.startswith("toa")}
    titles = {"vus_pr": "VUS-PR", "vus_roc": "VUS-ROC"}
    run = partial(evaluate, data_dir=data_dir)
    run_pairs("anomaly", run, datasets or SETS, methods or METHODS, limited, titles, out)

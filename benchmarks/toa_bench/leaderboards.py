"""Public benchmarks: evaluate methods on sets or configurations, keep a record of each, print a table."""

import csv
import fcntl
import io
import itertools
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from toa._checks import ArgumentError, check_at_least, check_choice
from toa._console import make_console, make_table
from toa._files import parse_json, unseal, write_atomically
from toa.estimators.effort import EFFORTS
from toa.experiments.records import Record, provenance, write_records
from toa_bench import gift_eval

# fields of a record that state how much work a fit could take
WORK = ("effort", "time_limit")


def read_lines(path: Path, *fields: str) -> list[Record]:
    """The records of earlier calls, each with these fields; none if there is no file.

    Raises:
        ValueError: If a line is no such record, or was edited.
    """
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines() if path.is_file() else (), 1):
        where = f"line {number} of {path}"
        content = parse_json(line, where)
        if not isinstance(content, dict) or not {"benchmark", *fields} <= content.keys():
            raise ArgumentError(where, "be a record of this benchmark", "another", "give another file as --out")
        found.append(unseal(content, where)[0])
    return found


def add_record(path: Path, record: Record, *fields: str) -> None:
    """Add a record to a file, in place of one with the same values of these fields, if any.

    Other processes that add to files of this folder wait, so that no record is lost.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        kept = read_lines(path, *fields)
        same = [i for i, one in enumerate(kept) if fields and all(one[name] == record[name] for name in fields)]
        kept[slice(same[0], same[0] + 1) if same else slice(len(kept), None)] = [record]
        write_records(path, kept)
    finally:
        os.close(descriptor)


def run_pairs(
    benchmark: str,
    evaluate: Callable[..., dict[str, Any]],
    names: Sequence[str],
    methods: Sequence[str],
    limited: Collection[str],
    work: Mapping[str, Any],
    titles: Mapping[str, str],
    out: Path,
    *,
    key: str = "dataset",
    digits: int = 3,
    again: bool = False,
) -> None:
    """Evaluate every method on every set or configuration; a record is written after each.

    Args:
        limited: Methods that take an effort and a time limit.
        work: These options, named as in records.
        titles: Scores to print, by name.
        key: Field of the records for a name.
        digits: Decimals of the scores.
        again: Whether to repeat those that have a record.
    """
    records = {(record[key], record["method"]): record for record in read_lines(out, key, "method")}
    for name, method in () if again else itertools.product(names, sorted(set(methods) & set(limited))):
        _check_same_work(records.get((name, method)), work, f"{out} ({name}, {method})")
    console = make_console()
    where = provenance(torch.device("cpu"), ["toa", *sys.argv[1:]])
    rows: list[tuple[str, ...]] = [(key, "method", *titles.values(), "CPU s")]
    for name, method in itertools.product(names, methods):
        if again or (name, method) not in records:
            options = dict(work) if method in limited else {}
            with console.status(f"{name}: {method}"):
                found = evaluate(name, method, **options)
            records[name, method] = {"benchmark": benchmark, key: name, "method": method, **options, **where, **found}
            add_record(out, records[name, method], key, "method")
        record = records[name, method]
        scores = [record.get("metrics", record).get(score) for score in titles]
        seconds = record["cpu_seconds"] if "cpu_seconds" in record else record["cpu_s"]
        rows.append(
            (name, method, *("" if score is None else f"{score:.{digits}f}" for score in scores), f"{seconds:.1f}")
        )
    console.print(make_table(rows, left=2))
    console.print(f"records: {out}", soft_wrap=True)


def work_options(effort: str, time_limit: float | None) -> dict[str, Any]:
    """Arguments of an estimator that state how much work a fit may take."""
    check_choice("effort", effort, EFFORTS)
    return {"effort": effort} if time_limit is None else {"effort": effort, "time_limit": time_limit}


def _check_same_work(record: Record | None, work: Mapping[str, Any], where: str) -> None:
    """Raise ValueError if a record was made with another effort or time limit."""
    if record is None:
        return
    for option in WORK:
        stored, asked = record.get(option), work.get(option)
        if stored != asked:
            shown = "left out" if stored is None else stored
            name = "--" + option.replace("_", "-")
            raise ArgumentError(
                name, f"be {shown} as in the records of {where}", asked, "give the same, or another file as --out"
            )


def run_sets(
    benchmark: str,
    module: Any,
    datasets: Sequence[str] | None,
    methods: Sequence[str] | None,
    work: Mapping[str, Any],
    data_dir: Path | None,
    out: Path,
) -> None:
    """Run methods of `toa_bench.uea`, `toa_bench.tsb_ad` or `toa_bench.user_tables` on sets.

    Those that have a record are not run again. Methods of other packages, `RIVALS`, are run only if they are named.
    """
    for dataset in datasets or ():
        check_choice("dataset", dataset, module.KNOWN)
    for method in methods or ():
        check_choice("method", method, (*module.METHODS, *module.RIVALS))
    run = partial(module.evaluate, data_dir=data_dir)
    sets = datasets or module.SETS
    run_pairs(benchmark, run, sets, methods or module.METHODS, module.LIMITED, work, module.TITLES, out)


def run_leaderboard(
    benchmark: str,
    configs: Sequence[gift_eval.Config],
    methods: Sequence[str] | None,
    work: Mapping[str, Any],
    data_dir: Path | None,
    out: Path,
    submission: tuple[Path | None, Callable[[Record], Record]] | None = None,
    earlier: int = 0,
) -> None:
    """Run configurations; `submission` is a file in the leaderboard's format, and the row of a record in it.

    With `earlier`, the windows end before the tested ones, see `Config.before_test`.
    """
    check_at_least("earlier", earlier, 0)
    if earlier:
        configs = [config.before_test(earlier) for config in configs]
    by_name = {config.name: config for config in configs}
    chosen = list(methods or ("toa", "seasonal naive"))
    for method in chosen:
        check_choice("method", method, gift_eval.METHODS)
    table, submit = submission or (None, None)
    if table is not None and earlier:
        raise ValueError("--submission needs the windows of the leaderboard, got --earlier; leave one of them out.")
    for record in read_lines(out, "config", "method", "metrics") if table is not None else ():
        again = record["config"] in by_name or record["method"] not in chosen
        if not again and "sql" not in record["metrics"]:
            raise ValueError(
                f"--submission needs records with all scores, got none for {record['config']} and {record['method']} "
                f"in {out}, by an older version; run this configuration again, or give another file as --out."
            )

    def run(name: str, method: str, **options: Any) -> dict[str, Any]:
        found = gift_eval.evaluate(by_name[name], method, data_dir=data_dir, **options)
        return {name.replace("_seconds", "_s"): value for name, value in found.items()}

    titles = {"mase": "MASE", "wql": "WQL"}
    shown = {"key": "config", "digits": 4, "again": True}
    run_pairs(benchmark, run, list(by_name), chosen, gift_eval.FORECASTERS, work, titles, out, **shown)  # type: ignore[arg-type]
    if table is not None and submit is not None:
        # records of `--earlier` may lie in the same file
        made = [record for record in read_lines(out) if not record["config"].endswith(" earlier")]
        submitted = [submit(record) for record in made if record["method"] in chosen]
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(submitted[0]))
        writer.writeheader()
        writer.writerows(submitted)
        write_atomically(table, text.getvalue().encode())
        make_console().print(f"rows of the leaderboard: {table}", soft_wrap=True)

"""What the benchmark scripts share: options, the console and the record of a run."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from toa.experiments.records import Record, provenance, write_record
from toa.training.distributed import resolve_device
from toa_bench.peer import hide_checkouts


def make_parser(doc: str | None, out: str) -> argparse.ArgumentParser:
    """A parser with the help text of a script and the options that all scripts have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--tf32", action=argparse.BooleanOptionalAction, default=True, help="allow TF32 on CUDA")
    parser.add_argument("--out", type=Path, default=Path(out), help="file of the record")
    return parser


def make_console(width: int = 110) -> Console:
    """A console that does not cut tables if the output is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else width)


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Turn ValueError and OSError into an exit with one line."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None


def command_line(script: str, words: list[str] | None) -> list[str]:
    """The command line of a script, for its record: without the folder of a peer."""
    return hide_checkouts([Path(sys.executable).name, *(sys.argv if words is None else [script, *words])])


def save(record: Record, args: argparse.Namespace, command: list[str], console: Console) -> None:
    """Write a record with its provenance to `args.out` and print the path."""
    if "settings" in record:
        # the command names the file; its folder is one of this machine
        record = record | {"settings": {name: one for name, one in record["settings"].items() if name != "out"}}
    write_record(args.out, record | provenance(resolve_device(args.device), command))
    console.print(f"record: {args.out}", soft_wrap=True)

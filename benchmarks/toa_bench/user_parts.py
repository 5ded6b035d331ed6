"""`toa bench tables`: forecasts, alarms and classes as people meet them, each part with its own records.

run_parts(["detection"], None, None, {"effort": "quick"}, None, {"detection": Path("detection.jsonl")})

A pair of a set and a method that has a record is not run again, so that the same command prints the stored table.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from toa._checks import ArgumentError, check_choice
from toa._console import make_console
from toa_bench.leaderboards import run_sets

# modules with SETS, KNOWN, METHODS, RIVALS, LIMITED, TITLES and `evaluate`
PARTS = {
    "forecasting": "toa_bench.user_tables",
    "detection": "toa_bench.detection_tables",
    "classification": "toa_bench.uea",
}
# name of the benchmark in the records of a part
BENCHMARKS = {"forecasting": "tables", "detection": "detection", "classification": "uea"}
# without other wishes: the methods that the table of a part compares
COMPARED = {"classification": ("toa", "multirocket-hydra")}


def run_parts(
    parts: Sequence[str] | None,
    datasets: Sequence[str] | None,
    methods: Sequence[str] | None,
    work: Mapping[str, Any],
    data_dir: Path | None,
    outs: Mapping[str, Path],
) -> None:
    """Measure parts on those of the sets, and by those of the methods, that each of them has.

    Args:
        work: Arguments of an estimator that state how much work a fit may take.
        outs: File of the records of each part.
    """
    for part in parts or ():
        check_choice("part", part, PARTS)
    modules = {part: import_module(PARTS[part]) for part in parts or PARTS}
    _check_names("dataset", datasets, [module.KNOWN for module in modules.values()])
    _check_names("method", methods, [_methods(module) for module in modules.values()])
    console = make_console()
    for part, module in modules.items():
        chosen = None if datasets is None else [name for name in datasets if name in module.KNOWN]
        wanted = COMPARED.get(part) if methods is None else [name for name in methods if name in _methods(module)]
        if chosen == [] or wanted == []:
            continue
        console.print(f"{part}:")
        run_sets(BENCHMARKS[part], module, chosen, wanted, work, data_dir, outs[part])


def _methods(module: Any) -> tuple[str, ...]:
    """All methods of a part, also those that run only if they are named."""
    return (*module.METHODS, *module.RIVALS)


def _check_names(kind: str, names: Sequence[str] | None, known: Sequence[Any]) -> None:
    """Raise ValueError for a name that no part has."""
    for name in names or ():
        if not any(name in part for part in known):
            listed = dict.fromkeys(entry for part in known for entry in part)
            raise ArgumentError(f"--{kind}", f"be one of {', '.join(listed)}", repr(name))

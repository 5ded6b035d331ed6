"""Tables of the stored campaign that tries to break promises."""

import functools
import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from performance_tables import table
from stored_results import RESULTS

# promise, parts of the campaign that test it, how, and what others say of it: scikit-learn, NeuralForecast, safetensors
PROMISES = (
    (
        *("No damaged file is accepted, none is executed, none ends in a traceback", ("fuzz",)),
        *("damaged and forged files", "pickle may execute code", "safetensors and JSON", "no code; no checksum"),
    ),
    (
        *("No file with absurd entries and a checksum that fits ends in a traceback or takes minutes", ("forgery",)),
        *("every entry of a good file is replaced", "-", "-", "-"),
    ),
    ("Killed work loses nothing", ("kill",), "signals at each step of writing", "-", "-", "-"),
    ("A failing disk is an error in one line", ("disk",), "faults at each step of writing", "-", "-", "-"),
    ("Any name works or is refused", ("names",), "names of columns and files", "-", "-", "-"),
    ("No answer is NaN or infinite", ("numbers",), "hostile numbers", "inputs are checked", "-", "-"),
    (
        *("A small table gets finite numbers or a clear error", ("tables",)),
        *("random tables and options for each estimator", "-", "-", "-"),
    ),
    ("Threads change no answer", ("load threads on one estimator",), "64 at a time", "-", "-", "-"),
    (
        *("Writers and readers of one file or folder lose nothing", ("load processes on one",)),
        *("8 writers and 8 readers at a time", "-", "-", "-"),
    ),
    ("A stream takes constant memory", ("load rows of a stream",), "rows one after another", "-", "-", "-"),
    ("A sweep takes as long per run, however long", ("load runs of a sweep",), "four sizes", "-", "-", "-"),
    ("Memory is bounded", ("load memory",), "long and wide tables", "-", "-", "header of 100 MB"),
    ("Operator attention is its formula", ("oracle",), "an oracle of its own, in float64", "-", "-", "-"),
    ("Related inputs have related answers", ("properties",), "pairs of calls on random tables", "-", "-", "-"),
    ("Each mend has a test that fails without it", ("mends",), "mends taken out", "-", "-", "-"),
)


@functools.cache
def stored_campaign() -> dict[str, Any]:
    """The stored campaign: its parts, and how much of each is planned."""
    content: dict[str, Any] = json.loads((RESULTS / "reliability" / "campaign.json").read_text(encoding="utf-8"))
    return content


def campaign() -> dict[str, Any]:
    """The parts of the stored campaign."""
    parts: dict[str, Any] = stored_campaign()["parts"]
    return parts


def commits_line() -> str:
    """Whether all parts are complete and of one commit, and else which are not."""
    parts = campaign()
    # older campaigns do not state it
    planned: dict[str, int] = stored_campaign().get("planned", {name: part["tried"] for name, part in parts.items()})
    count = Counter(part["commit"] for part in parts.values())
    commit, most = count.most_common(1)[0]
    other = sorted(name for name, part in parts.items() if part["commit"] != commit)
    unfinished = sorted(name for name in planned if name not in parts or parts[name]["tried"] < planned[name])
    sentences = [f"{most} of {len(planned)} parts ran at commit {commit}."]
    if other:
        sentences.append(f"Of another commit: {', '.join(other)}.")
    if unfinished:
        sentences.append(f"Not complete: {', '.join(unfinished)}.")
    if not other and not unfinished:
        sentences = [f"All {len(planned)} parts are complete and ran at commit {commit}."]
    return " ".join(sentences)


def promise_table() -> str:
    """Promises, how each is tested, how often that was tried, and what others promise."""
    rows = []
    for promise, prefixes, how, *others in PROMISES:
        parts = [part for name, part in campaign().items() if name.startswith(prefixes)]
        if not parts:
            # not in the stored campaign yet
            continue
        bad = sum(len(part["failures"]) for part in parts)
        rows.append((promise, how, str(sum(part["tried"] for part in parts)), str(bad), *others))
    heads = ("promise", "tested by", "tried", "bad", "scikit-learn", "NeuralForecast", "safetensors")
    return table(heads, rows)


def reliability_table() -> str:
    """Damaged files and kills of the stored campaign, with the number that broke a promise."""
    rows = []
    for name, part in sorted(campaign().items()):
        counts = ", ".join(f"{key}: {value}" for key, value in sorted(part["counts"].items()) if key != "kills")
        rows.append((name, str(part["tried"]), str(len(part["failures"])), counts, str(part["seed"]), part["commit"]))
    return f"{commits_line()}\n\n{table(('part', 'tried', 'bad', 'counts', 'seed', 'commit'), rows)}"


TABLES: Mapping[str, Callable[[], str]] = {"promises": promise_table, "reliability": reliability_table}

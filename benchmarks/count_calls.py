"""Count the functions of `toa` that one command visits, the files they are in, and the changes of folder.

    python benchmarks/count_calls.py run --dataset ETTh1 --horizon 96 --set training.epochs=1 --out /tmp/counted

A function counts once, at its first call; lambdas and comprehensions do not count. A change of folder is a first call
in another folder than the first call before it. `--list` as first argument prints the functions in order.
"""

import importlib
import itertools
import pkgutil
import sys
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType

import toa

PACKAGE = Path(toa.__file__).parent


def count(words: list[str]) -> list[tuple[Path, str]]:
    """Run a command and return file and name of each function of `toa`, in the order of their first calls."""
    # imports would count functions that run only once per process
    for module in pkgutil.walk_packages(toa.__path__, "toa."):
        if not module.name.endswith("__main__"):
            with suppress(ImportError):
                importlib.import_module(module.name)
    from toa.cli.main import app

    seen: set[CodeType] = set()
    visited: list[tuple[Path, str]] = []

    def profile(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or code in seen:
            return
        seen.add(code)
        path = Path(code.co_filename)
        if path.is_relative_to(PACKAGE) and not code.co_name.startswith("<"):
            visited.append((path.relative_to(PACKAGE), code.co_qualname))

    sys.setprofile(profile)
    try:
        app(words, standalone_mode=False)
    finally:
        sys.setprofile(None)
    return visited


def main() -> None:
    words = sys.argv[1:]
    listed = words[:1] == ["--list"]
    visited = count(words[1:] if listed else words)
    if listed:
        print("\n".join(f"{path} {name}" for path, name in visited))
    folders = [path.parent for path, _ in visited]
    changes = sum(before != after for before, after in itertools.pairwise(folders))
    print(f"{len(visited)} functions in {len({path for path, _ in visited})} files, {changes} changes of folder")


if __name__ == "__main__":
    main()

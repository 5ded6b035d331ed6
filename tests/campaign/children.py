"""Run something in a child process that is killed, or whose disk fails, at a chosen step of its writing.

    child = run_child(action, folder)                                         # child.steps: what it did, in order
    run_child(action, folder, stop=Stop(step=3, signal=signal.SIGKILL))       # killed before the fourth step
    run_child(action, folder, fault=Fault(step=3, code=errno.ENOSPC))         # from then on, each step fails

A step is the opening of a file for writing, each write to it, its flush to the disk, its move, its removal, or a new
folder, below `folder`. The child is forked, so that it starts in milliseconds. The steps come from Python's audit
events, and from a layer below the files that Python opens.
"""

import builtins
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_EVENTS = ("os.rename", "os.remove", "os.mkdir", "os.truncate")
# seconds until a child counts as stuck
_LIMIT_S = 600


@dataclass(frozen=True, kw_only=True)
class Stop:
    """A signal that a child gets `after_s` seconds after a step."""

    step: int
    signal: int
    after_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Fault:
    """From a step on, steps fail with this error; removals do not, because a full disk allows them."""

    step: int
    code: int


@dataclass(frozen=True, kw_only=True)
class Child:
    """The exit status of a child, negative for a signal, its steps, and what it printed."""

    status: int
    steps: tuple[str, ...]
    output: str


class _Watch:
    """Counts the steps of this process, and stops or fails it at the chosen one."""

    def __init__(self, folder: Path, log: int, stop: Stop | None, fault: Fault | None) -> None:
        self.folder = str(folder)
        self.log = log
        self.stop = stop
        self.fault = fault
        self.count = 0
        fsync = os.fsync
        self.write = os.write

        def watched_fsync(descriptor: Any) -> None:
            self.step("os.fsync", _path(descriptor))
            fsync(descriptor)

        def watched_write(descriptor: int, data: Any) -> int:
            self.step("write", _path(descriptor))
            return self.write(descriptor, data)

        os.fsync = watched_fsync  # type: ignore[assignment]
        os.write = watched_write
        self.watch_files()
        sys.addaudithook(self.hook)

    def watch_files(self) -> None:
        """Count the writes to files that Python opens from now on."""
        opened: Any = io.open
        watch = self

        class Watched(io.FileIO):
            def write(self, data: Any) -> int:
                watch.step("write", os.fsdecode(self.name))
                return super().write(data)

        def open_watched(
            file: Any,
            mode: str = "r",
            buffering: int = -1,
            *text: Any,
            closefd: bool = True,
            opener: Any = None,
            **by: Any,
        ) -> Any:
            if isinstance(file, int) or not set(mode) & set("wax+"):
                return opened(file, mode, buffering, *text, closefd=closefd, opener=opener, **by)
            raw = Watched(file, mode.replace("b", "").replace("t", ""), closefd, opener)
            if buffering == 0:
                return raw
            binary = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return binary if "b" in mode else io.TextIOWrapper(binary, *text, **by)

        io.open = builtins.open = open_watched

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, str | bytes | os.PathLike) and (flags or 0) & _WRITING:
                self.step(event, os.fsdecode(path))
        elif event in _EVENTS:
            self.step(event, os.fsdecode(arguments[0]) if not isinstance(arguments[0], int) else "")

    def step(self, event: str, path: str) -> None:
        if not os.path.abspath(path).startswith(self.folder):
            return
        number = self.count
        self.count = self.count + 1
        self.write(self.log, f"{event} {Path(path).name}\n".encode())
        if self.stop is not None and number == self.stop.step:
            send = self.stop.signal
            if self.stop.after_s:
                threading.Timer(self.stop.after_s, os.kill, (os.getpid(), send)).start()
            else:
                os.kill(os.getpid(), send)
        if self.fault is not None and number >= self.fault.step and event != "os.remove":
            raise OSError(self.fault.code, os.strerror(self.fault.code), path)


def _path(descriptor: Any) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


def run_child(
    action: Callable[[], object], folder: Path, *, stop: Stop | None = None, fault: Fault | None = None
) -> Child:
    """Run an action in a forked process; a return value of None is status 0, an exception status 1."""
    folder.mkdir(parents=True, exist_ok=True)
    log, output = folder.with_name(f"{folder.name}.steps"), folder.with_name(f"{folder.name}.output")
    for path in (log, output):
        path.write_bytes(b"")
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        _serve(action, folder, log, output, stop, fault)
    _, status = os.waitpid(process, 0)
    return Child(
        status=os.waitstatus_to_exitcode(status),
        steps=tuple(log.read_text().splitlines()),
        output=output.read_text(errors="replace"),
    )


def _serve(
    action: Callable[[], object], folder: Path, log: Path, output: Path, stop: Stop | None, fault: Fault | None
) -> None:
    """In the child: never returns."""
    status = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        signal.alarm(_LIMIT_S)
        printed = os.open(output, os.O_WRONLY | os.O_APPEND)
        for descriptor in (1, 2):
            os.dup2(printed, descriptor)
        sys.stdout, sys.stderr = (os.fdopen(descriptor, "w", closefd=False) for descriptor in (1, 2))
        steps = os.open(log, os.O_WRONLY | os.O_APPEND)
        _Watch(folder.absolute(), steps, stop, fault)
        action()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


def command(*words: str) -> Callable[[], None]:
    """The action of a command of toa."""
    return commands(words)


def commands(*several: Sequence[str]) -> Callable[[], None]:
    """The action of commands of toa, one after another; the first that fails ends it."""

    def action() -> None:
        from toa.cli.main import app

        for words in several:
            try:
                app(list(words), prog_name="toa")
            except SystemExit as end:
                if end.code:
                    raise

    return action

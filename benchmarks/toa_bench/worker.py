"""A measurement in a process of its own, controlled by JSON lines over its standard input and output."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from toa._checks import ArgumentError

Record = dict[str, Any]


class Worker:
    """A child process that prints one line of JSON when it is ready and one per request.

    The child prints through `answering`. Use the worker as a context manager: leaving it kills the child.

    Args:
        name: Name in error messages.
        command: Command line of the child.
        environment: Environment variables to change.
    """

    def __init__(self, name: str, command: Sequence[str], **environment: str) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **environment},
        )

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            with contextlib.suppress(BrokenPipeError):
                stream.close()  # type: ignore[union-attr]

    def answer(self) -> Record:
        """The next answer of the child.

        Raises:
            ValueError: If the child ended without one; the message has the last line of its stderr.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._log.seek(0)
            last = (self._log.read().strip().splitlines() or ["nothing on stderr"])[-1]
            raise ArgumentError(self.name, "run to its end", f"exit code {code}: {last}")
        found: Record = json.loads(line)
        return found

    def ask(self, request: Record) -> Record:
        """Send a request and return its answer."""
        assert self._process.stdin is not None
        # if the child has died, `answer` reports why
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return self.answer()

    def finish(self) -> Record:
        """Close the input of the child and return its last answer."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self.answer()


def answering() -> Callable[[Record], None]:
    """In the child: reserve stdout for answers, send other prints to stderr, and return the function that answers."""
    stream = sys.stdout
    sys.stdout = sys.stderr

    def answer(content: Record) -> None:
        stream.write(json.dumps(content) + "\n")
        stream.flush()

    return answer

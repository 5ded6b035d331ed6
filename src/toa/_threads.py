"""Threads: how they wait, and where one is enough."""

import functools
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

# set before torch is imported: OpenMP reads these variables only once
_PASSIVE = {
    # GNU OpenMP, the runtime of PyTorch and scikit-learn on Linux
    "OMP_WAIT_POLICY": "passive",
    # OpenMP of LLVM and Intel: milliseconds before a waiting thread sleeps
    "KMP_BLOCKTIME": "0",
    # OpenBLAS of numpy: waits of 2 to the power of this many cycles
    "OPENBLAS_THREAD_TIMEOUT": "4",
}


def wait_passively() -> None:
    """Let threads sleep while they wait for each other; a variable that the user set stays.

    A thread that waits actively takes a core from the thread that it waits for, when other programs use the cores too.
    """
    for name, value in _PASSIVE.items():
        os.environ.setdefault(name, value)


def one_thread_if(is_small: bool) -> AbstractContextManager[object]:
    """Compute with one thread of OpenMP, PyTorch's among them, if the work is small; other Python threads keep theirs.

    Threads wait for each other at the end of each operation: microseconds on idle cores; beside other
    programs up to tens of milliseconds, far longer than the forecast of a few windows.
    """
    return _controller().limit(limits=1, user_api="openmp") if is_small else nullcontext()


@functools.cache
def _controller() -> Any:
    """The libraries with threads that are loaded when it is first asked for: finding them takes milliseconds."""
    # imported on use: no command needs it before its model is loaded
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()

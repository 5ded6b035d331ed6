"""Threads that wait without using a core."""

import os

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

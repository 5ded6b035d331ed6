import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import beartype
import hypothesis
import jaxtyping
import pytest

# before anything imports toa. Not api.py: its own errors about shapes are tested.
SHAPE_CHECKED = (
    "toa.ops.operators",
    "toa.ops.attention.reference",
    "toa.ops.attention.folded",
    "toa.ops.attention.blocked",
    "toa.ops.attention.definitions",
)
# the tests of these modules and of their callers; in all others the checks would triple the time of a training
CHECKING = ("tests/ops/", "tests/nn/", "tests/models/")


def check_shapes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check a function's annotations; one inside another has none with shapes, and would be prepared at each call."""
    return function if "<locals>" in function.__qualname__ else beartype.beartype(function)


# torch.compile cannot trace the checks: its tests run in another process without them
if os.environ.get("TOA_NO_SHAPE_CHECKS") != "1":
    jaxtyping.install_import_hook(SHAPE_CHECKED, "tests.conftest.check_shapes")

# problems are tiny: a second thread would only wait, and longer when other processes use the cores. A variable also
# holds for child processes, and Lightning sets as many threads as cores for its ranks, for good, where it is missing.
os.environ["OMP_NUM_THREADS"] = os.environ.get("TOA_TEST_THREADS", "1")

import torch  # noqa: E402

hypothesis.settings.register_profile("toa", derandomize=True, deadline=None, max_examples=100, database=None)
hypothesis.settings.load_profile("toa")


# the longest before the others, so that all workers end at about the same time: tests that start a process
LONGEST = ("tests/test_compile.py", "test_docs.py", "test_sweep.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if order := os.environ.get("TOA_TEST_ORDER"):
        items[:] = shuffled(items, int(order))
    else:
        items.sort(key=lambda item: [not str(item.path).endswith(name) for name in LONGEST])


def shuffled(items: list[pytest.Item], seed: int) -> list[pytest.Item]:
    """Files in random order, and the tests of each: fixtures of a file are made once."""
    random = Random(seed)
    files: dict[Any, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    mixed = [random.sample(tests, len(tests)) for tests in files.values()]
    random.shuffle(mixed)
    return [item for tests in mixed for item in tests]


# their tests have few tokens, at which attention would apply the matrix of a structured operator instead
STRUCTURED = ("tests/ops/", "tests/nn/", "tests/integrations/test_export.py")


@functools.cache
def most_dense() -> dict[Any, int]:
    """Structured operators with the most tokens at which attention applies their matrix."""
    from toa import ops

    return {kind: kind._dense_up_to for kind in (ops.Toeplitz, ops.Banded)}


@pytest.fixture
def as_matrices() -> None:
    """Attention applies structured operators of few tokens as matrices, as it does for users."""


# efforts of quick tests. The kernels of the classifier take two minutes to compile on a new machine; few of them are as
# fast in Python. Trees take most of the time of a fit.
FEW: dict[str, Any] = {"trees": 20, "kernels": 84, "kernel_groups": 16}
# trees of the isolation forest
FEW_FOREST_TREES = 30
# effort of tests that need no network and no trees
LEAST: dict[str, Any] = {"tree_windows": 0, "network_windows": 0, "networks": 0, "candidates": 0}
# tests of no estimator, of the page of efforts, of the forest itself, and of the weight of trees
WHOLE = (
    *CHECKING,
    "tests/paper/theory/",
    "tests/test_page_tables.py",
    "tests/estimators/test_scorers.py",
    "tests/benchmarks/test_leaderboards.py",
)
_patch = pytest.MonkeyPatch()
_reduced = False


@functools.cache
def register_least() -> None:
    """Register the effort "least"."""
    from toa.estimators.effort import EFFORTS

    EFFORTS.register("least")(replace(EFFORTS["quick"], **LEAST))


def reduce_estimators() -> None:
    """Let estimators have few kernels, in Python, and few trees."""
    from toa.estimators import kernels, scorers
    from toa.estimators.effort import EFFORTS

    draw = kernels._draw

    def draw_in_python(*arguments: Any) -> kernels.KernelFeatures:
        # imported on use: aeon takes seconds to import
        from aeon.transformations.collection.convolution_based import _multirocket

        for name in ("_fit_biases_multivariate", "_transform_multi"):
            function = getattr(_multirocket, name)
            _patch.setattr(_multirocket, name, getattr(function, "py_func", function))
        return draw(*arguments)

    _patch.setattr(kernels, "_draw", draw_in_python)
    _patch.setattr(scorers, "_TREES", FEW_FOREST_TREES)
    for name in EFFORTS:
        _patch.setitem(EFFORTS, name, replace(EFFORTS[name], **FEW))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    global _reduced
    wanted = not item.nodeid.startswith(WHOLE) and not {"slow", "gpu", "data"} & {m.name for m in item.iter_markers()}
    if wanted != _reduced:
        _reduced = wanted
        reduce_estimators() if wanted else _patch.undo()
    if not item.nodeid.startswith((*CHECKING, "tests/theory/")):
        register_least()
    jaxtyping.config.update("jaxtyping_disable", not item.nodeid.startswith(CHECKING))
    apart = item.nodeid.startswith(STRUCTURED) and "as_matrices" not in getattr(item, "fixturenames", ())
    for kind, most in most_dense().items():
        kind._dense_up_to = 0 if apart else most


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    # no test may depend on the global generator, or change it
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.support import ACTIVATIONS, FUSED, assert_near, make_problem, message
from toa import ops
from toa.ops import _backend
from toa.ops.attention import api


@pytest.fixture
def moon_backend() -> Iterator[list[str]]:
    """A backend that comes first for "auto", but runs only gated attention in float16."""
    calls: list[str] = []

    def objection(problem):
        if problem.activation != "gated":
            return f"it has no {problem.activation} kernel"
        right = problem.dtype == torch.float16
        return None if right else f"it takes float16, not {problem.dtype}, on {problem.device}"

    def run(inputs):
        calls.append(inputs.activation)
        return inputs.v

    entries = ops.BACKENDS
    kept = dict(entries)
    entries.clear()
    ops.BACKENDS.register("moon")(ops.AttentionBackend(run=run, objection=objection))
    entries.update(kept)
    yield calls
    entries.clear()
    entries.update(kept)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_auto_chooses_folded_on_a_cpu(activation, dtype) -> None:
    assert ops.choose_backend(activation=activation, device="cpu", dtype=dtype) == "folded"


def test_auto_takes_the_first_backend_that_can_run(moon_backend) -> None:
    assert next(iter(ops.BACKENDS)) == "moon"
    assert ops.choose_backend(activation="gated", dtype=torch.float16) == "moon"
    assert ops.choose_backend(activation="gated", dtype=torch.float32) == "folded"
    assert ops.choose_backend(activation="relu", dtype=torch.float16) == "folded"


def test_auto_never_chooses_the_reference() -> None:
    assert ops.BACKENDS["reference"].automatic == ()
    assert ops.choose_backend("reference") == "reference"


def test_a_named_backend_that_cannot_run_raises_with_the_reason_and_the_alternative(moon_backend) -> None:
    problem = make_problem(activation="relu")
    with pytest.raises(
        ValueError, match=message("'moon' cannot run here: it has no relu kernel", "'auto'", "'folded'")
    ):
        problem.run("moon")
    with pytest.raises(ValueError, match=message("it takes float16, not torch.float64, on cpu")):
        make_problem(activation="gated").run("moon")
    assert moon_backend == []


def test_a_named_backend_is_the_one_that_runs(moon_backend) -> None:
    problem = make_problem(activation="gated").cast(torch.float16)
    assert_near(problem.run("moon"), problem.leaves["v"])
    problem.run("folded")
    assert moon_backend == ["gated"]


def test_auto_runs_the_backend_that_choose_backend_names(moon_backend) -> None:
    problem = make_problem(activation="gated").cast(torch.float16)
    assert ops.choose_backend(activation="gated", dtype=torch.float16) == "moon"
    problem.run("auto")
    assert moon_backend == ["gated"]


def test_an_unknown_backend_lists_the_known_ones() -> None:
    pattern = message("unknown backend 'tritn'; known: auto, triton, folded, reference.")
    with pytest.raises(ValueError, match=pattern):
        ops.choose_backend("tritn")
    with pytest.raises(ValueError, match=pattern):
        make_problem().run("tritn")


def test_the_environment_variable_names_the_backend_of_auto(monkeypatch) -> None:
    monkeypatch.setenv("TOA_BACKEND", "reference")
    assert ops.choose_backend() == "reference"
    assert ops.choose_backend("folded") == "folded"
    monkeypatch.setenv("TOA_BACKEND", "slow")
    with pytest.raises(ValueError, match=message("unknown backend 'slow'")):
        ops.choose_backend()
    monkeypatch.setenv("TOA_BACKEND", "")
    assert ops.choose_backend() == "folded"


@pytest.fixture
def cuda(monkeypatch) -> torch.device:
    """A machine that looks to `choose_backend` as if it had a recent GPU and Triton; no warning was given yet."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(_backend, "_TRITON", "3.6.0")
    monkeypatch.setattr(api, "_WARNED", set())
    return torch.device("cuda")


def test_choose_backend_can_be_compiled(cuda) -> None:
    def doubled(x: Tensor) -> Tensor:
        return 2 * x if ops.choose_backend(activation="relu", device=cuda) == "triton" else x

    assert torch.compile(doubled, fullgraph=True, backend="eager")(torch.ones(1)).item() == 2.0


@pytest.mark.parametrize("activation", FUSED)
def test_auto_chooses_the_kernels_on_a_gpu(cuda, activation) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert ops.choose_backend(activation=activation, device=cuda, dtype=dtype, width=256) == "triton"
    assert ops.choose_backend("triton", activation="relu", device=cuda) == "triton"


def test_auto_leaves_the_kernels_out_on_amd_unless_asked(cuda, monkeypatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    with pytest.warns(RuntimeWarning, match=message("AMD's GPUs but were never run on one; TOA_BACKEND=triton tries")):
        assert ops.choose_backend(activation="relu", device=cuda) == "folded"
    monkeypatch.setenv("TOA_BACKEND", "triton")
    assert ops.choose_backend(activation="relu", device=cuda) == "triton"


@pytest.mark.parametrize(
    ("change", "problem", "reason"),
    [
        (("_TRITON", None), {}, "it needs Triton 3.2 or newer, which is not installed (pip install 'toa[triton]')"),
        (("_TRITON", "3.1.0"), {}, "it needs Triton 3.2 or newer, found 3.1.0"),
        ((None, (7, 5)), {}, "it needs a GPU of compute capability 8.0, found 7.5"),
        (None, {"width": 257}, "its kernels take heads of width up to 256, not 257"),
        (None, {"dtype": torch.float64}, "its kernels take float32, bfloat16 and float16, not torch.float64"),
    ],
    ids=["triton missing", "triton old", "gpu old", "wide", "float64"],
)
def test_a_named_backend_raises_and_auto_falls_back_with_one_warning(
    cuda, monkeypatch, change, problem, reason
) -> None:
    if change is not None and change[0] is None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: change[1])
    elif change is not None:
        monkeypatch.setattr(_backend, *change)
    problem = {"activation": "gated", "device": cuda, **problem}
    with pytest.raises(ValueError, match=message(f"'triton' cannot run here: {reason}; use", "'folded'")):
        ops.choose_backend("triton", **problem)
    with pytest.warns(RuntimeWarning, match=message("'folded' runs instead of 'triton', which is faster:", reason)):
        assert ops.choose_backend(**problem) == "folded"
    # warnings are errors: a second one would raise
    assert ops.choose_backend(**problem) == "folded"
    assert ops.choose_backend("folded", **problem) == "folded"


def test_auto_does_not_warn_if_no_faster_backend_exists(cuda, monkeypatch) -> None:
    assert ops.choose_backend(activation="gated", device=cuda, pair_mask=True) == "folded"
    monkeypatch.setenv("TOA_BACKEND", "folded")
    assert ops.choose_backend(activation="gated", device=cuda, dtype=torch.float64) == "folded"
    monkeypatch.delenv("TOA_BACKEND")
    monkeypatch.setattr(_backend, "_TRITON", None)
    assert ops.choose_backend(activation="gated", device="cpu") == "folded"


def test_the_kernels_need_a_gpu_or_the_interpreter(monkeypatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match=message("'triton' cannot run here: it needs a CUDA device, got cpu")):
        ops.choose_backend("triton", activation="relu")

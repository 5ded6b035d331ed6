"""`benchmarks/operator_attention.py`, `toa bench ops` and the measurements behind them."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from tests.cli.test_app import call
from tests.support import assert_near, load_script, message
from toa import ops
from toa_bench import op_cost, op_run, rivals
from toa_bench.op_cost import OpCase, check_accuracy, measure_case
from toa_bench.op_run import measure_cases

CPU = torch.device("cpu")
SMALL = OpCase(system="folded", activation="gated", batch=2, tokens=9, heads=2, width=4, dtype="float32")


@pytest.fixture
def bench():
    return load_script("benchmarks/operator_attention.py")


@pytest.fixture
def _in_this_process(monkeypatch) -> None:
    monkeypatch.setattr(op_run, "_isolated", lambda measure, case, device, **how: measure(case, device, **how))


@pytest.fixture
def inaccurate_backend() -> Iterator[None]:
    """A backend with a small error."""

    def run(inputs):
        out = ops.BACKENDS["folded"].run(inputs)
        return out + 1e-3 * inputs.q.sum() * torch.ones_like(out)

    kept = dict(ops.BACKENDS)
    ops.BACKENDS.register("inaccurate")(ops.AttentionBackend(run=run, automatic=()))
    yield
    ops.BACKENDS.clear()
    ops.BACKENDS.update(kept)


@pytest.mark.parametrize("activation", ops.ACTIVATIONS)
@pytest.mark.parametrize("dtype", op_cost.DTYPES)
def test_folded_passes_the_check_in_every_dtype(activation, dtype) -> None:
    assert check_accuracy(replace(SMALL, activation=activation, dtype=dtype), CPU) is None


@pytest.mark.usefixtures("inaccurate_backend", "_in_this_process")
def test_an_inaccurate_backend_is_not_timed(monkeypatch) -> None:
    monkeypatch.setattr(op_run, "measure_case", lambda *words, **how: pytest.fail("it was timed"))
    (row,) = measure_cases([replace(SMALL, system="inaccurate")], CPU, seconds=0.0, budget=2**30)
    assert row["cost"] is None
    assert row["reason"].startswith("refused, not as accurate as the reference: output at N=9: error ")


@pytest.mark.usefixtures("_in_this_process")
def test_cases_that_cannot_run_or_are_too_large_have_a_reason(monkeypatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    cases = [replace(SMALL, system="triton"), replace(SMALL, system="reference", tokens=4096)]
    fused, literal = measure_cases(cases, CPU, seconds=0.0, budget=2**30)
    assert "needs a CUDA device" in fused["reason"]
    # 20 scores of 2 * 2 * 4096² float32 numbers
    assert literal["reason"] == "skipped: about 5 GiB, over the budget of 1 GiB"
    assert fused["cost"] is literal["cost"] is None


def test_needed_bytes_equal_a_count_by_hand() -> None:
    cost = measure_case(SMALL, CPU, seconds=0.0)
    tokens = 2 * 9 * 2 * 4 * 4
    operator = 2 * 9 * 9 * 4
    # five inputs and their gradients, the output and its gradient, three operators and theirs
    assert cost.needed_bytes == 2 * (5 + 1) * tokens + 2 * 3 * operator
    assert cost.repeats == 5
    assert 0.0 < cost.tenth <= cost.milliseconds <= cost.ninetieth
    assert cost.graph_ms is None
    assert cost.extra_bytes is None or cost.extra_bytes >= 0
    plain = measure_case(replace(SMALL, system="sdpa", activation="softmax"), CPU, seconds=0.0)
    assert plain.needed_bytes == 2 * (3 + 1) * tokens


@pytest.mark.usefixtures("_in_this_process")
def test_the_script_prints_a_table_and_writes_a_record(bench, tmp_path, capsys) -> None:
    out = tmp_path / "op.json"
    words = ["--tokens", "4", "--batch", "1", "--heads", "1", "--width", "4", "--systems", "folded"]
    assert bench.main([*words, "--activations", "relu", "--seconds", "0", "--device", "cpu", "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    assert [row["name"] for row in record["rows"]] == ["sdpa", "relu folded"]
    base, ours = record["rows"]
    ratio = ours["cost"]["milliseconds"] / base["cost"]["milliseconds"]
    assert ours["over_sdpa"]["time"] == pytest.approx(ratio)
    assert record["settings"]["dtype"] == "float32"
    assert {"device", "versions", "commit", "command"} <= set(record)
    shown = capsys.readouterr().out
    assert "relu folded *" in shown
    assert "…" not in shown


@pytest.mark.usefixtures("_in_this_process")
def test_bench_ops_prints_the_auto_backend_and_all_times(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    out = tmp_path / "ops.json"
    sizes = ["--tokens", "5", "--width", "4", "--heads", "1", "--batch", "1", "--seconds", "0"]
    code, text = call("bench", "ops", *sizes, "--activation", "gated", "--device", "cpu", "--out", str(out), columns=80)
    assert code == 0, text
    line = re.search(r"\b5 gated folded (\S+) - (\S+) (\S+)", " ".join(text.split()))
    assert line is not None, text
    sdpa, folded, reference = line.groups()
    rows = {row["system"]: row["cost"] for row in json.loads(out.read_text())["rows"]}
    assert folded == f"{rows['folded']['milliseconds']:.3f}"
    assert reference == f"{rows['reference']['milliseconds']:.3f}"
    assert sdpa == f"{rows['sdpa']['milliseconds']:.3f}"
    assert "gated triton N=5: backend 'triton' cannot run here: it needs a CUDA device" in " ".join(text.split())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("activation", ["softmax", "relu"])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@torch.no_grad()
def test_flex_attention_on_mixed_tokens_is_the_same_function(activation, causal) -> None:
    case = replace(SMALL, system="flex", activation=activation, causal=causal, tokens=17, width=16)
    problem = op_cost._Problem.of(case, CPU)
    options = {"activation": activation, "scale": 16**-0.5, "causal": causal}
    inputs, offsets = ({name: x.detach() for name, x in group.items()} for group in (problem.inputs, problem.offsets))
    assert_near(rivals._flex(inputs, offsets, **options, kernel=flex_attention), problem.run("reference"), 1e-5)


def test_gradients_of_relu_by_logarithms_are_those_of_relu(monkeypatch) -> None:
    case = replace(SMALL, system="flex", activation="relu", tokens=17, width=16, dtype="float64")
    problem = op_cost._Problem.of(case, CPU)

    def kernel(attention, q, k, v, *, scale, score_mod):
        # FlexAttention has no gradients on a CPU
        scores = score_mod(scale * q @ k.mT, *torch.zeros(4))
        return scores.softmax(-1) @ v, scores.logsumexp(-1)

    monkeypatch.setattr(rivals, "_with_log_sum", kernel)
    got = rivals._flex(problem.inputs, problem.offsets, activation="relu", scale=16**-0.5, kernel=flex_attention)
    leaves = list(problem.leaves.values())
    both = [torch.autograd.grad(x.square().sum(), leaves) for x in (got, problem.run("reference"))]
    for one, other in zip(*both, strict=True):
        assert_near(one, other, 1e-10)


def test_rivals_that_cannot_run_have_a_reason() -> None:
    cases = [replace(SMALL, system=system) for system in rivals.RIVALS]
    flex, compiled = (row["reason"] for row in measure_cases(cases, CPU, seconds=0.0, budget=2**30))
    assert flex == "skipped: FlexAttention has no backward pass off CUDA"
    assert compiled.startswith("skipped: the compiled form is compared on CUDA")
    gated = rivals.rival_objection("flex", "gated", "none", torch.device("cuda"))
    assert gated is not None
    assert "one score per pair" in gated
    assert rivals.rival_objection("flex", "relu", "none", torch.device("cuda")) is None
    assert op_run._refusal("flex", "output at N=9") == "not timed, not as accurate as the reference: output at N=9"
    assert op_run._refusal("compiled", "failed: X") == "failed: X"


def test_the_compiled_rival_is_the_folded_form() -> None:
    problem = op_cost._Problem.of(SMALL, CPU)
    options = {"activation": "gated", "scale": 0.5}
    assert torch.equal(rivals.folded(problem.inputs, problem.offsets, **options), problem.run("folded"))


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--tokens", "0"), "tokens must be at least 1, got 0"),
        (("--activation", "tanh"), f"unknown activation 'tanh'; known: {', '.join(ops.ACTIVATIONS)}."),
        (("--dtype", "int8"), "unknown dtype 'int8'; known: bfloat16, float16, float32, float64."),
    ],
)
def test_wrong_options_of_bench_ops_exit_with_one_line(words, part, tmp_path) -> None:
    code, text = call("bench", "ops", *words, "--device", "cpu", "--out", str(tmp_path / "x.json"))
    assert code == 2
    assert part in text


def test_wrong_sizes_exit_with_one_line(bench, tmp_path) -> None:
    with pytest.raises(SystemExit, match=message("error: tokens must be at least 1, got 0")):
        bench.main(["--tokens", "0", "--device", "cpu", "--out", str(tmp_path / "x.json")])

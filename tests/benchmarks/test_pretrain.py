"""`benchmarks/pretrain.py`: the committed plan, a tiny screening and its validation, and the model card."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.support import load_script, message
from tests.training.pretraining_cases import tiny_model
from toa.estimators.pretrained_forecasts import InferenceOptions
from toa.models.pretrained import PretrainedForecaster
from toa.training.parts import check_checkpoint_size
from toa_bench.pretrain_card import card_text
from toa_bench.pretrain_plan import PLAN, ROOT, Plan, make_run, read_plan
from toa_bench.pretrain_validation import ValidationSet, Windows, read_validation, score, validate_model

TINY_PLAN = """
validation = "{validation}"
[series]
seed = 3
together = 2
changes = {{ missing = 0.5 }}
weights = {{ seasons = 1.0 }}
[model]
context = 32
horizon = 8
patch_len = 4
quantiles = [0.1, 0.5, 0.9]
[training]
batch_size = 4
precision = "float32"
least_context = 8
[screen]
steps = 4
warmup = 2
decay = 2
mean_span = 2
mean_every = 1
log_every = 2
[size.small]
embed_dim = 8
num_heads = 2
num_layers = 1
ff_dim = 8
[arms.softmax]
attention = "softmax"
[arms.toa-softmax]
attention = "toa-softmax"
[runs.longer]
arm = "toa-softmax"
size = "small"
steps = 6
"""
TINY_VALIDATION = """
[Synthetic]
source = "synthetic"
seed = 9
series = 6
context = 40
horizon = 5
season = 1
"""


@pytest.fixture
def tiny_plan(tmp_path) -> Path:
    validation = tmp_path / "validation.toml"
    validation.write_text(TINY_VALIDATION)
    path = tmp_path / "plan.toml"
    path.write_text(TINY_PLAN.format(validation=validation))
    return path


@pytest.fixture(scope="module")
def committed() -> Plan:
    return read_plan()


def test_the_committed_arms_differ_in_their_model_alone(committed) -> None:
    arms = committed.arms()
    assert "screen/softmax" in arms
    assert len({committed.entry(name).training for name in arms}) == 1
    models = {committed.entry(name).model for name in arms}
    assert len(models) == len(arms)
    assert {(model.context, model.horizon, model.quantiles) for model in models} == {
        (2048, 512, (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9))
    }


@pytest.mark.parametrize("name", ["small", "large"])
def test_a_checkpoint_of_the_committed_trainings_is_small_enough(committed, name) -> None:
    model = PretrainedForecaster(committed.entry(name).model)
    # each parameter may be filled up to the next multiple of 64 weights
    count = sum(-(-parameter.numel() // 64) * 64 for parameter in model.parameters())
    halves = {part: torch.empty(count, dtype=torch.bfloat16, device="meta") for part in ("first", "second", "mean")}
    check_checkpoint_size({"weights": torch.empty(count, device="meta")} | halves)


def test_the_committed_validation_list_leaves_out_tested_rows(committed) -> None:
    sets = read_validation(committed.validation)
    assert {"Synthetic", "Tourism-Monthly", "NN5-Daily", "Web-Traffic", "Exchange", "EIA930"} == set(sets)
    assert sets["Synthetic"].seed != committed.series.seed
    for entry in sets.values():
        assert entry.until is None or entry.until <= 0.8


def test_series_of_a_step_are_the_same_after_a_resume(tiny_plan) -> None:
    plan = read_plan(tiny_plan)
    batches = plan.series.batches(4, 40, torch.device("cpu"))
    drawn = [batches(step).clone() for step in range(5)]
    again = plan.series.batches(4, 40, torch.device("cpu"))
    for step in (3, 2, 4):
        assert torch.equal(again(step).nan_to_num(), drawn[step].nan_to_num())
    assert not torch.equal(drawn[0].nan_to_num(), drawn[1].nan_to_num())
    assert not torch.equal(drawn[0].nan_to_num(), drawn[2].nan_to_num())


def test_first_weights_follow_the_seed_in_the_name(tiny_plan) -> None:
    plan = read_plan(tiny_plan)
    state = torch.random.get_rng_state()
    runs = [make_run(plan, name, torch.device("cpu")) for name in ("longer", "longer", "longer@1")]
    assert torch.equal(runs[0].adam.weights, runs[1].adam.weights)
    assert not torch.equal(runs[0].adam.weights, runs[2].adam.weights)
    assert runs[2].config.seed == 1
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_repeated_screening_resumes_and_skips(tiny_plan, tmp_path, capsys) -> None:
    script = load_script("benchmarks/pretrain.py")
    command = ["screen", "--plan", str(tiny_plan), "--folder", str(tmp_path / "runs"), "--device", "cpu"]
    script.main([*command, "--seconds", "0"])
    script.main([*command, "--seconds", "0.0001"])
    assert "the time is over; repeat the command to continue" in capsys.readouterr().out
    script.main(command)
    lines = (tmp_path / "runs" / "screen.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["name"] for record in records] == ["screen/softmax", "screen/toa-softmax"]
    for record in records:
        assert record["step"] == 4
        assert record["validation"]["sets"]["Synthetic"]["windows"] > 0
        assert "commit" in record
        assert "benchmarks/pretrain.py" in record["command"]
    script.main(command)
    assert (tmp_path / "runs" / "screen.jsonl").read_text().splitlines() == lines


def test_a_training_is_exported_with_a_card(tiny_plan, tmp_path, capsys) -> None:
    script = load_script("benchmarks/pretrain.py")
    common = ["longer", "--plan", str(tiny_plan), "--folder", str(tmp_path / "runs"), "--device", "cpu"]
    script.main(["train", *common, "--steps", "3"])
    assert "3 of 6 steps" in capsys.readouterr().out
    script.main(["export", *common, "--out", str(tmp_path / "weights")])
    model = PretrainedForecaster.from_pretrained(tmp_path / "weights")
    assert model.facts["step"] == 3
    assert model.facts["synthetic"]["seed"] == 3
    card = (tmp_path / "weights" / "README.md").read_text()
    assert "# longer: a pretrained forecaster of `toa`" in card
    assert "12 series that `toa.data.synthetic` drew" in card
    script.main(["validate", str(tmp_path / "weights"), "--plan", str(tiny_plan), "--flip", "--context", "16"])
    assert "geometric mean over real sets" in capsys.readouterr().out
    record = str(tmp_path / "runs" / "longer" / "record.json")
    other = ["--stretch", "2", "--record", record, "--out", str(tmp_path / "other")]
    script.main(["choose", str(tmp_path / "weights"), "--plan", str(tiny_plan), *other])
    again = PretrainedForecaster.from_pretrained(tmp_path / "other")
    assert again.facts["inference"]["stretch"] == 2
    assert all(torch.equal(again.state_dict()[name], value) for name, value in model.state_dict().items())
    assert "resampled to 2 times as many steps" in (tmp_path / "other" / "README.md").read_text()
    # the checkpoint is lost: training continues from the weights
    script.main(["train", *common[:3], "--folder", str(tmp_path / "again"), "--weights", str(tmp_path / "weights")])
    assert json.loads((tmp_path / "again" / "longer" / "record.json").read_text())["restarts"][0]["step"] == 3


def test_wrong_plans_raise(tiny_plan) -> None:
    text = tiny_plan.read_text()
    tiny_plan.write_text(text.replace("[arms.softmax]", "[arms.plain]"))
    with pytest.raises(ValueError, match=message("must have 'softmax', the control")):
        read_plan(tiny_plan)
    tiny_plan.write_text(text.replace("num_heads = 2", "num_head = 2"))
    with pytest.raises(ValueError, match=message("the plan must have the fields of a config", "num_head")):
        read_plan(tiny_plan)
    tiny_plan.write_text(text.replace("warmup = 2", "warm = 2"))
    with pytest.raises(ValueError, match=message("must have known settings", "warm")):
        read_plan(tiny_plan)
    tiny_plan.write_text(text)
    with pytest.raises(ValueError, match=message("unknown training 'screen/other'", "screen/toa-softmax")):
        read_plan(tiny_plan).entry("screen/other")
    with pytest.raises(ValueError, match=message("the seed in 'longer@x' must be an integer")):
        read_plan(tiny_plan).entry("longer@x")


def test_scores_are_ratios_to_seasonal_naive_by_hand() -> None:
    history = np.array([1.0, 3.0, 2.0, 4.0])
    # seasonal error 1 of a season of two; seasonal naive repeats 2 and 4
    windows = Windows([history, np.array([5.0, 5.0, 5.0, 5.0])], np.array([[3.0, 4.0], [1.0, 1.0]]), 2)
    quantiles = np.array([[[2.0, 3.0, 5.0], [4.5, 5.0, 6.0]]] * 2)
    got = score(quantiles, windows, (0.1, 0.5, 0.9))
    # the second history has no seasonal error
    assert got["windows"] == 1
    assert got["mase"] == pytest.approx(0.5)
    assert got["naive_mase"] == pytest.approx(0.5)
    assert got["mase_ratio"] == pytest.approx(1.0)
    # errors of 3: 1, 0, -2; of 4: -0.5, -1, -2
    losses = [0.1 * 1.0, 0.0, 0.1 * 2.0, 0.9 * 0.5, 0.5 * 1.0, 0.1 * 2.0]
    assert got["pinball"] == pytest.approx(2 * np.mean(losses))
    assert got["coverage"] == pytest.approx(0.5)


def test_geometric_mean_is_over_the_real_sets(monkeypatch) -> None:
    def load(entry: ValidationSet, data_dir: Any = None) -> Windows:
        rng = np.random.default_rng(len(entry.name))
        series = rng.normal(size=(3, 30)).cumsum(1)
        return Windows(list(series[:, :26]), series[:, 26:], 1)

    monkeypatch.setattr(ValidationSet, "load", load)
    sets = {
        name: ValidationSet(name=name, source=source, seed=1, series=1, context=16, horizon=4, season=1)
        for name, source in (("a", "collection"), ("bb", "collection"), ("ccc", "synthetic"))
    }
    scores = validate_model(tiny_model().eval(), sets)
    ratios = [scores["sets"][name]["mase_ratio"] for name in ("a", "bb")]
    assert scores["geometric_mean"]["mase_ratio"] == pytest.approx(np.sqrt(np.prod(ratios)))


def test_rows_of_a_set_are_averaged_to_steps_and_cut_to_the_context(monkeypatch) -> None:
    table = SimpleNamespace(values=[np.arange(20.0)[:, None]])
    monkeypatch.setattr("toa_bench.pretrain_validation.locate", lambda *_: None)
    monkeypatch.setattr("toa_bench.pretrain_validation.read_dataset", lambda *_: table)
    fields: dict[str, Any] = {
        "source": "dataset",
        "data": "Exchange",
        "until": 0.95,
        "windows": 2,
        "horizon": 2,
        "season": 1,
    }
    windows = ValidationSet(name="a", step_rows=3, context=2, **fields).load()
    # 19 rows: the first is left out, the means are 2, 5, 8, 11, 14, 17
    assert [history.tolist() for history in windows.histories] == [[2.0, 5.0], [8.0, 11.0]]
    assert windows.actual.tolist() == [[8.0, 11.0], [14.0, 17.0]]


def test_the_committed_list_of_short_series_has_no_season_and_no_tested_rows() -> None:
    sets = read_validation(ROOT / "benchmarks/pretrain-validation-short.toml")
    for entry in sets.values():
        assert entry.season == 1
        assert entry.until is None or entry.until <= 0.8
        assert entry.context is not None
        assert entry.context <= 60


def test_validation_sets_need_their_fields(tmp_path) -> None:
    with pytest.raises(ValueError, match=message("until must be given for the dataset 'Exchange'")):
        ValidationSet(name="Exchange", source="dataset", windows=2, horizon=3, season=1)
    path = tmp_path / "list.toml"
    path.write_text('[a]\nsource = "collection"\nsize = 3\n')
    with pytest.raises(ValueError, match=message("must be a list of validation sets", "size")):
        read_validation(path)


def test_the_shipped_weights_are_those_of_the_committed_plan():
    entry = read_plan(PLAN.with_name("pretrain-cpu.toml")).entry("small")
    model = PretrainedForecaster.from_pretrained("small")
    record = json.loads((ROOT / "results" / "pretraining" / "small.json").read_text(encoding="utf-8"))
    assert model.config == entry.model
    assert model.facts["step"] == record["step"] == entry.training.steps
    assert model.facts["training"] == record["training"]
    assert model.facts["synthetic"] == record["synthetic"]


def test_card_states_data_cost_and_limits() -> None:
    record = {
        "name": "small",
        "model": tiny_model().config.to_json() | {"attention": "toa-softmax"},
        "weights": 1234,
        "series": 5_000_000,
        "synthetic": {"generator": "toa.data.synthetic", "seed": 1},
        "step": 1000,
        "training": {"least_context": 16, "batch_size": 5000, "learning_rate": 1e-3},
        "averaged": 4,
        "loss": 0.25,
        "seconds": 5400.0,
        "device": "one GPU",
        "restarts": [{"step": 500, "loss": 0.3, "reason": "the checkpoint was lost"}],
    }
    card = card_text(record, None)
    for words in ("1,234 weights", "never saw a real series", "1.50 hours", "Restarted from weights at step 500"):
        assert words in card
    assert "No validation is stored" in card
    assert "computed on the series as they are" in card
    flipped = card_text(record, None, InferenceOptions(flip=True, contexts=(256, 512)))
    assert "averaged with those of the negative series, and averaged over contexts of 256, 512 steps" in flipped


@pytest.mark.data
@pytest.mark.parametrize("name", ["Tourism-Monthly", "NN5-Daily", "Web-Traffic", "Exchange", "EIA930"])
def test_validation_windows_end_before_tested_rows(name) -> None:
    from toa.data import COLLECTIONS, DATASETS, load_collection

    entry = read_validation(ROOT / "benchmarks/pretrain-validation.toml")[name]
    windows = entry.load()
    assert len(windows.histories) == len(windows.actual) > 50
    if name in COLLECTIONS:
        last = load_collection(name).train.values[0][:, 0]
        np.testing.assert_array_equal(windows.actual[0], last[-windows.actual.shape[1] :])
    else:
        assert entry.until is not None
        assert len(windows.histories[-1]) + windows.actual.shape[1] <= entry.until * DATASETS[name].rows


def test_default_plan_is_the_committed_one() -> None:
    assert PLAN == ROOT / "benchmarks/pretrain.toml"

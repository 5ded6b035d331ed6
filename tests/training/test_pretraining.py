"""Pretraining in pieces: resumed runs, checkpoints in parts, schedule, optimizer."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support import assert_near, message
from tests.training.pretraining_cases import seasons, tiny_model, tiny_run, tiny_training
from toa.models.pretrained import PretrainedForecaster
from toa.training import parts
from toa.training.flat_adam import AdamConfig, FlatAdam
from toa.training.parts import check_checkpoint_size, load_parts, save_parts
from toa.training.pretraining import Pretraining, train_piece
from toa.training.step import GraphedStep


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Pretraining, Path]:
    """A run that was not stopped, and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    run = tiny_run()
    assert train_piece(run, folder)
    return run, folder


def strip_times(curve: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in entry.items() if name != "seconds"} for entry in curve]


@pytest.mark.parametrize("stops", [(4,), (3,), (1, 6)], ids=str)
def test_resumed_run_equals_an_uninterrupted_one_bit_by_bit(whole, tmp_path, stops) -> None:
    expected, folder = whole
    done = 0
    for stop in stops:
        assert not train_piece(tiny_run(), tmp_path, most_steps=stop - done)
        done = stop
    run = tiny_run()
    assert train_piece(run, tmp_path)
    for name, vector in expected.vectors().items():
        assert torch.equal(run.vectors()[name], vector), name
    assert strip_times(run.state.curve) == strip_times(expected.state.curve)
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == (
        folder / "model" / "model.safetensors"
    ).read_bytes()


def test_a_checkpoint_holds_the_mean_once_it_has_begun(tmp_path) -> None:
    train_piece(tiny_run(), tmp_path, most_steps=5)
    assert set(load_parts(tmp_path)[0]) == {"weights", "first", "second"}
    train_piece(tiny_run(), tmp_path, most_steps=1)
    assert set(load_parts(tmp_path)[0]) == {"weights", "first", "second", "mean"}


def test_seconds_end_a_piece_at_an_entry_of_the_curve(tmp_path) -> None:
    run = tiny_run()
    assert not train_piece(run, tmp_path, seconds=0.0)
    assert run.state.step == run.config.log_every


def test_learning_lowers_the_loss(tmp_path) -> None:
    run = tiny_run(steps=60, decay=20, log_every=20, learning_rate=1e-2)
    losses = []
    assert train_piece(run, tmp_path, observe=lambda step, loss, speed: losses.append(loss))
    assert len(losses) == 3
    assert losses[-1] < 0.9 * losses[0]


def test_result_is_the_mean_of_the_last_weights(tmp_path) -> None:
    run = tiny_run(steps=8, mean_span=4, mean_every=2)
    kept = []
    while run.state.step < 8:
        run.run_step()
        # of the last four steps every second one, the last included
        if run.state.step in (6, 8):
            kept.append({name: weight.detach().clone() for name, weight in run.model.named_parameters()})
    assert run.config.averaged(8) == len(kept)
    result = run.result()
    for name, weight in result.named_parameters():
        mean = (kept[0][name] + kept[1][name]) / 2
        # float16 rounds twice
        assert torch.allclose(weight, mean, rtol=2**-9, atol=1e-6), name
    assert not torch.equal(dict(result.named_parameters())["head.weight"], kept[1]["head.weight"])


def test_record_has_settings_speed_and_curve(whole) -> None:
    run, folder = whole
    record = json.loads((folder / "record.json").read_text())
    assert record["series"] == 8 * 4
    assert record["training"]["batch_size"] == 4
    assert record["model"]["patch_len"] == 4
    assert [entry["step"] for entry in record["curve"]] == [2, 4, 6, 8]
    assert record["steps_per_second"] > 0
    assert record["restarts"] == []
    loaded = PretrainedForecaster.from_pretrained(folder / "model")
    assert loaded.facts["step"] == 8
    assert loaded.facts["averaged"] == 2
    assert loaded.facts["training"]["seed"] == run.config.seed


def test_a_lost_checkpoint_continues_from_weights_with_a_warm_up(whole, tmp_path) -> None:
    first = tiny_run(steps=20, decay=0, mean_span=0)
    train_piece(first, tmp_path / "first", most_steps=6)
    weights = first.result()
    run = tiny_run(steps=20, decay=0, mean_span=0)
    assert not train_piece(run, tmp_path / "second", most_steps=2, weights=weights)
    assert run.state.step == 8
    # a warm-up of two steps from the sixth on
    assert [run.config.rate(step, 6) for step in (6, 7)] == [0.5e-3, 1e-3]
    record = json.loads((tmp_path / "second" / "record.json").read_text())
    assert [(entry["step"], entry["reason"]) for entry in record["restarts"]] == [(6, "the checkpoint was lost")]
    # the series go on where they were
    again = tiny_run(steps=20, decay=0, mean_span=0)
    train_piece(again, tmp_path / "second", most_steps=1)
    assert again.state.restart == 6
    assert again.state.step == 9


def test_rate_rises_stays_and_falls() -> None:
    config = tiny_training(steps=10, warmup=4, decay=4, learning_rate=1.0)
    rates = [config.rate(step) for step in range(10)]
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25]


def test_a_run_at_its_highest_rate_may_get_more_steps(tmp_path) -> None:
    settings: dict[str, Any] = {"decay": 2, "mean_span": 2}
    train_piece(tiny_run(steps=8, **settings), tmp_path, most_steps=5)
    longer = tiny_run(steps=12, **settings)
    assert not train_piece(longer, tmp_path, most_steps=5)
    assert longer.state.step == 10
    train_piece(longer, tmp_path, most_steps=1)
    with pytest.raises(ValueError, match=message("steps must be 12", "after step 10", "got 16")):
        train_piece(tiny_run(steps=16, **settings), tmp_path)


@pytest.mark.parametrize(
    ("change", "parts_of_error"),
    [
        ({"learning_rate": 2e-3}, ("learning_rate must be 0.001", "got 0.002", "choose another folder")),
        ({"seed": 5}, ("seed must be 0", "got 5")),
        ({"model": {"num_layers": 2}}, ("must be the run of this model",)),
    ],
)
def test_a_folder_of_another_run_raises(whole, change, parts_of_error) -> None:
    with pytest.raises(ValueError, match=message(*parts_of_error)):
        train_piece(tiny_run(**change), whole[1])


# one per kind of operator and activation of the plan
MIXERS: list[dict[str, Any]] = [
    {"attention": "softmax"},
    {"attention": "toa-softmax"},
    {"attention": "toa-softmax", "structure": "toeplitz"},
    {"attention": "toa-softmax", "structure": "dplr", "rank": 2},
    {"attention": "toa-relu", "score_norm": "rms"},
    {"attention": "toa-gated", "score_norm": "rms", "gate_norm": "rms", "operator_init": "filters"},
]


@pytest.mark.parametrize("options", MIXERS, ids=lambda options: "-".join(map(str, options.values())))
def test_products_in_16_bits_give_nearly_the_same_loss(options) -> None:
    losses = []
    for precision in ("float32", "bfloat16"):
        run = tiny_run(options, precision=precision)
        for _ in range(4):
            run.run_step()
        losses.append(run.log(0.0)["loss"])
    # bfloat16 has 8 bits
    assert losses[1] == pytest.approx(losses[0], rel=2**-5)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("options", MIXERS, ids=lambda options: "-".join(map(str, options.values())))
def test_a_step_on_a_gpu_is_one_graph_that_equals_eager_steps(options, precision) -> None:
    runs = []
    for graph in (False, True):
        run = Pretraining(
            tiny_model(**options).cuda(), tiny_training(steps=12, precision=precision), seasons, graph=graph
        )
        for _ in range(12):
            run.run_step()
        runs.append(run)
    step = runs[1]._call
    assert isinstance(step, GraphedStep)
    assert step.failure is None
    assert step._replay is not None
    # twelve steps of at most 1e-3 each; rounding in another order may change some of them
    assert float((runs[1].adam.weights - runs[0].adam.weights).abs().max()) < 1e-3
    assert runs[1].log(0.0)["loss"] == pytest.approx(runs[0].log(0.0)["loss"], rel=1e-2)


def test_other_series_in_the_folder_of_a_run_raise(whole) -> None:
    run = tiny_run()
    run.facts["synthetic"] = {"seed": 2}
    with pytest.raises(ValueError, match=message("must be a run on the series {'seed': 2}", "choose another folder")):
        train_piece(run, whole[1])


def test_series_of_another_shape_raise(tmp_path) -> None:
    run = Pretraining(tiny_model(), tiny_training(), lambda step: seasons(step, length=39))
    with pytest.raises(ValueError, match=message("series must have shape (batch_size, context + horizon)=(4, 40)")):
        train_piece(run, tmp_path)


def test_a_loss_that_is_not_finite_raises(tmp_path) -> None:
    run = tiny_run()
    with torch.no_grad():
        run.model.head.bias.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match=message("the training loss must be finite", "lower learning_rate")):
        train_piece(run, tmp_path)


def test_context_lengths_are_drawn_from_seed_and_step() -> None:
    run = tiny_run()
    config = tiny_training(batch_size=2000, full_share=0.5, least_context=4)
    many = Pretraining(tiny_model(), config, seasons)
    lengths = many._context_lengths(3)
    assert torch.equal(lengths, many._context_lengths(3))
    assert not torch.equal(lengths, many._context_lengths(4))
    assert int(lengths.min()) == 4
    assert int(lengths.max()) == 32
    # half of them whole: 2,000 draws have a standard deviation of 0.011
    assert 0.45 < float((lengths == 32).float().mean()) < 0.6
    values, observed, target = run._batch(0)
    assert values.shape == observed.shape == (4, 32)
    assert target.shape == (4, 8)


def test_checkpoint_in_parts_is_read_as_it_was(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 60)
    vectors = {"weights": torch.randn(23), "first": torch.randn(23).bfloat16()}
    save_parts(tmp_path, vectors, {"state": 1}, 5)
    save_parts(tmp_path, vectors | {"weights": vectors["weights"] + 1}, {"state": 2}, 6)
    names = sorted(path.name for path in tmp_path.iterdir())
    # ten weights of six bytes each
    assert names == ["checkpoint.json", *(f"part-6-{number}.safetensors" for number in range(3))]
    loaded, facts = load_parts(tmp_path)
    assert facts == {"state": 2}
    assert torch.equal(loaded["weights"], vectors["weights"] + 1)
    assert torch.equal(loaded["first"], vectors["first"])


def test_parts_of_the_large_model_are_small_enough(tmp_path) -> None:
    vectors = {
        "weights": torch.zeros(4_500_000),
        **{name: torch.zeros(4_500_000, dtype=torch.bfloat16) for name in ("first", "second", "mean")},
    }
    save_parts(tmp_path, vectors, {}, 1)
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert max(sizes) <= 15 * 2**20
    assert sum(sizes) <= 45 * 2**20
    with pytest.raises(ValueError, match=message("a checkpoint must take at most 45 MiB", "for 5000000 weights")):
        check_checkpoint_size(
            {"weights": torch.zeros(5_000_000), "other": torch.zeros(5_000_000).bfloat16()}
            | {name: torch.zeros(5_000_000, dtype=torch.bfloat16) for name in ("first", "second")}
        )


def test_missing_and_foreign_parts_are_noticed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 40)
    save_parts(tmp_path, {"weights": torch.randn(20)}, {}, 1)
    other = shutil.copytree(tmp_path, tmp_path / "other")
    (other / "part-1-0.safetensors").unlink()
    with pytest.raises(ValueError, match=message("must have the part 'part-1-0.safetensors'")):
        load_parts(other)
    shutil.copy(tmp_path / "part-1-1.safetensors", other / "part-1-0.safetensors")
    with pytest.raises(ValueError, match=message("must be part 0 of step 1, got another")):
        load_parts(other)


def test_update_is_adamw_with_rounded_moments() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    start = model.weight.detach().double().clone()
    adam = FlatAdam(model, AdamConfig(weight_decay=0.1, clip_norm=1e9))
    first = torch.zeros(2, 3, dtype=torch.float64)
    second = torch.zeros(2, 3, dtype=torch.float64)
    weight = start
    for updates in range(1, 6):
        gradient = torch.randn(2, 3)
        adam.gradient[:6].copy_(gradient.flatten())
        adam.update(torch.tensor(adam.numbers(0.01, updates)))
        first = 0.9 * first + 0.1 * gradient.double()
        second = 0.98 * second + 0.02 * gradient.double().square()
        step = first / (1 - 0.9**updates) / ((second / (1 - 0.98**updates)).sqrt() + 1e-8)
        weight = weight - 0.01 * (step + 0.1 * weight)
        # bfloat16 rounds by at most 2**-8: five rounded moments change five steps of 0.01
        assert float((model.weight.detach().double() - weight).abs().max()) < 5 * 0.01 * 2**-5
    assert float(adam.gradient.abs().max()) == 0.0


def test_gradient_is_clipped_and_decay_leaves_biases_and_operators() -> None:
    model = tiny_model()
    adam = FlatAdam(model, AdamConfig(weight_decay=0.5, clip_norm=1.0))
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    adam.update(torch.tensor(adam.numbers(0.1, 1)))
    for name, weight in model.named_parameters():
        decays = name.endswith("weight") and "norm" not in name
        assert_near(weight.detach(), before[name] * (0.95 if decays else 1.0), 1e-6, name=name)
    adam.gradient.fill_(5.0)
    adam.update(torch.tensor(adam.numbers(0.0, 2)))
    # of a gradient of norm one: the square of each entry is one over the number of weights
    assert_near(adam.second.float().mean(), torch.tensor(0.02 / len(adam.second)), 1e-4)


def test_a_second_moment_that_rounds_away_raises() -> None:
    with pytest.raises(ValueError, match=message("beta2 must be at most 0.99, got 0.999")):
        AdamConfig(beta2=0.999)

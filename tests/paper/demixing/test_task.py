import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from tests.support import message
from toa.experiments import Job, load_run, resolve, run_folder, run_task
from toa.experiments.sweep import RunContext, sweep
from toa.nn import AttentionSpec
from toa_paper.demixing import (
    DEMIXING,
    DemixingConfig,
    HarmonicDemixing,
    demix,
    frequency_response,
    held_out_signals,
    oracle_estimates,
    regime_errors,
    train_demixer,
)


def small(name: str = "toa-gated", *, steps: int = 3, seed: int = 1) -> DemixingConfig:
    return DemixingConfig(
        attention=AttentionSpec(name=name),
        steps=steps,
        learning_rate=3e-3,
        signals=HarmonicDemixing().scaled(84),
        embed_dim=16,
        ff_dim=32,
        batch_size=8,
        test_signals=64,
        seed=seed,
    )


def test_the_seed_determines_the_weights():
    first, again, other = (train_demixer(small(seed=seed))[0].state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not all(torch.equal(first[n], other[n]) for n in first)


@pytest.mark.slow
def test_training_beats_returning_the_noisy_signal():
    config = small("toa-relu", steps=150)
    batch = held_out_signals(config)
    assert regime_errors(demix(train_demixer(config)[0], batch.noisy), batch)["mse"] < 0.23


def test_every_seed_has_the_same_test_signals():
    assert held_out_signals(small(seed=1)).checksum == held_out_signals(small(seed=2)).checksum
    assert len(held_out_signals(small()).checksum) == 64


def test_test_signals_are_not_training_signals():
    batch = held_out_signals(small())
    for step in range(50):
        generator = torch.Generator().manual_seed(1 * 1_000_003 + step)
        seen = small().signals.sample(8, generator=generator)
        assert torch.cdist(batch.clean, seen.clean).min() > 1e-4


def test_a_run_without_test_measures_other_signals_and_names_its_errors_so():
    config = small()
    held = held_out_signals(small())
    model = train_demixer(config)[0]
    other = replace(config, test=False)
    assert held_out_signals(other).checksum != held.checksum
    assert DEMIXING.evaluate(config, model, held).metrics == regime_errors(demix(model, held.noisy), held)
    found = DEMIXING.evaluate(other, model, held_out_signals(other)).metrics
    assert {*found} == {"val_mse", "val_mse_0", "val_mse_1", "val_mse_2"}


def test_errors_are_means_over_signals_and_regimes():
    batch = held_out_signals(small())
    errors = regime_errors(batch.noisy, batch)
    assert errors["mse"] == pytest.approx((batch.noisy - batch.clean).square().mean().item(), rel=1e-5)
    shares = [(batch.regime == z).double().mean().item() for z in range(3)]
    assert errors["mse"] == pytest.approx(sum(s * errors[f"mse_{z}"] for z, s in enumerate(shares)), rel=1e-5)


def test_a_regime_without_a_signal_has_no_error():
    batch = held_out_signals(replace(small(), test_signals=1))
    assert list(regime_errors(batch.noisy, batch)) == ["mse", f"mse_{batch.regime.item()}"]


def test_linear_estimators_remove_most_of_the_noise():
    config = small()
    batch = held_out_signals(config)
    for estimate in oracle_estimates(config.signals, batch).values():
        assert regime_errors(estimate, batch)["mse"] < 0.03


def test_frequency_response_of_a_filter_is_its_gain():
    noisy = torch.randn(400, 64)
    kernel = torch.tensor([0.25, 0.5, 0.25])
    padded = torch.cat((noisy[:, -1:], noisy, noisy[:, :1]), 1)
    smooth = padded.unfold(1, 3, 1) @ kernel
    expected = 0.5 + 0.5 * torch.cos(2 * torch.pi * torch.arange(33) / 64)
    torch.testing.assert_close(frequency_response(noisy, smooth), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_signals_that_are_not_finite_raise_an_error(bad):
    config = small()
    noisy = held_out_signals(config).noisy.clone()
    noisy[3, 5] = bad
    with pytest.raises(ValueError, match=message("noisy must be finite", "NaN", "infinite", "fill or drop")):
        demix(train_demixer(config)[0], noisy)


@pytest.mark.gpu
def test_a_run_starts_cuda_itself(tmp_path):
    # in a new process, which has not used the device; its signals are made in memory
    command = [sys.executable, "-m", "toa", "demix", "--attention", "softmax", "--seed", "1", "--steps", "5"]
    subprocess.run([*command, "--device", "cuda", "--out", str(tmp_path)], check=True)
    record = json.loads(next(tmp_path.rglob("record.json")).read_text())
    assert record["peak_memory"] > 0


def test_one_run_of_demixing_is_that_of_the_experiment(tmp_path):
    config = replace(resolve("demixing", "demo", attention="toa-relu", seed=3), steps=2, test_signals=8)
    job = Job(config=config, label="demixing")
    context = RunContext(out=tmp_path, device="cpu")
    ended = sweep([job], context)
    assert ended.records[job.key]["name"] == "toa-relu-no-sor"
    assert (job.folder(tmp_path) / "checkpoint.safetensors").exists()
    assert job.folder(tmp_path).parent == tmp_path / "demixing"
    events: list[str] = []
    sweep([job], context, watch=lambda event: events.append(event.kind))
    assert events == ["found"]


def test_a_job_survives_json():
    config = resolve("demixing", "paper", attention="toa-relu", seed=3)
    again = Job.from_json(Job(config=config, label="a, b").to_json())
    assert (again.config, again.task) == (config, "demixing")


def test_a_finished_run_is_loaded_with_a_sample(tmp_path):
    config = small("toa-relu", steps=1)
    run_task(config, tmp_path, device="cpu")
    run = load_run(run_folder(config, tmp_path))
    inputs = run.task.sample(run.config, 1)
    assert run.model(*inputs).isfinite().all()
    assert not run.model.training

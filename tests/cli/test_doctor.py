import builtins
import json
from dataclasses import replace
from email.message import Message
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

import toa
from toa.cli import app, doctor
from toa.ops import BACKENDS, AttentionBackend
from toa.ops.attention.reference import reference_attention


def call(*words: str):
    return CliRunner().invoke(app, ["doctor", *words], env={"TOA_BACKEND": ""})


@pytest.fixture(scope="module")
def report():
    return doctor.examine()


def replace_backend(monkeypatch, run):
    monkeypatch.setitem(BACKENDS, "folded", AttentionBackend(run=run))


def test_report_has_versions_devices_and_every_backend(report):
    assert report["machine"]["toa"] == toa.__version__
    assert {"torch", "lightning", "aeon", "pandas"} <= set(report["packages"])
    assert "triton" in report["extras"]
    assert "threads" in report["devices"]["cpu"]
    assert list(report["backends"]["cpu"]["tests"]) == list(BACKENDS)
    assert not any("error" in section for section in report.values())


def test_backends_that_run_here_agree_with_the_reference(report):
    tests = report["backends"]["cpu"]["tests"]
    assert {name: tests[name]["status"] for name in ("folded", "reference")} == {"folded": "ok", "reference": "ok"}
    assert tests["triton"]["status"] in ("ok", "cannot run here")
    assert report["backends"]["cpu"]["auto"] == "folded"
    assert doctor.failures(report) == []


def test_a_backend_that_is_wrong_or_broken_fails_the_self_test(monkeypatch):
    replace_backend(monkeypatch, lambda inputs: reference_attention(inputs) + 1e-3)
    wrong = doctor.try_backends()["cpu"]["tests"]["folded"]
    assert wrong["status"] == "failed"
    assert "allowed 1e-04" in wrong["detail"]

    def broken(inputs):
        raise OSError("libcuda.so:\n not found")

    replace_backend(monkeypatch, broken)
    assert doctor.try_backends()["cpu"]["tests"]["folded"] == {
        "status": "failed",
        "detail": "OSError: libcuda.so: not found",
    }
    result = call()
    assert result.exit_code == 1
    assert "self-tests: 1 failed (folded on cpu: OSError: libcuda.so: not found)" in result.output


@pytest.mark.parametrize("broken", ["nan", "rounded", "square only"])
def test_a_reference_that_is_broken_in_float32_fails_its_own_test(monkeypatch, broken):
    def run(inputs):
        out = reference_attention(inputs)
        if inputs.q.dtype == torch.float64:
            return out
        if broken == "square only":
            return out if inputs.q.shape == inputs.k.shape else out.flip(1)
        return out * float("nan") if broken == "nan" else out + (out.detach().bfloat16().float() - out.detach())

    monkeypatch.setitem(BACKENDS, "reference", AttentionBackend(run=run))
    tests = doctor.try_backends()["cpu"]["tests"]
    assert (tests["reference"]["status"], tests["folded"]["status"]) == ("failed", "ok")
    assert "allowed 1e-04" in tests["reference"]["detail"]


def test_a_wrong_gradient_alone_fails_the_self_test(monkeypatch):
    def detached(inputs):
        return reference_attention(replace(inputs, q=inputs.q.detach() + 0.0 * inputs.q))

    replace_backend(monkeypatch, detached)
    assert doctor.try_backends()["cpu"]["tests"]["folded"]["status"] == "failed"


def test_command_prints_text_and_json():
    plain = call()
    assert plain.exit_code == 0
    assert "folded: ok (largest error" in plain.output
    assert plain.output.endswith("self-tests: none failed\n")
    printed = json.loads(call("--json").output)
    assert printed["backends"]["cpu"]["tests"]["reference"]["status"] == "ok"
    assert set(printed) == {"machine", "packages", "extras", "environment", "devices", "backends", "data"}


def test_data_folders_are_shown_with_their_sets(tmp_path, monkeypatch):
    monkeypatch.delenv("TOA_DATA", raising=False)
    place = tmp_path / "ETT-small" / "ETTh1.csv"
    place.parent.mkdir()
    place.touch()
    data = doctor.examine(tmp_path)["data"]
    assert data[str(tmp_path)] == ["ETTh1"]
    assert "BasicMotions" in data["with aeon"]
    data = doctor.examine(tmp_path / "elsewhere")["data"]
    assert data[str(tmp_path / "elsewhere")] == "no such folder"


def test_paths_do_not_name_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TOA_DATA", str(tmp_path / "data"))
    assert doctor.examine()["environment"]["TOA_DATA"] == "~/data"


def test_a_package_that_is_missing_or_out_of_bounds_is_named(monkeypatch):
    package = SimpleNamespace(requires=["nosuchthing>=3", "numpy<1", "numpy<9; extra == 'deep'"], metadata=Message())
    package.metadata["Provides-Extra"] = "deep"
    monkeypatch.setattr(doctor, "distribution", lambda name: package)
    report = doctor.examine()
    assert report["packages"]["nosuchthing"] == "not installed (wants >=3)"
    assert report["packages"]["numpy"].endswith("(wants <1)")
    assert "wants" not in report["extras"]["deep"]["numpy"]


def test_a_machine_without_torch_gets_a_report(monkeypatch):
    true_import = builtins.__import__

    def without_torch(name, *rest, **options):
        if name.partition(".")[0] in ("torch", "pandas"):
            raise ImportError(f"No module named {name!r}")
        return true_import(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without_torch)
    report = doctor.examine()
    assert report["devices"] == {"error": "ImportError: No module named 'torch'"}
    assert doctor.failures(report) == ["backends: ImportError: No module named 'torch'"]
    assert "error  ImportError" in doctor.as_text(report)

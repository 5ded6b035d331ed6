import os

from tests.experiments.runner_cases import TINY, make_jobs, write_series
from tests.test_cli import call
from toa.experiments.claims import claimed


def words(path, out) -> list[str]:
    """`toa run` of what `make_jobs` has first."""
    given = ["run", "--dataset", str(path), "--horizon", "4", "--backbone", "dlinear", "--protocol", "tslib-96"]
    given += ["--seed", "0", "--device", "cpu", "--out", str(out)]
    return given + [word for change in TINY for word in ("--set", change)]


def test_a_run_that_is_under_way_is_not_begun_again(tmp_path):
    path = write_series(tmp_path)
    folder = make_jobs(path, 1)[0].folder(tmp_path)
    with claimed(folder):
        code, text = call(*words(path, tmp_path / "forecast"))
    assert code == 2
    assert f"must be free for this run, got one under way in it, of process {os.getpid()} on " in text
    assert not folder.exists()
    assert call(*words(path, tmp_path / "forecast"))[0] == 0
    # one that is done is read, whoever holds it
    with claimed(folder):
        code, text = call(*words(path, tmp_path / "forecast"))
    assert code == 0
    assert "test MSE" in text


def test_a_run_without_data_leaves_nothing_behind(tmp_path):
    code, text = call(*words(tmp_path / "gone.csv", tmp_path / "forecast"))
    assert code == 2
    assert "dataset must be a file" in text
    assert list(tmp_path.glob("forecast/*")) == []

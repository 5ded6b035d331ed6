import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tests.data.files import Web, home, make_spec, serve, values, write_csv  # noqa: F401
from tests.support import ROOT
from toa.cli.data import data_app
from toa.data import ANOMALY_SETS, DATASETS


def call(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(data_app, words, env={"COLUMNS": "200", "TERM": "dumb"})
    return result.exit_code, re.sub(r"\s+", " ", result.stdout), result.stderr


@pytest.fixture
def small(home, monkeypatch):  # noqa: F811
    """An entry whose file is in the folder `data`."""
    path = write_csv(home / "data/small/small.csv", values())
    spec = make_spec(path)
    monkeypatch.setitem(DATASETS, "Small", spec)
    return path


def test_importing_the_commands_is_quick():
    code = "import sys; import toa.cli.data; assert not {'torch', 'pandas', 'pooch', 'rich.table'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize("command", ["list", "where", "fetch", "verify"])
def test_every_command_explains_itself(command):
    code, out, _ = call(command, "--help")
    assert code == 0
    assert "--data-dir" in out


def test_list_shows_every_dataset_and_what_is_here(small):
    code, out, _ = call("list", "--data-dir", str(small.parents[1]))
    assert code == 0
    assert "Small 120 x 3 h ratio none yes" in out
    assert "ETTh1 17420 x 7 h ett-hour CC BY-ND 4.0 no" in out
    assert "Solar-12ch (subset) 52560 x 12 10min solar not stated no" in out
    assert "MSL 58317 + 73729 x 55 10.53% not stated no" in out
    assert all(name in out for name in (*DATASETS, *ANOMALY_SETS))


def test_where_prints_the_path(small):
    assert call("where", "Small", "--data-dir", str(small.parents[1])) == (0, f"{small} ", "")


def test_where_lists_the_searched_paths_of_a_missing_file(small):
    code, out, err = call("where", "ETTh1", "--data-dir", "elsewhere")
    assert (code, out) == (2, "")
    assert err.startswith("error: dataset 'ETTh1' must lie in a data folder")
    assert "elsewhere/ETT-small/ETTh1.csv" in err
    assert "toa data fetch ETTh1" in err
    assert err.count("\n") == 1


def test_verify_checks_the_named_datasets(small):
    code, out, err = call("verify", "Small", "--data-dir", str(small.parents[1]))
    assert (code, err) == (0, "")
    assert re.match(r"Small: 120 x 3, sha256 [0-9a-f]{16} \(as recorded\), ", out)


def test_verify_without_names_skips_missing_datasets(small):
    code, out, err = call("verify", "--data-dir", str(small.parents[1]))
    assert (code, err) == (0, "")
    assert "ETTh1: not here" in out
    assert "Small: 120 x 3" in out


def test_verify_continues_after_a_wrong_file_and_fails(small):
    write_csv(small, values(seed=1))
    code, _, err = call("verify", "ETTh1", "Small", "--data-dir", str(small.parents[1]))
    assert code == 2
    lines = err.splitlines()
    assert lines[0].startswith("ETTh1: dataset 'ETTh1' must lie in a data folder")
    assert lines[1].startswith("Small: dataset 'Small' must have sha256")
    assert lines[2].startswith("error: 2 datasets failed")


def test_fetch_downloads_and_prints_the_path(small, monkeypatch):
    with serve(Web(small.read_bytes())) as web:
        monkeypatch.setitem(DATASETS, "Small", make_spec(small, url=web.url))
        code, out, _ = call("fetch", "Small", "--data-dir", str(small.parents[2] / "new"))
    path = small.parents[2] / "new/small/small.csv"
    assert (code, out) == (0, f"{path} ")
    assert path.read_bytes() == small.read_bytes()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("where", "etth1"), ("unknown dataset 'etth1'", "ETTh1")),
        (("fetch", "Traffic"), ("'Traffic' must have a url", "pems.dot.ca.gov", "traffic/traffic.csv")),
        (("fetch", "MSL"), ("'MSL' must have a url", "telemanom", "MSL/MSL_train.npy")),
        (("where", "SMD-machine-1-6"), ("machine-1-6.txt", "toa data fetch SMD-machine-1-6")),
        (("verify", "Nope"), ("unknown dataset 'Nope'",)),
    ],
)
def test_wrong_arguments_give_a_one_line_error(small, words, parts):
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert all(part in err for part in parts)


def test_a_failed_download_is_one_clear_line(small, monkeypatch):
    with serve(Web(b"", status=404)) as web:
        monkeypatch.setitem(DATASETS, "Small", make_spec(small, url=web.url))
        code, _, err = call("fetch", "Small", "--data-dir", str(small.parents[2] / "new"))
    assert code == 2
    assert "404" in err.splitlines()[-1]
    assert "Traceback" not in err

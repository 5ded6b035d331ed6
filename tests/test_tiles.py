"""What `benchmarks/tiles.py` times; the timing itself needs a GPU."""

import pytest
import torch

from tests.support import load_script, message

pytest.importorskip("triton", reason="Triton is not installed")


@pytest.fixture
def harness():
    return load_script("benchmarks/tiles.py")


def test_every_tile_of_the_table_is_among_those_that_are_timed(harness):
    assert len(set(harness.GRID)) == len(harness.GRID)
    assert set(harness.tiles._TUNED.values()) <= set(harness.GRID)


def test_one_kernel_gets_a_tile_and_the_others_keep_theirs(harness, monkeypatch):
    present = harness.tiles.choose_blocks
    monkeypatch.setattr(harness.tiles, "choose_blocks", present)
    tile, problem = harness.GRID[0], (4096, 4096, 64, torch.bfloat16)
    harness.take("keys", tile)
    assert harness.tiles.choose_blocks("keys", *problem, gated=True) == tile
    assert harness.tiles.choose_blocks("queries", *problem, gated=True) == present("queries", *problem, gated=True)
    harness.take("keys", None)
    assert harness.tiles.choose_blocks("keys", *problem, gated=True) == present("keys", *problem, gated=True)


def test_tiles_may_be_named(harness, capsys):
    assert harness.parse(["--tiles", "64,32,4,2"]).tiles == [harness.Blocks(64, 32, 4, 2)]
    with pytest.raises(SystemExit):
        harness.parse(["--tiles", "64,32"])
    assert "queries,keys,warps,stages such as 64,64,4,3, got '64,32'" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_a_gpu_is_refused(harness):
    with pytest.raises(SystemExit, match=message("tiles are timed on a CUDA device", "without one")):
        harness.main([])


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["forward", "keys"])
def test_a_few_tiles_are_ranked(harness, tmp_path, capsys, kernel):
    words = ["--tokens", "200", "--batch", "2", "--kernels", kernel, "--activations", "relu", "--workers", "1"]
    words += ["--tiles", "32,32,4,1", "64,32,4,2"]
    harness.main([*words, "--out", str(tmp_path / "t.json")])
    assert f"relu {kernel}: now" in capsys.readouterr().out

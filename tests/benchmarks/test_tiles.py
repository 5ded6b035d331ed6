"""`benchmarks/tiles.py`; timing needs a GPU."""

import pytest
import torch

from tests.support import load_script, message

pytest.importorskip("triton", reason="Triton is not installed")


@pytest.fixture
def script():
    return load_script("benchmarks/tiles.py")


def test_the_grid_contains_every_tuned_tile(script):
    assert len(set(script.GRID)) == len(script.GRID)
    assert set(script.tile_kernels._TUNED.values()) <= set(script.GRID)


def test_a_tile_is_set_for_one_kernel_only(script, monkeypatch):
    present = script.tile_kernels.choose_blocks
    monkeypatch.setattr(script.tile_kernels, "choose_blocks", present)
    tile = script.GRID[0]
    problem = (4096, 4096, 64, torch.bfloat16)
    script.take("keys", tile)
    assert script.tile_kernels.choose_blocks("keys", *problem, gated=True) == tile
    assert script.tile_kernels.choose_blocks("queries", *problem, gated=True) == present(
        "queries", *problem, gated=True
    )
    script.take("keys", None)
    assert script.tile_kernels.choose_blocks("keys", *problem, gated=True) == present("keys", *problem, gated=True)


def test_tiles_are_parsed(script, capsys):
    assert script.parse(["--tiles", "64,32,4,2"]).tiles == [script.Blocks(64, 32, 4, 2)]
    with pytest.raises(SystemExit):
        script.parse(["--tiles", "64,32"])
    assert "queries,keys,warps,stages such as 64,64,4,3, got '64,32'" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is present")
def test_a_machine_without_a_gpu_is_refused(script):
    with pytest.raises(SystemExit, match=message("tiles.py needs a CUDA device", "without one")):
        script.main([])


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["forward", "keys"])
def test_a_few_tiles_are_ranked(script, tmp_path, capsys, kernel):
    words = ["--tokens", "200", "--batch", "2", "--kernels", kernel, "--activations", "relu", "--workers", "1"]
    words += ["--tiles", "32,32,4,1", "64,32,4,2"]
    script.main([*words, "--out", str(tmp_path / "t.json")])
    assert f"relu {kernel}: now" in capsys.readouterr().out

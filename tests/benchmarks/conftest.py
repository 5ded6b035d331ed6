from pathlib import Path

import pytest

# a minimal checkout of the peer: one weight, and assertions on the shape of a batch
MODEL = """
import reformer_pytorch
import torch


class Model(torch.nn.Module):
    def __init__(self, configs):
        super().__init__()
        assert configs.d_model == 128 and configs.task_name == "long_term_forecast"
        self.configs = configs
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x, x_mark, start, all_marks):
        future = (x.shape[0], self.configs.label_len + self.configs.pred_len)
        assert x.dtype == start.dtype == torch.float32
        assert x.shape[1:] == (self.configs.seq_len, 2) and x_mark.shape[2] == 4
        assert start.shape == (*future, 2) and not start[:, -self.configs.pred_len :].any()
        assert all_marks.shape == (*future, 4)
        return start * self.weight.sum()
"""


@pytest.fixture
def peer(tmp_path: Path) -> Path:
    folder = tmp_path / "peer"
    (folder / "models").mkdir(parents=True)
    (folder / "run.py").touch()
    for name in ("PatchTST", "iTransformer"):
        (folder / "models" / f"{name}.py").write_text(MODEL)
    return folder

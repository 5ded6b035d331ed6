"""A pretrained forecaster as an ONNX file."""

import numpy as np
import pytest
import torch

from tests.support import message
from tests.training.pretraining_cases import tiny_model
from toa.integrations import export_pretrained


@pytest.mark.slow
def test_exported_file_gives_the_forecasts_of_the_model(tmp_path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = tiny_model(attention="toa-gated", structure="toeplitz").eval()
    export_pretrained(model, tmp_path / "model.onnx", context=30, horizon=6)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    context = torch.randn(4, 30, generator=torch.Generator().manual_seed(0)).cumsum(1)
    context[0, :7] = float("nan")
    context[1] = float("nan")
    context[2] = 5.0
    got = session.run(["quantiles"], {"context": context.numpy()})[0]
    with torch.no_grad():
        expected = model(context, 6).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_a_context_longer_than_that_of_the_model_raises(tmp_path) -> None:
    with pytest.raises(ValueError, match=message("context must be at most", "32", "got 33", "cut the series")):
        export_pretrained(tiny_model(), tmp_path / "model.onnx", context=33, horizon=6)

# Run by tests/test_compile.py in a process without shape checks, which torch.compile cannot trace.
from collections.abc import Iterator

import pytest
import torch

from tests.contracts.cases import CASES, Case
from tests.support import assert_near
from toa.ops import dropout

# the compiler itself calls what PyTorch has deprecated
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_compiled_model_trains_as_one_graph_that_matches_eager(monkeypatch, case: Case) -> None:
    # the same draws with and without a compiler
    monkeypatch.setattr(dropout, "_draw_words", lambda count: torch.randint(-(2**63), 2**63 - 1, (count,)))
    model = case.build()
    inputs = case.inputs()
    results = []
    for function in (model, torch.compile(model, fullgraph=True, backend="aot_eager")):
        model.zero_grad()
        torch.manual_seed(5)
        out = function(*inputs)
        out.square().mean().backward()
        results.append([out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    for one, other in zip(*results, strict=True):
        assert_near(one, other, 1e-5)

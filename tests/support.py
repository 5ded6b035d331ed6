"""Shared by tests of several folders: random problems, closeness, and a process without shape checks."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from toa import ops

ROOT = Path(__file__).parents[1]

ACTIVATIONS = tuple(ops.ACTIVATIONS)
GATED = [name for name in ACTIVATIONS if ops.ACTIVATIONS[name].gated]
# with kernels, and of these with blocks of weights
FUSED = [name for name in ACTIVATIONS if ops.ACTIVATIONS[name].fused]
BLOCKED = [name for name in FUSED if not ops.ACTIVATIONS[name].softmax]
# kinds of S: absent, a plain tensor, or one of the structured operators
KINDS = ("none", "raw", "dense", "dplr", "toeplitz", "banded")
LENGTHS = (1, 2, 63, 64, 65)
# every activation with every normaliser it takes
NORMS = [(a, s, g) for a in ACTIVATIONS for s in ops.SCORE_NORMS for g in ops.GATE_NORMS if g == "none" or a in GATED]


def relative_error(got: Tensor, exact: Tensor) -> float:
    """Largest error, relative to 1 + the largest entry."""
    if got.numel() == 0:
        return 0.0
    return ((got.double() - exact.double()).abs().max() / (1.0 + exact.double().abs().max())).item()


def assert_near(got: Tensor, exact: Tensor, tolerance: float = 1e-12, *, name: str = "result") -> None:
    assert got.shape == exact.shape, f"{name}: shape {tuple(got.shape)}, expected {tuple(exact.shape)}"
    assert got.isfinite().all(), f"{name}: not finite"
    error = relative_error(got, exact)
    assert error <= tolerance, f"{name}: error {error:.2e}, allowed {tolerance:.2e}"


def poison_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill new buffers with NaN, so that a number that a kernel does not write is noticed."""

    def poisoned(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def made(*arguments: Any, **options: Any) -> Tensor:
            buffer = make(*arguments, **options)
            return buffer.fill_(float("nan")) if buffer.is_floating_point() else buffer

        return made

    for owner, name in ((torch.Tensor, "new_empty"), (torch, "empty_like")):
        monkeypatch.setattr(owner, name, poisoned(getattr(owner, name)))


def assert_registered(operator: Any, arguments: tuple[Any, ...]) -> None:
    """Check that an operator's schema, fake and gradients agree with its registration in PyTorch."""
    assert set(torch.library.opcheck(operator.op, arguments).values()) == {"SUCCESS"}


def assert_as_accurate(
    name: str, got: Tensor, exact: Tensor, plain: Tensor, *, factor: float = 2.0, atol: float = 1e-6
) -> None:
    """`exact` is the float64 reference; `plain` is the formula in the dtype of `got`."""
    err = (got.double() - exact).abs().max().item()
    allowed = factor * (plain.double() - exact).abs().max().item() + atol
    assert err <= allowed, f"{name}: error {err:.2e}, allowed {allowed:.2e}"


def message(*parts: object) -> str:
    """A pattern for `pytest.raises(match=...)`: these literal parts in this order."""
    return ".*".join(re.escape(str(part)) for part in parts)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Arguments of `operator_attention`: tensors that may need gradients, and options."""

    leaves: dict[str, Tensor]
    kinds: dict[str, str]
    options: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        # hypothesis prints failing cases: sizes, not numbers
        shapes = {name: tuple(x.shape) for name, x in self.leaves.items()}
        return f"Problem({shapes}, {self.kinds}, {self.options})"

    def cast(self, dtype: torch.dtype, operators: torch.dtype | None = None) -> "Problem":
        kept = {"q", "k", "v", "gate_q", "gate_k"}
        dtypes = {name: dtype if operators is None or name in kept else operators for name in self.leaves}
        return replace(self, leaves={n: x.detach().to(dtypes[n]).requires_grad_() for n, x in self.leaves.items()})

    def to(self, device: str) -> "Problem":
        options = {n: x.to(device) if isinstance(x, Tensor) else x for n, x in self.options.items()}
        leaves = {n: x.detach().to(device).requires_grad_() for n, x in self.leaves.items()}
        return replace(self, leaves=leaves, options=options)

    def arguments(self) -> dict[str, Any]:
        tensors = {n: x for n, x in self.leaves.items() if "." not in n}
        operators = {n: _operator(kind, n, self.leaves) for n, kind in self.kinds.items()}
        return {**tensors, **operators, **self.options}

    def run(self, backend: str) -> Tensor:
        return ops.operator_attention(**self.arguments(), backend=backend)

    def results(self, backend: str, queries: Tensor | None = None) -> dict[str, Tensor]:
        """The output and every gradient under one fixed cotangent, which is zero except for `queries` (B, M)."""
        out = self.run(backend)
        generator = torch.Generator().manual_seed(1)
        cotangent = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)
        if queries is not None:
            cotangent = cotangent * queries[:, :, None, None]
        grads = torch.autograd.grad(out, list(self.leaves.values()), cotangent, allow_unused=True)
        named = {
            f"grad of {name}": torch.zeros_like(leaf) if grad is None else grad
            for (name, leaf), grad in zip(self.leaves.items(), grads, strict=True)
        }
        return {"output": out, **named}


def make_problem(
    *,
    seed: int = 0,
    batch: int = 2,
    queries: int | None = None,
    keys: int = 5,
    heads: int = 2,
    width: int = 3,
    value_width: int = 4,
    gate_width: int = 2,
    activation: str = "softmax",
    s1: str = "dense",
    s2: str = "dense",
    gate_s1: str = "dense",
    surplus: int = 0,
    padding: str = "none",
    **options: Any,
) -> Problem:
    """A random problem in float64; operators have `surplus` more tokens than the sequence."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()

    m = keys if queries is None else queries
    leaves = {
        "q": normal(batch, m, heads, width),
        "k": normal(batch, keys, heads, width),
        "v": normal(batch, keys, heads, value_width),
    }
    kinds = {"s1": s1, "s2": s2}
    if ops.ACTIVATIONS[activation].gated:
        leaves["gate_q"] = normal(batch, m, heads, gate_width)
        leaves["gate_k"] = normal(batch, keys, heads, gate_width)
        kinds["gate_s1"] = gate_s1
    n = keys + surplus
    for name, kind in kinds.items():
        for part, shape in _operator_shapes(kind, heads, n).items():
            # columns of about unit size, far from the identity
            leaf = normal(*shape).detach() / n**0.5
            leaves[f"{name}.{part}"] = leaf.requires_grad_()
    if padding != "none":
        options["key_padding_mask"] = make_mask(padding, batch, keys, generator)
    return Problem(leaves=leaves, kinds=kinds, options={"activation": activation, **options})


def make_mask(padding: str, batch: int, keys: int, generator: torch.Generator) -> Tensor:
    """A padding mask that leaves at least one key per row: "random", "leading" or "trailing"."""
    if padding == "random":
        mask = torch.rand(batch, keys, generator=generator) < 0.4
        kept = torch.randint(keys, (batch, 1), generator=generator)
        return mask.scatter(1, kept, torch.zeros(batch, 1, dtype=torch.bool))
    # at least six keys: with fewer, the norm of a row may be near zero, and the problem is badly conditioned
    count = torch.randint(max(1, keys - 5), (batch, 1), generator=generator)
    place = torch.arange(keys)
    return place < count if padding == "leading" else place >= keys - count


def _operator_shapes(kind: str, heads: int, n: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, dict[str, tuple[int, ...]]] = {
        "none": {},
        "raw": {"matrix": (heads, n, n)},
        "dense": {"weight": (heads, n, n)},
        "dplr": {"diagonal": (heads, n), "left": (heads, n, 2), "right": (heads, n, 2)},
        "toeplitz": {"taps": (heads, 2 * n - 1)},
        "banded": {"diagonals": (heads, 5, n)},
    }
    return shapes[kind]


def _operator(kind: str, name: str, leaves: dict[str, Tensor]) -> Tensor | ops.Operator | None:
    if kind == "none":
        return None
    if kind == "raw":
        return leaves[f"{name}.matrix"]
    if kind == "dense":
        return ops.Dense(leaves[f"{name}.weight"])
    if kind == "dplr":
        return ops.DiagonalLowRank(*(leaves[f"{name}.{part}"] for part in ("diagonal", "left", "right")))
    return ops.Toeplitz(leaves[f"{name}.taps"]) if kind == "toeplitz" else ops.Banded(leaves[f"{name}.diagonals"])


@torch.no_grad()
def scatter_parameters(module: nn.Module, std: float = 1.0) -> nn.Module:
    """Move every operator far from the identity and every bias away from zero."""
    from toa.nn import SequenceOperator

    for child in module.modules():
        if isinstance(child, SequenceOperator):
            for parameter in child.parameters():
                parameter.normal_(std=std)
        elif isinstance(child, nn.Linear) and child.bias is not None:
            child.bias.normal_(std=0.3)
        elif isinstance(child, nn.Conv1d):
            child.weight.normal_(std=0.5)
    return module


def load_script(path: str) -> Any:
    """Load a script of the repository as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses look up their module while they are created
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    return module


def written(folder: str, pattern: str) -> list[Path]:
    """Files of a folder of the repository, without the pages that building the site makes."""
    made = {ROOT / "docs" / name for name in ("api", "project", "reference", "results", "tutorials")}
    return sorted(path for path in (ROOT / folder).rglob(pattern) if not made & set(path.parents))


# ends with the process that started it, however that ends
BUSY = """
import os
parent = os.getppid()
while os.getppid() == parent:
    sum(range(100_000))
"""


@contextmanager
def busy_core() -> Iterator[None]:
    """Keep one core of the machine busy in another process."""
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def run_without_shape_checks(*arguments: Path | str, **environment: str) -> None:
    """Run files of tests, with options of pytest, in another process without jaxtyping's wrappers."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "--show-capture=no",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [*command, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "TOA_NO_SHAPE_CHECKS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

"""Operator attention written from its formula in NumPy, one query at a time, and random calls to compare with it.

    case = draw_case(7)
    exact = oracle(case)                      # (B, M, H, E) in float64
    outcome = compare("folded", case)         # a text that states what differs, or None

It shares no code with the library: operators are matrices, masks are sets of keys, norms are sums.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from tests.campaign.outcome import Outcome
from toa import ops

MOST_TOKENS = 9
L2_FLOOR = 1e-6
# weight of a pair that a pair mask of softmax hides: a score of log(1e-10) before the scale
HIDDEN_SCORE = -math.log(1e10)
# float64 and float32: rounding of a few sums of at most a hundred numbers of unit size
TOLERANCES = {torch.float64: 1e-10, torch.float32: 2e-4}


@dataclass(frozen=True, kw_only=True)
class Case:
    """Arguments of one call: tokens in float64, matrices (H, N, N), options."""

    number: int
    tokens: dict[str, np.ndarray]
    matrices: dict[str, np.ndarray]
    options: dict[str, Any]

    def __repr__(self) -> str:
        shapes = {name: x.shape for name, x in self.tokens.items()}
        return f"case {self.number}: {shapes}, {sorted(self.matrices)}, {self.options}"


def draw_case(number: int, seed: int = 0) -> Case:
    """The case with this number: lengths, groups of heads, masks, norms and operators at random."""
    chance = Random(f"{seed}/{number}")
    rng = np.random.default_rng([seed, number])
    batch, heads, width, value_width = (chance.choice(sizes) for sizes in ((1, 2, 3), (1, 2, 4), (1, 2, 5), (1, 3)))
    keys = chance.randint(1, MOST_TOKENS)
    group = chance.choice([size for size in (1, 2, 4) if heads % size == 0])
    activation = chance.choice(("softmax", "relu", "gated"))
    options: dict[str, Any] = {
        "activation": activation,
        "scale": chance.choice((1.0, 0.5, 2.0, -0.7)),
        "score_norm": chance.choice(("none", "l2", "mean", "rms")),
        "causal": chance.random() < 0.4,
        "window": chance.choice((None, None, 1, 2, 4)),
    }
    bounded = options["causal"] or options["window"] is not None
    queries = keys if options["causal"] else chance.randint(1, MOST_TOKENS)
    if options["causal"] and chance.random() < 0.5:
        queries = chance.randint(1, keys)
    if bounded and queries < keys:
        options["query_start"] = chance.randint(0, keys - queries)
    if chance.random() < 0.3:
        padding = rng.random((batch, keys)) < 0.4
        padding[np.arange(batch), rng.integers(keys, size=batch)] = False
        options["key_padding_mask"] = padding
    if chance.random() < 0.2:
        options["pair_mask"] = (rng.random((batch, queries, keys)) < 0.7).astype(float)
    shared = heads // group
    shapes = {"q": (queries, heads, width), "k": (keys, shared, width), "v": (keys, shared, value_width)}
    names = ["s1", "s2"]
    if activation == "gated":
        shapes |= {"gate_q": (queries, heads, 2), "gate_k": (keys, shared, 2)}
        options["gate_norm"] = chance.choice(("none", "l2", "rms"))
        names.append("gate_s1")
    # heads that share keys share operators, or each has its own
    drawn = {name: chance.choice((heads, shared)) for name in names if chance.random() < 0.7}
    return Case(
        number=number,
        tokens={name: rng.normal(size=(batch, *shape)) for name, shape in shapes.items()},
        matrices={name: rng.normal(size=(count, keys, keys)) / keys**0.5 for name, count in drawn.items()},
        options=options,
    )


def oracle(case: Case) -> np.ndarray:
    """The output of a case, one query at a time."""
    tokens = case.tokens
    batch, queries, heads, _ = tokens["q"].shape
    out = np.zeros((batch, queries, heads, tokens["v"].shape[3]))
    for b in range(batch):
        for head in range(heads):
            values = _mixed(case, "v", "s2", b, head)
            for query in range(queries):
                weights = _weights(case, b, head, query)
                out[b, query, head] = sum(weight * values[key] for key, weight in weights.items())
    return out


def _mixed(case: Case, name: str, operator: str, b: int, head: int) -> np.ndarray:
    """Keys or values of one head, without padding, mixed: S1ᵀ K or S2 V; triangles of the operators if causal."""
    tokens = case.tokens[name]
    heads = case.tokens["q"].shape[2]
    rows = tokens[b, :, head * tokens.shape[2] // heads].copy()
    padding = case.options.get("key_padding_mask")
    if padding is not None:
        rows[padding[b]] = 0.0
    matrices = case.matrices.get(operator)
    if matrices is None:
        return rows
    matrix = matrices[head * len(matrices) // heads]
    mixes_keys = operator != "s2"
    mixed = np.zeros_like(rows)
    for to in range(len(rows)):
        for source in range(len(rows)):
            if not case.options["causal"] or source <= to:
                mixed[to] += (matrix[source, to] if mixes_keys else matrix[to, source]) * rows[source]
    return mixed


def _visible(case: Case, b: int, query: int) -> list[int]:
    """Keys that a query may use."""
    options = case.options
    place = query + options.get("query_start", 0)
    padding = options.get("key_padding_mask")
    seen = []
    for key in range(case.tokens["k"].shape[1]):
        late = options["causal"] and key > place
        far = options["window"] is not None and abs(key - place) >= options["window"]
        if not late and not far and not (padding is not None and padding[b, key]):
            seen.append(key)
    return seen


def _normalised(case: Case, branch: tuple[str, str, str], norm: str, b: int, head: int, query: int) -> dict[int, float]:
    """Scores of the keys that a query sees."""
    left, right, operator = branch
    seen = _visible(case, b, query)
    keys = _mixed(case, right, operator, b, head)
    scores = {key: case.options["scale"] * float(case.tokens[left][b, query, head] @ keys[key]) for key in seen}
    count = max(1, len(seen))
    squares = math.fsum(score**2 for score in scores.values())
    sizes = {
        "none": 1.0,
        "mean": float(count),
        "l2": math.sqrt(squares + L2_FLOOR),
        "rms": math.sqrt(1.0 + squares / count),
    }
    size = sizes[norm]
    if norm == "rms" and operator != "gate_s1":
        # of the scores, not of the gate
        size *= count
    return {key: score / size for key, score in scores.items()}


def _weights(case: Case, b: int, head: int, query: int) -> dict[int, float]:
    """Weights of the keys that a query sees."""
    options = case.options
    scores = _normalised(case, ("q", "k", "s1"), options["score_norm"], b, head, query)
    mask = options.get("pair_mask")
    factors = {key: 1.0 if mask is None else float(mask[b, query, key]) for key in scores}
    if options["activation"] == "softmax":
        hidden = options["scale"] * HIDDEN_SCORE
        scores = {key: score * factors[key] + (factors[key] == 0.0) * hidden for key, score in scores.items()}
        largest = max(scores.values(), default=0.0)
        parts = {key: math.exp(score - largest) for key, score in scores.items()}
        return {key: part / math.fsum(parts.values()) for key, part in parts.items()}
    weights = {key: max(score, 0.0) * factors[key] for key, score in scores.items()}
    if options["activation"] == "gated":
        gate = _normalised(case, ("gate_q", "gate_k", "gate_s1"), options["gate_norm"], b, head, query)
        weights = {key: weight * float(np.logaddexp(0.0, gate[key])) for key, weight in weights.items()}
    return weights


def attend(backend: str, case: Case, dtype: torch.dtype) -> torch.Tensor:
    """The output of the library."""
    arguments: dict[str, Any] = {name: torch.from_numpy(x).to(dtype) for name, x in case.tokens.items()}
    arguments |= {name: torch.from_numpy(x).to(dtype) for name, x in case.matrices.items()}
    for name, option in case.options.items():
        is_mask = isinstance(option, np.ndarray)
        arguments[name] = torch.from_numpy(option) if is_mask else option
    if "pair_mask" in arguments:
        arguments["pair_mask"] = arguments["pair_mask"].to(dtype)
    return ops.operator_attention(**arguments, backend=backend)


def decode(backend: str, case: Case) -> torch.Tensor:
    """The output of a causal case with as many queries as keys, a few tokens at a time with a cache."""
    cache = ops.AttentionCache()
    rest: dict[str, Any] = {name: torch.from_numpy(x) for name, x in case.matrices.items()}
    rest |= {name: option for name, option in case.options.items() if name != "query_start"}
    chance = Random(case.number)
    outputs = []
    start = 0
    while start < case.tokens["k"].shape[1]:
        stop = start + chance.randint(1, 3)
        tokens: dict[str, Any] = {name: torch.from_numpy(x[:, start:stop]) for name, x in case.tokens.items()}
        outputs.append(ops.operator_attention(**tokens, **rest, cache=cache, backend=backend))
        start = stop
    return torch.cat(outputs, 1)


def can_decode(case: Case) -> bool:
    """Whether a cache allows the options of a case."""
    whole = case.tokens["q"].shape[1] == case.tokens["k"].shape[1]
    masks = {"key_padding_mask", "pair_mask"} & case.options.keys()
    return case.options["causal"] and whole and not masks


def compare(backend: str, case: Case, dtype: torch.dtype = torch.float64) -> str | None:
    """What a backend computes wrongly; None if nothing."""
    exact = torch.from_numpy(oracle(case))
    allowed = TOLERANCES[dtype] * max(1.0, float(exact.abs().max()))
    outputs = {"one call": attend(backend, case, dtype)}
    if can_decode(case) and dtype == torch.float64:
        outputs["a cache"] = decode(backend, case)
    for how, output in outputs.items():
        error = float((output.double() - exact).abs().max())
        # written so that NaN is an error
        if not error <= allowed:
            return f"{backend} by {how}: error {error:.1e}, allowed {allowed:.1e}; {case!r}"
    return None


def try_cases(folder: Path, first: int, count: int, *, seed: int) -> Outcome:
    """Compare all backends of PyTorch functions with the oracle, in float64."""
    outcome = Outcome()
    for number in range(first, first + count):
        case = draw_case(number, seed)
        for backend in ("reference", "folded"):
            problem = compare(backend, case)
            outcome.counts["wrong" if problem else "right"] += 1
            if problem:
                outcome.failures.append(problem)
    return outcome

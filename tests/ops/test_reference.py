import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support import NORMS, Problem, assert_near, make_problem
from toa.ops import Dense, operator_attention

# the activations of `by_hand`
BY_HAND = ("softmax", "relu", "gated")


def by_hand(problem: Problem) -> torch.Tensor:
    """The formula, one query and one key at a time, in Python numbers."""
    a = problem.arguments()
    a = {name: x.detach() if isinstance(x, torch.Tensor) else x for name, x in a.items()}
    q, v = a["q"], a["v"]
    (b, m, h, _), n = q.shape, v.shape[1]
    padding = a.get("key_padding_mask", torch.zeros(b, n, dtype=torch.bool))
    causal = a.get("causal", False)
    out = torch.zeros(b, m, h, v.shape[3], dtype=v.dtype)

    def row(left, right, s, norm, i, j, head, share=True):
        seen = [not padding[i, key] and (key <= j or not causal) for key in range(n)]
        raw = [
            0.0 if padding[i, key] else a["scale"] * float(left[i, j, head] @ right[i, key, head]) for key in range(n)
        ]
        matrix = s.dense(n)[head].detach()
        # mixing key s into place t: under a causal mask only from s <= t
        scores = [
            sum(raw[s] * float(matrix[s, t]) for s in range(n) if s <= t or not causal) if seen[t] else 0.0
            for t in range(n)
        ]
        squared = sum(x * x for x in scores)
        count = max(1, sum(seen))
        sizes = {"none": 1.0, "l2": math.sqrt(squared + 1e-6), "mean": count}
        sizes["rms"] = (count if share else 1) * math.sqrt(1.0 + squared / count)
        size = sizes[norm]
        return [x / size for x in scores], seen

    s2 = a["s2"].dense(n).detach()
    for i in range(b):
        for j in range(m):
            for head in range(h):
                scores, seen = row(q, a["k"], a["s1"], a["score_norm"], i, j, head)
                if a["activation"] == "softmax":
                    total = sum(math.exp(x) for x, see in zip(scores, seen, strict=True) if see)
                    w = [math.exp(x) / total if see else 0.0 for x, see in zip(scores, seen, strict=True)]
                else:
                    w = [max(x, 0.0) for x in scores]
                if a["activation"] == "gated":
                    gate, _ = row(a["gate_q"], a["gate_k"], a["gate_s1"], a["gate_norm"], i, j, head, share=False)
                    w = [x * math.log1p(math.exp(y)) for x, y in zip(w, gate, strict=True)]
                for s in range(n):
                    mixed = sum(w[t] * float(s2[head, t, s]) for t in range(n) if s <= t or not causal)
                    if not padding[i, s]:
                        out[i, j, head] += mixed * v[i, s, head].detach()
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padding", ["none", "leading"])
@pytest.mark.parametrize(("activation", "score_norm", "gate_norm"), [n for n in NORMS if n[0] in BY_HAND])
def test_reference_is_the_printed_formula(activation, score_norm, gate_norm, padding, causal) -> None:
    problem = make_problem(
        keys=4,
        queries=5,
        activation=activation,
        score_norm=score_norm,
        gate_norm=gate_norm,
        padding=padding,
        causal=causal,
        scale=0.7,
    )
    assert_near(problem.run("reference"), by_hand(problem))


@pytest.mark.parametrize("backend", ["folded", "reference"])
@pytest.mark.parametrize("activation", BY_HAND)
def test_query_without_any_key_gets_zeros_and_finite_gradients(activation, backend) -> None:
    mask = torch.tensor([[True, True, False, False]])
    problem = make_problem(batch=1, keys=4, activation=activation, score_norm="l2", causal=True, key_padding_mask=mask)
    results = problem.results(backend)
    # queries 0 and 1 see only padding
    assert (results["output"][:, :2] == 0).all()
    assert (results["output"][:, 2:] != 0).any()
    assert all(x.isfinite().all() for x in results.values())


@pytest.mark.parametrize("backend", ["folded", "reference"])
def test_l2_norm_makes_score_rows_unit_and_mean_divides_by_the_visible_keys(backend) -> None:
    # positive scores: ReLU keeps them all, and with V = I the output is the kernel itself
    q, k = torch.rand(2, 3, 1, 4, dtype=torch.float64) + 1, torch.rand(2, 5, 1, 4, dtype=torch.float64) + 1
    v = torch.eye(5, dtype=torch.float64)[None, :, None].expand(2, -1, -1, -1)
    mask = torch.tensor([[False] * 5, [False, False, True, True, True]])
    raw, l2, mean = (
        operator_attention(q, k, v, activation="relu", score_norm=norm, key_padding_mask=mask, backend=backend)
        for norm in ("none", "l2", "mean")
    )
    assert_near(l2.norm(dim=-1), torch.ones(2, 3, 1, dtype=torch.float64), 1e-6)
    assert_near(mean, raw / torch.tensor([5.0, 2.0], dtype=torch.float64)[:, None, None, None])


@pytest.mark.parametrize("backend", ["folded", "reference"])
def test_softmax_without_operators_is_plain_attention(backend) -> None:
    q, k, v = (torch.randn(2, 5, 3, 4, dtype=torch.float64) for _ in range(3))
    heads_first = [x.transpose(1, 2) for x in (q, k, v)]
    expected = F.scaled_dot_product_attention(heads_first[0], heads_first[1], heads_first[2])
    got = operator_attention(q, k, v, scale=4**-0.5, backend=backend)
    assert_near(got, expected.transpose(1, 2))


@pytest.mark.parametrize("backend", ["folded", "reference"])
@pytest.mark.parametrize("activation", BY_HAND)
def test_short_sequence_uses_the_leading_block(activation, backend) -> None:
    long = make_problem(keys=4, surplus=3, activation=activation)
    cut = {name: x[:, :4, :4] if "." in name else x for name, x in long.leaves.items()}
    short = Problem(leaves=cut, kinds=long.kinds, options=long.options)
    assert_near(long.run(backend), short.run(backend))


@pytest.mark.parametrize("backend", ["folded", "reference"])
def test_a_raw_tensor_is_the_operator_and_dense_is_its_offset_from_the_identity(backend) -> None:
    q, k, v = (torch.randn(1, 4, 2, 3, dtype=torch.float64) for _ in range(3))
    offset = torch.randn(2, 4, 4, dtype=torch.float64)
    matrix = operator_attention(q, k, v, offset + torch.eye(4), activation="relu", backend=backend)
    assert_near(operator_attention(q, k, v, Dense(offset), activation="relu", backend=backend), matrix)


@pytest.mark.parametrize("backend", ["folded", "reference"])
@pytest.mark.parametrize("score", [-30.0, 0.0, 21.0, 39.0, 41.0, 1000.0])
def test_gate_is_softplus_to_the_last_bit_at_every_score(score, backend) -> None:
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    gate = torch.full_like(one, score).requires_grad_()
    out = operator_attention(one, one, one, activation="gated", gate_q=gate, gate_k=one, backend=backend)
    (grad,) = torch.autograd.grad(out.sum(), gate)
    assert out.item() == pytest.approx(max(score, 0.0) + math.log1p(math.exp(-abs(score))), rel=1e-15)
    assert grad.item() == pytest.approx(1 / (1 + math.exp(-score)), rel=1e-14)


@pytest.mark.parametrize("backend", ["folded", "reference"])
@pytest.mark.parametrize("activation", ["relu", "gated"])
def test_rms_norm_is_mean_for_small_scores_and_bounded_for_large_ones(activation, backend) -> None:
    problem = make_problem(keys=9, activation=activation)
    gate = {"gate_norm": "rms"} if activation == "gated" else {}

    def attend(size: float, norm: Any, **options: Any) -> Tensor:
        grown: dict[str, Any] = {
            name: size * problem.leaves[name] for name in ("q", "gate_q") if name in problem.leaves
        }
        return operator_attention(**(problem.arguments() | grown | options), score_norm=norm, backend=backend)

    small = attend(1e-6, "rms", **gate)
    plain = attend(1e-6, "mean")
    assert_near(1e6 * small, 1e6 * plain, 1e-9)
    large, larger = (attend(size, "rms", **gate) for size in (1e4, 1e8))
    assert_near(larger, large, 1e-3)

"""Average ranks and top-1 counts as the paper computes them.

They are made of the numbers as printed, so that what is equal in print ties. A tie shares the best of its ranks, but in
classification their mean; each of those that tie for the first place counts as top-1. Over the published numbers this
gives every rank and count that the paper prints, but for one tie of the SOR ablation (ETTm1, horizon 96, TOA-Gated)
that the paper does not count as one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from toa.experiments.paper.published import PublishedNumber

if TYPE_CHECKING:
    from toa.report.cells import Line

# tables with ranks, each with the metric that they are of
RANKED = {
    "forecast-full": "mse",
    "forecast-average": "mse",
    "pems-full": "mse",
    "pems-average": "mse",
    "classification": "accuracy",
    "anomaly": "f1_pa",
    "sor-ablation-full": "mse",
}
_MEAN_OF_TIES = ("classification",)
_HIGHER_IS_BETTER = ("accuracy", "accuracy_pct", "f1_pa")
_NO_SOR = "-nosor"


@dataclass(frozen=True, kw_only=True, slots=True)
class RankRow:
    """A variant among those it is ranked with.

    Attributes:
        blocks: Data sets and horizons of the table.
        shared: Those of them in which all variants were measured here; what follows is over these alone.
        published_rank, published_top1: Over all blocks, as the paper prints them.
        same_rank, same_top1: Of the published numbers over the shared blocks; None where there are none.
        our_rank, our_top1: Ours over them.
    """

    table: str
    backbone: str
    variant: str
    blocks: int
    shared: int
    published_rank: float
    published_top1: int
    same_rank: float | None
    same_top1: int | None
    our_rank: float | None
    our_top1: int | None


def higher_is_better(metric: str) -> bool:
    """Whether more of a published metric is better."""
    return metric in _HIGHER_IS_BETTER


def decimals(text: str) -> int:
    """Digits after the point of a number as printed."""
    return len(text.partition(".")[2])


def ranks(values: Sequence[float], table: str, digits: int) -> list[float]:
    """Rank of each value in a block, 1 the best, of values rounded to so many digits."""
    from scipy.stats import rankdata

    turned = np.round(values, digits) * (-1 if higher_is_better(RANKED[table]) else 1)
    method = "average" if table in _MEAN_OF_TIES else "min"
    return [float(rank) for rank in rankdata(turned, method=method)]


def rank_rows(lines: "Sequence[Line]") -> list[RankRow]:
    """A row for each variant of each backbone of the tables with ranks."""
    groups: dict[tuple[str, str, str], dict[tuple[str, str], dict[str, Line]]] = {}
    for line in lines:
        number = line.number
        if line.own and number.metric == RANKED.get(number.table):
            group = groups.setdefault((number.table, number.backbone, family(number)), {})
            group.setdefault((number.dataset, number.horizon), {})[number.variant] = line
    return [row for (table, backbone, _), blocks in groups.items() for row in _rows(table, backbone, blocks)]


def family(number: PublishedNumber) -> str:
    """Whom a variant is ranked with: in the SOR ablation itself without SOR alone, elsewhere, as "", all of them."""
    return number.variant.removesuffix(_NO_SOR) if number.table.startswith("sor-") else ""


def _rows(table: str, backbone: str, blocks: "dict[tuple[str, str], dict[str, Line]]") -> list[RankRow]:
    variants = list(dict.fromkeys(variant for block in blocks.values() for variant in block))
    whole = {key: block for key, block in blocks.items() if len(block) == len(variants)}
    shared = [block for block in whole.values() if all(line.mean is not None for line in block.values())]
    published = _standing(table, variants, list(whole.values()), ours=False)
    same, ours = (_standing(table, variants, shared, ours=which) for which in (False, True))
    return [
        RankRow(
            table=table,
            backbone=backbone,
            variant=variant,
            blocks=len(whole),
            shared=len(shared),
            published_rank=published[place][0],
            published_top1=published[place][1],
            same_rank=same[place][0] if same else None,
            same_top1=same[place][1] if same else None,
            our_rank=ours[place][0] if ours else None,
            our_top1=ours[place][1] if ours else None,
        )
        for place, variant in enumerate(variants)
    ]


def _standing(
    table: str, variants: Sequence[str], blocks: "Sequence[dict[str, Line]]", *, ours: bool
) -> list[tuple[float, int]]:
    """Average rank and top-1 count of each variant; nothing if there is no block."""
    found = []
    for block in blocks:
        lines = [block[variant] for variant in variants]
        digits = max(decimals(line.number.text) for line in lines)
        values = [line.mean if ours else line.number.value for line in lines]
        found.append(ranks([value for value in values if value is not None], table, digits))
    if not found:
        return []
    # the best has rank 1, or less than 2 if several share it as a mean; so "top-1" is the smallest of a block
    tops = [[rank == min(block) for rank in block] for block in found]
    return [(fmean(block[place] for block in found), sum(top[place] for top in tops)) for place in range(len(variants))]

"""Records of the paper's cells for tests, made without a run."""

from collections.abc import Iterable
from itertools import product
from typing import Any

from tests.report.cases import record_of
from toa_paper.tables import FIRST_SEED, Cell, select, table_cells

ATTENTIONS = ("softmax", "toa-gated", "toa-relu", "toa-softmax")


def cell_of(table: str, **wanted: str) -> Cell:
    """The one cell with these values, of several metrics the first."""
    return select(table_cells(table), **{name: [value] for name, value in wanted.items()})[0]


def etth1_records(seeds: int = 3, datasets: Iterable[str] = ("ETTh1",)) -> list[dict[str, Any]]:
    """iTransformer, every attention and horizon; errors rise with the horizon and the attention's place."""
    records = []
    for (place, attention), dataset in product(enumerate(ATTENTIONS), datasets):
        for step, horizon in enumerate(("96", "192", "336", "720")):
            (job,) = cell_of(
                "forecast-full", dataset=dataset, horizon=horizon, backbone="itransformer", variant=attention
            ).jobs
            for seed in range(seeds):
                mse = 0.4 + 0.02 * step + 0.001 * place + 0.0002 * seed
                records.append(record_of(job, {"mse": mse, "mae": mse + 0.01}, seed=FIRST_SEED + seed))
    return records

"""Whether what was measured differs by more than chance: tests of every backbone's attentions over data sets."""

import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import matplotlib as mpl
import matplotlib.pyplot as plt

from toa.experiments.records import Record
from toa.report.cells import Line
from toa.report.comparison import draw_critical_difference, no_diagram, notes
from toa.report.ranks import RANKED, family
from toa.report.statistics import Row, Scores, collect, compare

# the other ranked tables are means over these
_TABLES = ("forecast-full", "pems-full", "classification", "anomaly", "sor-ablation-full")


@dataclass(frozen=True, kw_only=True, eq=False)
class Contest:
    """The attentions of one backbone under one protocol, over data sets (and horizons).

    Attributes:
        metric: Of the records.
        baseline: System that the others are tested against; "" where there are no scores.
        scores, rows: What is compared and what came of it; None and empty if nothing can be.
        notes: What a reader has to know, or why there is nothing.
    """

    table: str
    backbone: str
    protocol: str
    metric: str
    baseline: str = ""
    scores: Scores | None = None
    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...]

    @property
    def title(self) -> str:
        """What is compared, in words."""
        return f"{self.table}, {self.backbone}, {self.protocol}: {self.metric}"

    @property
    def file(self) -> str:
        """A name for the diagram's file."""
        return f"critical-difference-{re.sub('[^a-z0-9]+', '-', self.title.lower())}.svg"

    @cached_property
    def diagram(self) -> str:
        """The critical-difference diagram as SVG; "" where there can be none."""
        if self.scores is None or no_diagram(self.scores):
            return ""
        # fixed names and no date: the same numbers give the same file
        with mpl.rc_context({"svg.hashsalt": "toa", "svg.fonttype": "none"}):
            figure = draw_critical_difference(self.scores)
            text = io.StringIO()
            figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
        plt.close(figure)
        return text.getvalue()


def contests(lines: Iterable[Line]) -> list[Contest]:
    """A contest for each table, backbone, protocol and metric that anything was measured of."""
    groups: dict[tuple[str, str, str, str, str], dict[str, Record]] = {}
    for line in lines:
        number = line.number
        if number.table in _TABLES and number.metric == RANKED[number.table] and line.values:
            key = (number.table, number.backbone, line.protocol, line.metric, family(number))
            records = groups.setdefault(key, {})
            records |= {run.where: run.record for run in line.runs}
    return [_contest(*key, list(records.values())) for key, records in groups.items()]


def _contest(table: str, backbone: str, protocol: str, metric: str, ranked_in: str, records: list[Record]) -> Contest:
    baseline = f"{ranked_in}-no-sor" if ranked_in else "softmax"
    try:
        scores = collect(records, metric)
        rows = compare(scores, f"{backbone}/{baseline}")
    except ValueError as error:
        return Contest(table=table, backbone=backbone, protocol=protocol, metric=metric, notes=(str(error),))
    return Contest(
        table=table,
        backbone=backbone,
        protocol=protocol,
        metric=metric,
        baseline=f"{backbone}/{baseline}",
        scores=scores,
        rows=tuple(rows),
        notes=tuple(notes(scores, f"{backbone}/{baseline}")),
    )

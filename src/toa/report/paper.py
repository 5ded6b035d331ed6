"""The comparison with the paper, whole: read, compared, and written as Markdown and as one page."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from toa.report.cells import Line, paper_lines
from toa.report.evidence import Evidence, Run, Skipped, read_evidence
from toa.report.operators import OPERATORS_FILE, ModelPictures, pictures_of, read_pictures
from toa.report.ranks import RankRow, rank_rows
from toa.report.significance import Contest, contests

# base64 characters of operators that a page takes; those of a model are some ten thousand
_MOST = 350_000


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PaperReport:
    """What a report shows.

    Attributes:
        evidence: What was read, and what of it does not count.
        lines: Every published number, and ours.
        ranks: Average ranks and top-1 counts.
        contests: Tests.
        operators: Of some models.
        remarks: What was left out on the way.
    """

    evidence: Evidence
    lines: tuple[Line, ...]
    ranks: tuple[RankRow, ...]
    contests: tuple[Contest, ...]
    operators: tuple[ModelPictures, ...]
    remarks: tuple[str, ...]

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """What was read and does not count."""
        return self.evidence.skipped

    @property
    def others(self) -> list[Run]:
        """Runs that are no cell of the paper's tables."""
        counted = {run.where for line in self.lines for run in line.runs}
        return [run for run in self.evidence.runs if run.where not in counted]


def make_report(
    paths: Sequence[Path], *, tables: Iterable[str] | None = None, data_dir: Path | None = None
) -> PaperReport:
    """Compare all records below some paths with the paper.

    Args:
        paths: Files and folders.
        tables: Names of tables; all if None.
        data_dir: Where data are looked for, to say what keeps a number from being run.

    Raises:
        ValueError: If a table is unknown.
        FileNotFoundError: If a path is not there.
    """
    evidence = read_evidence(paths)
    lines = paper_lines(evidence, tables=tables, data_dir=data_dir)
    operators, remarks = _operators(paths, evidence)
    return PaperReport(
        evidence=evidence,
        lines=tuple(lines),
        ranks=tuple(rank_rows(lines)),
        contests=tuple(contests(lines)),
        operators=tuple(operators),
        remarks=tuple(remarks),
    )


def _operators(paths: Iterable[Path], evidence: Evidence) -> tuple[list[ModelPictures], list[str]]:
    """Operators of files beside records, then of models that runs left, as many as a page takes."""
    found: dict[str, ModelPictures] = {}
    remarks: list[str] = []
    for file in sorted(file for path in paths if path.is_dir() for file in path.rglob(OPERATORS_FILE)):
        try:
            found |= {model.config_hash: model for model in read_pictures(file)}
        except ValueError as error:
            remarks.append(str(error))
    # of each setting one model
    firsts = {run.setting: run for run in sorted(evidence.runs, key=lambda run: run.seed or 0, reverse=True)}
    for run in evidence.runs:
        if run is firsts[run.setting] and run.line == 0 and run.record["config_hash"] not in found:
            try:
                model = pictures_of(run.record, run.path.parent)
            except ValueError as error:
                remarks.append(str(error))
                continue
            if model is not None:
                found[model.config_hash] = model
    taken, room = [], _MOST
    for model in found.values():
        room -= sum(len(picture.values) for picture in model.pictures)
        if room >= 0:
            taken.append(model)
    if len(taken) < len(found):
        remarks.append(f"{len(found) - len(taken)} of {len(found)} models have operators that no room was left for.")
    return taken, remarks

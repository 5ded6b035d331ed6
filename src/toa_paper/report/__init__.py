"""The comparison of records with the paper: numbers, ranks, tests, findings, pages. Nothing here trains."""

from toa_paper.report.evidence import read_evidence
from toa_paper.report.page import write_report
from toa_paper.report.paper import make_report

__all__ = ["make_report", "read_evidence", "write_report"]

"""Reports: tables, figures and pages from records. Nothing here trains."""

from toa.report.evidence import read_evidence, read_records
from toa.report.page import write_report, write_results
from toa.report.paper import make_report
from toa.report.statistics import collect, compare, write_comparison

__all__ = [
    "collect",
    "compare",
    "make_report",
    "read_evidence",
    "read_records",
    "write_comparison",
    "write_report",
    "write_results",
]

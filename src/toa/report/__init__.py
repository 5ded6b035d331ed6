"""Reports: tables, figures and pages from records. Nothing here trains."""

from toa.report.page import write_results
from toa.report.statistics import collect, compare, write_comparison

__all__ = [
    "collect",
    "compare",
    "write_comparison",
    "write_results",
]

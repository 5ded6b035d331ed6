"""Reports: tables, figures and pages from records and of estimators. Nothing here trains."""

from typing import TYPE_CHECKING, Any

from toa.report.html_page import write_results
from toa.report.statistics import collect, compare, write_comparison

if TYPE_CHECKING:
    from toa.report.pages import page

__all__ = [
    "collect",
    "compare",
    "page",
    "write_comparison",
    "write_results",
]


def __getattr__(name: str) -> Any:
    # loaded on use: estimators take long to import, and most reports need none
    if name == "page":
        from toa.report.pages import page

        return page
    raise AttributeError(f"module 'toa.report' has no attribute {name!r}")

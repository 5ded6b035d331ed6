"""Reports: figures, tables and pages from results; nothing here trains."""

from toa.report.demixing import draw, table, write_figure, write_page

__all__ = ["draw", "table", "write_figure", "write_page"]

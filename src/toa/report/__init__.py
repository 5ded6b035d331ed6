"""Reports: figures, tables and pages from results; nothing here trains."""

from toa.report.anomaly import anomaly_table, draw_detection, write_detection
from toa.report.demixing import draw, table, write_figure, write_page

__all__ = ["anomaly_table", "draw", "draw_detection", "table", "write_detection", "write_figure", "write_page"]

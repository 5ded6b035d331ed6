"""Synthetic series to train on: many kinds, drawn on the device; docs/synthetic.md describes each kind."""

from toa.data.synthetic import counts, gaussian_processes, processes, seasons, trends
from toa.data.synthetic.changes import CHANGES
from toa.data.synthetic.draws import SOURCES, Draws
from toa.data.synthetic.mixture import SyntheticSettings, draw_series

__all__ = [
    "CHANGES",
    "SOURCES",
    "Draws",
    "SyntheticSettings",
    "counts",
    "draw_series",
    "gaussian_processes",
    "processes",
    "seasons",
    "trends",
]

"""The table "when to use it" of the README: one row per kind of data, the headlines of `toa bench headline`."""

from collections.abc import Callable, Mapping

from performance_tables import table
from stored_results import RESULTS
from toa_bench.headline import headlines

# pages with the limits of a headline, by what one has
PAGES = {
    "many channels, each a token (iTransformer)": "docs/many_channels.md",
    "few channels, each a token (iTransformer)": "results/forecasting/README.md",
    "patches of a series as tokens (PatchTST)": "results/forecasting/README.md",
    "signals to separate, unlimited data": "results/demixing/README.md",
    "a file and ten minutes": "results/leaderboards/README.md",
}


def use_table() -> str:
    """What was measured, by what one has."""
    rows = [[line.data, line.take, f"[{line.measured}]({PAGES[line.data]})"] for line in headlines(RESULTS)]
    return table(["you have", "take", "measured"], rows, left=3)


TABLES: Mapping[str, Callable[[], str]] = {"when-to-use": use_table}

"""The command `toa theory`: Proposition 1 of the paper and its cases as a table."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from toa._console import make_console, make_table


def theory(as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """Proposition 1 and its cases: optimal operators, their distance from softmax, and TOA layers that realise them."""
    from toa_paper.theory import theory_table

    rows = theory_table()
    if as_json:
        typer.echo(json.dumps([asdict(row) | {"facts": dict(row.facts)} for row in rows], indent=2))
        return
    table = [("case", "operator", "size", "|sum|", "min", "neg.", "1 head", "heads", "TOA")]
    for row in rows:
        size = f"{row.shape[0]}x{row.shape[1]}" + (f"\nx {row.regimes}" if row.regimes > 1 else "")
        largest, least = f"{row.max_abs_row_sum:.2f}", f"{row.min_entry:.2f}"
        distances = f"{row.simplex_distance:.3f}", f"{row.multihead_distance:.3f}"
        error = max(row.relu_error, row.gated_error, row.softmax_error)
        shown = (size, largest, least, f"{row.negative_share:.0%}", *distances, f"{error:.0e}")
        table.append((row.name, row.title, *shown))
    console = make_console()
    console.print(make_table(table, left=2))
    console.print(
        "|sum|, min, neg.: largest |row sum|, smallest entry, share of negative entries; a softmax head has 1, 0, "
        "0%. 1 head, heads: Frobenius distance to the nearest operator that one softmax head (rows in the "
        "simplex), or any number of heads under a signed output projection, can make. TOA: error of complete "
        "TOA-ReLU, TOA-Gated and TOA-Softmax layers with explicit weights, the worst, in float32, relative to the "
        "largest output."
    )
    failed = [f"{row.name}: {claim}" for row in rows for claim, holds in row.facts.items() if not holds]
    console.print(f"claims of the lemmas that fail: {'; '.join(failed) or 'none'}")

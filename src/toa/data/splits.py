"""Train, validation and test rows, by the rules of the field's loaders.

Rows are counted from 0 and segments are half-open. In rules with overlap, validation and test start one look-back
early, so that their first target is exactly at the border. Alphabet: L look-back, P horizon.
"""

from typing import NamedTuple

from toa._checks import Argument, ArgumentError, Phrase, check_at_least, check_choice


class Segment(NamedTuple):
    """Rows [start, stop)."""

    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start

    def windows(self, lookback: int, horizon: int) -> int:
        """Number of windows at stride 1: rows - L - P + 1."""
        return max(0, self.rows - lookback - horizon + 1)


class Split(NamedTuple):
    """The three segments of a series, each with the look-back of its first target."""

    train: Segment
    val: Segment
    test: Segment


SPLIT_RULES = ("ett-hour", "ett-minute", "ratio", "solar", "pems", "6:2:2")
# shares of train, validation and test of the rules that are only shares
_SHARES = {"ratio": (0.7, 0.1, 0.2), "6:2:2": (0.6, 0.2, 0.2)}


def split_rows(
    rule: str | tuple[float, float, float], rows: int, *, lookback: int, horizon: int, name: str = "the series"
) -> Split:
    """Cut `rows` rows into train, validation and test segments for windows of `lookback` + `horizon` rows.

    `rule` is "ett-hour", "ett-minute", "ratio" (0.7/0.1/0.2), "solar", "pems" (0.6/0.2/0.2 without overlap), "6:2:2"
    (0.6/0.2/0.2 with overlap), or three fractions (train, val, test) that sum to 1 and are cut as "ratio" is. Error
    messages call the series `name`.
    """
    check_at_least("lookback", lookback, 1)
    check_at_least("horizon", horizon, 1)
    if isinstance(rule, str):
        check_choice("split", rule, SPLIT_RULES)
    elif len(rule) != 3 or not all(0 < part < 1 for part in rule) or abs(sum(rule) - 1) > 1e-9:
        raise ArgumentError(
            "split",
            "be the name of a rule or three fractions (train, val, test) in (0, 1) that sum to 1",
            rule,
            "use (0.7, 0.1, 0.2), for instance",
        )
    # ends of train and validation, start and end of test, floored as in the field's loaders
    if rule in ("ett-hour", "ett-minute"):
        month = 30 * 24 * (1 if rule == "ett-hour" else 4)
        train, val_stop, test_start, stop = 12 * month, 16 * month, 16 * month, 20 * month
    elif rule == "solar":
        # unlike "ratio", one or two rows may lie between validation and test
        train = int(rows * 0.7)
        test_start = rows - int(rows * 0.2)
        stop = rows
        val_stop = train + int(rows * 0.1)
    elif rule == "pems":
        train = int(rows * 0.6)
        val_stop = int(rows * 0.8)
        test_start = int(rows * 0.8)
        stop = rows
    else:
        first, _, last = _SHARES[rule] if isinstance(rule, str) else rule
        train = int(rows * first)
        stop = rows
        val_stop = test_start = rows - int(rows * last)
    if stop > rows:
        use_ratio = Phrase("use ", Argument("split", "ratio"))
        raise ArgumentError(f"split {rule!r}", f"have at least {stop} rows", f"{rows} in {name}", use_ratio)
    # windows of "pems" stay inside their own segment
    early = 0 if rule == "pems" else lookback
    split = Split(train=Segment(0, train), val=Segment(train - early, val_stop), test=Segment(test_start - early, stop))
    longest = min(segment.rows for segment in split) - lookback
    if longest < horizon:
        short, segment = next((n, s) for n, s in split._asdict().items() if s.rows < lookback + horizon)
        remedy = f"the longest horizon that fits this lookback is {longest}"
        if longest < 1:
            remedy = f"no horizon fits this lookback: shorten it (now {lookback}) or use a longer series"
        raise ArgumentError(
            Phrase(Argument("lookback", lookback), " and ", Argument("horizon", horizon)),
            f"fit every split, needing {lookback + horizon} rows",
            f"{max(0, segment.rows)} in {short} (split {rule!r} of the {rows} rows of {name})",
            remedy,
        )
    return split

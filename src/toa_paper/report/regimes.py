"""Where TOA gains and where it does not, by kind of data: one row each, with what was not tested.

A regime is a set of tables, backbones and data sets. A data set counts once, with the mean over backbones, horizons and
seeds of the log of its error; a gain is in percent of an error, and in points of an accuracy or F1.

The regimes were named after the results of the paper's sets had been seen, so their tests find nothing new: they
describe. The rule for many channels was fixed before its runs (`docs/many_channels.md`).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from toa.report.figures import system_title
from toa.report.gains import gain_unit, lower_is_better, mean_over_horizons, percent_gain, t_interval
from toa.report.tables import Table, signed
from toa_paper.report.cells import Entry, contribution
from toa_paper.report.evidence import Run

DECISION = "decision.json"
VARIANTS = ("toa-softmax", "toa-relu", "toa-gated")
# what the rule of many channels asks for (docs/many_channels.md)
_LEAST_GAIN = 3.0
_LEAST_OVER_GATE = 1.0
_LARGEST_P = 0.01
_FEWEST_WINS = 8
# operators contribute little if M = 0 raises the error by less than this part of the gain: a quarter
_LITTLE = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Regime:
    """A kind of data.

    Attributes:
        datasets: Data sets of the table that belong to it; all if empty.
        short: The title in the first sentence of the report, for a regime that it names.
    """

    title: str
    table: str
    metric: str
    backbones: tuple[str, ...]
    datasets: tuple[str, ...] = ()
    short: str = ""

    def has(self, entry: Entry) -> bool:
        """Whether a published number belongs to it."""
        one = entry.number
        named = (one.table, one.metric) == (self.table, self.metric) and one.backbone in self.backbones
        return named and (not self.datasets or one.dataset in self.datasets)


_CHANNEL_TOKENS = ("itransformer", "duet")
DATA_REGIMES = (
    Regime(
        title="few channels as tokens, many training windows",
        short="with many training windows,",
        table="forecast-full",
        metric="mse",
        backbones=_CHANNEL_TOKENS,
        datasets=("ETTm1", "ETTm2", "Weather"),
    ),
    Regime(
        title="few channels as tokens, few training windows",
        short="with few windows,",
        table="forecast-full",
        metric="mse",
        backbones=_CHANNEL_TOKENS,
        datasets=("ETTh1", "ETTh2", "Exchange"),
    ),
    Regime(title="tokens are patches (PatchTST)", table="forecast-full", metric="mse", backbones=("patchtst",)),
    Regime(title="classification (PatchTST)", table="classification", metric="accuracy", backbones=("patchtst",)),
    Regime(
        title="anomaly detection",
        table="anomaly",
        metric="f1_pa",
        backbones=("itransformer", "patchtst", "transformer"),
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class VariantGain:
    """What a variant gains over softmax in a regime.

    Attributes:
        gain, interval: Mean over data sets, and its 95 % t interval; None for fewer than three sets.
        better, cells: Cells (backbone, data set, horizon) in which its mean over seeds is better.
        rises: Rise of the validation error with M = 0 in percent, by backbone, where records state it.
        validation: Median over data sets of the gain in validation; None if a record states no validation metric.
    """

    variant: str
    gain: float
    interval: tuple[float, float] | None
    better: int
    cells: int
    rises: Mapping[str, float]
    validation: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RegimeRow:
    """A regime with its result under the paper's settings.

    Attributes:
        preferred: The variant with the largest gain in validation; None if a record states no validation metric.
        seeds: Fewest and most seeds of a cell.
        single: Data sets with one seed in some cell, if others have more.
        missing: Data sets without data here.
    """

    regime: Regime
    gains: tuple[VariantGain, ...]
    preferred: str | None
    sets: int
    seeds: tuple[int, int]
    single: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def chosen(self) -> VariantGain:
        """The variant that validation prefers; without validation the one with the largest gain."""
        by_name = {gain.variant: gain for gain in self.gains}
        return by_name[self.preferred] if self.preferred else self.best

    @property
    def best(self) -> VariantGain:
        """The variant with the largest gain in test."""
        return max(self.gains, key=lambda gain: gain.gain)


def regime_rows(entries: Iterable[Entry]) -> list[RegimeRow]:
    """One row per regime with a measured number under the paper's settings."""
    numbers = [entry for entry in entries if entry.own]
    rows = []
    for regime in DATA_REGIMES:
        inside = [entry for entry in numbers if regime.has(entry)]
        cells = _cells(inside)
        if not cells:
            continue
        gains = tuple(_gain(regime, variant, cells) for variant in VARIANTS)
        validated = all(gain.validation is not None for gain in gains)
        preferred = max(gains, key=lambda gain: gain.validation or 0.0).variant if validated else None
        seeds = {cell: min(len(entry.values) for entry in systems.values()) for cell, systems in cells.items()}
        fewest, most = min(seeds.values()), max(seeds.values())
        single = dict.fromkeys(dataset for (_, dataset, _), count in seeds.items() if count == 1 < most)
        missing = dict.fromkeys(entry.number.dataset for entry in inside if entry.status == "no data")
        rows.append(
            RegimeRow(
                regime=regime,
                gains=gains,
                preferred=preferred,
                sets=len({dataset for _, dataset, _ in cells}),
                seeds=(fewest, most),
                single=tuple(single),
                missing=tuple(missing),
            )
        )
    return rows


# entries of softmax and the variants, by backbone, data set and horizon
Cells = Mapping[tuple[str, str, str], Mapping[str, Entry]]


def _cells(entries: Iterable[Entry]) -> Cells:
    """Cells in which softmax and all variants were measured."""
    found: dict[tuple[str, str, str], dict[str, Entry]] = {}
    for entry in entries:
        one = entry.number
        if entry.values:
            found.setdefault((one.backbone, one.dataset, one.horizon), {})[one.variant] = entry
    wanted = {"softmax", *VARIANTS}
    return {cell: systems for cell, systems in found.items() if wanted <= systems.keys()}


def _gain(regime: Regime, variant: str, cells: Cells) -> VariantGain:
    metric = regime.metric
    pairs = {
        cell: (_mean(systems[variant].values), _mean(systems["softmax"].values)) for cell, systems in cells.items()
    }
    checks = {
        cell: (_mean(systems[variant].validation), _mean(systems["softmax"].validation))
        for cell, systems in cells.items()
        if systems[variant].validation and systems["softmax"].validation
    }
    gains = _by_set(pairs, metric)
    values = np.array(list(gains.values()))
    better = sum(ours < plain if lower_is_better(metric) else ours > plain for ours, plain in pairs.values())
    runs: dict[str, list[Run]] = {}
    for (backbone, _, _), systems in cells.items():
        runs.setdefault(backbone, []).extend(systems[variant].runs)
    rises = {backbone: contribution(found) for backbone, found in runs.items()}
    return VariantGain(
        variant=variant,
        gain=float(values.mean()),
        interval=t_interval(values),
        better=int(better),
        cells=len(pairs),
        rises={backbone: rise for backbone, rise in rises.items() if rise is not None},
        validation=median(_by_set(checks, metric).values()) if len(checks) == len(pairs) else None,
    )


def _mean(values: Mapping[int | None, float]) -> float:
    return fmean(values.values())


def _by_set(pairs: Mapping[tuple[str, str, str], tuple[float, float]], metric: str) -> dict[str, float]:
    """Gain by data set, the mean over its backbones and horizons; points are per hundred."""
    gains = {}
    for dataset in dict.fromkeys(dataset for _, dataset, _ in pairs):
        rows = [pair for (_, name, _), pair in pairs.items() if name == dataset]
        ours, plain = mean_over_horizons(rows, metric)
        gains[dataset] = float(percent_gain(ours, plain, metric))
    return gains


def read_decision(paths: Sequence[Path]) -> dict[str, Any] | None:
    """The decision on many channels below some folders, made by `benchmarks/wide.py decide`; None without one."""
    for path in paths:
        for file in sorted(path.rglob(DECISION)) if path.is_dir() else ():
            content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            if "decision" in content:
                return content
    return None


def operators_help(decision: Mapping[str, Any]) -> bool:
    """Whether the rule of many channels is met; a change is in percent, below zero is a lower error."""
    softmax, gated = decision["against"]["softmax"], decision["against"]["gated"]
    clear = softmax["percent"] <= -_LEAST_GAIN and softmax["p"] < _LARGEST_P and softmax["wins"] >= _FEWEST_WINS
    return bool(clear and gated["percent"] <= -_LEAST_OVER_GATE)


def first_sentence(rows: Sequence[RegimeRow], decision: Mapping[str, Any] | None) -> list[str]:
    """What was found for many channels and for few, in one line; none without either."""
    # fewer than three sets have no interval, and decide nothing
    parts = [f"{row.regime.short} {_result(row)}" for row in rows if row.regime.short and row.chosen.interval]
    many = [f"Many channels as tokens: {_many_channels(decision)}."] if decision else []
    few = [f"Few channels as tokens: {'; '.join(parts)}."] if parts else []
    return [" ".join([*many, *few])] if many or few else []


def _many_channels(decision: Mapping[str, Any]) -> str:
    """The decision on many channels in a few words."""
    if not decision["complete"]:
        return f"not complete, {len(decision['finished'])} of {len(decision['units'])} sets"
    found = decision["against"]["softmax"]
    name = system_title(decision["variant"])
    interval = signed(-found["interval"][1], -found["interval"][0])
    shown = f"{name}, which validation prefers, gains {signed(-found['percent'])} % over softmax on "
    shown += f"{len(decision['units'])} sets (t interval {interval}, better on {found['wins']})"
    helps = "operators help, by the rule" if operators_help(decision) else "the rule for a gain of operators is missed"
    return f"{shown}: {helps}"


def _result(row: RegimeRow) -> str:
    """The gain of the variant that validation prefers, and of the best one if that is another."""
    name = system_title(row.chosen.variant)
    text = f"{name}, which validation prefers, gains {_shown(row.chosen, row.regime.metric)}"
    if row.best is not row.chosen:
        text += f"; {system_title(row.best.variant)}, which it does not prefer, {_shown(row.best, row.regime.metric)}"
    return text


def _shown(gain: VariantGain, metric: str) -> str:
    interval = f"t interval {signed(*gain.interval)}, " if gain.interval else ""
    return f"{signed(gain.gain)} {gain_unit(metric)} ({interval}better in {gain.better} of {gain.cells} cells)"


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorShare:
    """What the variants of TOA gain on a data set under DUET, and what their operators contribute.

    Attributes:
        gains: Gain in test and rise of the validation error with M = 0, in percent, by variant.
        runs: Number of runs of a variant.
    """

    dataset: str
    gains: Mapping[str, VariantGain]
    runs: int

    def rise(self, variant: str) -> float | None:
        """Rise of the validation error with M = 0; None if no record states it."""
        return self.gains[variant].rises.get("duet")

    @property
    def little(self) -> bool:
        """Whether TOA-Gated gains and its operators contribute less than a quarter of it."""
        gain = self.gains["toa-gated"].gain
        rise = self.rise("toa-gated")
        return rise is not None and gain > 0.0 and rise < gain / _LITTLE


def operator_shares(entries: Iterable[Entry]) -> list[OperatorShare]:
    """By data set, under the paper's settings with DUET."""
    regime = Regime(title="DUET", table="forecast-full", metric="mse", backbones=("duet",))
    cells = _cells(entry for entry in entries if entry.own and regime.has(entry))
    shares = []
    for dataset in dict.fromkeys(dataset for _, dataset, _ in cells):
        own_cells = {cell: systems for cell, systems in cells.items() if cell[1] == dataset}
        shares.append(
            OperatorShare(
                dataset=dataset,
                gains={variant: _gain(regime, variant, own_cells) for variant in VARIANTS},
                runs=sum(len(systems["toa-gated"].values) for systems in own_cells.values()),
            )
        )
    return shares


def gate_sentence(entries: Iterable[Entry]) -> list[str]:
    """Data sets on which TOA-Gated gains under DUET and its operators hardly contribute, in a few sentences."""
    shares = operator_shares(entries)
    found = [share for share in shares if share.little]
    if not found:
        return []
    shown = ", ".join(
        f"{share.dataset} {signed(share.gains['toa-gated'].gain)} and {signed(share.rise('toa-gated') or 0.0)} %"
        for share in found
    )
    without_gate = [share.dataset for share in found if share.gains["toa-relu"].gain >= share.gains["toa-gated"].gain]
    with_gate = [share.dataset for share in found if share.dataset not in without_gate]
    parts = []
    if without_gate:
        parts.append(f"TOA-ReLU, which has no gate, gains at least as much on {', '.join(without_gate)}")
    if with_gate:
        parts.append(f"TOA-Gated gains more than TOA-ReLU on {', '.join(with_gate)}")
    # two attentions without operators
    missing = 2 * sum(share.runs for share in found)
    return [
        f"Under DUET the activation makes the gain of TOA-Gated on {len(found)} of {len(shares)} sets, not the "
        f"operators: M = 0 raises the validation error by less than a quarter of the gain ({shown}). "
        f"{'; '.join(parts)}. Models that were trained without operators (attentions `relu` and `gated`) have no test "
        f"errors there: {missing} runs are missing."
    ]


def regime_table(rows: Sequence[RegimeRow], decision: Mapping[str, Any] | None, synthetic: Sequence[str]) -> Table:
    """One row per regime; bold is the variant that validation prefers.

    Args:
        synthetic: What was found in demixing, in one sentence.
    """
    head = ("regime", *map(system_title, VARIANTS), "sets, seeds", "error with M = 0", "not tested")
    table: Table = [head]
    if decision:
        table.append(_wide_row(decision))
    for row in rows:
        cells = []
        for gain in row.gains:
            text = _shown(gain, row.regime.metric)
            cells.append(f"**{text}**" if gain.variant == row.preferred else text)
        fewest, most = row.seeds
        seeds = f"{fewest} seeds" if fewest == most else f"{most} seeds, one on {', '.join(row.single)}"
        rises = ", ".join(f"{backbone} {signed(rise)} %" for backbone, rise in row.chosen.rises.items())
        missing = ", ".join(row.missing) or "none of the paper's"
        table.append((row.regime.title, *cells, f"{row.sets} sets, {seeds}", rises or "not stated", missing))
    table += [("synthetic: harmonic demixing", "not tuned", "not tuned", line, "", "", "") for line in synthetic]
    return table


def _wide_row(decision: Mapping[str, Any]) -> tuple[str, ...]:
    """The row of many channels: numbers only once every set is complete."""
    done, wanted = len(decision["finished"]), len(decision["units"])
    sets = f"{wanted} sets, {decision['seeds']} seeds"
    title = "many channels as tokens (iTransformer)"
    untested = "full PEMS, ECL, Traffic and Solar"
    if not decision["complete"]:
        missing = ", ".join(unit for unit in decision["units"] if unit not in decision["finished"])
        return (
            title,
            *[f"not complete: {done} of {wanted} sets"] * 3,
            sets,
            "",
            f"{untested}; not complete: {missing}",
        )
    found = decision["against"]["softmax"]
    gain, low, high = -found["percent"], -found["interval"][1], -found["interval"][0]
    cell = f"**{signed(gain)} % (t interval {signed(low, high)}; better on {found['wins']} of {wanted} sets)**"
    cells = [cell if variant == decision["variant"] else "" for variant in VARIANTS]
    rise = decision.get("without_operators")
    shown = "not stated" if rise is None else f"{rise:+.1f} %"
    over = f"{shown}; against the gate alone {signed(-decision['against']['gated']['percent'])} %"
    return (title, *cells, sets, over, untested)

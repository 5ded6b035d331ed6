"""Gain against channels, training windows and strength of SOR, from the runs of wide-scaling.toml, and a rule for SOR.

    cells = read_cells(plan, results)
    rule = fit_rule(cells_of(cells, "PEMS08"))                 # by validation errors
    rule_gain(rule, cells_of(cells, "China-Temperature"))      # by test errors of other data

The rule and how it is judged were written down before the runs, in docs/many_channels_more.md.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise, product
from statistics import fmean

from toa_bench.wide import Results, WidePlan, choose_setting, final_jobs
from toa_bench.wide_cost import count_channels, training_windows

# upper limits of SOR's drop rate, 0 for none, and the end of the name of their systems
STRENGTHS = {0.0: "off", 0.25: "0.25", 0.5: "0.5", 1.0: "1"}
# the strength of the paper
FULL = 1.0
ACTIVATIONS = ("toa-relu", "toa-gated")
# gain over each fixed strength that a rule needs on data that it was not fitted to
LEAST_GAIN = 0.005


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Mean logarithms of the errors of the final runs of a system."""

    validation: float
    test: float


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A case whose final runs are complete: its sizes, and the errors of each system."""

    unit: str
    case: str
    channels: int
    windows: int
    errors: Mapping[str, Errors]

    def gain(self, system: str, other: str = "softmax") -> float:
        """Relative change of the test error against another system; negative is better."""
        return math.expm1(self.errors[system].test - self.errors[other].test)


@dataclass(frozen=True, kw_only=True)
class SorRule:
    """A strength of SOR for fewer training windows per channel than `border`, and one for more."""

    border: float
    few: float
    many: float

    def strength(self, cell: Cell) -> float:
        """The strength for the sizes of a cell."""
        return self.few if cell.windows / cell.channels < self.border else self.many


def system_name(activation: str, strength: float) -> str:
    """The system of the plan with an activation and a strength."""
    return f"{activation}-sor-{STRENGTHS[strength]}"


def read_cells(plan: WidePlan, results: Results) -> list[Cell]:
    """The cases all of whose systems have all final runs; a diverged run has an infinite error."""
    cells = []
    for unit, cases in plan.units.items():
        for case in cases:
            errors: dict[str, Errors] = {}
            for system in plan.systems:
                choice = choose_setting(plan, case, system, results)
                jobs = [] if choice is None else list(final_jobs(plan, choice))
                if not jobs or any(job.key not in results for job in jobs):
                    break
                metrics = [results[job.key]["metrics"] for job in jobs]
                errors[system] = Errors(
                    validation=fmean(math.log(one.get("val_mse", math.inf)) for one in metrics),
                    test=fmean(math.log(one.get("mse", math.inf)) for one in metrics),
                )
            else:
                config = jobs[0].config
                cells.append(
                    Cell(
                        unit=unit,
                        case=case,
                        channels=count_channels(config),
                        windows=training_windows(config),
                        errors=errors,
                    )
                )
    return cells


def cells_of(cells: Iterable[Cell], unit: str) -> list[Cell]:
    """The cells of a unit."""
    return [cell for cell in cells if cell.unit == unit]


def fit_rule(cells: Iterable[Cell]) -> SorRule:
    """The border and the two strengths with the lowest mean logarithm of the validation error.

    Of equal rules the first counts: fixed strengths come first, the full strength before the others.
    """
    cells = list(cells)
    ratios = sorted({cell.windows / cell.channels for cell in cells})
    borders = [math.sqrt(low * high) for low, high in pairwise(ratios)]
    strengths = sorted(STRENGTHS, reverse=True)
    rules = [SorRule(border=0.0, few=strength, many=strength) for strength in strengths]
    rules += [
        SorRule(border=border, few=few, many=many) for border, few, many in product(borders, strengths, strengths)
    ]

    def validation(rule: SorRule) -> float:
        return fmean(
            cell.errors[system_name(activation, rule.strength(cell))].validation
            for cell in cells
            for activation in ACTIVATIONS
        )

    return min(rules, key=validation)


def rule_gain(rule: SorRule, cells: Iterable[Cell], fixed: float = FULL) -> float:
    """Mean difference of the logarithm of the test error from a fixed strength; negative is better."""
    return fmean(
        cell.errors[system_name(activation, rule.strength(cell))].test
        - cell.errors[system_name(activation, fixed)].test
        for cell in cells
        for activation in ACTIVATIONS
    )


def accepted(gains: Iterable[float]) -> bool:
    """Whether a rule that was fitted to one unit gains enough over each fixed strength on every other unit."""
    return all(gain <= -LEAST_GAIN for gain in gains)

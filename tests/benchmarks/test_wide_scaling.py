"""The rule for SOR from numbers of channels and windows: fitted by validation, judged on other data by test errors."""

import math

import pytest

from toa_bench.wide import ROOT, read_wide_plan
from toa_bench.wide_scaling import (
    ACTIVATIONS,
    STRENGTHS,
    Cell,
    Errors,
    SorRule,
    accepted,
    fit_rule,
    read_cells,
    rule_gain,
    system_name,
)

PLAN = read_wide_plan(ROOT / "benchmarks" / "wide-scaling.toml")


def make_cell(channels, windows, best, test_shift=0.0):
    """A cell with the lowest error at a strength."""
    errors = {
        system_name(activation, strength): Errors(
            validation=abs(strength - best), test=2.0 * abs(strength - best) + test_shift
        )
        for activation in ACTIVATIONS
        for strength in STRENGTHS
    }
    errors["softmax"] = Errors(validation=0.0, test=0.0)
    return Cell(unit="A", case=f"{channels}x{windows}", channels=channels, windows=windows, errors=errors)


def test_the_systems_of_the_rule_are_those_of_the_plan():
    names = {system_name(activation, strength) for activation in ACTIVATIONS for strength in STRENGTHS}
    assert names | {"softmax", "gated"} == set(PLAN.systems)
    assert read_cells(PLAN, {}) == []


def test_a_rule_finds_the_border_between_two_strengths():
    cells = [make_cell(10, 4000, 0.25), make_cell(50, 4000, 0.25), make_cell(170, 1500, 1.0), make_cell(170, 500, 1.0)]
    rule = fit_rule(cells)
    assert (rule.few, rule.many) == (1.0, 0.25)
    assert 1500 / 170 < rule.border < 4000 / 50
    # two of four cells gain twice 0.75
    assert rule_gain(rule, cells) == pytest.approx(-0.75)
    assert rule_gain(rule, cells, fixed=0.25) == pytest.approx(-0.75)


def test_equal_rules_give_the_full_strength_everywhere():
    flat = [make_cell(10, 4000, 0.5), make_cell(170, 500, 0.5)]
    equal = Errors(validation=1.0, test=1.0)
    flat = [
        Cell(
            unit="A", case=one.case, channels=one.channels, windows=one.windows, errors=dict.fromkeys(one.errors, equal)
        )
        for one in flat
    ]
    assert fit_rule(flat) == SorRule(border=0.0, few=1.0, many=1.0)


def test_a_rule_is_accepted_only_if_it_gains_over_every_fixed_strength():
    assert accepted([-0.006, -0.02])
    assert not accepted([-0.006, -0.004])


def test_the_gain_of_a_cell_is_relative_to_softmax():
    cell = make_cell(10, 4000, 1.0, test_shift=math.log(0.9))
    assert cell.gain("toa-gated-sor-1") == pytest.approx(-0.1)

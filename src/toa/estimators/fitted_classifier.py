"""A fitted classifier: a frozen value that gives the probabilities of cases.

    fitted = fit_classifier(panel, codes, schema, settings, ceiling)    # in toa.estimators.classifier_fitting
    fitted.probabilities(panel)                                         # (n, K)

Alphabet: n cases, C channels, K classes.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from toa._checks import Argument, ArgumentError, Phrase, check_finite, part_of
from toa.data.frames import check_frequency
from toa.data.panel import Panel
from toa.data.scaling import StandardScaler
from toa.estimators.architecture import NETWORK, NO_NETWORK
from toa.estimators.case_network import FittedCaseNetwork
from toa.estimators.classifier_settings import CaseSchema
from toa.estimators.members import FittedMember, ScaledCases
from toa.estimators.probabilities import Probabilities
from toa.estimators.ridge_members import FittedRidge
from toa.estimators.stack import SHARES, Stack

# factor of the lengths of fit beyond which a case is much shorter or longer
_FAR = 1.25
# an interval of the accuracy of fewer cases is not reliable
_RELIABLE = 30


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FittedClassifier:
    """All that a classification needs. The network alone has no stack; a stack may have no network.

    Attributes:
        padded: Whether shorter cases are padded, not stretched, for the linear members.
        ridge: The linear members, at least those with a weight.
        network: The network, with or without a weight; None for none.
        stack: The weights; None for the network alone.
        validation: Cross-validated accuracy; None without any held-out case.
        no_network: Why there is no network; None if there is one, and after loading.
        truncated: Members that the time limit left out.
    """

    schema: CaseSchema
    scaler: StandardScaler
    padded: bool
    ridge: Mapping[str, FittedRidge]
    network: FittedCaseNetwork | None
    stack: Stack | None
    validation: float | None
    no_network: str | None = None
    truncated: tuple[str, ...] = ()

    @property
    def weights(self) -> Mapping[str, float]:
        """Weight of each member."""
        return {NETWORK: 1.0} if self.stack is None else self.stack.weights

    @property
    def architecture(self) -> Mapping[str, Any]:
        """Backbone, settings and steps per token of the network."""
        return NO_NETWORK if self.network is None else self.network.architecture

    @property
    def validation_interval(self) -> tuple[float, float] | None:
        """Interval of 95 % of the accuracy, by Wilson's formula; None without an accuracy or a number of cases."""
        if self.validation is None or not self.schema.count:
            return None
        # loaded on use: scipy's statistics take long to import
        from scipy.stats import binomtest

        right = round(self.validation * self.schema.count)
        interval = binomtest(right, self.schema.count).proportion_ci(method="wilson")
        return float(interval.low), float(interval.high)

    def member(self, name: str) -> FittedMember:
        """The member of this name."""
        return self.require_network() if name == NETWORK else self.ridge[name]

    def require_network(self) -> FittedCaseNetwork:
        """The network; raises ValueError if there is none."""
        if self.network is None:
            raise ArgumentError(
                "the classifier", "have a network", "one without", Phrase("fit it with ", Argument("model", "toa"))
            )
        return self.network

    def scale(self, panel: Panel) -> ScaledCases:
        """The cases as members read them."""
        return ScaledCases.read(panel, self.scaler, length=self.schema.length, padded=self.padded)

    def probabilities(self, panel: Panel) -> Probabilities:
        """Probabilities of the classes for each case; raises ValueError if one is not finite."""
        cases = self.scale(panel)
        parts = {name: self.member(name).probabilities(cases) for name in self.weights if name != SHARES}
        proba = parts[NETWORK] if self.stack is None else self.stack.combine(parts, len(panel))
        check_finite("probabilities", torch.from_numpy(proba))
        return proba

    def check_cases(self, panel: Panel) -> None:
        """Raise ValueError for cases that are too long or of another frequency; warn of much shorter or longer ones."""
        longest = self.schema.length
        for index, steps in enumerate(panel.lengths):
            if steps > longest:
                case = index + 1 if panel.backend is None else panel.ids[index]
                raise ArgumentError(
                    part_of("X", f"case {case!r}"),
                    f"have at most {longest} steps, the longest case of fit",
                    steps,
                    "cut it",
                    Phrase("fit with ", Argument("length", steps)),
                )
        check_frequency(panel, self.schema.freq, "X")
        least, most = self.schema.lengths
        far = [steps for steps in panel.lengths if not least / _FAR <= steps <= most * _FAR]
        if far:
            usual = f"{least}" if least == most else f"{least} to {most}"
            warnings.warn(
                f"{len(far)} of {len(panel)} cases are much shorter or longer than those of fit, such as "
                f"{far[0]} steps (fit: {usual}); their predictions are less certain.",
                stacklevel=5,
            )


def interval_text(fitted: FittedClassifier) -> str:
    """The interval of the accuracy, and what it does not cover; empty without one."""
    interval = fitted.validation_interval
    if interval is None:
        return ""
    low, high = interval
    count = fitted.schema.count
    few = f"; {count} cases are too few to rely on it" if count < _RELIABLE else ""
    return f"95 % interval {low:.3f} to {high:.3f}, only for new cases of the same source{few}"


def select_channels(panel: Panel, columns: Sequence[str]) -> Panel:
    """The cases with these channels; raises ValueError if they have others."""
    if panel.backend is not None:
        return panel.select(columns, "X")
    if len(panel.columns) != len(columns):
        raise ArgumentError(
            "X", f"have {len(columns)} channels, those of fit", len(panel.columns), "fit again", "choose its channels"
        )
    return panel


def has_order(steps: Sequence[str], fitted: Sequence[str]) -> bool:
    """Whether the columns of a table with one case per row begin like those of fit; ValueError if they are others."""
    # cases may be shorter or longer
    common = min(len(steps), len(fitted))
    if list(steps[:common]) == list(fitted[:common]):
        return True
    if set(steps) == set(fitted):
        return False
    new = next((step for step in steps if step not in fitted), None)
    missing = next((step for step in fitted if step not in steps), None)
    difference = f"no {missing!r}" if new is None else f"a new one, {new!r}"
    raise ArgumentError(
        "X",
        f"have the steps of fit, {fitted[0]!r} to {fitted[-1]!r}, or begin with them",
        difference,
        Phrase("choose the steps with ", Argument("values")),
    )

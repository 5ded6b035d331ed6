"""How a classifier is fitted, from labelled cases to a frozen value.

    linear = fit_linear_members(training)                            # and how short cases are aligned
    for network in better_networks(training, schema, settings, …):   # candidates, each better than those before
        stack  = Stack.choose(held_out, codes, folds, …)             # weights, by cases that members were not fitted to
        fitted = FittedClassifier(…)                                 # frozen; the last one is the result

Before the first network, the linear members alone make a stack and a classifier: where no network joins them, and
after an early stop, that is the result.

Alphabet: n cases, K classes, F folds.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from toa._console import show_steps
from toa.data.panel import Panel
from toa.data.scaling import StandardScaler
from toa.estimators.architecture import NETWORK
from toa.estimators.case_network import (
    FittedCaseNetwork,
    NetworkMember,
    check_candidates,
    network_candidates,
    network_folds,
)
from toa.estimators.classifier_settings import CaseSchema, ClassifierSettings
from toa.estimators.effort import Ceiling
from toa.estimators.fitted_classifier import FittedClassifier
from toa.estimators.kernels import FEATURES, compile_kernels
from toa.estimators.members import CaseTraining, ScaledCases, ValidatedMember
from toa.estimators.probabilities import Codes, Folds, HeldOut, accuracy, stratified_folds
from toa.estimators.ridge_members import KERNELS, FeatureMember, FittedRidge, KernelMember
from toa.estimators.stack import STACK, Stack, baseline_accuracies

# folds of the cases that measure the accuracy
_FOLDS = 5


class FitStopped(KeyboardInterrupt):
    """A signal stopped a fit.

    Attributes:
        fitted: The best classifier so far; None if there is none yet.
    """

    def __init__(self, message: str, fitted: FittedClassifier | None) -> None:
        super().__init__(message)
        self.fitted = fitted


def prepare_fit(settings: ClassifierSettings, schema: CaseSchema) -> None:
    """Check the networks, and compile the kernels once per machine, which is not part of the time limit."""
    check_candidates(settings.network, schema)
    if not settings.alone:
        compile_kernels()


def fit_classifier(
    panel: Panel, codes: Codes, schema: CaseSchema, settings: ClassifierSettings, ceiling: Ceiling
) -> FittedClassifier:
    """Fit the network alone, or weight all members.

    Args:
        codes: Class of each case.
        ceiling: Limit on the time, which notes what it leaves out.

    Raises:
        FitStopped: After a signal in the training of networks, with the best classifier so far.
    """
    scaler = StandardScaler.fit(np.concatenate(panel.values), allow_constant=True, name="X")
    training = CaseTraining(
        cases=ScaledCases.read(panel, scaler, length=schema.length, padded=True),
        codes=codes,
        classes=len(schema.classes),
        folds=stratified_folds(codes, min(_FOLDS, len(codes)), settings.seed),
        seed=settings.seed,
        effort=settings.effort,
    )
    folds = network_folds(codes, settings.validation_share, settings.seed)
    linear: LinearMembers | None = None
    best: FittedClassifier | None = None
    if not settings.alone:
        with show_steps("kernels and features", 1 + len(FEATURES), shown=settings.network.progress) as begin:
            linear = fit_linear_members(training, begin)
        best = _assemble(schema, scaler, linear, None)
        reason = _why_no_network(best, linear, folds, ceiling)
        if reason is not None:
            return replace(best, no_network=reason, truncated=tuple(ceiling.left_out))
    try:
        for network in better_networks(training, schema, settings, folds, ceiling):
            best = _assemble(schema, scaler, linear, network)
    except KeyboardInterrupt as stopped:
        raise FitStopped(str(stopped), best) from None
    assert best is not None, "there is at least one candidate"
    return replace(best, truncated=tuple(ceiling.left_out))


@dataclass(frozen=True, slots=True, eq=False)
class LinearMembers:
    """The linear members, and the cases as they saw them.

    Attributes:
        baselines: Accuracies of simple baselines, to compare with.
    """

    training: CaseTraining
    members: Mapping[str, ValidatedMember]
    baselines: Mapping[str, float]

    @property
    def held_out(self) -> dict[str, HeldOut]:
        """Probabilities of cases that the members were not fitted to."""
        return {name: member.held_out for name, member in self.members.items() if member.held_out is not None}


def fit_linear_members(training: CaseTraining, begin: Callable[[str], None] = lambda name: None) -> LinearMembers:
    """Fit all linear members. Shorter cases are stretched or padded, whichever gives the kernels the lower error.

    `begin` is called with the name of each member.
    """
    lengths = {len(case) for case in training.cases.values}
    # cases of one length are neither; shorter ones to come are padded
    ways = (False, True) if len(lengths) > 1 else (True,)
    aligned = training
    begin(KERNELS)
    kernels: ValidatedMember | None = None
    for padded in ways:
        candidate = replace(training, cases=replace(training.cases, padded=padded))
        member = KernelMember().fit(candidate)
        if kernels is None or member.loss(training.codes) < kernels.loss(training.codes):
            aligned = candidate
            kernels = member
    assert kernels is not None
    members = {KERNELS: kernels}
    for name in FEATURES:
        begin(name)
        members[name] = FeatureMember(name).fit(aligned)
    baselines = baseline_accuracies(aligned.cases.series, training.codes, seed=training.seed)
    return LinearMembers(aligned, members, baselines)


def better_networks(
    training: CaseTraining,
    schema: CaseSchema,
    settings: ClassifierSettings,
    folds: Folds | None,
    ceiling: Ceiling,
) -> Iterator[ValidatedMember]:
    """Train candidates, as many as the effort has, and yield each that has a lower log loss than those before.

    Args:
        folds: The fold in which each case is held out; None trains only the first candidate, on all cases.

    Raises:
        TrainingStopped: After a signal; the network that it stopped is yielded first, if it is better.
    """
    architectures = network_candidates(settings.network, schema)
    architectures = architectures[: 1 if folds is None else settings.effort.candidates]
    longest = 0.0
    least = math.inf
    for number, architecture in enumerate(architectures, 1):
        begin = ceiling.passed
        if number > 1 and not ceiling.allows(f"network {number}", longest):
            return
        network = NetworkMember(settings.network, schema, architecture, folds).fit(training)
        loss = network.loss(training.codes)
        if loss < least:
            least = loss
            yield network
        if network.stopped is not None:
            raise network.stopped
        longest = max(longest, ceiling.passed - begin)


def _why_no_network(
    fitted: FittedClassifier, linear: LinearMembers, folds: Folds | None, ceiling: Ceiling
) -> str | None:
    """Why no network joins the linear members; None if one does."""
    if folds is None:
        return "too few cases"
    assert fitted.stack is not None
    codes = linear.training.codes
    left_out = {name: part[-1] for name, part in linear.held_out.items()}
    if accuracy(fitted.stack.combine(left_out, len(codes)), codes) == 1.0:
        return "no errors to mend"
    if not linear.training.effort.has_networks:
        return "effort"
    return None if ceiling.allows(NETWORK) else "no time"


def _assemble(
    schema: CaseSchema, scaler: StandardScaler, linear: LinearMembers | None, network: ValidatedMember | None
) -> FittedClassifier:
    """The classifier of these members, weighted by their errors; without linear ones it is the network."""
    fitted_network = None if network is None else network.fitted
    assert isinstance(fitted_network, FittedCaseNetwork | None)
    if linear is None:
        assert fitted_network is not None
        return FittedClassifier(
            schema=schema,
            scaler=scaler,
            padded=True,
            ridge={},
            network=fitted_network,
            stack=None,
            validation=fitted_network.validation,
        )
    held_out = linear.held_out
    if network is not None and network.held_out is not None:
        held_out[NETWORK] = network.held_out
    stack = Stack.choose(held_out, linear.training.codes, linear.training.folds, linear.baselines)
    ridge: dict[str, FittedRidge] = {}
    for name, member in linear.members.items():
        assert isinstance(member.fitted, FittedRidge)
        ridge[name] = member.fitted
    return FittedClassifier(
        schema=schema,
        scaler=scaler,
        padded=linear.training.cases.padded,
        ridge=ridge,
        network=fitted_network,
        stack=stack,
        validation=stack.accuracies[STACK],
    )

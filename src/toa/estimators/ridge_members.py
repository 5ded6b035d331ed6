"""Members that are linear: ridge classifiers on convolutional kernels, and on simple features.

Alphabet: n cases, K classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from toa._checks import check_shape
from toa.estimators.files import tensors_under
from toa.estimators.kernels import FEATURES, CaseArray, Features, KernelFeatures, KernelSizes
from toa.estimators.members import CaseTraining, ScaledCases, ValidatedMember
from toa.estimators.probabilities import Probabilities
from toa.estimators.ridge import RidgeHead

# how the member with convolutional kernels is named
KERNELS = "kernels"
# all linear members
RIDGE_MEMBERS = (KERNELS, *FEATURES)


class CaseFeatures(Protocol):
    """Features of aligned cases."""

    def transform(self, series: CaseArray) -> Features:
        """Features (n, P)."""


@dataclass(frozen=True, slots=True)
class SimpleFeatures:
    """An entry of `toa.estimators.kernels.FEATURES`, which has nothing to fit."""

    name: str

    def transform(self, series: CaseArray) -> Features:
        """See `CaseFeatures`."""
        return FEATURES[self.name](series)


@dataclass(frozen=True, slots=True, eq=False)
class FittedRidge:
    """A ridge classifier on features."""

    features: CaseFeatures
    head: RidgeHead

    def probabilities(self, cases: ScaledCases) -> Probabilities:
        """See `FittedMember`."""
        return self.head.predict(self.features.transform(cases.series))


@dataclass(frozen=True, slots=True)
class KernelMember:
    """A ridge classifier on the features of random convolutional kernels."""

    def fit(self, training: CaseTraining) -> ValidatedMember:
        """See `Member`."""
        effort = training.effort
        kernels, features = KernelFeatures.fit(
            training.cases.series,
            KernelSizes(effort.kernels, effort.kernel_groups),
            seed=training.seed,
            most_values=effort.kernel_values,
        )
        head, held_out = RidgeHead.fit(features, training.codes, training.folds, classes=training.classes)
        return ValidatedMember(FittedRidge(kernels, head), held_out)


@dataclass(frozen=True, slots=True)
class FeatureMember:
    """A ridge classifier on simple features."""

    name: str

    def fit(self, training: CaseTraining) -> ValidatedMember:
        """See `Member`."""
        features = SimpleFeatures(self.name)
        values = features.transform(training.cases.series)
        head, held_out = RidgeHead.fit(values, training.codes, training.folds, classes=training.classes)
        return ValidatedMember(FittedRidge(features, head), held_out)


def ridge_state(name: str, member: FittedRidge) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and JSON values of a fitted member, by their names in files."""
    head_tensors, head_facts = member.head.state()
    tensors = {f"head.{name}.{key}": tensor for key, tensor in head_tensors.items()}
    facts: dict[str, Any] = {f"head.{name}": head_facts}
    if isinstance(member.features, KernelFeatures):
        kernel_tensors, facts["kernels"] = member.features.state()
        tensors |= {f"kernels.{key}": tensor for key, tensor in kernel_tensors.items()}
    return tensors, facts


def restore_ridge(
    name: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], sample: CaseArray, classes: int
) -> FittedRidge:
    """The member of a file.

    Args:
        tensors: All tensors of the file.
        sample: One case as members see it.

    Raises:
        ValueError: If the parts do not fit each other.
    """
    features: CaseFeatures = SimpleFeatures(name)
    if name == KERNELS:
        _, channels, steps = sample.shape
        features = KernelFeatures.from_state(tensors_under(tensors, "kernels."), facts["kernels"], channels, steps)
    head = tensors_under(tensors, f"head.{name}.")
    count = features.transform(sample).shape[1]
    check_shape(f"head.{name}.weight", head["weight"], "(P, K)", (count, None))
    return FittedRidge(features, RidgeHead.from_state(head, facts[f"head.{name}"], classes=classes))

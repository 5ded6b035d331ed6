"""What a file of a classifier holds, and the fitted classifier from it. See `toa.estimators.base` for the format."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toa._checks import ArgumentError, check_count, check_finite, check_shape
from toa._limits import check_unpacked
from toa.data.frames import read_cases
from toa.data.scaling import StandardScaler
from toa.estimators.architecture import NETWORK
from toa.estimators.case_network import FittedCaseNetwork, build_case_network, patch_of
from toa.estimators.classifier_settings import CaseNetworkSpec, CaseSchema
from toa.estimators.fitted_classifier import FittedClassifier
from toa.estimators.kernels import align_cases
from toa.estimators.ridge_members import RIDGE_MEMBERS, FittedRidge, restore_ridge, ridge_state
from toa.estimators.saved_types import check_columns, check_frequency, check_network
from toa.estimators.stack import SHARES, Stack
from toa.training.checkpoint import model_with
from toa.training.distributed import resolve_device

# cases that a file may state
_MOST_CASES = 10**9
# largest distance from a whole number that rounding of an accuracy causes
_ROUNDING = 1e-3


def classifier_state(fitted: FittedClassifier) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, without those of the network, and JSON values; raises ValueError for other labels than JSON."""
    schema = fitted.schema
    labels = schema.classes.tolist()
    for label in labels:
        if not isinstance(label, str | int | float | bool):
            raise ArgumentError("labels", "be text, numbers or booleans to be saved", repr(label), "rename them")
    tensors = {f"scaler.{name}": value for name, value in fitted.scaler.state().items()}
    facts: dict[str, Any] = {
        "columns": list(schema.columns),
        "classes": labels,
        "label_type": "object" if schema.classes.dtype == object else schema.classes.dtype.str,
        "folds": 0 if fitted.network is None else fitted.network.folds,
        "factor": 1.0 if fitted.network is None else fitted.network.factor,
        "cases": schema.count,
        "steps": list(schema.steps),
        "day_first": schema.day_first,
        "padded": fitted.padded,
        "lengths": list(schema.lengths),
        "freq": schema.freq,
    }
    if fitted.stack is not None:
        facts["stack"] = asdict(fitted.stack)
    for name, member in fitted.ridge.items():
        if name in fitted.weights:
            member_tensors, member_facts = ridge_state(name, member)
            tensors |= member_tensors
            facts |= member_facts
    return tensors, facts


def restore_classifier(
    tensors: Mapping[str, Tensor], facts: Mapping[str, Any], spec: CaseNetworkSpec, where: str | Path
) -> FittedClassifier:
    """The classifier of a file; raises an error for parts that do not fit one another."""
    schema = _restore_schema(facts)
    scaler = StandardScaler.from_state({name: tensors[f"scaler.{name}"] for name in ("mean", "std")})
    check_shape("scaler.mean", scaler.state()["mean"], "(C,)", (len(schema.columns),))
    validation = facts["validation_"]
    _check_accuracy(schema.count, validation)
    # older files have stretched cases
    padded = facts.get("padded", False)
    if not isinstance(padded, bool):
        raise ArgumentError("padded", "be true or false", repr(padded), "fit and save again")
    stack: Stack | None = None
    ridge: dict[str, FittedRidge] = {}
    if "stack" in facts:
        stack = Stack.from_state(facts["stack"], (*RIDGE_MEMBERS, NETWORK, SHARES))
        check_unpacked("length_", schema.length * len(schema.columns), tensors)
        sample = align_cases([np.zeros((1, len(schema.columns)))], schema.length)
        for name in RIDGE_MEMBERS:
            if name in stack.weights:
                ridge[name] = restore_ridge(name, tensors, facts, sample, len(schema.classes))
    fitted = FittedClassifier(
        schema=schema,
        scaler=scaler,
        padded=padded,
        ridge=ridge,
        network=_restore_network(tensors, facts, spec, schema, where),
        stack=stack,
        validation=validation,
        truncated=tuple(map(str, facts.get("truncated", ()))),
    )
    check_network(fitted.weights, fitted.network)
    _try(fitted)
    return fitted


def _restore_schema(facts: Mapping[str, Any]) -> CaseSchema:
    """What the cases of fit were like; older files have neither lengths nor a frequency."""
    length = facts["length_"]
    freq = facts.get("freq")
    count = facts.get("cases", 0)
    check_count("length_", length, 1)
    least, most = facts.get("lengths", (1, length))
    check_count("lengths", least, 1)
    check_count("lengths", most, least)
    check_frequency(freq)
    check_count("cases", count, 0)
    return CaseSchema(
        columns=check_columns("columns", facts["columns"]),
        classes=np.array(facts["classes"], dtype=facts["label_type"]),
        length=length,
        lengths=(least, most),
        freq=freq,
        steps=tuple(facts.get("steps", ())),
        day_first=facts.get("day_first"),
        count=count,
    )


def _check_accuracy(cases: int, share: float | None) -> None:
    """Raise ValueError if a file has a number of cases of which this accuracy cannot be the share."""
    right = 0.0 if share is None else share * cases
    if cases > _MOST_CASES or not (0.0 <= right <= cases and abs(right - round(right)) <= _ROUNDING):
        rule = f"at most {_MOST_CASES}, of which the accuracy {share} is a whole number"
        raise ArgumentError("cases", f"be {rule}", cases, "fit and save again")


def _restore_network(
    tensors: Mapping[str, Tensor],
    facts: Mapping[str, Any],
    spec: CaseNetworkSpec,
    schema: CaseSchema,
    where: str | Path,
) -> FittedCaseNetwork | None:
    architecture = facts["architecture_"]
    # older files hold one network without folds
    folds = facts.get("folds", 0)
    models = {name.split(".")[2] for name in tensors if name.startswith("model.models.")}
    patch = patch_of(architecture)
    if len(models) != folds or patch < 1:
        raise ValueError(f"{folds!r} networks of {patch} steps per token, but weights of {len(models)}")
    if architecture["backbone"] is None:
        return None
    model = model_with(
        lambda: build_case_network(spec, schema, architecture, folds), tensors, architecture["settings"], where
    )
    return FittedCaseNetwork(
        spec=spec,
        schema=schema,
        architecture=architecture,
        model=model.to(resolve_device(spec.device)),
        folds=folds,
        factor=facts.get("factor", 1.0),
        validation=facts["validation_"],
    )


def _try(fitted: FittedClassifier) -> None:
    """Classify a case of zeros: parts of a file that do not fit one another raise an error."""
    case = np.zeros((1, len(fitted.schema.columns), 1))
    proba = torch.from_numpy(fitted.probabilities(read_cases(case)))
    check_finite("probabilities", proba)
    check_shape("probabilities", proba, "(n, K)", (1, len(fitted.schema.classes)))

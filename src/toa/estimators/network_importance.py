"""What the network of a forecaster looked at, see `toa.estimators.importance`.

Alphabet: L look-back, P horizon, C columns, F features, K outputs.
"""

import numpy as np
import torch
from torch import Tensor

from toa.data.frequency import Frequency
from toa.data.panel import Panel
from toa.estimators.importance import OUTPUTS, Importance, in_float64, integrated_gradients
from toa.estimators.network import FittedNetwork


def explain_network(network: FittedNetwork, panel: Panel, stop: int, freq: Frequency | None) -> Importance:
    """Parts of the look-back before the row `stop` of the first series in the mean forecast of each column."""
    inputs = network.inputs
    horizon = network.spec.horizon
    columns = inputs.columns
    lookback = inputs.lookback
    first = max(0, stop - lookback)
    # the first row is repeated where the series is shorter than the look-back
    missing = lookback - (stop - first)
    which = inputs.owners(panel)[0]
    outputs = columns[:OUTPUTS]
    (values,) = panel.past(columns, [(0, stop)], lookback)
    mean = inputs.scaler["mean"][which]
    std = inputs.scaler["std"][which]
    tensors = [((torch.from_numpy(values) - mean) / std)[None]]  # (1, L, C)
    features = inputs.covariates.past(panel)
    if features is not None:
        past = np.pad(features[0][first:stop], ((missing, 0), (0, 0)), mode="edge")
        ahead_of_stop = features[0][stop : stop + horizon]
        tensors += [torch.from_numpy(past)[None], torch.from_numpy(ahead_of_stop)[None]]  # (1, L, F), (1, P, F)
    # features are compared with their mean in the look-back
    means = [part.mean(1, keepdim=True) for part in (*tensors[:2], *tensors[1:2])]
    bases = [base.expand_as(part) for base, part in zip(means, tensors, strict=True)]
    model = in_float64(network.model)

    def mean_forecast(*parts: Tensor) -> Tensor:
        levels = model(*parts).sort(2).values[:, :, network.spec.point]  # (B, P, C)
        return levels.mean(1)[:, : len(outputs)] * std[: len(outputs)]

    (shares, *others), change = integrated_gradients(mean_forecast, tensors, bases)
    names = dict.fromkeys(inputs.covariates.names)
    ahead = [np.zeros((len(outputs), len(columns)))]
    for name in names:
        places = [place for place, feature in enumerate(inputs.covariates.names) if feature == name]
        shares = np.concatenate([shares, others[0][:, :, places].sum(2, keepdims=True)], axis=2)
        ahead.append(others[1][:, :, places].sum((1, 2))[:, None])
    return Importance(
        what=f"the mean forecast of {horizon} steps by the network, compared with a look-back that is flat at its mean",
        outputs=outputs,
        columns=(*columns, *names),
        shares=shares,
        ahead=np.concatenate(ahead, axis=1),
        change=change,
        freq=freq,
    )

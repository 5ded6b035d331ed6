"""Which covariates a forecast does not depend on, and by how much its error would change with them.

    unused = find_unused(covariates, used, masks, changes)    # {"lead": 0.023, "region": None}

Alphabet: F features.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool

from toa.estimators.covariates import Covariates


def find_unused(
    covariates: Covariates,
    used: Sequence[Bool[np.ndarray, " f"]],
    others: Mapping[str, Bool[np.ndarray, " f"]],
    changes: Mapping[str, float],
) -> dict[str, float | None]:
    """Names that no method with a weight uses, each with the least change of the error by a method that uses it.

    Args:
        used: Features that each method with a weight uses.
        others: Features that each method without a weight uses.
        changes: Change of the error with each of these methods, as a share.
    """
    names = np.array(covariates.names)
    acts = np.any([np.zeros(len(names), dtype=bool), *used], axis=0)
    unused: dict[str, float | None] = {}
    for name in dict.fromkeys(covariates.names):
        places = names == name
        if not acts[places].any():
            measured = [changes[method] for method, mask in others.items() if method in changes and mask[places].any()]
            unused[name] = min(measured, default=None)
    return unused

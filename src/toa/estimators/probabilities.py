"""Probabilities of classes: their errors, their calibration, and the folds in which cases are held out.

Alphabet: n cases, K classes, F folds.
"""

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch.nn.functional import cross_entropy

Codes = Int64[np.ndarray, " n"]
Folds = Int64[np.ndarray, " n"]
# numbers whose softmax are probabilities
ClassScores = Float64[np.ndarray, "n k"]
Probabilities = Float64[np.ndarray, "n k"]
# of each case for each fold, made without the cases of this fold; the last entry leaves out each case by itself
HeldOut = Float64[np.ndarray, "entries n k"]

# probabilities below this count as this
_LEAST = 1e-6
# bounds on the logarithm of the factor of scores
_LOG_FACTORS = (-3.0, 5.0)
# tolerance of that logarithm
_TOLERANCE = 0.02


def log_loss(probabilities: Probabilities, codes: Codes) -> float:
    """Mean of -log of the probability of the true class."""
    return float(-np.log(np.maximum(probabilities[np.arange(len(codes)), codes], _LEAST)).mean())


def accuracy(probabilities: Probabilities, codes: Codes) -> float:
    """Share of the cases whose largest probability is that of the true class."""
    return float((probabilities.argmax(1) == codes).mean())


def softmax(scores: ClassScores) -> Probabilities:
    """Probabilities of scores."""
    return torch.from_numpy(np.ascontiguousarray(scores)).softmax(1).numpy()


def logarithm(probabilities: Probabilities) -> ClassScores:
    """Scores of probabilities."""
    return np.log(np.maximum(probabilities, _LEAST))


def stratified_folds(codes: Codes, number: int, seed: int) -> Folds:
    """A fold of each case, at random; the cases of a class are spread over all folds."""
    random = np.random.default_rng(seed)
    folds = np.empty(len(codes), dtype=np.int64)
    placed = 0
    for code in np.unique(codes):
        members = random.permutation(np.flatnonzero(codes == code))
        folds[members] = (placed + np.arange(len(members))) % number
        placed += len(members)
    return folds


def choose_factor(scores: ClassScores, codes: Codes) -> float:
    """Factor of the scores (1 / temperature) whose softmax has the lowest log loss.

    As in Platt's calibration, the target of the true class is a little below 1, so that few cases without an error do
    not lead to certainty.
    """
    count, classes = scores.shape
    doubt = 1.0 / (count + 2)
    targets = torch.full((count, classes), doubt / (classes - 1), dtype=torch.float64)
    targets[torch.arange(count), torch.from_numpy(codes)] = 1.0 - doubt
    values = torch.from_numpy(np.ascontiguousarray(scores))
    # loaded on use: it takes long to import
    from scipy.optimize import minimize_scalar

    minimum = minimize_scalar(
        lambda logarithm: float(cross_entropy(values * float(np.exp(logarithm)), targets)),
        bounds=_LOG_FACTORS,
        method="bounded",
        options={"xatol": _TOLERANCE},
    )
    return float(np.exp(minimum.x))

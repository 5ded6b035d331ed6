"""Binary trees as plain arrays, and the one way through them.

    start, trees = read_boosted_trees(regressor, inputs, depth)    # of a fitted regressor of scikit-learn
    trees.values_at(inputs)                                        # (N, K): what each tree gives each row
    tables = read_isolation_trees(forest)                          # of a fitted isolation forest, as saved
    trees = from_tables(**tables, depth=depth)

Trees of scikit-learn are read once, after a fit. From then on they are arrays: files hold these, and nothing here needs
scikit-learn to evaluate them. Boosted trees have no public form there, so they are read from private fields. These are
checked, and the arrays must predict what the public `predict` of the regressor predicts.

Alphabet: N rows, F features, K trees, V nodes of all trees.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64

# fields of a node of a boosted tree that are read
_BOOSTED_FIELDS = frozenset(
    ("value", "feature_idx", "num_threshold", "missing_go_to_left", "left", "right", "is_leaf", "is_categorical")
)
# arrays of a tree of a forest that are read
_FOREST_FIELDS = ("children_left", "children_right", "feature", "threshold", "n_node_samples")
# rows at which the arrays are compared with the regressor they were read from
_COMPARED_ROWS = 64
# largest difference there, in units of the largest sum: sums of some hundred numbers in another order
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Trees:
    """Trees with their nodes one after another. A leaf leads to itself, so that all rows take the same number of steps.

    Attributes:
        roots: First node of each tree.
        feature: Feature that a node compares; 0 at a leaf.
        threshold: A row whose feature is at most this goes to the left.
        missing: Whether a row without this feature, NaN, goes to the left.
        left: Node to the left.
        right: Node to the right.
        value: What a leaf holds.
        depth: Comparisons from a root to the deepest leaf, at least.
    """

    roots: Int64[np.ndarray, " k"]
    feature: Int64[np.ndarray, " v"]
    threshold: Float64[np.ndarray, " v"]
    missing: Bool[np.ndarray, " v"]
    left: Int64[np.ndarray, " v"]
    right: Int64[np.ndarray, " v"]
    value: Float64[np.ndarray, " v"]
    depth: int

    def __len__(self) -> int:
        return len(self.roots)

    def values_at(self, inputs: Float[np.ndarray, "n f"]) -> Float64[np.ndarray, "n k"]:
        """The value of the leaf that each row reaches in each tree."""
        node = np.broadcast_to(self.roots, (len(inputs), len(self.roots)))
        for _ in range(self.depth):
            compared = np.take_along_axis(inputs, self.feature[node], 1)
            goes_left = np.where(np.isnan(compared), self.missing[node], compared <= self.threshold[node])
            node = np.where(goes_left, self.left[node], self.right[node])
        return self.value[node]


def from_tables(
    *,
    feature: Int64[np.ndarray, "k nodes"],
    threshold: Float64[np.ndarray, "k nodes"],
    left: Int64[np.ndarray, "k nodes"],
    right: Int64[np.ndarray, "k nodes"],
    value: Float64[np.ndarray, "k nodes"],
    depth: int,
) -> Trees:
    """Trees from tables with a tree per row, whose children are numbers within the row; NaN goes to the right."""
    count, nodes = feature.shape
    first = nodes * np.arange(count)
    return Trees(
        roots=first,
        feature=feature.ravel(),
        threshold=threshold.ravel(),
        missing=np.zeros(count * nodes, dtype=bool),
        left=(left + first[:, None]).ravel(),
        right=(right + first[:, None]).ravel(),
        value=value.ravel(),
        depth=depth,
    )


def read_boosted_trees(regressor: Any, inputs: Float64[np.ndarray, "n f"], depth: int) -> tuple[float, Trees]:
    """The prediction without trees, and the trees of a fitted `HistGradientBoostingRegressor`.

    Args:
        inputs: Rows at which the arrays are compared with the regressor, such as those of its fit.
        depth: Largest depth of its trees.

    Raises:
        RuntimeError: If this version of scikit-learn keeps its trees in another form.
    """
    try:
        start = float(regressor._baseline_prediction.item())
        nodes_by_tree = [predictor.nodes for (predictor,) in regressor._predictors]
        fields = set(nodes_by_tree[0].dtype.names)
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise _other_form(f"no trees that can be read ({error})") from None
    if not fields >= _BOOSTED_FIELDS:
        raise _other_form(f"nodes without {', '.join(sorted(_BOOSTED_FIELDS - fields))}")
    nodes = np.concatenate(nodes_by_tree)
    if nodes["is_categorical"].any():
        raise _other_form("nodes that compare categories")
    counts = [len(tree) for tree in nodes_by_tree]
    roots = np.cumsum([0, *counts[:-1]])
    first = np.repeat(roots, counts)
    leaf = nodes["is_leaf"].astype(bool)
    itself = np.arange(len(nodes))
    trees = Trees(
        roots=roots,
        feature=np.where(leaf, 0, nodes["feature_idx"]).astype(np.int64),
        # a node that only asks whether a feature is missing has an infinite one, which no file may hold
        threshold=np.nan_to_num(np.where(leaf, 0.0, nodes["num_threshold"])),
        missing=nodes["missing_go_to_left"].astype(bool),
        left=np.where(leaf, itself, nodes["left"] + first),
        right=np.where(leaf, itself, nodes["right"] + first),
        value=np.where(leaf, nodes["value"], 0.0),
        depth=depth,
    )
    rows = inputs[:_COMPARED_ROWS]
    expected = regressor.predict(rows)
    difference = np.abs(start + trees.values_at(rows).sum(1) - expected).max()
    if not difference <= _ROUNDING * max(1.0, np.abs(expected).max()):
        raise _other_form(f"trees whose predictions differ by {difference:.3g}")
    return start, trees


def read_isolation_trees(forest: Any) -> dict[str, np.ndarray]:
    """The trees of a fitted `IsolationForest` as the arguments of `from_tables`, without the depth.

    The value of a leaf is the number of random splits that would separate one of its rows from all others.

    Raises:
        RuntimeError: If this version of scikit-learn has trees of another form.
    """
    fitted_trees = [tree.tree_ for tree in forest.estimators_]
    for field in _FOREST_FIELDS:
        if not hasattr(fitted_trees[0], field):
            raise _other_form(f"trees without {field}")
    shape = (len(fitted_trees), max(len(tree.feature) for tree in fitted_trees))
    feature = np.zeros(shape, dtype=np.int64)
    left = np.zeros(shape, dtype=np.int64)
    right = np.zeros(shape, dtype=np.int64)
    threshold = np.zeros(shape)
    value = np.zeros(shape)
    for row, tree in enumerate(fitted_trees):
        nodes = np.arange(len(tree.feature))
        inner = tree.children_left >= 0
        left[row, nodes] = np.where(inner, tree.children_left, nodes)
        right[row, nodes] = np.where(inner, tree.children_right, nodes)
        feature[row, nodes] = np.where(inner, tree.feature, 0)
        threshold[row, nodes] = tree.threshold
        # rows that share a leaf would be separated by further splits
        value[row, nodes] = _depths(left[row, nodes], right[row, nodes]) + path_length(tree.n_node_samples)
    return {"feature": feature, "threshold": threshold, "left": left, "right": right, "value": value}


def path_length(rows: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    """Mean number of random splits that separate one of this many rows from the others.

    It is that of an unsuccessful search in a binary search tree, 2 H(n - 1) - 2 (n - 1) / n with the harmonic number
    H(n) ≈ ln n + γ (Liu, Ting and Zhou 2008, "Isolation forest").
    """
    many = np.maximum(rows, 3)
    length = 2.0 * (np.log(many - 1.0) + np.euler_gamma) - 2.0 * (many - 1.0) / many
    return np.select([rows <= 1, rows == 2], [0.0, 1.0], length)


def _depths(left: Int64[np.ndarray, " v"], right: Int64[np.ndarray, " v"]) -> Int64[np.ndarray, " v"]:
    """Comparisons before each node of a tree."""
    depths = np.zeros(len(left), dtype=np.int64)
    level = np.zeros(1, dtype=np.int64)
    depth = 0
    while len(level):
        depths[level] = depth
        inner = level[left[level] != level]
        level = np.concatenate([left[inner], right[inner]])
        depth += 1
    return depths


def _other_form(problem: str) -> RuntimeError:
    from sklearn import __version__

    return RuntimeError(
        f"scikit-learn must have trees of the form that toa reads, got {problem} in version {__version__}; install a "
        "version that the requirements of toa name."
    )

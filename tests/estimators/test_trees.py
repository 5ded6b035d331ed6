from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor, IsolationForest

from tests.support import message
from toa.estimators.trees import from_tables, path_length, read_boosted_trees, read_isolation_trees


def rows(count: int = 200, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 4))


@pytest.fixture(scope="module")
def regressor() -> HistGradientBoostingRegressor:
    inputs = rows()
    inputs[::5, 1] = np.nan
    return HistGradientBoostingRegressor(max_iter=8, max_depth=3, random_state=0).fit(inputs, inputs[:, 0] ** 2)


def test_boosted_trees_have_the_predictions_of_scikit_learn(regressor):
    new = rows(60, 1)
    new[::3, :2] = np.nan
    start, trees = read_boosted_trees(regressor, rows(), 3)
    assert len(trees) == 8
    np.testing.assert_allclose(start + trees.values_at(new).sum(1), regressor.predict(new), atol=1e-12)


def test_isolation_trees_have_the_scores_of_scikit_learn():
    inputs = rows()
    # rows that are equal share a leaf
    same = slice(0, 20)
    inputs[same] = inputs[0]
    forest = IsolationForest(n_estimators=10, max_samples=64, random_state=3).fit(inputs)
    trees = from_tables(**read_isolation_trees(forest), depth=6)
    new = 2.0 * rows(50, 1).astype(np.float32)
    lengths = trees.values_at(new).mean(1)
    usual = path_length(np.array([64]))[0]
    np.testing.assert_allclose(2.0 ** (-lengths / usual), -forest.score_samples(new), rtol=1e-12)


def test_a_row_without_a_feature_goes_where_its_node_sends_it():
    tables = {"feature": [[0, 0, 0]], "threshold": [[0.5, 0.0, 0.0]], "left": [[1, 1, 2]], "right": [[2, 1, 2]]}
    arrays = {name: np.array(table) for name, table in tables.items()}
    trees = from_tables(**arrays, value=np.array([[0.0, 1.0, 2.0]]), depth=1)
    inputs = np.array([[0.5], [0.6], [np.nan]])
    assert trees.values_at(inputs).tolist() == [[1.0], [2.0], [2.0]]


def test_path_lengths_of_few_rows_are_exact():
    # one row needs no split, two rows one; three rows on average 5/3, of which the formula is an approximation
    lengths = path_length(np.array([1, 2, 3]))
    assert lengths[:2].tolist() == [0.0, 1.0]
    assert 1.0 < lengths[2] < 5 / 3


def test_a_node_that_asks_whether_a_feature_is_missing_can_be_saved():
    inputs = np.array([[np.nan], [1.0]] * 50)
    model = HistGradientBoostingRegressor(max_iter=1).fit(inputs, inputs[:, 0] > 0)
    assert np.isinf(model._predictors[0][0].nodes["num_threshold"]).any()
    assert np.isfinite(read_boosted_trees(model, inputs, 6)[1].threshold).all()


def changed(regressor: HistGradientBoostingRegressor, name: str) -> SimpleNamespace:
    """A regressor whose trees have another form."""
    nodes = [predictor.nodes.copy() for (predictor,) in regressor._predictors]
    if name == "fields":
        nodes = [tree[["value", "left", "right"]] for tree in nodes]
    elif name == "categories":
        nodes[0]["is_categorical"] = 1
    elif name == "meaning":
        nodes[0]["left"], nodes[0]["right"] = nodes[0]["right"].copy(), nodes[0]["left"].copy()
    predictors = [] if name == "none" else [(SimpleNamespace(nodes=tree),) for tree in nodes]
    return SimpleNamespace(
        _baseline_prediction=regressor._baseline_prediction, _predictors=predictors, predict=regressor.predict
    )


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("none", "no trees that can be read"),
        ("fields", "nodes without feature_idx"),
        ("categories", "categories"),
        ("meaning", "predictions differ"),
    ],
)
def test_trees_of_another_form_are_refused(regressor, name, problem):
    with pytest.raises(RuntimeError, match=message("scikit-learn must have", problem, "install")):
        read_boosted_trees(changed(regressor, name), rows(), 3)


def test_a_forest_of_another_form_is_refused():
    forest = SimpleNamespace(estimators_=[SimpleNamespace(tree_=SimpleNamespace(feature=[0]))])
    with pytest.raises(RuntimeError, match=message("children_left", "install")):
        read_isolation_trees(forest)

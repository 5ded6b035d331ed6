import csv

import pytest

from tests.support import ROOT
from toa.data import CLASSIFICATION_SETS
from toa_bench.uea import SETS, evaluate

# the files of BasicMotions come with aeon
SET = "BasicMotions"


@pytest.mark.slow
def test_every_method_is_measured_on_test_cases():
    found = evaluate(SET, "toa", effort="least")
    assert found["accuracy"] > 0.9
    assert found["accuracies"]["stack"] == found["validation"]
    assert sum(found["weights"].values()) == pytest.approx(1.0)
    alone = evaluate(SET, "toa-network", epochs=1, settings={"embed_dim": 8, "ff_dim": 8, "num_layers": 1})
    assert "weights" not in alone
    theirs = evaluate(SET, "multirocket-hydra")
    assert set(theirs) == {"accuracy", "cpu_seconds"}
    assert theirs["accuracy"] > 0.9
    with pytest.raises(ValueError, match="unknown method 'rocket'"):
        evaluate(SET, "rocket")


def test_the_sets_are_those_with_published_figures():
    with (ROOT / "results" / "classification" / "published.csv").open(encoding="utf-8") as file:
        known = {row["dataset"] for row in csv.DictReader(file)}
    assert set(SETS) == known
    assert known <= set(CLASSIFICATION_SETS)

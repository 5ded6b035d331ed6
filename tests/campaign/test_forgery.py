import pytest
import torch

from tests.campaign.forgery import FORGED, Content, entries, forge, schema_changes


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", FORGED)
def test_no_absurd_entry_of_a_file_breaks_a_loader(kind, tmp_path):
    outcome = forge(kind, tmp_path, seed=0, numbers=range(100))
    assert outcome.failures == []
    assert sum(outcome.counts.values()) == 100


def test_every_entry_and_every_tensor_is_forged():
    facts = {"a": 1, "b": [0.5, {"c": "x"}], "d": None}
    changes = list(schema_changes(Content(facts=facts, tensors={"w": torch.ones(2, 3)})))
    places = ["/".join(map(str, place)) or "all" for place, _ in entries(facts)]
    assert places == ["all", "a", "b", "b/0", "b/1", "b/1/c", "d"]
    named = {change.what.removeprefix("no ").partition(" = ")[0] for change in changes}
    assert set(places) <= named
    for change in changes:
        content = change.apply(Content(facts=facts, tensors={"w": torch.ones(2, 3)}))
        # True is 1, but of another type
        assert repr(content.facts) != repr(facts) or "tensor" in change.what, change.what
    assert facts == {"a": 1, "b": [0.5, {"c": "x"}], "d": None}

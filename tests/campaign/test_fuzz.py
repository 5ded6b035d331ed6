import pytest

from tests.campaign.fuzz import LOADERS, fuzz


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", LOADERS)
def test_no_damaged_or_forged_file_breaks_a_loader(kind, tmp_path):
    outcome = fuzz(kind, tmp_path / "files", seed=0, numbers=range(100))
    assert outcome.failures == []
    assert sum(outcome.counts.values()) == 100
    assert outcome.counts["refused"] > 10

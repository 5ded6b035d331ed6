import pytest

from tests.campaign.forgery import FORGED, forge
from tests.campaign.fuzz import fuzz
from tests.campaign.loaders import LOADERS
from toa._files import parse_json, seal, unseal

# loaders that take long: fewer files in the quick tests
SLOW = [kind for kind in LOADERS if kind.startswith("classifier") or kind.endswith("command")]


def check(kind, folder, count):
    """Damaged files of one kind, and a fifth as many forged ones: both begin with the same good file."""
    if kind in FORGED:
        assert forge(kind, folder, seed=0, numbers=range(max(3, count // 5))).failures == []
    outcome = fuzz(kind, folder, seed=0, numbers=range(count))
    assert outcome.failures == []
    assert sum(outcome.counts.values()) == count
    assert outcome.counts["refused"] + outcome.counts["refused in use"] > count // 10


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", LOADERS)
def test_no_damaged_or_forged_file_breaks_a_loader(kind, tmp_path):
    check(kind, tmp_path, 6 if kind in SLOW else 50)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", SLOW)
def test_no_damaged_or_forged_file_breaks_a_loader_of_estimators(kind, tmp_path):
    check(kind, tmp_path, 100)


def test_damage_in_the_name_of_the_checksum_and_in_the_content_is_noticed():
    content = seal({"metrics": {"mse": 0.4}, "data_checksum": "0" * 64})
    damaged = {"checksui" if name == "checksum" else name: value for name, value in content.items()}
    with pytest.raises(ValueError, match="must have the content that its checksum states"):
        unseal(damaged | {"metrics": {"mse": 0.1}}, "x")
    assert not unseal({"metrics": {}, "data_checksum": "0" * 64}, "x")[1]


def test_an_integer_of_many_digits_is_refused():
    """No conversion of it to a float is tried, which would raise OverflowError."""
    with pytest.raises(ValueError, match="x must be valid JSON, got an error: an integer of 400 digits"):
        parse_json('{"seed": ' + "9" * 400 + "}", "x")

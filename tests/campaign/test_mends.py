import pytest

from tests.campaign.mends import MENDS, take_out
from tests.support import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(MENDS)))
def test_each_mend_has_a_test_that_fails_without_it(number, tmp_path):
    assert take_out(tmp_path, number, 1, seed=0).failures == []


def test_every_mend_names_text_that_its_file_has_once():
    for mend in MENDS:
        assert (ROOT / "src" / "toa" / mend.file).read_text(encoding="utf-8").count(mend.text) == 1, mend.what


def test_every_mend_names_a_test_that_exists():
    for mend in MENDS:
        path, name = mend.test.partition("[")[0].split("::")
        assert f"def {name}(" in (ROOT / "tests" / path).read_text(encoding="utf-8"), mend.what

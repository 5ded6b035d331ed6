import pytest

from tests.campaign.mends import MENDS, take_out
from tests.support import ROOT


@pytest.mark.parametrize("mend", MENDS, ids=lambda mend: mend.what.replace(" ", "-"))
def test_the_table_names_text_and_tests_that_exist(mend):
    """Whoever changes the code of a mend changes the table too."""
    assert (ROOT / "src" / "toa" / mend.file).read_text(encoding="utf-8").count(mend.text) == 1
    file, _, name = mend.test.partition("::")
    assert f"def {name.partition('[')[0]}(" in (ROOT / "tests" / file).read_text(encoding="utf-8")


@pytest.mark.slow
def test_each_mend_has_a_test_that_fails_without_it(tmp_path):
    assert take_out(tmp_path, 0, len(MENDS), seed=0).failures == []

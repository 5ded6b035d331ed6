import pytest

from tests.campaign.mends import MENDS, take_out


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(MENDS)))
def test_each_mend_has_a_test_that_fails_without_it(number, tmp_path):
    assert take_out(tmp_path, number, 1, seed=0).failures == []

import pytest

from toa.data import DatasetNotFoundError
from toa_bench.tsb_ad import METHODS, evaluate


def test_unknown_methods_and_sets_are_refused():
    with pytest.raises(ValueError, match="unknown method 'lof'; known: toa, toa-network, z-score"):
        evaluate("MSL", "lof")
    with pytest.raises(ValueError, match="unknown dataset 'NAB'"):
        evaluate("NAB", "pca")


@pytest.mark.data
def test_the_combination_without_the_network_beats_pca_and_mahalanobis_distance():
    try:
        found = {
            method: evaluate("SMD-machine-2-1", method, effort="least") for method in METHODS if "net" not in method
        }
    except DatasetNotFoundError as error:
        pytest.skip(str(error))
    best = found["toa"].pop("vus_pr")
    assert sum(found["toa"]["weights"].values()) == pytest.approx(1.0)
    assert all(best > other["vus_pr"] for method, other in found.items() if method != "toa")

import pytest

from toa.report import page


def test_only_estimators_have_pages(tmp_path):
    with pytest.raises(TypeError, match="Forecaster, AnomalyDetector or Classifier, got dict"):
        page({}, tmp_path / "page.html", [])
    assert not (tmp_path / "page.html").exists()

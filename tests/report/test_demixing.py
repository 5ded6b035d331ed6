import struct

import pytest

from toa.experiments.demixing import run_demixing
from toa.report import table, write_figure, write_page


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return run_demixing("demo", tmp_path_factory.mktemp("runs"), steps=2, device="cpu", command=["toa", "<demo>"])


def test_the_table_has_models_oracle_and_published_numbers(result):
    header, *rows = table(result, published=True)
    assert header == ("system", "seeds", "MSE", "x oracle", "published")
    cells = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    assert cells["TOA-Gated, no SOR"]["published"] == "-"
    assert cells["Softmax attention"]["published"] == "0.0972"
    assert cells["linear oracle, told the warp"]["x oracle"] == "1.00"
    assert float(cells["TOA-ReLU, no SOR"]["MSE"]) == pytest.approx(result.medians()["toa-relu-no-sor"], abs=1e-5)


def test_another_size_stands_beside_no_published_number(result):
    rows = table(result, published=False)
    assert rows[0] == ("system", "seeds", "MSE", "x oracle")
    assert {len(row) for row in rows} == {4}


def test_the_figure_is_a_png_of_three_by_three(result, tmp_path):
    path = write_figure(result, tmp_path / "new" / "figure.png")
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", content[16:24])
    assert width > 900
    assert height > 700


def test_the_page_stands_alone_and_escapes(result, tmp_path):
    figure = write_figure(result, tmp_path / "figure.png")
    page = write_page(result, figure, tmp_path / "index.html", heading="A & B", published=False).read_text()
    assert "A &amp; B" in page
    assert "&lt;demo&gt;" in page
    assert 'src="data:image/png;base64,iVBOR' in page
    assert "http" not in page
    assert page.count("<tr>") == 1 + 5 + 1 + 3

import struct

import pytest

from toa.experiments import run_demixing
from toa.report import table_rows, write_figure, write_page


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return run_demixing("demo", tmp_path_factory.mktemp("runs"), steps=2, device="cpu", command=["toa", "<demo>"])


def test_the_table_has_models_oracle_and_published_numbers(result):
    rows = {row[0]: row[1:] for row in table_rows(result, published=True)}
    assert rows["TOA-Gated"][2] == "0.0028"
    assert rows["Softmax attention"][2] == "0.0972"
    assert rows["linear oracle, told warp and periods"][3] == "1.00"
    assert float(rows["TOA-ReLU"][0]) == pytest.approx(result.medians()["toa-relu"], abs=1e-5)


def test_another_size_stands_beside_no_published_number(result):
    assert all(row[3] == "-" for row in table_rows(result, published=False))


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

"""The tables of docs/performance.md equal the records."""

import json

import pytest

from tests.support import ROOT, load_script, message
from toa_bench import tables


@pytest.fixture
def page():
    return load_script("benchmarks/performance_page.py")


WHERE = {"device": "moon", "versions": {"torch": "2.9"}, "commit": "abc", "command": "python x.py"}


def test_the_page_equals_its_records(page):
    assert page.main(["--check"]) == 0, "run benchmarks/performance_page.py"


def test_the_readme_equals_the_records(page):
    def read(name):
        return json.loads((page.RECORDS / f"{name}.json").read_text(encoding="utf-8"))

    primitive = {r["name"]: r["over_sdpa"]["graph"] for r in read("operator_attention")["rows"] if r["tokens"] == 4096}
    steps = {r["name"]: r["systems"]["toa-gated"]["time_over_peer"] for r in read("training_step")["rows"]}
    relu, gated = (primitive[f"{name} triton"] for name in ("relu", "gated"))
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"ReLU takes {relu:.2f} times and gated {gated:.2f} times as long as `scaled_dot_product_att" in readme
    assert f"step with TOA-Gated takes {steps['patchtst-128']:.2f} of the time of" in readme
    assert f"softmax step ({steps['itransformer-256']:.2f} for iTransformer)" in readme


def test_every_table_is_on_the_page(page):
    text = page.PAGE.read_text(encoding="utf-8")
    assert [name for name in page.TABLES if f"<!-- table {name} -->" not in text] == []


def test_a_table_is_made_from_its_record_and_other_text_is_kept(page, tmp_path):
    def row(name, system, milliseconds, graph, over):
        cost = {"milliseconds": milliseconds, "graph_ms": graph, "extra_bytes": 2**20}
        return {"tokens": 1024, "name": name, "system": system, "cost": cost, "over_sdpa": over}

    rows = [
        row("sdpa", "sdpa", 1.0, 0.5, {"graph": 1.0, "time": 1.0}),
        row("relu triton", "triton", 3.0, 1.3, {"graph": 2.6, "time": 3.0}),
    ]
    (tmp_path / "operator_attention.json").write_text(json.dumps({"rows": rows, **WHERE}))
    text = "before\n<!-- table primitive -->\nold\n<!-- end -->\nafter <!-- table steps --><!-- end -->"
    made = page.rendered(text, tmp_path)
    assert made.startswith("before\n<!-- table primitive -->\n\n| N | sdpa | relu triton | relu / sdpa |")
    # 13 products against 7
    assert "| 1024 | 0.500 | 1.300 | 2.60 | 1.40 |  |  |" in made
    assert "moon, PyTorch 2.9, commit abc: `python x.py`" in made
    assert "Not measured yet: `results/performance/training_step.json` does not exist." in made
    assert "old" not in made
    assert page.rendered(made, tmp_path) == made
    memory = page.rendered("<!-- table memory --><!-- end -->", tmp_path)
    assert "| 1024 | 1.0 | 1.0 | 1.0 | 1.0 |" in memory


def test_steps_are_shown_with_their_targets():
    case = {"backbone": "patchtst", "batch_size": 1, "channels": 1, "lookback": 24}
    case["model"] = {"embed_dim": 2, "ff_dim": 4, "num_layers": 1}
    system = {"backend": "triton", "milliseconds": 1.0, "time_over_peer": 0.4, "peak_memory": 2**20}
    systems = {"toa-gated": system | {"memory_over_peer": 0.5}, "toa-relu": {"refused": "wrong"}}
    made = tables.steps({"rows": [{"name": "patchtst-128", "case": case, "systems": systems}]})
    assert made[1] == ["patchtst-128", "toa-gated", "triton", "1.00", "0.400", "0.50", "1", "0.50", "", "0.0"]
    assert made[2][:3] == ["patchtst-128", "toa-relu", "refused"]
    # three tokens; patches and head; six square and two wide linear layers; twenty products per head
    ends, linear = 16 * 2 * 3 + 3 * 2 * 96, 6 * 2**2 + 2 * 2 * 4
    assert tables.step_flops(case, "toa-gated") == 2 * (3 * ends + 3 * (3 * linear + 20 * 3 * 2))


def test_an_unknown_table_is_refused(page):
    with pytest.raises(SystemExit, match=message("error: unknown table 'speed'", "known: primitive")):
        page.rendered("<!-- table speed --><!-- end -->")


def test_a_row_of_the_efficiency_table_is_shown_beside_the_peer(page, tmp_path):
    cost = {"milliseconds": 0.5, "peak_memory": 2**21, "parameters": 12345}
    row = cost | {"name": "patchtst/toa-gated", "config": {"backbone": "patchtst"}, "published_ms": 18.88}
    peer = {"patchtst": {"milliseconds": 4.0, "peak_memory": 2**22}}
    (tmp_path / "efficiency.json").write_text(json.dumps({"rows": [row], "peer": peer, **WHERE}))
    made = page.rendered("<!-- table efficiency --><!-- end -->", tmp_path)
    assert "| patchtst/toa-gated | 0.50 | 4.00 | 0.125 | 2 | 4 | 12,345 | 18.88 |" in made

"""Every table of numbers on every page is what its records give."""

import json
import re

import pytest

import page_tables
import performance_tables
from tests.support import ROOT, message
from toa.report.tables import markdown_table
from toa_bench.tables import step_flops, steps

WHERE = {"device": "moon", "versions": {"torch": "2.9"}, "commit": "abc", "command": "python x.py"}


@pytest.mark.parametrize("page", page_tables.PAGES)
def test_a_page_equals_its_records(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "<!-- generated: " in text
    assert page_tables.rendered(text) == text, "run `make pages`"


def test_every_table_is_on_a_page():
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in page_tables.PAGES)
    unused = {name for name in page_tables.all_tables() if f"<!-- generated: {name} -->" not in text}
    # DUET was run at horizon 96 only
    assert unused == {f"forecast-duet-{horizon}" for horizon in (192, 336, 720)}


@pytest.mark.parametrize("page", page_tables.PAGES)
def test_no_table_of_numbers_is_typed_by_hand(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    text = re.sub(r"<!-- generated: .*?<!-- end -->", "", text, flags=re.DOTALL)
    typed = [line for line in text.splitlines() if line.startswith("|") and re.search(r"\d\.\d{2,}", line)]
    # the count of matrix products is derived on the page, not measured
    assert [line for line in typed if "Kᵀ" not in line and "S1, S2: forward" not in line] == []


def test_every_run_of_the_search_is_in_the_recipe():
    """By their number of cells: a run that no table selects would be lost."""
    records = page_tables.read_records("forecasting/search.jsonl")
    runs = {(r["config_hash"], r["device"][:3]) for r in records}
    tables = [make() for name, make in page_tables.all_tables().items() if name.startswith("recipe-")]
    cells = sum(len(re.findall(r"\S+ / \S+", line)) for made in tables for line in made.splitlines())
    assert cells == len(runs)


def test_a_wrong_number_on_a_page_is_noticed(tmp_path, monkeypatch):
    page = "before\n<!-- generated: demixing -->\n\nold\n\n<!-- end -->\nafter"
    monkeypatch.setattr(page_tables, "ROOT", tmp_path)
    monkeypatch.setattr(page_tables, "PAGES", ("page.md",))
    monkeypatch.setattr(page_tables, "demixing_table", lambda: "| new |")
    (tmp_path / "page.md").write_text(page)
    assert page_tables.main(["--check"]) == 1
    assert (tmp_path / "page.md").read_text() == page
    assert page_tables.main([]) == 0
    assert (tmp_path / "page.md").read_text() == page.replace("old", "| new |")
    assert page_tables.main(["--check"]) == 0


def test_an_unknown_table_raises():
    with pytest.raises(ValueError, match=message("table 'speed'", "must be one of primitive")):
        page_tables.rendered("<!-- generated: speed --><!-- end -->")


def test_the_primitive_is_compared_with_its_lower_bound(tmp_path):
    def row(name, system, milliseconds, graph, over):
        cost = {"milliseconds": milliseconds, "graph_ms": graph, "extra_bytes": 2**20}
        sizes = {"tokens": 1024, "batch": 8, "heads": 8, "width": 64, "activation": name.split()[0]}
        return {"name": name, "system": system, "cost": cost, "over_sdpa": over, **sizes}

    rows = [
        row("sdpa", "sdpa", 1.0, 0.5, {"graph": 1.0, "time": 1.0}),
        row("relu triton", "triton", 3.0, 1.3, {"graph": 2.6, "time": 3.0}),
    ]
    (tmp_path / "operator_attention.json").write_text(json.dumps({"rows": rows, **WHERE}))
    made = performance_tables.performance_table("primitive", tmp_path)
    assert made.startswith("| N | sdpa | relu triton | relu / sdpa |")
    # 13 products against 7
    assert "| 1024 | 0.500 | 1.300 | 2.60 | 1.40 |" in made
    assert made.endswith("moon, PyTorch 2.9, commit abc: `python x.py`")
    assert "| 1024 | 1.0 | 1.0 | 1.0 | 1.0 |" in performance_tables.performance_table("memory", tmp_path)
    # 7 and 13 products of 2 B H N² D = 8.59e9 operations
    assert "| 1024 | 1.000 | 2.00 | 120 | 3.000 | 2.31 | 86 |" in performance_tables.performance_table(
        "rates", tmp_path
    )


def test_steps_stand_beside_their_aims():
    case = {"backbone": "patchtst", "batch_size": 1, "channels": 1, "lookback": 24}
    case["model"] = {"embed_dim": 2, "ff_dim": 4, "num_layers": 1}
    system = {"backend": "triton", "milliseconds": 1.0, "time_over_peer": 0.4, "time_over_compiled": 0.8}
    system |= {"peak_memory": 2**20, "memory_over_peer": 0.5}
    systems = {"toa-gated": system, "toa-relu": {"refused": "wrong"}}
    made = "\n".join(markdown_table(steps({"rows": [{"name": "patchtst-128", "case": case, "systems": systems}]})))
    assert "| patchtst-128 | toa-gated | triton | 1.00 | 0.400 | 0.50 | 0.800 | 1 | 0.50 |  | 0.0 |" in made
    assert "| patchtst-128 | toa-relu | refused |" in made
    # three tokens: patches and head; six square and two wide linear maps; twenty products per head
    ends, linear = 16 * 2 * 3 + 3 * 2 * 96, 6 * 2**2 + 2 * 2 * 4
    assert step_flops(case, "toa-gated") == 2 * (3 * ends + 3 * (3 * linear + 20 * 3 * 2))


def test_a_row_of_the_papers_table_stands_beside_the_peers_model(tmp_path):
    cost = {"milliseconds": 0.5, "peak_memory": 2**21, "parameters": 12345}
    row = cost | {"name": "patchtst/toa-gated", "config": {"backbone": "patchtst"}, "published_ms": 18.88}
    peer = {"patchtst": {"milliseconds": 4.0, "peak_memory": 2**22}}
    (tmp_path / "efficiency.json").write_text(json.dumps({"rows": [row], "peer": peer, **WHERE}))
    made = performance_tables.performance_table("efficiency", tmp_path)
    assert "| patchtst/toa-gated | 0.50 | 4.00 | 0.125 | 2 | 4 | 12,345 | 18.88 |" in made

"""Every table and every number on a page is what its records give, or a constant that is named here."""

import json
import re

import pytest

import page_tables
import page_values
import performance_tables
from stored_results import stored_records
from tests.support import ROOT, message, written
from toa.models import BACKBONES
from toa.report.tables import markdown_table
from toa_bench.tables import product_counts, step_flops, steps

WHERE = {"device": "moon", "versions": {"torch": "2.9"}, "commit": "abc", "command": "python x.py"}


# pages of results and of docs, README and tables
TEXTS = (
    "README.md",
    *(str(path.relative_to(ROOT)) for path in written("docs", "*.md")),
    *(str(path.relative_to(ROOT)) for path in written("results", "*.md") if path.parent.name != "report"),
)
# the page of the paper is a list of its items
LISTS = (*(page for page in TEXTS if page.startswith("results/tables/")), "docs/paper.md")
TABLES = LISTS[:-1]
WITH_NUMBERS = [str(path.relative_to(ROOT)) for path in page_tables.written_pages()]
# words of a page that answers one question; its tables are behind links
MOST_WORDS = 1000
# words beside the tables of a page that has only tables
MOST_NOTES = 800


@pytest.mark.parametrize("page", WITH_NUMBERS)
def test_a_page_equals_its_records(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert page_tables.rendered(text) == text, "run `make pages`"
    # a line that begins with a comment would end its paragraph
    assert not re.search(r"^\s*<!-- value", text, re.MULTILINE)


def words_of(text: str) -> int:
    return len(re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL).split())


@pytest.mark.parametrize("page", TEXTS)
def test_a_page_answers_one_question_in_at_most_a_thousand_words(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    if page in LISTS:
        assert words_of(re.sub(r"<!-- generated: .*?<!-- end -->", "", text, flags=re.DOTALL)) <= MOST_NOTES
    else:
        assert words_of(text) <= MOST_WORDS, "move tables to results/tables, or notes beside a table there"


def test_every_page_of_tables_is_listed():
    listed = (ROOT / "results" / "tables" / "README.md").read_text(encoding="utf-8")
    assert [page for page in TABLES if f"({page.rsplit('/', 1)[1]})" not in listed] == ["results/tables/README.md"]


def test_every_table_is_on_a_page():
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in WITH_NUMBERS)
    unused = {name for name in page_tables.TABLES if f"<!-- generated: {name} -->" not in text}
    assert not unused


@pytest.mark.parametrize("page", WITH_NUMBERS)
def test_no_table_of_numbers_is_typed_by_hand(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    text = re.sub(r"<!-- generated: .*?<!-- end -->", "", text, flags=re.DOTALL)
    typed = [line for line in text.splitlines() if line.startswith("|") and re.search(r"\d\.\d{2,}", line)]
    # the count of matrix products is derived on the page, not measured
    assert [line for line in typed if "Kᵀ" not in line and "S1, S2: forward" not in line] == []


def test_every_run_of_the_search_is_in_a_table():
    """By their number of cells: a run that no table selects would be lost."""
    records = stored_records("forecasting/search.jsonl")
    runs = {(r["config_hash"], r["device"][:3]) for r in records}
    tables = [make() for name, make in page_tables.TABLES.items() if name.startswith("recipe-")]
    cells = sum(len(re.findall(r"\S+ / \S+", line)) for made in tables for line in made.splitlines())
    assert cells == len(runs)


def test_a_wrong_number_on_a_page_is_noticed(tmp_path):
    page = "before\n<!-- generated: efforts -->\n\nold\n\n<!-- end -->\nafter"
    for path in ("README.md", "docs/page.md", "docs/howto/page.md", "results/tables/page.md"):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(page)
        assert page_tables.main(["--check"], tmp_path) == 1
        assert file.read_text() == page
        assert page_tables.main([], tmp_path) == 0
        assert file.read_text() == page.replace("old", page_tables.efforts_table())
        assert page_tables.main(["--check"], tmp_path) == 0


def test_an_unknown_table_raises():
    with pytest.raises(ValueError, match=message("table 'speed'", "must be one of agreement")):
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
    system |= {"tenth": 0.9, "ninetieth": 1.1}
    base = system | {"milliseconds": 2.0, "tenth": 1.8, "ninetieth": 2.2}
    systems = {"softmax": base, "toa-gated": system, "toa-relu": {"refused": "wrong"}}
    made = "\n".join(markdown_table(steps({"rows": [{"name": "patchtst-128", "case": case, "systems": systems}]})))
    ratios = "0.50 (0.41 to 0.61) | 0.800 | 0.75 | 0.400"
    assert f"| patchtst-128 | toa-gated | triton | 1.00 | {ratios} | 1 | 0.50 | 0.0 |" in made
    assert "| patchtst-128 | toa-relu | refused |" in made
    # three tokens: patches and head; six square and two wide linear maps; twenty products per head
    ends = 16 * 2 * 3 + 3 * 2 * 96
    linear = 6 * 2**2 + 2 * 2 * 4
    assert step_flops(case, "toa-gated") == 2 * (3 * ends + 3 * (3 * linear + 20 * 3 * 2))
    # softmax has four square maps and seven products: 2430 multiplications, TOA-Gated 2736
    counted = product_counts({"rows": [{"name": "patchtst-128", "case": case, "systems": systems}]})
    assert counted[1] == ["patchtst-128", "1.13", "0.50", "0.40", "0.45", "0.40"]


def test_a_table_of_several_records_has_all_their_rows_and_commands(tmp_path):
    plain = {"structure": "dense", "score_norm": "none", "gate_norm": "none", "batch": 1, "width": 32, "tokens": 1024}
    row = plain | {"name": "gated triton", "activation": "gated", "over_sdpa": {"graph": 3.0}}
    row |= {"cost": {"graph_ms": 1.5, "extra_bytes": 2**21}}
    for index, file in enumerate(performance_tables.VARIANTS):
        rows = [row | {"name": "sdpa"}, row | {"dtype": "float16", "gate_norm": "rms", "batch": index}]
        (tmp_path / file).write_text(json.dumps({"rows": rows, **WHERE, "command": f"command {index}"}))
    made = performance_tables.performance_table("variants", tmp_path)
    for index in range(len(performance_tables.VARIANTS)):
        assert made.count(f"| dense | float16 | rms | {index} | 32 | 1024 | gated | 1.500 | 3.00 | 2.0 |") == 1
        assert f"`command {index}`" in made
    # a title, a line and one row per record: PyTorch's attention has none
    assert len(made.split("\n\n")[0].splitlines()) == 2 + len(performance_tables.VARIANTS)


def test_a_row_of_the_papers_table_stands_beside_the_peers_model(tmp_path):
    cost = {"milliseconds": 0.5, "tenth": 0.4, "ninetieth": 0.6, "peak_memory": 2**21, "parameters": 12345}
    row = cost | {"name": "patchtst/toa-gated", "config": {"backbone": "patchtst"}}
    base = row | {"name": "patchtst/softmax", "milliseconds": 0.25, "tenth": 0.2, "ninetieth": 0.32}
    peer = {"patchtst": {"milliseconds": 4.0, "peak_memory": 2**22}}
    (tmp_path / "efficiency.json").write_text(json.dumps({"rows": [base, row], "peer": peer, **WHERE}))
    made = performance_tables.performance_table("efficiency", tmp_path)
    # of the paper's times, 18.88 and 10.57 ms by its own programs, only the ratio
    assert "| patchtst/toa-gated | 0.50 | 2.00 (1.25 to 3.00) | 1.79 | 4.00 | 0.125 | 2 | 4 | 12,345 |" in made
    assert "| patchtst/softmax | 0.25 |  |  | 4.00 | 0.062 | 2 | 4 | 12,345 |" in made
    assert "18.88" not in made


def generated(page: str, name: str) -> str:
    """What stands on a page under the name of a table or a value."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (content,) = re.findall(rf"<!-- (?:generated|value): {name} -->(.*?)<!-- end -->", text, re.DOTALL)
    return str(content)


def cells_of(table: str) -> dict[str, list[str]]:
    """Rows of a Markdown table by their first cell."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]
    return {row[0]: row[1:] for row in rows}


def test_all_pages_state_one_number_for_what_an_attention_costs():
    # the table of all cases, as a reader sees it
    costs = cells_of(generated("results/tables/speed-step.md", "costs"))
    names = [title.removesuffix(" / softmax") for title in costs.pop("case")]
    costs.pop("---")
    gated = {case: cells[names.index("toa-gated")] for case, cells in costs.items()}
    relu = {case: cells[names.index("toa-relu")] for case, cells in costs.items()}
    for page in ("README.md", "docs/performance.md"):
        shown = cells_of(generated(page, "speed-summary"))
        for case, title in performance_tables.SUMMARY_CASES.items():
            assert shown[title][:2] == [relu[case], gated[case]]
    # the range of all cases
    ratios = sorted(float(cell.split()[0]) for cell in gated.values())
    assert generated("docs/performance.md", "cost-toa-gated") == f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
    # the table of every system, in the same cases
    by_system = generated("results/tables/speed-step.md", "steps")
    for case, cell in gated.items():
        assert case == "patchtst-512" or re.search(
            rf"\| {case} \| toa-gated \| \w+ \| [\d.]+ \| {re.escape(cell)} \|", by_system
        )
    # the report of the paper
    summary = (ROOT / "results" / "report" / "summary.md").read_text(encoding="utf-8")
    stated = dict(re.findall(r"A step of TOA-Gated takes (.*?) times as long as one of softmax under (\w+)", summary))
    assert stated == {gated["patchtst-512"]: "patchtst", gated["itransformer-256"]: "itransformer"}


# numbers in sentences

# phrases of pages with constants of the code: the phrase, a file, and what the file must contain
CHECKED = (
    ("1e-12 in float64 and 1e-6 in float32", "tests/ops/test_sequences.py", "1e-12), (torch.float32, 1e-6)"),
    ("to 1e-12 in float64", "tests/support.py", "tolerance: float = 1e-12"),
    ("softmax is `nn.MultiheadAttention` to 1e-12", "tests/support.py", "tolerance: float = 1e-12"),
    ("other outputs: to 1e-12", "tests/support.py", "tolerance: float = 1e-12"),
    ("at a time, to 1e-12", "tests/support.py", "tolerance: float = 1e-12"),
    ("on turned tokens, to 1e-12", "tests/support.py", "tolerance: float = 1e-12"),
    ("reference to 1e-10", "tests/ops/test_contract.py", "1e-10"),
    ("to 1e-5 in float32", "tests/ops/test_contract.py", "1e-5"),
    (r"\lVert s \rVert^2 + 10^{-6}", "src/toa/ops/attention/definitions.py", "L2_FLOOR = 1e-6"),
    ("drop rates 0.2, 0.6 and 0.95", "docs/figures.py", "(0.0, 0.2, 0.6, 0.95)"),
    ("inside the interval of 80 %", "benchmarks/toa_bench/user_tables.py", "LEVEL = 0.8\n"),
    ("binomial band of 99 %", "benchmarks/toa_bench/user_tables.py", "_BAND = 0.01\n"),
    ("four times that of the model", "src/toa/estimators/pretrained_forecasts.py", "_MOST_PASSES = 4\n"),
    ("main season has 24 steps", "benchmarks/pretrain-cpu.toml", "season_steps = 24\n"),
    (
        "Quantiles lie between 0.1 and 0.9",
        "src/toa/models/pretrained.py",
        "(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)",
    ),
    ("at most 40 series", "src/toa/report/pages/parts.py", "SERIES = 40\n"),
    ("20 % of TRAIN held out", "src/toa/data/classification.py", "VALIDATION_SHARE = 0.2"),
    ("20 % of TRAIN per class", "src/toa/data/classification.py", "VALIDATION_SHARE = 0.2"),
    ("fewer than 60 training cases", "src/toa/data/classification.py", "FOLDS_BELOW = 60"),
    ("PatchTST 512, iTransformer and DUET 96", "src/toa/experiments/protocols/forecast/toa-paper.toml", "patchtst-512"),
    ("fewer than 20,000 training windows", "src/toa/experiments/protocols/forecast/toa.toml", "small_below = 20000"),
    ("100 times its size", "src/toa/_limits.py", "_UNPACKED_RATIO = 100"),
    ("at least 256 MiB", "src/toa/_limits.py", "_UNPACKED_BYTES = 256 << 20"),
    ("a download has 8 GiB", "src/toa/_limits.py", "total_bytes: int = 8 << 30"),
    ("20,000 files and 1,000 kills", "tests/campaign/__main__.py", "default=20_000"),
    ("dense up to 100 channels", "src/toa/models/two_axis.py", "MOST_DENSE_CHANNELS = 100"),
    ("a matrix of rank 16", "src/toa/nn/operator.py", "rank: int = 16"),
    ("reads them times 0.1", "src/toa/models/heads.py", "_TOKEN_SCALE = 0.1"),
    ("16 and 16 by default", "src/toa/models/two_axis.py", "patch_len: int = 16\n    stride: int = 16"),
    ("find with probability 0.8", "src/toa/report/gains.py", "POWER = 0.8"),
    ("a buffer of 100 rows", "benchmarks/toa_bench/tsb_ad.py", "BUFFER = 100"),
    (
        "2 layers of width 256",
        "src/toa/experiments/protocols/forecast/toa-wide.toml",
        "num_layers = 2, embed_dim = 256, ff_dim = 256, num_heads = 8",
    ),
    (
        "4 layers of width 512",
        "src/toa/experiments/protocols/forecast/toa-wide.toml",
        "num_layers = 4, embed_dim = 512, ff_dim = 512",
    ),
    ("8 heads (4 above 200", "src/toa/experiments/protocols/forecast/toa-wide.toml", "model = { num_heads = 4 }"),
    ("dropout 0.1, AdamW", "src/toa/experiments/protocols/forecast/toa-wide.toml", "dropout = 0.1"),
    ("20 epochs, patience 5", "src/toa/experiments/protocols/forecast/toa-wide.toml", "epochs = 20,"),
    ("at most 256 batches of 32 windows", "src/toa/experiments/protocols/forecast/toa-wide.toml", "epoch_steps = 256"),
    ("128 batches for China-Temperature", "src/toa/experiments/protocols/forecast/toa-wide.toml", "epoch_steps = 128"),
    (
        "fewer than 1,000 training windows have batches of 16 and\n30 epochs",
        "src/toa/experiments/protocols/forecast/toa-wide.toml",
        "training = { epochs = 30 }",
    ),
    ("value beyond 10 counts as 10", "src/toa/experiments/protocols/forecast/toa-wide.toml", "clip = 10.0"),
    ("fill value 32766", "src/toa/data/catalogues/forecasting.toml", "missing_value = 32766"),
    ("learning rate 3e-4 and 1e-3, each", "benchmarks/wide.toml", "rates = [3e-4, 1e-3]"),
    ("2e-3 if 1e-3 was better", "benchmarks/wide.toml", "higher = [2e-3, 4e-3]"),
    ("1e-4 if 3e-4 was", "benchmarks/wide.toml", "lower = [1e-4, 3e-5]"),
    ("(4e-3 or 3e-5); otherwise 5e-4", "benchmarks/wide.toml", "between = 5e-4"),
    ("with seed 2030", "benchmarks/wide.toml", "tuning_seed = 2030"),
    ("seeds 2024,\n2025 and 2026", "benchmarks/wide.toml", "seeds = [2024, 2025, 2026]"),
    ("between 4 and\n730 steps", "src/toa/data/synthetic/draws.py", "SHORTEST_PERIOD = 4\nLONGEST_PERIOD = 730"),
    ("fewer than 300,000 weights", "tests/models/test_two_axis.py", "< 300_000"),
    ("for 50 held-out rows or more", "src/toa/estimators/thresholds.py", "_LEAST_HELD = 50"),
)
# phrases with numbers that nothing measured: names, examples, arithmetic of the sentence itself
NAMES = {
    "name of a task or a setting": (r"horizons? [\d, ]+(?:and \d+)?", r"look-back 512", "horizon-96", r"seed 2024"),
    "number of an entry of a list": (r"^[3-9]\. ",),
    "name of a document or a commit": (
        r"4e938a1\w+",
        r"868d1413032f",
        r"\b(?=\d*[a-f])[\da-f]{7}\b",
        r"arXiv:2605\.11287",
        r"arXiv:2602\.12601",
        r"Apache-2\.0",
    ),
    "example": (r"01/02/2015", r"1\.234 beside 1,5", r"at most 12 rows", r"About 80 %", "log 1000"),
    "the paper's setting": (r"ratio 0\.2",),
    "rule of a decision, which is fixed before its runs": (
        r"\*\*Split\*\* 6:2:2",
        r"With 7:1:2",
        r"at least 3 % below",
        r"at least 1 % below",
        r"p < 0\.01",
        r"its 95 % interval",
        r"-9999",
    ),
    "counted on the page": (r"^\| (?:softmax|ReLU|Gated) .*(?:W V|S1, S2).*$", r"8 d²", r"6 d²", r"8 / 6"),
    "arithmetic": (
        r"three times the products",
        r"ten times as large",
        r"a thousand times",
        r"0\.25 · 6 / 672 = 0\.00223",
    ),
    "name of a data set or a model": (r"SMD(?:-machine-|-| )1-6", r"TimesFM-2\.5"),
    "another library's own statement": (r"limits its header to 100 MB",),
}
WORDS = "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|sixteen|twenty"
UNITS = "times|percent|points|minutes|seconds|hours"
# 0, 1 and 2 are parts of formulas and lists, except in a share
NUMBER = re.compile(
    rf"(?<![\w.])(?!(?:[012](?![\d.,]\d|\d|e-?\d| %| of \d)))\d+(?:[,.]\d+)*(?:e[-+]?\d+)?"
    rf"|\b(?:{WORDS})(?= of (?:the )?(?:{WORDS})\b| (?:{UNITS})\b)",
)


def text_of(page: str) -> str:
    """A page without what is generated, code, addresses and comments."""
    for cut in (
        r"<!-- (?:generated|value): .*?<!-- end -->",
        r"^```.*?^```$",
        r"^(?: {4,}\S.*\n)+",
        r"(?<=\])\([^)]*\)",
        r"<!--.*?-->",
    ):
        page = re.sub(cut, "", page, flags=re.DOTALL | re.MULTILINE if "```" in cut or "<!" in cut else re.MULTILINE)
    return page


def typed_numbers(page: str) -> list[str]:
    """Numbers of a page that are neither generated nor constants, each with the words around it."""
    text = text_of(page)
    for phrase in (*(re.escape(phrase) for phrase, _, _ in CHECKED), *(p for found in NAMES.values() for p in found)):
        text = re.sub(phrase, "", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`", "`", text)
    return [
        f"{m[0]} in {' '.join(text[max(0, m.start() - 30) : m.end() + 20].split())!r}" for m in NUMBER.finditer(text)
    ]


@pytest.mark.parametrize("page", TEXTS)
def test_a_number_on_a_page_comes_from_a_record_or_is_a_named_constant(page):
    found = typed_numbers((ROOT / page).read_text(encoding="utf-8"))
    assert found == [], "make it a value (docs/page_values.py), drop it, or name it in CHECKED or NAMES"


def test_every_constant_is_on_a_page_and_in_the_code():
    text = "\n".join(text_of((ROOT / page).read_text(encoding="utf-8")) for page in TEXTS)
    for phrase, file, code in CHECKED:
        assert phrase in text, f"no page has {phrase!r}: remove it from the list"
        assert code in (ROOT / file).read_text(encoding="utf-8"), f"{file} has no {code!r}: change {phrase!r}"
    for phrase in (phrase for found in NAMES.values() for phrase in found):
        assert re.search(phrase, text, flags=re.MULTILINE), f"no page has {phrase!r}: remove it from the list"
    names = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
    assert f"{names[len(list(BACKBONES)) - 2]} backbones" in text


def test_every_page_with_a_marker_is_made():
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in TEXTS}
    marked = {page for page, text in texts.items() if re.search("<!-- (generated|value): ", text)}
    assert marked == set(WITH_NUMBERS)


def test_every_value_is_on_a_page():
    text = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in TEXTS)
    assert {name for name in page_values.VALUES if f"<!-- value: {name} -->" not in text} == set()


@pytest.mark.parametrize(
    ("sentence", "found"),
    [
        ("It is 0.523 better.", ["0.523"]),
        ("It takes 3 minutes.", ["3"]),
        ("better on four of the six sets", ["four"]),
        ("1.005 times and 2 %", ["1.005", "2"]),
        ("the 61st epoch, to 1e-5", ["61", "1e-5"]),
        ("| a | 17,000 |", ["17,000"]),
        ("O = S1 with M = 0, see `x=5` and [a](b-7.md)", []),
        ("<!-- value: a -->0.5<!-- end --> at horizon 96\n\n    code 5\n\n```text\n7\n```\n", []),
    ],
)
def test_typed_numbers_are_found(sentence, found):
    assert [number.split()[0] for number in typed_numbers(sentence)] == found

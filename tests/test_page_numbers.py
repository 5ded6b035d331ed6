"""No claim without a record: a number in the text of a page is made from records, or is a constant named here."""

import re

import pytest

import page_values
from tests.support import ROOT
from toa.models import BACKBONES

PAGES = ("README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")))

# phrases of pages with constants of the code: the phrase, a file, and what the file must contain
CHECKED = (
    ("1e-12 in float64 and 1e-6 in float32", "tests/ops/test_sequences.py", "1e-12), (torch.float32, 1e-6)"),
    ("to 1e-12 in float64", "tests/support.py", "tolerance: float = 1e-12"),
    ("softmax is `nn.MultiheadAttention` to 1e-12", "tests/support.py", "tolerance: float = 1e-12"),
    ("other outputs: to 1e-12", "tests/support.py", "tolerance: float = 1e-12"),
    ("at a time, to 1e-12", "tests/support.py", "tolerance: float = 1e-12"),
    ("reference to 1e-10", "tests/ops/test_contract.py", "1e-10"),
    ("to 1e-5 in float32", "tests/ops/test_contract.py", "1e-5"),
    ("sqrt(‖s‖² + 1e-6)", "src/toa/ops/attention/definitions.py", "L2_FLOOR = 1e-6"),
    ("drop rates 0.2, 0.6 and 0.95", "docs/figures.py", "(0.0, 0.2, 0.6, 0.95)"),
    ("at most 40 series", "src/toa/estimators/page_parts.py", "SERIES, VALUES, COLUMNS_ON = 40,"),
    ("20 % of TRAIN held out", "src/toa/data/classification.py", "VALIDATION_SHARE = 0.2"),
    ("20 % of TRAIN per class", "src/toa/data/classification.py", "VALIDATION_SHARE = 0.2"),
    ("fewer than 60 training cases", "src/toa/data/classification.py", "FOLDS_BELOW = 60"),
    ("more than 32 GiB", "results/performance/operator_attention.json", '"budget": 32.0'),
    ("20 epochs on ETTm", "src/toa/experiments/protocols/forecast/toa-paper.toml", "epochs = 20, patience = 10"),
    ("10 on Weather, patience 10", "src/toa/experiments/protocols/forecast/toa-paper.toml", "epochs = 10, schedule"),
    ("the authors' 100", "src/toa/experiments/protocols/forecast/patchtst-336.toml", "epochs = 100"),
    ("1e-2", "src/toa/experiments/protocols/forecast/toa-paper.toml", "weight_decay = 0.01"),
    ("1e-4; DUET 5e-4", "src/toa/experiments/protocols/forecast/toa-paper.toml", "learning rate 1e-4 unless"),
    ("5e-4 on ECL and Solar", "src/toa/experiments/protocols/forecast/itransformer-96.toml", "learning_rate = 5e-4"),
    ("1e-3 on Traffic", "src/toa/experiments/protocols/forecast/itransformer-96.toml", "learning_rate = 1e-3"),
    ("PatchTST 512, iTransformer and DUET 96", "src/toa/experiments/protocols/forecast/toa-paper.toml", "patchtst-512"),
    ("fewer than 20,000 training windows", "src/toa/experiments/protocols/forecast/toa.toml", "small_below = 20000"),
    ("100 times its size", "src/toa/_limits.py", "_UNPACKED_RATIO = 100"),
    ("at least 256 MiB", "src/toa/_limits.py", "_UNPACKED_BYTES = 256 << 20"),
    ("a download has 8 GiB", "src/toa/_limits.py", "DOWNLOAD_BYTES = 8 << 30"),
    ("20,000 files and 1,000 kills", "tests/campaign/__main__.py", "default=20_000"),
    ("dense up to 100 channels", "src/toa/models/two_axis.py", "MOST_DENSE_CHANNELS = 100"),
    ("a matrix of rank 16", "src/toa/nn/operator.py", "rank: int = 16"),
    ("reads them times 0.1", "src/toa/models/heads.py", "_TOKEN_SCALE = 0.1, 0.1"),
    ("16 and 16 by default", "src/toa/models/two_axis.py", "patch_len: int = 16\n    stride: int = 16"),
    ("fewer than 300,000 weights", "tests/models/test_two_axis.py", "< 300_000"),
)
# phrases with numbers that nothing measured: names, examples, arithmetic of the sentence itself
NAMES = {
    "name of a task or a setting": (r"horizons? [\d, ]+(?:and \d+)?", r"look-back 512", "horizon-96", r"seed 2024"),
    "name of a document or a commit": (r"4e938a1\w+", r"arXiv:2605\.11287", r"Apache-2\.0"),
    "example": (r"01/02/2015", r"at most 12 rows", r"About 80 %", "log 1000"),
    "the paper's setting": (r"ratio 0\.2",),
    "counted on the page": (r"^\| (?:softmax|ReLU|Gated) .*(?:W V|S1, S2).*$", r"8 d²", r"6 d²", r"8 / 6"),
    "arithmetic": (r"ten times as large", r"a thousand times"),
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


@pytest.mark.parametrize("page", PAGES)
def test_a_number_on_a_page_comes_from_a_record_or_is_a_named_constant(page):
    assert typed_numbers((ROOT / page).read_text(encoding="utf-8")) == []


def test_every_constant_is_on_a_page_and_in_the_code():
    text = "\n".join(text_of((ROOT / page).read_text(encoding="utf-8")) for page in PAGES)
    for phrase, file, code in CHECKED:
        assert phrase in text, f"no page has {phrase!r}: remove it from the list"
        assert code in (ROOT / file).read_text(encoding="utf-8"), f"{file} has no {code!r}: change {phrase!r}"
    for phrase in (phrase for found in NAMES.values() for phrase in found):
        assert re.search(phrase, text, flags=re.MULTILINE), f"no page has {phrase!r}: remove it from the list"
    names = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
    assert f"{names[len(list(BACKBONES)) - 2]} backbones" in text


def test_every_value_is_on_a_page():
    text = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "results").rglob("README.md"))
    text += "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    assert {name for name in page_values.all_values() if f"<!-- value: {name} -->" not in text} == set()


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

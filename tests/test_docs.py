import contextlib
import functools
import io
import os
import pkgutil
import re
import runpy
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import typer

import toa
from tests.support import ROOT, load_script
from tests.test_documented_commands import leaf_commands
from toa.cli import app
from toa.cli.plugins import subcommands

EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))


pages = load_script("docs/pages.py")


def run(name: str, folder: Path) -> dict[str, Any]:
    """Run a script in a folder; return its names and what it prints."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.chdir(folder)
        names = runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    return {**names, "folder": folder, "printed": printed.getvalue()}


def check_own_csv(names: dict[str, Any]) -> None:
    """The table is forecast better than by the day before."""
    table = names["table"]
    for column, errors in names["result"].by_column.items():
        naive = (table[column] - table[column].shift(24)).tail(7 * 24).abs().mean()
        assert errors["mae"] < 0.75 * naive
    assert 0.7 < names["result"].metrics["coverage"] < 0.95
    assert list(names["forecast"]["time"]) == list(names["day"]["time"])
    for baseline in ("seasonal naive", "drift", "theta", "damped trend"):
        assert re.search(rf"(?m)^{baseline} +\d", names["printed"])
        assert re.search(rf"(?m)^(beats|loses to) {baseline} on ", names["printed"])
    assert {path.name for path in names["folder"].iterdir()} == {"shop.csv", "shop.toa", "forecast.png"}


def check_drop_in_layer(names: dict[str, Any]) -> None:
    """The layer learns what one softmax head cannot."""
    assert names["toa_error"] < 0.01
    # x[t] alone, without x[t-1], leaves half of the variance
    assert names["softmax_error"] > 0.5
    assert names["mixing"](names["toa_model"]).min() < -0.5
    assert names["mixing"](names["softmax_model"]).min() >= 0
    assert (names["folder"] / "weights.png").exists()


def check_converting(names: dict[str, Any]) -> None:
    """The converted model keeps its outputs and improves."""
    assert names["difference"] < 1e-5
    assert len(names["report"].replaced) == 2
    assert names["after"] < names["before"]
    assert names["after"] < names["unconverted"]


def check_reading_operators(names: dict[str, Any]) -> None:
    """The operators that are read have learned."""
    assert names["errors"]["mse"] < 0.9 * names["config"].signals.noise ** 2
    assert len(names["rows"]) == 2 * 2  # operators, heads
    assert {path.name for path in names["folder"].glob("*.png")} == {"s2.png", "w_mix.png"}


def check_detecting(names: dict[str, Any]) -> None:
    """The two faults are the most severe events, named by their channels, and the combination is beside baselines."""
    faults = {"temperature": (660, 671), "pressure": (750, 779)}
    time = names["time"]
    events = names["events"].head(2).set_index("channel")
    assert set(events.index) == faults.keys()
    # an event holds its fault and at most a window of 24 rows beside it, because windows with a fault are scored
    for channel, (first, last) in faults.items():
        assert time[first - 24] <= events["start"][channel] <= time[first]
        assert time[last] <= events["end"][channel] <= time[min(last + 24, 799)]
    assert names["alarms"].index(True) in (10, 11, 12)
    for method in ("toa", "pca", "z-score", "combination"):
        assert re.search(rf"(?m)^{method} +\d\.\d\d", names["printed"])


def check_classifying(names: dict[str, Any]) -> None:
    """The classifier knows new cases, better than the baselines."""
    assert names["accuracy"] > 0.9
    shown = names["classifier"].stack_.accuracies
    assert shown["stack"] > max(shown["1-NN"], shown["most frequent class"])


CHECKS = {
    "own_csv": check_own_csv,
    "drop_in_layer": check_drop_in_layer,
    "converting": check_converting,
    "reading_operators": check_reading_operators,
    "detecting": check_detecting,
    "classifying": check_classifying,
}
# they train longest; `make docs` runs them too. `toa.convert`, `toa explain`, both estimators and the quickstart have
# tests of their own
LONG = ("classifying", "converting", "detecting", "own_csv", "reading_operators")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in EXAMPLES]
)
def test_the_script_runs_and_finds_what_it_claims(name, tmp_path) -> None:
    names = run(name, tmp_path)
    assert any(character.isdigit() for character in names["printed"])
    CHECKS[name](names)


def test_markdown_in_docstrings_survives_sphinx() -> None:
    lines = ["a `b*c_` d* e_ |f|", "", "    y = a * b", "", "| x | y |", "| - | - |", "", "After."]
    assert pages.restructured(lines) == [
        r"a `b*c_` d\* e\_ \|f\|",
        "",
        "::",
        "",
        "    y = a * b",
        "",
        "    | x | y |",
        "    | - | - |",
        "",
        "After.",
    ]


@pytest.mark.parametrize(
    ("source", "place", "link", "there"),
    [
        ("docs/recipe.md", "recipe.md", "[a](concept.md#x)", "[a](concept.md#x)"),
        ("docs/recipe.md", "recipe.md", "[a](../results/README.md)", "[a](results/index.md)"),
        ("docs/howto/gpu.md", "howto/gpu.md", "[a](../../CONTRIBUTING.md)", "[a](../project/contributing.md)"),
        ("results/README.md", "results/index.md", "[a](../docs/recipe.md)", "[a](../recipe.md)"),
        ("results/search/README.md", "results/search/index.md", "[a](../tables/duet.md)", "[a](../tables/duet.md)"),
        # records are downloads, folders have no page
        ("results/README.md", "results/index.md", "[`a`](repeats.json)", "[`a`](../../results/repeats.json)"),
        ("docs/recipe.md", "recipe.md", "[a](../benchmarks)", "a"),
        ("README.md", "index.md", "[a](examples)", "[a](tutorials/index.rst)"),
        # code and other sites stay
        ("docs/recipe.md", "recipe.md", "`[a](b.md)` [c](https://d.org)", "`[a](b.md)` [c](https://d.org)"),
        ("docs/concept.md", "concept.md", "![a](images/sor.png)", "![a](images/sor.png)"),
    ],
)
def test_a_link_leads_from_the_place_of_its_page_on_the_site(source, place, link, there) -> None:
    assert pages.relinked(f"x {link} y", source, place) == f"x {there} y"


def test_every_link_to_a_page_leads_to_one_of_the_site() -> None:
    documents = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    written = {f"docs/{path}": path.as_posix() for path in documents if path.parts[0] not in pages.MADE}
    places = written | pages.copies()
    for source, place in places.items():
        text = pages.relinked((ROOT / source).read_text(encoding="utf-8"), source, place)
        for match in pages.LINK.finditer(text):
            if match["code"] or not match["file"].endswith(".md"):
                continue
            there = os.path.normpath(Path(place).parent / match["file"])
            assert there in places.values() or there.split("/")[0] in pages.MADE, f"{source}: {match[0]}"


def test_the_front_page_has_the_sections_of_the_readme() -> None:
    text = pages.with_readme((ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    assert "<!-- README" not in text
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == ["Install", "Quickstart", "The layer in a model", "What next?"]
    assert "toa.Forecaster(horizon=24" in text


@pytest.mark.parametrize("package", pages.USES)
def test_a_page_of_the_api_begins_with_what_one_would_use(package) -> None:
    table = pages.uses_table(package)
    text = pages.api_page(package)
    assert "\n".join(table) in text.split("```{eval-rst}")[0]
    for _, names in pages.USES[package]:
        assert set(names) <= set(pages.public_names(package))


def test_every_page_of_results_is_in_a_table_of_contents() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^(results/[\w/-]+)$", index, re.MULTILINE)
    places = {place.removesuffix(".md") for place in pages.copies().values() if place.startswith("results/")}
    assert set(listed) == {place for place in places if place == "results/tables/index" or "/tables/" not in place}


def test_the_map_of_the_code_names_what_exists() -> None:
    text = (ROOT / "docs" / "howto" / "code.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+\?) \| `([^`]+)` \| ([^|]+) \|$", text, re.MULTILINE)
    assert len(rows) >= 12
    for _, file, there in rows:
        source = (ROOT / file).read_text(encoding="utf-8")
        for word in re.findall(r"`([^`]+)`", there):
            if "/" in word:
                assert (ROOT / word).exists(), word
            else:
                assert re.search(rf"^(def |class |){re.escape(word)}\b", source, re.MULTILINE), f"{file}: {word}"
    asked = " ".join(question for question, _, _ in rows)
    for words in (
        "forecasts weighted",
        "a CSV read",
        "add a forecasting method",
        "CUDA graph",
        "numbers of the README",
    ):
        assert words in asked


class LinksOfPage(HTMLParser):
    """Addresses and names of the places in a page of the site."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.places |= {place for place in (values.get("id"), values.get("name")) if place}
        self.links += [link for link in (values.get("href"), values.get("src")) if link]


def broken_links(site: Path) -> list[str]:
    """Links between the pages of a site that lead nowhere."""
    read: dict[Path, LinksOfPage] = {}
    for path in site.rglob("*.html"):
        # downloads are files of the repository
        if "_downloads" not in path.parts:
            read[path.resolve()] = LinksOfPage()
            read[path.resolve()].feed(path.read_text(encoding="utf-8"))
    broken = []
    for path, page in read.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            place = unquote(parts.fragment)
            if not target.exists() or (place and target in read and place not in read[target].places):
                broken.append(f"{path.relative_to(site.resolve())}: {link}")
    return broken


def test_broken_links_of_a_site_are_found(tmp_path) -> None:
    (tmp_path / "a.html").write_text(
        '<p id="x"><a href="b.html#y">y</a> <a href="#x">x</a> <a href="https://c.org">c</a>'
    )
    (tmp_path / "b.html").write_text('<p id="z"><a href="a.html#x">x</a> <img src="no.png"> <a href="a.html#no">no</a>')
    assert sorted(broken_links(tmp_path)) == ["a.html: b.html#y", "b.html: a.html#no", "b.html: no.png"]


@pytest.mark.parametrize("package", pages.PACKAGES)
def test_the_api_page_has_every_public_name_of_a_package(package) -> None:
    text = pages.api_page(package)
    names = pages.public_names(package)
    assert names
    for name in names:
        assert re.search(rf"(:: {re.escape(package)}\.{name}$|^- `{name}`: )", text, re.MULTILINE), name


def test_every_package_has_an_api_page() -> None:
    packages = {module.name for module in pkgutil.iter_modules(toa.__path__, "toa.") if module.ispkg}
    # the estimators are names of toa itself, and the commands have a page of their own
    assert packages - set(pages.PACKAGES) == {"toa.cli", "toa.estimators"}
    assert set(toa.estimators.__all__) <= set(pages.public_names("toa"))


def test_the_command_page_has_every_option() -> None:
    text = pages.command_page()
    sections = dict(re.findall(r"^## `(toa[^`]*)`\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    for name, command in leaf_commands(typer.main.get_command(app)):
        if subcommands(command):
            continue
        words = [word for parameter in command.params for word in (*parameter.opts, *parameter.secondary_opts)]
        options = [word for word in words if word.startswith("-")]
        assert [word for word in options if f"`{word}`" not in sections[name]] == [], name


def test_the_names_page_has_every_registered_name() -> None:
    named = set(re.findall(r"`([^`]+)`", pages.names_page()))
    assert {name for _, names in pages.registries().values() for name in names} <= named
    assert {"patchtst", "dlinear", "toa-gated", "hyperglu", "rms", "toa-paper", "strict", "ETTh1", "triton"} <= named


HOW_TOS = sorted(path.stem for path in (ROOT / "docs" / "howto").glob("*.md"))
# they train a network for long; in the quick tests there is no time for it
TRAINING = ("covariates", "intervals")
# what they show has quick tests of its own
LONG_HOW_TOS = ("alarms", "libraries", "pages")


@pytest.mark.parametrize(
    ("page", "limit"),
    [
        *((page, {"effort": "least"} if page in TRAINING else {}) for page in HOW_TOS if page not in LONG_HOW_TOS),
        *(pytest.param(page, {}, marks=pytest.mark.slow) for page in (*TRAINING, *LONG_HOW_TOS)),
    ],
)
def test_the_code_of_a_how_to_runs(page, limit, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    if limit:
        monkeypatch.setattr(toa, "Forecaster", functools.partial(toa.Forecaster, **limit))
    text = (ROOT / "docs" / "howto" / f"{page}.md").read_text(encoding="utf-8")
    assert f"\nhowto/{page}\n" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            exec(code, names)
    if page == "covariates":
        # 35 with a promotion, 20 without: the future promotions decide
        high = names["forecast"]["sales"][names["ahead"]["promotion"].to_numpy() == 1]
        assert high.mean() > 27 > names["forecast"]["sales"].min()
    if page == "alarms":
        assert names["events"]["channel"][0] == "heat"
    if page == "intervals":
        assert 0.6 < names["coverage"] < 1.0


def test_every_tutorial_is_on_the_front_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    assert [name for name in EXAMPLES if f"(tutorials/{name}.rst)" not in index] == []
    assert sorted(pages.TUTORIALS) == EXAMPLES


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path) -> None:
    pytest.importorskip("sphinx", reason="sphinx is not installed; it comes with toa[docs]")
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", str(ROOT / "docs"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for page in ("index", "concept", "howto/gpu", "tutorials/reading_operators", "reference/commands", "api/toa.nn"):
        assert (tmp_path / f"{page}.html").exists(), page
    assert broken_links(tmp_path) == []
    # formulas need neither a script nor the network
    concept = (tmp_path / "concept.html").read_text(encoding="utf-8")
    assert concept.count("<math") > 5
    assert not any("http" in link for link in re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"([^\"]+)", concept))
    tutorial = (tmp_path / "tutorials" / "reading_operators.html").read_text()
    assert "mean squared error 0." in tutorial
    assert tutorial.count("sphx_glr_reading_operators_00") >= 2

import contextlib
import functools
import io
import re

import toa
from tests.support import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]
PRINTED = [text for language, text in BLOCKS if language == "text"]


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 110


def test_the_first_commands_install_show_and_test():
    commands = re.findall(r"^(pip install|make \w+)", README, flags=re.MULTILINE)
    assert commands[:3] == ["pip install", "make demo", "make test"]


def run_quickstart() -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(PYTHON[0], {})
    return printed.getvalue()


def words(text: str) -> list[str]:
    return re.sub(r"\d+", "#", text).split()


def test_the_quickstart_runs_and_prints_the_words_of_the_readme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(toa, "Forecaster", functools.partial(toa.Forecaster, epochs=1))
    assert len(PYTHON[0].strip().splitlines()) <= 11
    assert words(run_quickstart()) == words(PRINTED[0])


def test_the_layer_example_gives_signed_weights():
    names: dict[str, object] = {}
    exec(PYTHON[1], names)
    assert tuple(names["w_mix"].shape) == (8, 4, 96, 96)  # type: ignore[attr-defined]
    assert names["w_mix"].min() < 0  # type: ignore[attr-defined]


def test_every_local_link_leads_somewhere():
    for page in (ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/howto/*.md")):
        links = re.findall(r"\]\(((?!http)[^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        for link in links:
            made = "tutorials/" in link or "reference/" in link
            assert made or (page.parent / link).exists(), f"{page.name}: {link}"

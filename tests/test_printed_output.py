"""Printed output on a page is what the code above it prints, up to digits that differ between machines."""

import re

import pytest

import printed_output
from tests.support import ROOT, message

PAGE = """\
Text.

```python
print("a", {number})
```

Digits vary between machines:

<!-- printed -->
```text
a 1.00
```
<!-- end -->

More.
"""


def test_output_is_written_below_its_code_and_the_rest_is_kept():
    page = PAGE.format(number="1 + 1.25")
    assert printed_output.rendered(page) == page.replace("a 1.00", "a 2.25")


def test_a_page_is_checked_and_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(printed_output, "ROOT", tmp_path)
    monkeypatch.setattr(printed_output, "pages", lambda: [tmp_path / "page.md"])
    page = PAGE.format(number="1.5")
    (tmp_path / "page.md").write_text(page)
    assert printed_output.main(["--check"]) == 1
    assert "page.md: 1.00 on the page, 1.5 printed" in capsys.readouterr().err
    assert (tmp_path / "page.md").read_text() == page
    assert printed_output.main([]) == 0
    assert (tmp_path / "page.md").read_text() == page.replace("a 1.00", "a 1.5")
    assert printed_output.main(["--check"]) == 0


@pytest.mark.parametrize(
    ("shown", "printed", "close"),
    [
        ("41.5", "41.3", True),
        ("41.5", "45.0", False),
        ("84%", "88%", True),
        ("84%", "90%", False),
        # one unit of the last digit
        ("0.02;", "0.03;", True),
        ("0.02;", "0.04;", False),
        ("-0.50", "0.50", False),
        # whole numbers, dates and words are equal
        ("3", "4", False),
        ("2026-04-04", "2026-04-05", False),
        ("16:00:00", "16:00:01", False),
        ("0.50;", "0.50", False),
        ("a 0.50", "a 0.50 b", False),
    ],
)
def test_numbers_may_differ_as_between_machines_and_words_may_not(shown, printed, close):
    assert (printed_output.differences(shown, printed) == []) is close


def test_a_mark_without_code_raises():
    with pytest.raises(ValueError, match=message("must have a block of Python code above it", "1 marks and 0 blocks")):
        printed_output.rendered("<!-- printed -->\n<!-- end -->")


def test_code_that_fails_raises():
    with pytest.raises(
        RuntimeError, match="(?s)" + message("the code of a page must run", "ZeroDivisionError", "print")
    ):
        printed_output.rendered(PAGE.format(number="1 / 0"))


PAGES = printed_output.pages()


def test_pages_with_output_say_that_digits_vary():
    assert ROOT / "README.md" in PAGES
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        printed_output.check_marks(text, len(printed_output.BLOCK.findall(text)))
        assert re.search("[Dd]igits vary between machines", text), path


def test_no_other_page_has_output_of_code():
    """A block of text directly below code is output, which must be marked."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "howto").glob("*.md")]
    pasted = r"```python\n[^`]*```\n\s*```text"
    assert [path.name for path in pages if re.search(pasted, path.read_text(encoding="utf-8"))] == []


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_shows_what_its_code_prints(path):
    page = path.read_text(encoding="utf-8")
    assert printed_output.differences(page, printed_output.rendered(page)) == [], "run `make printed`"

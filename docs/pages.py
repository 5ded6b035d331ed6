"""The pages that are not written by hand: the tutorials of examples/, and the API of docstrings."""

import ast
import contextlib
import io
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import toa

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "toa"
TUTORIALS = ("own_csv", "drop_in_layer", "converting", "reading_operators")
# in the order of imports
ROOMS = ("ops", "nn", "models", "data", "tasks", "theory", "experiments", "report", "estimators", "integrations")


def write_pages(folder: Path) -> None:
    """Write all of them below `folder`; a page that says what it said is left alone, so that it is not built anew."""
    pages: dict[str, str | bytes] = {f"api/{name}.md": api_page(name, mods) for name, mods in api_pages().items()}
    for name in TUTORIALS:
        made = run_tutorial(ROOT / "examples" / f"{name}.py")
        pages |= {f"tutorials/{path}": content for path, content in made.items()}
    for path, content in pages.items():
        target = folder / path
        target.parent.mkdir(exist_ok=True)
        data = content.encode() if isinstance(content, str) else content
        if not target.exists() or target.read_bytes() != data:
            target.write_bytes(data)


def api_pages() -> dict[str, list[str]]:
    """Page to the public modules on it: one for the package itself, one a room, one for the commands."""
    pages = {"toa": ["toa"]}
    for room in ROOMS:
        pages[f"toa.{room}"] = list(_modules(PACKAGE / room))
    pages["toa.cli"] = list(_modules(PACKAGE / "cli"))
    return pages


def _modules(folder: Path) -> Iterator[str]:
    """Names of the public modules of a package, its own first."""
    name = ".".join(("toa", *folder.relative_to(PACKAGE).parts))
    yield name
    for path in sorted(folder.iterdir()):
        if path.name.startswith("_"):
            continue
        if path.suffix == ".py":
            yield f"{name}.{path.stem}"
        elif (path / "__init__.py").exists():
            yield from _modules(path)


def api_page(page: str, modules: list[str]) -> str:
    """A page of modules: what a package offers under its own name first, then each name where it is defined."""
    lines = [f"# `{page}`", ""]
    for module in modules:
        # commands tell about themselves: toa COMMAND --help
        members = [] if module == page or module.startswith("toa.cli") else ["   :members:"]
        heading = [] if module == page else [f"## `{module}`", ""]
        lines += [*heading, "```{eval-rst}", f".. automodule:: {module}", *members, "```", ""]
        if module == page and page != "toa.cli":
            lines += [*_exports(module), ""]
    return "\n".join(lines)


def _exports(module: str) -> Iterator[str]:
    """The names that a package offers as its own, each with a link to where it is described."""
    if module == "toa":
        # these it loads on first use
        for name in toa.__all__:
            thing = getattr(toa, name)
            if isinstance(thing, ModuleType):
                yield f"- {{py:mod}}`{thing.__name__}`"
            elif not isinstance(thing, str):
                yield f"- {{py:obj}}`toa.{name} <{thing.__module__}.{name}>`"
        return
    tree = ast.parse((PACKAGE / Path(*module.split(".")[1:]) / "__init__.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("toa."):
            names = sorted((alias.name for alias in node.names), key=str.lower)
            yield f"- {{py:mod}}`{node.module}`: " + ", ".join(f"{{py:obj}}`~{node.module}.{name}`" for name in names)


def run_tutorial(script: Path) -> dict[str, str | bytes]:
    """The page of a script, and its pictures: what it says, its code, and what that prints and draws when run."""
    made: dict[str, str | bytes] = {}
    page: list[str] = []
    names: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, _inside(folder):
        for kind, text in cells(script.read_text()):
            if kind == "prose":
                page += [text, ""]
                continue
            page += ["```python", text, "```", ""]
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(text, str(script), "exec"), names)
            if printed.getvalue():
                page += ["```text", printed.getvalue().rstrip(), "```", ""]
            for picture in sorted(Path(folder).rglob("*.png")):
                made[f"{script.stem}-{picture.name}"] = picture.read_bytes()
                page += [f"![{picture.stem}]({script.stem}-{picture.name})", ""]
                picture.unlink()
    page += [f"The script is `examples/{script.name}`.", ""]
    return {f"{script.stem}.md": "\n".join(page), **made}


def cells(source: str) -> list[tuple[str, str]]:
    """A script as prose and code in turn: its docstring, and comments that stand by themselves, are prose."""
    docstring = ast.get_docstring(ast.parse(source))
    assert docstring is not None, "a tutorial starts with a docstring: its title, and what it is about"
    title, _, about = docstring.partition("\n")
    parts = [("prose", f"# {title.rstrip('.')}\n{about}".rstrip())]
    # blocks, and the blank lines between them
    pieces = re.split(r"(\n{2,})", source.split('"""', 2)[2].strip("\n"))
    for gap, block in zip(["", *pieces[1::2]], pieces[::2], strict=True):
        lines = block.split("\n")
        if all(line.startswith("#") for line in lines):
            parts.append(("prose", "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines)))
        elif parts[-1][0] == "code":
            parts[-1] = ("code", f"{parts[-1][1]}{gap}{block}")
        else:
            parts.append(("code", block))
    return parts


def restructured(lines: list[str]) -> list[str]:
    """A docstring, which is Markdown, as reStructuredText; tables and formulas are set as they are written."""
    out: list[str] = []
    verbatim = False
    for number, line in enumerate(lines):
        as_is = line.startswith(("|", "    "))
        if as_is and not verbatim and (number == 0 or not lines[number - 1].strip()):
            out += ["::", ""]
            verbatim = True
        elif line.strip() and not as_is:
            verbatim = False
        if verbatim:
            out.append(f"    {line}" if line.startswith("|") else line)
        else:
            parts = line.split("`")
            parts[::2] = [re.sub(r"([\\*|]|_(?=\W|$))", r"\\\1", part) for part in parts[::2]]
            out.append("`".join(parts))
    return out


def unlinked(text: str) -> str:
    """A page of this folder whose links to files outside of it, which are not on the site, have become their text."""
    return re.sub(r"\[([^\]]+)\]\(\.\./[^)]*\)", r"\1", text)


@contextlib.contextmanager
def _inside(folder: str) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)

"""Pages that are made when the site is built: the API, the commands, all names, and copies of pages beside docs/."""

import importlib
import inspect
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, get_origin

import typer

ROOT = Path(__file__).resolve().parents[1]
# what each package is for; the order of the API pages
PACKAGES = {
    "toa": "Estimators for your own data, and the conversion of trained models.",
    "toa.nn": "Layers: operator attention, operators, embeddings, norms, blocks.",
    "toa.ops": "Functions of tensors: operator attention and structured operators.",
    "toa.models": "Backbones and the models built on them.",
    "toa.data": "Datasets, readers, scaling and windows.",
    "toa.data.synthetic": "Synthetic series to train on.",
    "toa.training": "Training.",
    "toa.experiments": "Benchmark runs: protocols, configs, records.",
    "toa.report": "Tables, figures and pages from records.",
    "toa.integrations": "Conversion, export, and adapters for other libraries.",
    "toa_paper.theory": "Proposition 1 of the paper and its cases.",
    "toa_paper.demixing": "Harmonic demixing: signals, task, experiment.",
    "toa_paper.report": "Records beside the published numbers.",
}
# what one would use of a package, and the names: the table that its page begins with
USES: dict[str, list[tuple[str, tuple[str, ...]]]] = {
    "toa": [
        ("a table of numbers over time, and want the next rows", ("Forecaster",)),
        ("readings that are mostly normal, and want alarms", ("AnomalyDetector",)),
        ("labelled series, and want the labels of new ones", ("Classifier",)),
        ("a trained PyTorch model with softmax attention, and want operators in it", ("convert",)),
    ],
    "toa.nn": [
        ("an attention layer in your own model", ("TemporalOperatorAttention",)),
        ("another attention with the same interface, by its name", ("build_attention", "ATTENTIONS")),
        ("complete blocks of a Transformer", ("EncoderBlock", "EncoderStack", "DecoderBlock")),
        ("one operator along a sequence, without attention", ("make_operator", "OPERATORS")),
        ("to see how a trained model mixes tokens", ("mixing_operators",)),
        ("series as tokens", ("PatchEmbedding", "VariateEmbedding", "PointEmbedding")),
        ("series of different levels in one model", ("ReversibleInstanceNorm",)),
        ("one drop rate of SOR for all layers of a model", ("share_drop_rate",)),
    ],
    "toa.ops": [
        ("operator attention as a function of tensors", ("operator_attention",)),
        ("operators for long sequences", ("Toeplitz", "Banded", "DiagonalLowRank")),
        ("to decode token by token", ("AttentionCache",)),
        ("rotary positions", ("Rotary",)),
        ("to know which backend a call takes", ("choose_backend", "BACKENDS")),
    ],
}
# the tutorials in the order of the site: first what operators do that softmax cannot
TUTORIALS = ("drop_in_layer", "reading_operators", "converting", "own_csv", "detecting", "classifying")
# pages beside docs/ that are on the site, and where; results are copied below `results`
COPIES = {
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "src/toa/ops/attention/README.md": "project/derivation.md",
    "src/toa/models/weights/small/README.md": "project/weights.md",
}
# what a page links to and is not on the site, and the page of the site that stands for it
SUBSTITUTES = {
    "README.md": "docs/index.md",
    "examples": "docs/tutorials/index.rst",
    "docs/howto": "docs/howto/tables.md",
}
# code, in which nothing is a link; or a link or a picture of Markdown: its text, its file, and the part of the page
LINK = re.compile(
    r"(?P<code>^```.*?^```|`[^`\n]*`)"
    r"|(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<file>[^)#\s:]+)(?P<part>#[^)]*)?\)",
    re.DOTALL | re.MULTILINE,
)
# folders of docs/ that building the site makes
MADE = ("api", "project", "reference", "results", "tutorials")
# public modules that are imported by their own name, because they need an extra or a heavy package
MODULES = {"toa.integrations": ("toa.integrations.aeon", "toa.integrations.neuralforecast")}


def write_pages(folder: Path) -> None:
    """Write all pages below `folder`. Unchanged pages keep their time, so that Sphinx does not build them again."""
    pages = {f"api/{name}.md": api_page(name) for name in PACKAGES}
    pages |= {"reference/commands.md": command_page(), "reference/names.md": names_page()}
    pages |= {place: copied(source) for source, place in copies().items()}
    for path, content in pages.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_text(encoding="utf-8") != content:
            target.write_text(content, encoding="utf-8")


def public_names(package: str) -> list[str]:
    """Names of a package's `__all__`; the subpackages that `toa` lists have pages of their own."""
    module = importlib.import_module(package)
    return [name for name in module.__all__ if not inspect.ismodule(getattr(module, name)) and name != "__version__"]


def api_page(package: str) -> str:
    """The public names of a package: classes and functions with their docstrings, then constants and types."""
    module = importlib.import_module(package)
    lines = [f"# `{package}`", "", PACKAGES[package], "", *uses_table(package)]
    values = []
    for name in public_names(package):
        thing = getattr(module, name)
        if inspect.isclass(thing):
            lines += ["```{eval-rst}", f".. autoclass:: {package}.{name}", "   :members:", "```", ""]
        elif inspect.isroutine(thing):
            lines += ["```{eval-rst}", f".. autofunction:: {package}.{name}", "```", ""]
        else:
            values.append(f"- `{name}`: {value_text(thing)}")
    if values:
        lines += ["## Constants and types", "", *values, ""]
    for extra in MODULES.get(package, ()):
        lines += [f"## `{extra}`", "", "```{eval-rst}", f".. automodule:: {extra}", "   :members:", "```", ""]
    return "\n".join(lines)


def uses_table(package: str) -> list[str]:
    """What one would use of a package, and for what."""
    if package not in USES:
        return []
    rows = [f"| {need} | {', '.join(reference(package, name) for name in names)} |" for need, names in USES[package]]
    return ["| you have or want | use |", "| --- | --- |", *rows, ""]


def reference(package: str, name: str) -> str:
    """A link to a class or function on the page, and the name of anything else."""
    thing = getattr(importlib.import_module(package), name)
    linked = inspect.isclass(thing) or inspect.isroutine(thing)
    return f"{{py:obj}}`~{package}.{name}`" if linked else f"`{name}`"


def value_text(thing: Any) -> str:
    """Keys of a registry or items of a tuple; otherwise how Python shows it."""
    if isinstance(thing, Iterable) and get_origin(thing) is None and not isinstance(thing, str):
        return ", ".join(f"`{item}`" for item in thing)
    return f"`{thing}`".replace("typing.", "")


def commands(command: Any = None, path: str = "toa") -> Iterator[tuple[str, Any]]:
    """Every command below a group, under the words that call it."""
    if command is None:
        from toa.cli import app

        command = typer.main.get_command(app)
    from toa.cli.plugins import subcommands

    children = subcommands(command)
    if not children:
        yield path, command
    for name, child in children.items():
        yield from commands(child, f"{path} {name}")


def command_page() -> str:
    """Every command with its options and defaults."""
    lines = ["# Commands", "", "Every command prints this text with `--help`.", ""]
    for path, command in commands():
        lines += [
            f"## `{path}`",
            "",
            inspect.cleandoc(command.help or ""),
            "",
            "| option | default | meaning |",
            "| --- | --- | --- |",
        ]
        for parameter in command.params:
            argument = parameter.param_type_name == "argument"
            words = [parameter.name.upper()] if argument else [*parameter.opts, *parameter.secondary_opts]
            if words == ["--help"]:
                continue
            default = parameter.default() if callable(parameter.default) else parameter.default
            shown = "" if default in (None, (), []) else f"`{default}`"
            if parameter.required:
                shown = "required"
            text = (getattr(parameter, "help", None) or "").replace("|", "\\|").replace("\n", " ")
            lines.append(f"| {', '.join(f'`{word}`' for word in words)} | {shown} | {text} |")
        lines.append("")
    return "\n".join(lines)


def protocols() -> list[str]:
    """Names of the protocol files of all tasks."""
    from toa.experiments import protocol_names
    from toa.training import TASKS

    return sorted({name for task in TASKS for name in protocol_names(task)})


def registries() -> dict[str, tuple[str, Iterable[str]]]:
    """Everything that is chosen by name: where the name goes, and the names."""
    from toa.data import ANOMALY_SETS, CLASSIFICATION_SETS, DATASETS
    from toa.models import BACKBONES
    from toa.nn import ATTENTIONS, OPERATORS
    from toa.ops import BACKENDS, GATE_NORMS, SCORE_NORMS

    return {
        "Backbones": ("`--backbone`, `backbone=`", BACKBONES),
        "Attentions": ("`--attention`, `attention=`, `toa.nn.build_attention`", ATTENTIONS),
        "Operators": ("`attention.structure`, `AttentionSpec(structure=)`", OPERATORS),
        "Normalisers of scores": ("`attention.score_norm`", SCORE_NORMS),
        "Normalisers of the gate": ("`attention.gate_norm`", GATE_NORMS),
        "Protocols": ("`--protocol`", protocols()),
        "Forecasting datasets": ("`--dataset`, `toa data`", DATASETS),
        "Anomaly detection datasets": ("`--task anomaly --dataset`", ANOMALY_SETS),
        "Classification datasets": ("`--task classify --dataset`", CLASSIFICATION_SETS),
        "Backends of operator attention": ("`TOA_BACKEND`, `backend=`", BACKENDS),
    }


def names_page() -> str:
    """All registered names, read from the registries."""
    lines = ["# Names", "", "Everything that a command or an argument selects by name.", ""]
    for title, (where, names) in registries().items():
        lines += [f"## {title}", "", f"{where}: " + ", ".join(f"`{name}`" for name in names), ""]
    return "\n".join(lines)


class TutorialOrder:
    """For Sphinx-Gallery: the place of a script in `TUTORIALS`."""

    def __init__(self, folder: str) -> None:
        # a tutorial that is not listed comes last
        self.places = {f"{name}.py": place for place, name in enumerate(TUTORIALS)}

    def __call__(self, file: str) -> int:
        """The place of a file."""
        return self.places.get(file, len(self.places))


def saved_pictures(block: Any, names: dict[str, Any], settings: dict[str, Any]) -> str:
    """For Sphinx-Gallery: move the pictures that a block of a tutorial has saved onto the page."""
    from sphinx_gallery.scrapers import figure_rst

    moved = []
    for picture in sorted(Path(names["src_file"]).parent.glob("*.png")):
        moved.append(next(names["image_path_iterator"]))
        shutil.move(picture, moved[-1])
    return figure_rst(moved, settings["src_dir"])


def restructured(lines: list[str]) -> list[str]:
    """Turn a docstring in Markdown into reStructuredText. Tables and formulas become literal blocks."""
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


def copies() -> dict[str, str]:
    """Pages beside docs/ by their path in the repository, and their place on the site."""
    results = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "results").rglob("*.md"))]
    return COPIES | {path: path.replace("README.md", "index.md") for path in results}


def copied(source: str) -> str:
    """A page beside docs/ as it stands on the site."""
    text = relinked((ROOT / source).read_text(encoding="utf-8"), source, copies()[source])
    if source == "results/report/summary.md":
        text = f"# The comparison with the paper on one page\n\n{text}"
    if source == "results/tables/README.md":
        text += "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"
    return text


def relinked(text: str, source: str, place: str) -> str:
    """A page with its links as they lead from its place on the site.

    A link to another page leads to it, a link to a file downloads it, and of a link to a folder the text stays.

    Args:
        source: Path of the page in the repository.
        place: Path of the page on the site.
    """
    folder = PurePosixPath("docs") / PurePosixPath(place).parent
    places = copies()

    def leads(match: re.Match[str]) -> str:
        if match["code"]:
            return match["code"]
        file = os.path.normpath(PurePosixPath(source).parent / match["file"])
        target = PurePosixPath(SUBSTITUTES.get(file, f"docs/{places[file]}" if file in places else file))
        is_made = target.parts[0] == "docs" and target.parts[1:2] and target.parts[1] in MADE
        if not is_made and not (ROOT / target).is_file():
            return match["text"]
        address = os.path.relpath(target, folder)
        return f"{match['picture']}[{match['text']}]({address}{match['part'] or ''})"

    return LINK.sub(leads, text)


def with_readme(text: str) -> str:
    """The front page with the sections of the README that `<!-- README: TITLE, TITLE -->` names."""

    def sections(match: re.Match[str]) -> str:
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        parts = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", readme, re.MULTILINE | re.DOTALL))
        joined = "".join(f"## {title}\n{parts[title]}" for title in match[1].split(", "))
        return relinked(joined.strip(), "README.md", "index.md")

    return re.sub(r"<!-- README: (.+?) -->", sections, text)

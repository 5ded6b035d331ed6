"""Pages that are made when the site is built: the API, the commands and all names."""

import importlib
import inspect
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
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
# public modules that are imported by their own name, because they need an extra or a heavy package
MODULES = {"toa.integrations": ("toa.integrations.aeon", "toa.integrations.neuralforecast")}


def write_pages(folder: Path) -> None:
    """Write all pages below `folder`. Unchanged pages keep their time, so that Sphinx does not build them again."""
    pages = {f"api/{name}.md": api_page(name) for name in PACKAGES}
    pages |= {"reference/commands.md": command_page(), "reference/names.md": names_page()}
    for path, content in pages.items():
        target = folder / path
        target.parent.mkdir(exist_ok=True)
        if not target.exists() or target.read_text(encoding="utf-8") != content:
            target.write_text(content, encoding="utf-8")


def public_names(package: str) -> list[str]:
    """Names of a package's `__all__`; the subpackages that `toa` lists have pages of their own."""
    module = importlib.import_module(package)
    return [name for name in module.__all__ if not inspect.ismodule(getattr(module, name)) and name != "__version__"]


def api_page(package: str) -> str:
    """The public names of a package: classes and functions with their docstrings, then constants and types."""
    module = importlib.import_module(package)
    lines = [f"# `{package}`", "", PACKAGES[package], ""]
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


def unlinked(text: str, depth: int = 1) -> str:
    """Replace links to files outside docs/, which are not on the site, by their text.

    `depth` is the number of steps from the page's folder out of docs/.
    """
    return re.sub(rf"(?<!!)\[([^\]]+)\]\((?:\.\./){{{depth}}}[^)]*\)", r"\1", text)

"""The site that `make docs` builds. pages.py makes the API and the reference; Sphinx-Gallery runs the tutorials."""

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
# tutorials are tiny: a second thread only waits
os.environ.setdefault("OMP_NUM_THREADS", "1")

import toa  # noqa: E402
from pages import MADE, ROOT, relinked, restructured, with_readme, write_pages  # noqa: E402

project = "toa"
author = "The toa developers"
project_copyright = "2026, the toa developers, Apache License 2.0"
version = release = toa.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_gallery.gen_gallery"]
html_theme = "furo"
html_title = f"toa {release}"
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]
# formulas become MathML, which browsers draw without a script and without network
html_math_renderer = "mathml"

# the scripts run in a copy of their folder, because they write files
shutil.copytree(ROOT / "examples", ROOT / "build" / "examples", dirs_exist_ok=True)
sphinx_gallery_conf = {
    "examples_dirs": [str(ROOT / "build" / "examples")],
    "gallery_dirs": ["tutorials"],
    "filename_pattern": ".*",
    "within_subsection_order": "pages.TutorialOrder",
    "image_scrapers": ("pages.saved_pictures",),
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_signature": False,
    "write_computation_times": False,
}

# docstrings have Google's sections; single backticks are code, as in Markdown
default_role = "code"
napoleon_use_ivar = True
autodoc_member_order = "bysource"
maximum_signature_line_length = 100
smartquotes = False
# optional packages: their modules are documented without them
autodoc_mock_imports = [name for name in ("neuralforecast", "ray") if find_spec(name) is None]


def _rewrite(app: Any, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    lines[:] = restructured(lines)


def _relink(app: Any, page: str, content: list[str]) -> None:
    if page.split("/")[0] not in MADE:
        content[0] = with_readme(relinked(content[0], f"docs/{page}.md", f"{page}.md"))


def _draw_formula(translator: Any, node: nodes.Node) -> None:
    is_block = isinstance(node, nodes.math_block)
    formula = tex2mathml(node.astext(), as_block=is_block)
    translator.body.append(f'<div class="formula">{formula}</div>' if is_block else formula)
    raise nodes.SkipNode


def _skip(app: Any, what: str, name: str, obj: object, skip: bool, options: Any) -> bool | None:
    # scikit-learn's methods for routing metadata, and fields of named tuples
    routing = name.startswith("set_") and name.endswith("_request")
    return True if routing or (getattr(obj, "__doc__", None) or "").startswith("Alias for field number") else None


def setup(app: Any) -> None:
    """Make the pages first; rewrite docstrings before Napoleon reads their sections."""
    app.add_html_math_renderer("mathml", (_draw_formula, None), (_draw_formula, None))
    app.connect("builder-inited", lambda app: write_pages(HERE))
    app.connect("autodoc-process-docstring", _rewrite, priority=400)
    app.connect("source-read", _relink)
    app.connect("autodoc-skip-member", _skip)

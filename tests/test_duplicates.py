"""No two places outside of tests share more than a dozen lines of logic, whatever the names in them.

Statements are compared by structure: names, attributes, constants, docstrings and annotations do not count.
"""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from tests.support import written

FOLDERS = ("src", "benchmarks", "docs", "examples")
# longest run of equal lines allowed
LIMIT = 12


def structure(node: ast.AST) -> str:
    """The structure of an expression without what is a matter of naming."""
    if isinstance(node, ast.Constant):
        return type(node.value).__name__
    if isinstance(node, ast.arg | ast.Name | ast.expr_context):
        return "_"
    parts = [item for _, value in ast.iter_fields(node) for item in (value if isinstance(value, list) else [value])]
    return f"{type(node).__name__}({','.join(structure(item) for item in parts if isinstance(item, ast.AST))})"


BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


def shape(statement: ast.stmt) -> str:
    """The structure of a statement, or of the head of a block."""
    parts = [value for name, value in ast.iter_fields(statement) if name not in (*BLOCKS, "name", "annotation")]
    nodes = [item for part in parts for item in (part if isinstance(part, list) else [part])]
    return " ".join([type(statement).__name__, *(structure(node) for node in nodes if isinstance(node, ast.AST))])


def is_logic(statement: ast.stmt) -> bool:
    """Not a docstring, and not `self.x = x`, of which constructors consist."""
    if isinstance(statement, ast.Expr):
        return not isinstance(statement.value, ast.Constant)
    stores = isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Attribute)
    return not (stores and isinstance(statement.value, ast.Name))  # type: ignore[attr-defined]


def statements(tree: ast.AST) -> Iterator[tuple[int, int, str]]:
    """First line, number of lines and shape of every simple statement and head of a block inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.expr):
            continue
        for statement in (item for name in BLOCKS[:3] for item in getattr(node, name, None) or []):
            if isinstance(statement, ast.stmt) and is_logic(statement):
                inner = getattr(statement, "body", None)
                last = inner[0].lineno - 1 if isinstance(inner, list) else statement.end_lineno or 0
                yield statement.lineno, max(1, last - statement.lineno + 1), shape(statement)


@functools.cache
def shapes(path: Path) -> list[tuple[int, int, str]]:
    return sorted(statements(ast.parse(path.read_text(encoding="utf-8"))))


def shared(paths: list[Path]) -> dict[tuple[str, str], int]:
    """Longest run of equal statements, in lines, for every pair of places that share more than LIMIT."""
    size = 4
    index: dict[tuple[str, ...], list[tuple[Path, int]]] = {}
    for path in paths:
        found = [shape for _, _, shape in shapes(path)]
        for start in range(len(found) - size + 1):
            index.setdefault(tuple(found[start : start + size]), []).append((path, start))
    longest: dict[tuple[str, str], int] = {}
    for places in index.values():
        for position, (a, i) in enumerate(places):
            for b, j in places[position + 1 :]:
                left, right = shapes(a), shapes(b)
                end = min(len(left) - i, len(right) - j, j - i if a == b else len(left))
                count = next((k for k in range(end) if left[i + k][2] != right[j + k][2]), end)
                lines = sum(length for _, length, _ in left[i : i + count])
                if lines > LIMIT:
                    key = (f"{a.name}:{left[i][0]}", f"{b.name}:{right[j][0]}")
                    longest[key] = lines
    return longest


def test_no_two_places_share_more_than_a_dozen_lines():
    assert shared([path for folder in FOLDERS for path in written(folder, "*.py")]) == {}


def test_a_copy_with_other_names_is_found(tmp_path):
    lines = [f"    {name} = f({name}, {number})" for number, name in enumerate("abcdefghijklmn")]
    (tmp_path / "one.py").write_text("def one(x):\n" + "\n".join(lines) + "\n")
    other = [line.replace(" = f(", " = g(").upper() for line in lines]
    (tmp_path / "two.py").write_text("def two(y):\n" + "\n".join(other) + "\n")
    assert shared(sorted(tmp_path.glob("*.py")))[("one.py:2", "two.py:2")] == 14
    (tmp_path / "two.py").write_text("def two(y):\n" + "\n".join(other[:10]) + "\n")
    shapes.cache_clear()
    assert shared(sorted(tmp_path.glob("*.py"))) == {}

"""Constructs that make code shorter and harder to read do not occur."""

import ast
from collections.abc import Callable, Iterator
from typing import TypeGuard

import pytest

from tests.support import ROOT

FOLDERS = ("src", "tests", "benchmarks", "examples", "docs")
# functions that may have a parameter called `own`, because callers give it by name
PUBLIC_OWN = ("src/toa/nn/block.py",)
# names of estimators
ESTIMATORS = ("estimator", "forecaster", "detector", "classifier", "fitted")
# names of sequences that are packed by position
PACKED = ("arguments", "args", "tensors", "inputs", "rest")

Rule = Callable[[ast.AST], bool]


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def is_condition(node: ast.AST) -> bool:
    """A comparison, `not`, `and` and `or`, or a call that returns a bool."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in ("all", "any", "bool", "isinstance")
    return isinstance(node, ast.Compare | ast.BoolOp) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    )


def is_several_constants(node: ast.AST) -> bool:
    """`FIRST, SECOND = 1, 2` in a module or a class."""
    bodies = node.body if isinstance(node, ast.Module | ast.ClassDef) else []
    return any(
        isinstance(statement, ast.Assign)
        and isinstance(statement.value, ast.Tuple)
        and any(isinstance(target, ast.Tuple) for target in statement.targets)
        for statement in bodies
    )


def is_text_times_bool(node: ast.AST) -> bool:
    """`"s" * (count > 1)`."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    sides = (node.left, node.right)
    return any(map(is_text, sides)) and any(map(is_condition, sides))


def is_nested_conditional(node: ast.AST) -> bool:
    """`a if x else b if y else c`."""
    if not isinstance(node, ast.IfExp):
        return False
    return any(isinstance(part, ast.IfExp) for part in (node.test, node.body, node.orelse))


def is_call_of(node: ast.AST, name: str) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def is_dict_of_locals(node: ast.AST) -> bool:
    return is_call_of(node, "dict") and any(is_call_of(argument, "locals") for argument in node.args)


def is_packing_by_position(node: ast.AST) -> bool:
    """`arguments[:11]`: fields with names are safer."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Slice):
        return False
    bounds = (node.slice.lower, node.slice.upper)
    numbers = [bound.value for bound in bounds if isinstance(bound, ast.Constant) and isinstance(bound.value, int)]
    return isinstance(node.value, ast.Name) and node.value.id in PACKED and max(numbers, default=0) > 2


def is_state_taken_over(node: ast.AST) -> bool:
    """`self.__dict__.update(other.__dict__)` and `copy.copy(self)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    source = node.func.value
    if node.func.attr == "update":
        return isinstance(source, ast.Attribute) and source.attr == "__dict__"
    is_copy = node.func.attr == "copy" and isinstance(source, ast.Name) and source.id == "copy"
    return is_copy and any(isinstance(argument, ast.Name) and argument.id == "self" for argument in node.args)


def is_parameter_called_own(node: ast.AST) -> bool:
    return isinstance(node, ast.arg) and node.arg == "own"


def is_untyped_estimator(node: ast.AST) -> bool:
    """`def summary(detector: Any)` and `estimator: Any = …`."""
    name: str | None = None
    if isinstance(node, ast.arg):
        name = node.arg
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        name = node.target.id
    annotation = getattr(node, "annotation", None)
    return name in ESTIMATORS and isinstance(annotation, ast.Name) and annotation.id == "Any"


def text_of(node: ast.AST) -> str:
    """The literal parts of a text."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)


def is_argument_error_in_one_text(node: ast.AST) -> bool:
    """`raise ValueError("x must be 1, got 2.")`: a command cannot find the argument in it."""
    if not isinstance(node, ast.Raise) or node.exc is None or not is_call_of(node.exc, "ValueError"):
        return False
    text = "".join(map(text_of, node.exc.args))
    return " must " in text and ", got " in text.partition(" must ")[2]


RULES: dict[str, Rule] = {
    "one constant per line": is_several_constants,
    "no text times a condition": is_text_times_bool,
    "no conditional inside a conditional": is_nested_conditional,
    "no dict(locals())": is_dict_of_locals,
    "fields by name": is_packing_by_position,
    "no state taken over from another object": is_state_taken_over,
    "parameters named by what they hold": is_parameter_called_own,
    "estimators have a type": is_untyped_estimator,
    "ArgumentError for an argument": is_argument_error_in_one_text,
}


def violations() -> Iterator[str]:
    paths = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    for path in paths:
        file = path.relative_to(ROOT).as_posix()
        excepted = [is_parameter_called_own] if file in PUBLIC_OWN else []
        if file.startswith("tests/"):
            # tests raise errors of other libraries and of users
            excepted.append(is_argument_error_in_one_text)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for name, rule in RULES.items():
                if rule not in excepted and rule(node):
                    yield f"{file}:{getattr(node, 'lineno', 1)}: {name}"


def test_code_is_plain():
    assert list(violations()) == []


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("one constant per line", "FIRST, SECOND = 1, 2"),
        ("no text times a condition", "text = 's' * (count > 1)"),
        ("no conditional inside a conditional", "size = 1 if small else 2 if medium else 3"),
        ("no dict(locals())", "options = dict(locals())"),
        ("fields by name", "call(*arguments[:11])"),
        ("no state taken over from another object", "self.__dict__.update(other.__dict__)"),
        ("no state taken over from another object", "copy.copy(self)"),
        ("parameters named by what they hold", "def explain(own): ..."),
        ("estimators have a type", "def summary(detector: Any): ..."),
        ("estimators have a type", "estimator: Any = load()"),
        ("ArgumentError for an argument", 'raise ValueError("x must be 1, got 2.")'),
        ("ArgumentError for an argument", 'raise ValueError(f"{x} must be {y}, got {z}; leave it out.") from None'),
    ],
)
def test_each_rule_finds_its_construct(name, code):
    assert any(map(RULES[name], ast.walk(ast.parse(code))))


# what named tuples call so is public
PUBLIC = ("_asdict", "_replace", "_fields")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def private_uses(tree: ast.Module) -> Iterator[str]:
    """Private attributes of other objects, and private names of other modules, that a module uses."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Call) and is_call_of(node, "getattr") and len(node.args) > 1:
            name = node.args[1]
            if isinstance(name, ast.Constant) and is_private(str(name.value)):
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.lineno}: {alias.name}" for alias in node.names if is_private(alias.name))


@pytest.mark.parametrize("folder", ["src/toa/cli", "src/toa_paper/cli"])
def test_commands_use_nothing_private_of_other_modules(folder):
    used = [
        f"{path.name}:{use}"
        for path in sorted((ROOT / folder).glob("*.py"))
        for use in private_uses(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert used == []


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("forecaster._read(data)", 1),
        ('getattr(forecaster, "_patch", 1)', 1),
        ("from toa.data.panel import _Groups", 1),
        ("self._stream.write(text)", 0),
        ("plan._asdict()", 0),
        ("forecaster.model_", 0),
    ],
)
def test_private_uses_are_found(code, count):
    assert len(list(private_uses(ast.parse(code)))) == count

"""Facts from the sources of the package, read and not run: compiled modules do not show them."""

import ast
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[2] / "src" / "headrace"


def calls(*paths: str) -> Iterator[ast.Call]:
    """Every call in these files or folders."""
    return (node for node in _nodes(*paths) if isinstance(node, ast.Call))


def called_on(owner: str, *paths: str) -> set[str]:
    """The methods that are called on what has this name: `peer.broker.declare(...)` on `broker` is `declare`."""
    functions = [call.func for call in calls(*paths) if isinstance(call.func, ast.Attribute)]
    return {function.attr for function in functions if last_name(function.value) == owner}


def subclasses_of(name: str, *paths: str) -> set[str]:
    """The classes that inherit from the one of this name."""
    classes = [node for node in _nodes(*paths) if isinstance(node, ast.ClassDef)]
    return {each.name for each in classes if name in [last_name(base) for base in each.bases]}


def _nodes(*paths: str) -> Iterator[ast.AST]:
    for path in paths:
        found = _ROOT / path
        for file in sorted(found.glob("*.py")) if found.is_dir() else [found]:
            yield from ast.walk(ast.parse(file.read_text()))


def last_name(node: ast.expr) -> str:
    """`c` of `a.b.c`; empty for what is no name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""

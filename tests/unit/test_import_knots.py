"""Modules that import each other, also if only for types, can only be understood together: such knots stay small."""

import ast
from pathlib import Path

import headrace

SOURCES = Path(headrace.__file__).parent
LIMIT = 6
SMALLER = {"storage": 2, "net": 2, "spark": 5}
"""Rooms whose largest knot is smaller, and stays so."""


def modules() -> dict[str, Path]:
    found = {".".join(path.relative_to(SOURCES.parent).with_suffix("").parts): path for path in SOURCES.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in found.items()}


def imports(paths: dict[str, Path]) -> dict[str, set[str]]:
    """The modules that each module imports, those under TYPE_CHECKING and in functions too."""
    graph: dict[str, set[str]] = {}
    for name, path in paths.items():
        targets: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                targets.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                members = {f"{node.module}.{alias.name}" for alias in node.names}
                targets.update(member if member in paths else node.module for member in members)
        graph[name] = (targets & paths.keys()) - {name}
    return graph


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    left = [start]
    while left:
        new = graph[left.pop()] - seen
        seen |= new
        left += new
    return seen


def knots(graph: dict[str, set[str]]) -> list[list[str]]:
    """The sets of modules that reach each other, the largest first."""
    reached = {name: reachable(graph, name) for name in graph}
    found = {tuple(sorted(other for other in reached[name] if name in reached[other])) for name in graph}
    return sorted([list(knot) for knot in found if len(knot) > 1], key=len, reverse=True)


def test_knots_of_importing_modules_are_small() -> None:
    largest: dict[str, list[str]] = {}
    for knot in knots(imports(modules())):
        largest.setdefault(knot[0].split(".")[1], knot)

    too_large = {room: knot for room, knot in largest.items() if len(knot) > SMALLER.get(room, LIMIT)}

    assert not too_large


def test_a_knot_is_found_through_imports_for_types(tmp_path: Path) -> None:
    texts = {
        "a": "import b",
        "b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from c import x",
        "c": "def f():\n    import a",
        "d": "import a",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)

    graph = imports({name: tmp_path / f"{name}.py" for name in texts})

    assert knots(graph) == [["a", "b", "c"]]

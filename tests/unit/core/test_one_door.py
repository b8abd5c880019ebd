"""Messages enter a queue through core/queue/entry.py and nowhere else: limits and lifetimes are decided there."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3] / "src" / "headrace"
DOOR = {"core/batch.py", "core/queue/entry.py"}
"""The door, and the batch that it adds messages to."""
OF_BATCHES = {"append_published", "append_all", "append_rows", "append_moved", "append_copies"}
OF_COMMITS = {"append", "add", "add_all"}
COMMITS = {"commit", "durable", "memory"}
OF_APPENDS = {"add", "add_all", "add_whole"}
APPENDS = {"published", "transient", "moved", "moved_in_memory"}


def _assigned(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """All places that are given a value, each with its value."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) or node.value is None:
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=False)
            else:
                yield target, node.value


def _words(node: ast.AST) -> list[str]:
    """The names of `self._batch.durable.append`: the last two count, what they are called on and what is called."""
    words: list[str] = []
    while isinstance(node, ast.Attribute):
        words.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        words.append(node.id)
    return ["", *reversed(words or [""])]


def _aliases(tree: ast.AST) -> dict[str, list[str]]:
    """Other names that a module has for a commit, for appends and for their methods."""
    found: dict[str, list[str]] = {}
    for target, value in _assigned(tree):
        words = _words(value)
        if words[-1] in COMMITS | APPENDS or _is_append(words):
            found[_words(target)[-1]] = words
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation is not None:
            types = set(re.findall(r"\w+", ast.unparse(node.annotation)))
            if types & {"Commit", "Appends"}:
                found[node.arg] = ["", "commit" if "Commit" in types else "published"]
    return found


def _is_append(words: list[str]) -> bool:
    owner, method = words[-2:]
    return (
        method in OF_BATCHES
        or (method in OF_COMMITS and owner in COMMITS)
        or (method in OF_APPENDS and owner in APPENDS)
    )


def appends_in(source: str) -> list[str]:
    """All calls in a module that append messages to a log, or to a batch, also by other names of these."""
    tree = ast.parse(source)
    aliases = _aliases(tree)
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        words = _words(node.func)
        if len(words) == 2:
            words = aliases.get(words[-1], words)
        elif words[-2] in aliases:
            words = [*aliases[words[-2]], words[-1]]
        elif len(words) == 3 and words[-2] != "commit":
            words = ["", words[-1]]  # a variable that only has the name of a part
        if _is_append(words) or words[-1] == "Append":
            found.append(".".join(words[-2:]))
    return found


def modules() -> dict[str, str]:
    """The sources of everything above storage, by their paths."""
    paths = [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py")]
    return {path: (ROOT / path).read_text() for path in paths if not path.startswith("storage/")}


def test_only_the_door_appends_messages() -> None:
    sources = modules()
    assert set(sources) >= DOOR

    found = {path: appends_in(source) for path, source in sources.items() if path not in DOOR}

    assert {path: calls for path, calls in found.items() if calls} == {}


def test_the_door_itself_is_found() -> None:
    assert {call.split(".")[-1] for call in appends_in((ROOT / "core/queue/entry.py").read_text())} >= OF_BATCHES


@pytest.mark.parametrize(
    "line",
    [
        "batch.append_moved(queue, message)",
        "self._pipeline.open().append_published(queue, message)",
        "commit.append('orders', messages)",
        "self._batch.durable.append('orders', messages)",
        "batch.memory.add(append)",
        "batch.published.add(queue, message)",
        "Append('', [message], 1)",
        "c = batch.durable; c.append('orders', messages)",
        "add = self._batch.published.add; add(queue, message)",
        "def f(c: Commit): c.append('orders', messages)",
        "def f(self, batch):\n self._c = batch.memory\ndef g(self): self._c.add(append)",
        "f((c := batch.durable).size_bytes, c.append('orders', messages))",
        "one, c = two, batch.durable; c.add_all(appends, 9)",
        "put = batch.append_moved; put(queue, message)",
    ],
)
def test_a_call_that_appends_is_recognised(line: str) -> None:
    assert appends_in(line)


@pytest.mark.parametrize(
    "line",
    [
        "found.append(1)",
        "batch.used.append(call)",
        "batch.durable.put('t', b'k', b'v')",
        "c = batch.durable; c.put('t', b'k', b'v')",
    ],
)
def test_other_calls_are_not(line: str) -> None:
    assert not appends_in(line)

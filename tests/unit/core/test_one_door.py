"""Messages enter a queue through core/queue/entry.py and nowhere else: limits and lifetimes are decided there."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3] / "src" / "headrace"
DOOR = {"core/batch.py", "core/queue/entry.py"}
"""The door, and the batch that it adds messages to."""
OF_BATCHES = {"append_published", "append_all", "append_rows", "append_moved", "append_copies"}
OF_COMMITS = {"append", "append_encoded", "add", "add_all"}
COMMITS = {"commit", "durable", "memory"}
OF_APPENDS = {"add", "add_all", "add_whole"}
APPENDS = {"published", "transient", "moved", "moved_in_memory"}


def appends_in(source: str) -> list[str]:
    """All calls in a module that append messages to a log, or to a batch."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        call = node.func
        if isinstance(call, ast.Name) and call.id == "Append":
            found.append("Append")
        elif isinstance(call, ast.Attribute):
            owner = call.value.attr if isinstance(call.value, ast.Attribute) else ""
            if isinstance(call.value, ast.Name) and call.value.id == "commit":
                owner = "commit"
            if (
                call.attr in OF_BATCHES
                or (call.attr in OF_COMMITS and owner in COMMITS)
                or (call.attr in OF_APPENDS and owner in APPENDS)
            ):
                found.append(f"{owner}.{call.attr}")
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
        "self._batch.durable.append_encoded('orders', rows)",
        "batch.memory.add(append)",
        "batch.published.add(queue, message)",
        "Append('', [message], 1)",
    ],
)
def test_a_call_that_appends_is_recognised(line: str) -> None:
    assert appends_in(line)


@pytest.mark.parametrize("line", ["found.append(1)", "batch.used.append(call)", "batch.durable.put('t', b'k', b'v')"])
def test_other_calls_are_not(line: str) -> None:
    assert not appends_in(line)

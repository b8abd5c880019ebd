"""Output for people when the broker begins to serve."""

from pathlib import Path

import pytest

from headrace.announcement import announce
from headrace.config.configuration import load
from headrace.core.queue.configured import FILE_QUEUE
from headrace.model import Message, Source
from headrace.storage.api import QUEUES, Commit
from headrace.storage.memory import MemoryEngine


@pytest.mark.parametrize(
    ("host", "told"),
    [
        ("127.0.0.1", "http on 127.0.0.1:15672, with the dashboard at http://127.0.0.1:15672/"),
        ("0.0.0.0", "http on 0.0.0.0:15672, with the dashboard at http://localhost:15672/"),
        ("::1", "http on [::1]:15672, with the dashboard at http://[::1]:15672/"),
    ],
)
def test_it_says_where_the_dashboard_is(
    host: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    configuration = load(FILE_QUEUE, None, {"HEADRACE_LISTENERS_HOST": host, "HEADRACE_STORAGE_MEMORY": "true"}, {})

    announce(MemoryEngine(), configuration, {"amqp": 5672, "http": 15672}, 1_500_000)

    first, second, *others = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert first.endswith("serves memory (nothing is kept)")
    assert second == "queues 0, messages 0, 0 bytes; opened in 1.500 s"
    assert others[1] == told


def test_it_counts_queues_that_never_had_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    engine, commit = MemoryEngine(), Commit()
    commit.put(QUEUES, b"orders", b"{}")
    commit.put(QUEUES, b"events", b"{}")
    commit.append("events", [Message(Source("events"), b"one", 1)])
    engine.commit(commit, lambda error: None)
    engine.sync()

    announce(engine, load(FILE_QUEUE, None, {"HEADRACE_STORAGE_MEMORY": "true"}, {}), {}, 0)

    assert "queues 2, messages 1," in capsys.readouterr().out

"""The words of the command line: flags in the help, keys of its JSON, progress on a terminal."""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from headrace.cli import _COMMANDS, cli
from headrace.storage.local.engine import LocalEngine
from tests.commands import headrace
from tests.servers import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("server"), in_memory=True)
    running.start()
    yield running
    running.close_connections()
    running.stop()


def _loaded() -> dict[str, dict[str, Any]]:
    """Every command and its subcommands; a command without any has itself, under ""."""
    root: Any = typer.main.get_command(cli)
    found = {name: root.get_command(None, name) for name in _COMMANDS}
    return {name: getattr(command, "commands", {"": command}) for name, command in found.items()}


_SUBCOMMANDS = _loaded()


def _commands() -> list[tuple[str, ...]]:
    return [(name, inner) if inner else (name,) for name, found in _SUBCOMMANDS.items() for inner in found]


def _run(*words: str) -> Result:
    """Run a command in this process, with a password to read."""
    return CliRunner().invoke(cli, words, input="secret\n", prog_name="headrace", env={"COLUMNS": "160"})


def _takes_json(words: tuple[str, ...]) -> bool:
    command = _SUBCOMMANDS[words[0]]["" if len(words) == 1 else words[1]]
    return any("--json" in each.opts for each in command.params)


@pytest.mark.parametrize("words", [(), *((name,) for name in _COMMANDS), *_commands()], ids=" ".join)
def test_help_shows_flags_as_flags(words: tuple[str, ...]) -> None:
    shown = _run(*words, "--help").stdout

    assert "<bool>" not in shown
    assert "BOOLEAN" not in shown
    negated = [line for line in shown.splitlines() if "--no-" in line and "--" in line.split("--no-")[0]]
    assert len(negated) == (1 if words == ("demo",) else 0), negated


def _keys(value: object) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(key for each in value.values() for key in _keys(each))]
    return [key for each in value for key in _keys(each)] if isinstance(value, list) else []


def _documents(text: str) -> list[object]:
    """One JSON document after the other."""
    found: list[object] = []
    while text.strip():
        document, end = json.JSONDecoder().raw_decode(text.lstrip())
        found.append(document)
        text = text.lstrip()[end:]
    return found


_ON_A_BROKER = (
    "queues declare orders --history 1h",
    "queues declare events --type stream",
    "queues declare parking",
    "publish orders hello",
    "publish events hello",
    "consume orders",
    "consume events --group readers --from first",
    "queues list",
    "queues show orders",
    "queues history orders",
    "groups list events",
    "groups show events readers",
    "groups pause events readers",
    "groups resume events readers",
    "groups seek events readers first",
    "groups delete events readers --yes",
    "dlq list",
    "dlq show orders",
    "dlq redrive orders",
    "dlq move orders parking",
    "dlq purge orders --yes",
    "queues purge orders --yes",
    "queues delete orders --yes",
    "users add ann",
    "users password ann",
    "users list",
    "vhosts add eu",
    "permissions set ann --vhost eu",
    "permissions list",
    "permissions set-topic ann --vhost eu --exchange amq.topic",
    "permissions list-topic",
    "permissions clear-topic ann --vhost eu --exchange amq.topic",
    "permissions clear ann --vhost eu",
    "vhosts list",
    "policies set short ^tmp message-ttl=1000 ha-mode=all",
    "policies list",
    "policies remove short",
    "vhosts remove eu --yes",
    "users remove ann",
    "cluster status",
    "pipeline status",
    "pipeline forget plant",
)
_ELSEWHERE = ("config check file.yaml", "config show file.yaml", "doctor copy", "backup data copy")
"""Commands without a broker: files and directories are the test's."""


def test_json_of_every_command_has_keys_without_spaces(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.yaml").write_text("queues: [{name: orders}]\n")
    LocalEngine(tmp_path / "data").close()
    tried: set[str] = set()

    for line in (*_ON_A_BROKER, *reversed(_ELSEWHERE)):
        words = line.split()
        place = () if line in _ELSEWHERE else ("--url", server.http_url)
        ended = _run(*words, *place, "--json")
        assert ended.exit_code == 0 or words[0] == "cluster", (line, ended.stderr)
        assert [key for key in _keys(_documents(ended.stdout)) if " " in key] == [], line
        tried.add(words[0] if "" in _SUBCOMMANDS[words[0]] else " ".join(words[:2]))

    assert tried == {" ".join(words) for words in _commands() if _takes_json(words)}


def test_long_work_shows_its_progress_on_a_terminal(server: Server) -> None:
    headrace("queues", "declare", "many", "--url", server.http_url)
    command = [sys.executable, "-m", "headrace", "publish", "many", "-", "--lines", "--url", server.http_url]
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
        text=True,
    ) as process:
        os.close(theirs)
        said, _ = process.communicate("line\n" * 300)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)

    assert "published" in said
    assert re.search(r"published [1-9]\d*", shown)

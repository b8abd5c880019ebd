"""Completion in a real bash: what `headrace --show-completion` prints is sourced, and the Tab key is asked."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import Server

_SCRIPT = """
source <(headrace --show-completion bash)
COMP_WORDS=({words})
COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_headrace_completion headrace
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("server"), in_memory=True)
    running.start()
    channel = running.connect().channel()
    for name in ("orders", "orders.eu", "events"):
        channel.queue_declare(name)
    yield running
    running.close_connections()
    assert running.stop() == 0, running.log()


def _complete(words: str, url: str) -> list[str]:
    """What bash offers for the last of these words."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HEADRACE_URL": url, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    ended = subprocess.run(
        ["bash", "-c", _SCRIPT.format(words=words)],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    return ended.stdout.split()


def test_commands_and_options_are_completed(server: Server) -> None:
    assert _complete("headrace per", server.http_url) == ["permissions"]
    assert {"set-topic", "list-topic", "clear-topic"} <= set(_complete("headrace permissions ''", server.http_url))
    assert _complete("headrace serve --tls-c", server.http_url) == ["--tls-cert", "--tls-ca"]


def test_names_of_queues_are_completed_by_the_broker(server: Server) -> None:
    assert sorted(_complete("headrace consume ord", server.http_url)) == ["orders", "orders.eu"]
    assert _complete("headrace queues show ev", server.http_url) == ["events"]


def test_without_a_broker_nothing_is_offered_and_nothing_is_said() -> None:
    assert _complete("headrace consume ord", "http://127.0.0.1:1") == []

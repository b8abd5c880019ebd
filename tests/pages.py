"""Pages of docs/ with files and commands: done as a reader does them, what is shown compared with what comes.

A block with a title is a file of that name. In a block of the kind `console`, lines after `$ ` are commands and the
others are what they print, where `...` stands for anything: on a line of its own for any lines.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.servers import Server

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
_DEADLINE_SECONDS = 200.0
_USUAL = {"amqp": "5672", "mqtt": "1883", "http": "15672"}
_SERVE = "headrace serve"
_KILL = "kill -9 "


class Reader:
    """Somebody at a terminal, in a directory of their own, with a broker on ports that are free."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, str] = {}
        self._server: Server | None = None

    def follow(self, page: str) -> int:
        """Do all that a page says; returns how many commands those were. Other kinds of blocks are only for reading."""
        count = 0
        for kind, title, text in _BLOCK.findall((ROOT / page).read_text()):
            if title:
                self._files[title] = text
            elif kind == "console":
                for command, shown in _commands(text):
                    said = self._do(command)
                    assert re.fullmatch(_pattern(shown), said), f"$ {command}\n{said}\nis not\n{shown}"
                    count += 1
        return count

    def stop(self) -> None:
        if self._server is not None:
            assert self._server.stop() == 0, self._server.log()
            assert "Traceback" not in self._server.log(), self._server.log()

    def _do(self, command: str) -> str:
        """Run a command to its end, or start the broker; returns what it prints."""
        for name, text in self._files.items():
            (self._directory / name).write_text(self._here(text))
        if command == _SERVE:
            return self._serve()
        ended = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self._here(command)],
            cwd=self._directory,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_DEADLINE_SECONDS,
            check=False,
        )
        assert ended.returncode == 0, f"$ {command}\n{ended.stdout}"
        if command.startswith(_KILL):
            assert self._server is not None
            assert self._server.wait() == -signal.SIGKILL
        return self._there(ended.stdout)

    def _serve(self) -> str:
        """Start the broker, with the configuration that is there; after a kill on the same ports."""
        if self._server is None:
            file = "headrace.yaml"
            options = ["--config", str(self._directory / file)] if file in self._files else []
            self._server = Server(self._directory, options=options)
            self._server.start()
        else:
            ports = self._server.ports
            self._server.start(mqtt_port=ports["mqtt"], http_port=ports["http"], amqp_port=ports["amqp"])
        said = self._server.log()
        (self._directory / "server.log").write_text("")
        return self._there(said)

    @property
    def _ports(self) -> dict[str, int]:
        """The port of the broker that runs, by the usual one."""
        ports = {} if self._server is None else self._server.ports
        return {usual: ports[name] for name, usual in _USUAL.items() if name in ports}

    def _here(self, text: str) -> str:
        """The text with the ports of the broker that runs instead of the usual ones."""
        return re.sub(r"\b(5672|1883|15672)\b", lambda found: str(self._ports.get(found[1], found[1])), text)

    def _there(self, text: str) -> str:
        for usual, port in self._ports.items():
            text = re.sub(rf"\b{port}\b", usual, text)
        return text

    def _environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        url = "" if self._server is None else self._server.http_url
        return {**os.environ, "PATH": path, "COLUMNS": "120", "NO_COLOR": "1", "HEADRACE_URL": url}


def _commands(text: str) -> list[tuple[str, str]]:
    """The commands of a block, each with what it prints."""
    found: list[tuple[str, str]] = []
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        found.append((command, shown))
    return found


def _pattern(shown: str) -> str:
    """Output that a command may print."""
    lines = shown.splitlines()
    return "".join(r"(.*\n)*" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + r"\n" for line in lines)

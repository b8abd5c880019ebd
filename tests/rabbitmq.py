"""The real RabbitMQ with its management API, where its package is installed, on ports and in directories of its own."""

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx

from tests.waiting import eventually

_PROGRAM: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # the one in PATH changes the user and the directories
IS_INSTALLED: Final = _PROGRAM.exists()
_HERE: Final = "127.0.0.1"


class RabbitMq:
    """One running node."""

    def __init__(self, port: int, http_port: int) -> None:
        self.port = port
        self.http_port = http_port

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{_HERE}:{self.port}/"

    @property
    def http_url(self) -> str:
        return f"http://{_HERE}:{self.http_port}"


@contextlib.contextmanager
def running_rabbitmq(folder: Path) -> Iterator[RabbitMq]:
    """Start a node, and end it with its epmd."""
    amqp, management, distribution, epmd = _free_ports(4)
    (folder / "home").mkdir(parents=True)
    (folder / "plugins").write_text("[rabbitmq_management].\n")
    (folder / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = {_HERE}:{amqp}\nmanagement.tcp.port = {management}\nmanagement.tcp.ip = {_HERE}\n"
        "log.console = true\nlog.console.level = error\n"
    )
    environment = {
        **os.environ,
        "HOME": str(folder / "home"),
        "RABBITMQ_NODENAME": f"test{amqp}@localhost",
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": os.devnull,
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_DIST_PORT": str(distribution),
        "ERL_EPMD_PORT": str(epmd),
        "ERL_EPMD_ADDRESS": _HERE,
        "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the broker instead of starting it beside itself
    }
    with (folder / "said.log").open("wb") as said:
        process = subprocess.Popen(
            [_PROGRAM], env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
        )
    try:
        eventually(lambda: _answers(management))
        yield RabbitMq(amqp, management)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        subprocess.run(["epmd", "-port", str(epmd), "-kill"], capture_output=True, check=False)


def _answers(port: int) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"http://{_HERE}:{port}/api/overview", auth=("guest", "guest")).status_code == 200
    return False


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((_HERE, 0))
        return [each.getsockname()[1] for each in sockets]

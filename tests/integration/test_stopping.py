"""A stop ends within its bound, even on a disk that hangs, and what was confirmed is there at the next start."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from headrace.process import EXIT_STOP_TOO_LONG
from tests.servers import Server, drain

_PROGRAM = """
import sys
import threading
from pathlib import Path

from headrace import app
from headrace.launch import Launch
from headrace.storage.local.disk import Disk
from headrace.storage.local.engine import LocalEngine

hangs = Path(sys.argv[1])


class HangingDisk(Disk):
    def write_file(self, path, parts):
        while hangs.exists():
            threading.Event().wait(0.05)
        return super().write_file(path, parts)


def opener(settings, wake):
    return LocalEngine(settings.storage.data, wake, disk=HangingDisk())


ports = {("listeners", name): (name, "0") for name in ("amqp", "mqtt", "ws", "http")}
flags = {**ports, ("storage", "data"): ("data", sys.argv[2]), ("limits", "stop"): ("stop", "7s")}
sys.exit(app.run(Launch(None, flags, Path(sys.argv[3])), opener))
"""


def test_a_disk_that_hangs_holds_up_no_stop_and_loses_nothing(tmp_path: Path) -> None:
    hangs, ready = tmp_path / "hangs", tmp_path / "ready.json"
    command = [sys.executable, "-c", _PROGRAM, str(hangs), str(tmp_path / "data"), str(ready)]
    server = Server(tmp_path)
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 120
        while not ready.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        server.adopt(ready)
        channel = server.connect().channel()
        channel.confirm_delivery()
        channel.queue_declare("orders", durable=True)
        channel.basic_publish("", "orders", b"confirmed")
        hangs.touch()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=120)
    finally:
        process.kill()
        process.communicate()

    assert process.returncode == EXIT_STOP_TOO_LONG, said
    assert "the stop was given up after 7 s" in said
    assert not ready.exists()
    server.close_connections()
    server.start()
    assert drain(server.connect().channel(), "orders", 1) == [b"confirmed"]
    server.close_connections()
    assert server.stop() == 0

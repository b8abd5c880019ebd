"""How much an idle broker weighs: nothing is loaded that nobody asked for."""

from pathlib import Path

from tests.servers import Server

MOST_BYTES = 45_000_000


def test_an_idle_broker_stays_small_and_has_no_command_line(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.start()
    try:
        loaded = Path(f"/proc/{server.pid}/maps").read_text()
        memory = server.memory_bytes
    finally:
        server.stop()

    assert "pydantic" not in loaded
    assert "httptools" not in loaded
    assert memory < MOST_BYTES

"""The wire of a connection without a socket: what is sent stays to be looked at, and nothing is written."""

from collections.abc import Callable

from headrace.net.output import Output


class FakeWire:
    """The wire of a connection, without a socket."""

    def __init__(self) -> None:
        self.output = Output(1 << 60, lambda: None, lambda: None)
        self.withheld_bytes = 0
        self._before: list[Callable[[], None]] = []
        self.is_closing = False
        self.peer = self.address = "test"
        self.local = "127.0.0.1:5552"
        self.is_loopback = True
        self.is_tls = False
        self.certificate_name = ""

    @property
    def sent(self) -> list[bytes]:
        return self.output.parts

    @sent.setter
    def sent(self, parts: list[bytes]) -> None:
        self.output.parts = parts

    def send(self, data: bytes) -> None:
        self.output.send(data)

    def withhold(self, more_bytes: int) -> None:
        self.withheld_bytes += more_bytes

    def before_flush(self, call: Callable[[], None]) -> None:
        self._before.append(call)

    def flush(self) -> None:
        while self._before:
            self._before.pop(0)()

    def keep_alive(self, interval_seconds: float, silence_seconds: float = 0.0) -> None:
        return

    def watch(self, limit_seconds: float, on_silence: Callable[[], None]) -> None:
        return

    def pause_reading(self, why: int) -> None:
        return

    def resume_reading(self, why: int) -> None:
        return

    def close(self, after_seconds: float = 0.0) -> None:
        self.is_closing = True

    def finish(self, most_seconds: float) -> None:
        self.is_closing = True

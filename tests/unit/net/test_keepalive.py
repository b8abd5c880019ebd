"""Keepalive on a real socket: a silent peer is disconnected, and the broker beats when it has nothing to send."""

import asyncio

from headrace.net.connection import Wire
from headrace.net.handler import Handler
from headrace.net.listener import Listener


class _Quiet(Handler):
    """A handler that sends heartbeats only."""

    def __init__(self, interval: float, silence: float) -> None:
        self._interval = interval
        self._silence = silence
        self._wire: Wire | None = None

    def opened(self, wire: Wire) -> None:
        self._wire = wire
        wire.keep_alive(self._interval, self._silence)

    def feed(self, data: bytes) -> None:
        return

    def hold_output(self, is_held: bool) -> None:
        return

    def beat(self) -> None:
        assert self._wire is not None
        self._wire.send(b".")

    def stop(self) -> None:
        assert self._wire is not None
        self._wire.close()

    def lost(self) -> None:
        return


async def _heard_until_the_end(interval: float, silence: float) -> bytes:
    listener = Listener(lambda: _Quiet(interval, silence))
    await listener.open("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    heard = b""
    try:
        while data := await asyncio.wait_for(reader.read(100), 10):
            heard += data
    except ConnectionResetError:
        pass
    writer.close()
    await listener.close()
    return heard


def test_a_silent_peer_is_ended_after_the_silence_it_was_told() -> None:
    """The peer gets one beat per interval, and the end after the silence limit."""
    assert len(asyncio.run(_heard_until_the_end(0.1, 0.4))) == 4


def test_without_a_silence_of_its_own_it_is_two_intervals() -> None:
    assert len(asyncio.run(_heard_until_the_end(0.1, 0.0))) == 2

"""AMQP 0-9-1 for a node that forwards clients: where frames end, how to say goodbye, how to refuse."""

from typing import Final, final

from pamqp import commands

from headrace.net.handover import FindRedirect, Refusal, Tracker
from headrace.protocols.amqp091.codec import Decoder, Event, Hello, Method
from headrace.protocols.amqp091.frames import (
    CHANNEL_MAX,
    CONNECTION_FORCED,
    FRAME_MAX_SIZE,
    FRAME_OVERHEAD,
    HEARTBEAT_SECONDS,
    METHOD,
    PROTOCOL_HEADER,
)
from headrace.protocols.amqp091.handshake import start_fields
from headrace.protocols.amqp091.methods import encode_method
from headrace.protocols.amqp091.server import reply_text

_GOODBYE_SECONDS: Final = 2.0
_HEAD_BYTES: Final = FRAME_OVERHEAD - 1
_INDEX_BYTES: Final = 4
_MAX_TEXT: Final = 200
_FIRST: Final = PROTOCOL_HEADER[0]
_OPEN_OK: Final = commands.Connection.OpenOk.index
_CLOSE: Final = (commands.Connection.Close.index, commands.Connection.CloseOk.index)
_CLOSE_OK_FRAME: Final = encode_method(0, commands.Connection.CloseOk)


@final
class Amqp091Tracker(Tracker):
    """Frames as the server sends them."""

    def _measure(self, data: bytes, at: int, size: int) -> int:
        if size - at < _HEAD_BYTES:
            return 0
        if data[at] == _FIRST:  # the server speaks another version, and says so
            self.has_parted = True
            return len(PROTOCOL_HEADER)
        length = data[at + 3] << 24 | data[at + 4] << 16 | data[at + 5] << 8 | data[at + 6]
        if data[at] == METHOD and not data[at + 1] and not data[at + 2]:
            start = at + _HEAD_BYTES
            if size - start < _INDEX_BYTES:
                return 0
            index = int.from_bytes(data[start : start + _INDEX_BYTES])
            self.is_admitted = self.is_admitted or index == _OPEN_OK
            self.has_parted = self.has_parted or index in _CLOSE
        return length + FRAME_OVERHEAD

    def _goodbye(self, why: str) -> bytes:
        return _close(why) if self.is_admitted else b""

    def is_farewell(self, data: bytes) -> bool:
        return data.endswith(_CLOSE_OK_FRAME)


@final
class Amqp091Refusal(Refusal):
    """Goes through the handshake with a client to tell it why it is not served: clients ignore an earlier close.

    The login is not checked.
    """

    def __init__(self, find_redirect: FindRedirect, version: str) -> None:
        super().__init__(find_redirect)
        self._version = version
        self._decoder = Decoder()

    def _hear(self, data: bytes) -> None:
        for event in self._decoder.feed(data):
            self._take(event)

    def _take(self, event: Event) -> None:
        method = event.method if isinstance(event, Method) else None
        if isinstance(event, Hello) and event.is_ours:
            self.send(encode_method(0, commands.Connection.Start, start_fields(self._version, False)))
        elif isinstance(event, Hello):
            self.send(PROTOCOL_HEADER)
            self.end()
        elif isinstance(method, commands.Connection.StartOk):
            tuning = {"channel_max": CHANNEL_MAX, "frame_max": FRAME_MAX_SIZE, "heartbeat": HEARTBEAT_SECONDS}
            self.send(encode_method(0, commands.Connection.Tune, tuning))
        elif isinstance(method, commands.Connection.Open):
            self.send(_close(self.redirect.why))
            self.end(_GOODBYE_SECONDS)
        elif not isinstance(method, commands.Connection.TuneOk):
            self.end()


def _close(why: str) -> bytes:
    fields = {"reply_code": CONNECTION_FORCED, "reply_text": reply_text(CONNECTION_FORCED, why[:_MAX_TEXT])}
    return encode_method(0, commands.Connection.Close, fields)

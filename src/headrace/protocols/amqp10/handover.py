"""AMQP 1.0 on a node that forwards clients to another: where frames end, how to say goodbye, how to refuse."""

from typing import Final, final

from headrace.net.handover import FindRedirect, Redirect, Refusal, Tracker
from headrace.protocols.amqp10.codec import Decoder, Event, Hello, encode_frame, encode_sasl
from headrace.protocols.amqp10.connection import ANONYMOUS, CONTAINER_ID, EXTERNAL, PLAIN
from headrace.protocols.amqp10.frames import (
    AMQP,
    AMQP_HEADER,
    CLOSE,
    HEADER_BYTES,
    MAX_FRAME_SIZE,
    OPEN,
    SASL_HEADER,
    SASL_OK,
)
from headrace.protocols.amqp10.performatives import (
    MAX_CHARACTERS,
    Close,
    Error,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
)
from headrace.wire.types import Map, Symbol

_GOODBYE_SECONDS: Final = 2.0
_SIZE_BYTES: Final = 4
_FIRST: Final = AMQP_HEADER[0]
_DESCRIPTOR: Final = b"\x00\x53"
_KIND_AT: Final = HEADER_BYTES + len(_DESCRIPTOR)
FORCED: Final = "amqp:connection:forced"
REDIRECT: Final = "amqp:connection:redirect"


@final
class Amqp10Tracker(Tracker):
    """Follows the headers and frames of the server."""

    def _measure(self, data: bytes, at: int, size: int) -> int:
        if size - at < HEADER_BYTES:
            return 0
        if data[at] == _FIRST:
            return HEADER_BYTES
        length = int.from_bytes(data[at : at + _SIZE_BYTES])
        if length <= _KIND_AT:
            return max(length, HEADER_BYTES)
        if size - at <= _KIND_AT:
            return 0
        if data[at + 5] == AMQP:
            kind = data[at + _KIND_AT]
            self.is_admitted = self.is_admitted or kind == OPEN
            self.has_parted = self.has_parted or kind == CLOSE
        return length

    def _goodbye(self, why: str) -> bytes:
        return encode_frame(0, Close(Error(FORCED, why[:MAX_CHARACTERS])).encode()) if self.is_admitted else b""


@final
class Amqp10Refusal(Refusal):
    """Lets a client open the connection, and closes it with the address of another node. Logins are not checked."""

    def __init__(self, find_redirect: FindRedirect) -> None:
        super().__init__(find_redirect)
        self._decoder = Decoder()

    def _hear(self, data: bytes) -> None:
        for event in self._decoder.feed(data):
            self._take(event)

    def _take(self, event: Event) -> None:
        if isinstance(event, Hello):
            self._greet(event)
        elif isinstance(event, SaslInit):
            self.send(encode_sasl(SaslOutcome(SASL_OK).encode()))
        elif isinstance(event, Open):
            answer = Open(CONTAINER_ID)
            answer.max_frame_size = MAX_FRAME_SIZE
            answer.properties = Map.of({"amqp:connection-establishment-failed": True})
            self.send(encode_frame(0, answer.encode()))
            self.send(encode_frame(0, Close(_error(self.redirect)).encode()))
            self.end(_GOODBYE_SECONDS)
        else:
            self.end()

    def _greet(self, hello: Hello) -> None:
        if not hello.is_known:
            self.send(SASL_HEADER)
            self.end()
        elif hello.is_sasl:
            mechanisms = [PLAIN, ANONYMOUS, EXTERNAL]
            self.send(SASL_HEADER + encode_sasl(SaslMechanisms(mechanisms).encode()))
        else:
            self.send(AMQP_HEADER)


def _error(elsewhere: Redirect) -> Error:
    """Return the error with the other address [2.8.15], or without one if it is not known."""
    why = elsewhere.why[:MAX_CHARACTERS]
    if not elsewhere.address:
        return Error(FORCED, why)
    places: list[tuple[object, object]] = [
        (Symbol("hostname"), elsewhere.host),
        (Symbol("network-host"), elsewhere.host),
        (Symbol("port"), elsewhere.port),
    ]
    return Error(REDIRECT, why, Map(places))

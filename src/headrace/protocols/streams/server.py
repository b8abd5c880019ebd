"""One open connection as its parts see it, and the code of each error."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from headrace.core.client import Client
from headrace.errors import (
    AccessRefused,
    Corrupt,
    HeadraceError,
    NotFound,
    ProtocolError,
    Refused,
    ResourceLocked,
    Unavailable,
)
from headrace.protocols.answers import Answers
from headrace.protocols.streams.chunks import Encoder
from headrace.protocols.streams.frames import (
    ACCESS_REFUSED,
    INTERNAL_ERROR,
    PRECONDITION_FAILED,
    STREAM_DOES_NOT_EXIST,
    STREAM_NOT_AVAILABLE,
)

if TYPE_CHECKING:
    from headrace.net.connection import Wire

PROTOCOL: Final = "stream"

# The first kind that fits counts.
_CODES: Final[tuple[tuple[type[HeadraceError], int], ...]] = (
    (NotFound, STREAM_DOES_NOT_EXIST),
    (AccessRefused, ACCESS_REFUSED),
    (ResourceLocked, ACCESS_REFUSED),
    (Refused, PRECONDITION_FAILED),
    (Corrupt, STREAM_NOT_AVAILABLE),
    (Unavailable, STREAM_NOT_AVAILABLE),
)


def code_of(error: HeadraceError) -> int:
    if isinstance(error, ProtocolError):
        return error.code
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return INTERNAL_ERROR


@final
class ConnectionContext:
    """An open connection."""

    __slots__ = (
        "answers",
        "broker",
        "client",
        "deliver_version",
        "encoder",
        "end",
        "frame_max",
        "is_held",
        "now_us",
        "wire",
    )

    def __init__(self, wire: "Wire", client: Client, frame_max: int, answers: Answers) -> None:
        self.wire = wire
        self.client = client
        self.broker = client.broker
        self.frame_max = frame_max
        self.answers = answers
        self.encoder = Encoder()
        self.deliver_version = 1
        self.now_us = 0
        self.is_held = False
        """True while the peer reads more slowly than we send."""
        self.end: Callable[[HeadraceError], None] = _nothing
        """Ends the connection for an error that shows later than its cause."""


def _nothing(error: HeadraceError) -> None:
    return

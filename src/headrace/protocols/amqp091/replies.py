"""Which reply code an error has, and whether it ends the channel or the connection. The one table of them."""

from typing import Final

from headrace.errors import (
    AccessRefused,
    Corrupt,
    HeadraceError,
    NotFound,
    PreconditionFailed,
    ProtocolError,
    Refused,
    ResourceLocked,
    TooLarge,
    Unavailable,
)
from headrace.protocols.amqp091.frames import (
    ACCESS_REFUSED,
    CONTENT_TOO_LARGE,
    INTERNAL_ERROR,
    NO_CONSUMERS,
    NOT_FOUND,
    PRECONDITION_FAILED,
    REPLY_NAMES,
    RESOURCE_ERROR,
    RESOURCE_LOCKED,
)

# The first kind that fits counts.
_CODES: Final[tuple[tuple[type[HeadraceError], int], ...]] = (
    (NotFound, NOT_FOUND),
    (AccessRefused, ACCESS_REFUSED),
    (ResourceLocked, RESOURCE_LOCKED),
    (PreconditionFailed, PRECONDITION_FAILED),
    (TooLarge, CONTENT_TOO_LARGE),
    (Refused, PRECONDITION_FAILED),
    (Corrupt, PRECONDITION_FAILED),
    (Unavailable, RESOURCE_ERROR),
)

# AMQP 0-9-1 calls them soft errors: the channel ends, the connection goes on.
_OF_CHANNEL: Final = frozenset(
    {CONTENT_TOO_LARGE, NO_CONSUMERS, ACCESS_REFUSED, NOT_FOUND, RESOURCE_LOCKED, PRECONDITION_FAILED}
)


def code_of(error: HeadraceError) -> int:
    if isinstance(error, ProtocolError):
        return error.code
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return INTERNAL_ERROR


def ends_channel_only(error: HeadraceError) -> bool:
    return not isinstance(error, ProtocolError) and code_of(error) in _OF_CHANNEL


def reply_text(code: int, message: str) -> str:
    """As RabbitMQ words it: the name of the code, then what happened."""
    return f"{REPLY_NAMES.get(code, 'INTERNAL_ERROR')} - {message}"

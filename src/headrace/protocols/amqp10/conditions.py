"""The standard name of each error, and which errors have which. The one table of them."""

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
from headrace.protocols.amqp10 import frames
from headrace.protocols.amqp10.performatives import Error
from headrace.protocols.amqp10.types import Map, Symbol

MAX_CHARACTERS: Final = 400

_NAMES: Final = {
    frames.INTERNAL_ERROR: "amqp:internal-error",
    frames.DECODE_ERROR: "amqp:decode-error",
    frames.FRAMING_ERROR: "amqp:connection:framing-error",
    frames.NOT_ALLOWED: "amqp:not-allowed",
    frames.INVALID_FIELD: "amqp:invalid-field",
    frames.NOT_IMPLEMENTED: "amqp:not-implemented",
    frames.ILLEGAL_STATE: "amqp:illegal-state",
    frames.FRAME_SIZE_TOO_SMALL: "amqp:frame-size-too-small",
    frames.UNATTACHED_HANDLE: "amqp:session:unattached-handle",
    frames.HANDLE_IN_USE: "amqp:session:handle-in-use",
    frames.WINDOW_VIOLATION: "amqp:session:window-violation",
    frames.ERRANT_LINK: "amqp:session:errant-link",
    frames.MESSAGE_SIZE_EXCEEDED: "amqp:link:message-size-exceeded",
    frames.TRANSFER_LIMIT_EXCEEDED: "amqp:link:transfer-limit-exceeded",
    frames.STOLEN: "amqp:link:stolen",
    frames.CONNECTION_FORCED: "amqp:connection:forced",
    frames.UNKNOWN_TRANSACTION: "amqp:transaction:unknown-id",
    frames.TRANSACTION_ROLLBACK: "amqp:transaction:rollback",
    frames.RESOURCE_LIMIT: "amqp:resource-limit-exceeded",
    frames.RESOURCE_DELETED: "amqp:resource-deleted",
    frames.UNAUTHORIZED: "amqp:unauthorized-access",
    frames.NOT_FOUND: "amqp:not-found",
    frames.CONTAINER_IN_USE: "amqp:invalid-field",
}
# Which field is meant, where a client acts on it.
_INVALID_FIELDS: Final = {frames.CONTAINER_IN_USE: "container-id"}

# The first kind that fits counts.
_OF_KINDS: Final[tuple[tuple[type[HeadraceError], str], ...]] = (
    (NotFound, "amqp:not-found"),
    (AccessRefused, "amqp:unauthorized-access"),
    (ResourceLocked, "amqp:resource-locked"),
    (TooLarge, "amqp:link:message-size-exceeded"),
    (PreconditionFailed, "amqp:precondition-failed"),
    (Refused, "amqp:precondition-failed"),
    (Corrupt, "amqp:internal-error"),
    (Unavailable, "amqp:resource-limit-exceeded"),
)

# What is wrong with one link or one session leaves the others alone; all else ends the connection.
_OF_LINK: Final = frozenset(
    {
        frames.MESSAGE_SIZE_EXCEEDED,
        frames.TRANSFER_LIMIT_EXCEEDED,
        frames.NOT_IMPLEMENTED,
        frames.INVALID_FIELD,
        frames.NOT_FOUND,
        frames.RESOURCE_LIMIT,
        frames.UNAUTHORIZED,
    }
)
_OF_SESSION: Final = frozenset(
    {frames.UNATTACHED_HANDLE, frames.HANDLE_IN_USE, frames.WINDOW_VIOLATION, frames.ERRANT_LINK, frames.NOT_ALLOWED}
)


def error_for(error: HeadraceError) -> Error:
    """The error as the peer is told of it: short enough for the smallest frame."""
    text = str(error)[:MAX_CHARACTERS]
    if isinstance(error, ProtocolError):
        field = _INVALID_FIELDS.get(error.code)
        info = None if field is None else Map([(Symbol("invalid-field"), Symbol(field))])
        return Error(_NAMES.get(error.code, "amqp:internal-error"), text, info)
    for kind, condition in _OF_KINDS:
        if isinstance(error, kind):
            return Error(condition, text)
    return Error("amqp:internal-error", text)


def ends_link_only(error: HeadraceError) -> bool:
    return not isinstance(error, ProtocolError) or error.code in _OF_LINK


def ends_session_only(error: ProtocolError) -> bool:
    return error.code in _OF_SESSION

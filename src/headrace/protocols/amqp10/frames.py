"""The frames of AMQP 1.0, its numbers, and the standard names of errors. codec.py reads and writes frames.

A frame:

    0          4       5       6          8          doff * 4             size
    +----------+-------+-------+----------+--- - - --+------------- - - --+
    | size     | doff  | type  | channel  | extended | body               |
    | 4 bytes  | 1     | 1     | 2        | header   |                    |
    +----------+-------+-------+----------+--- - - --+------------- - - --+

The body of an AMQP frame (type 0) is a performative: a list described by a number. A piece of the message follows a
transfer. An empty body only shows that the peer lives. The body of a SASL frame (type 1) is a performative. All
numbers are big-endian.
"""

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
from headrace.wire.amqp10_values import DECODE_ERROR as DECODE_ERROR

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
HEADER_BYTES: Final = 8

AMQP: Final = 0
SASL: Final = 1
MIN_FRAME_SIZE: Final = 512
MAX_FRAME_SIZE: Final = 131072
EMPTY_FRAME: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"

CHANNEL_MAX: Final = 1023
HANDLE_MAX: Final = 1023
IDLE_TIMEOUT_MS: Final = 60_000
INCOMING_WINDOW: Final = 4096
OUTGOING_WINDOW: Final = 0x7FFFFFFF
LINK_CREDIT: Final = 1024
MAX_TAG_BYTES: Final = 32
MAX_UINT: Final = 0xFFFFFFFF

# Descriptors of the performatives.
OPEN: Final = 0x10
BEGIN: Final = 0x11
ATTACH: Final = 0x12
FLOW: Final = 0x13
TRANSFER: Final = 0x14
DISPOSITION: Final = 0x15
DETACH: Final = 0x16
END: Final = 0x17
CLOSE: Final = 0x18
SASL_MECHANISMS: Final = 0x40
SASL_INIT: Final = 0x41
SASL_OUTCOME: Final = 0x44

# Descriptors of values inside performatives.
ERROR: Final = 0x1D
RECEIVED: Final = 0x23
ACCEPTED: Final = 0x24
REJECTED: Final = 0x25
RELEASED: Final = 0x26
MODIFIED: Final = 0x27
SOURCE: Final = 0x28
TARGET: Final = 0x29
COORDINATOR: Final = 0x30
DECLARE: Final = 0x31
DISCHARGE: Final = 0x32
DECLARED: Final = 0x33
TRANSACTIONAL_STATE: Final = 0x34

# Settlement modes.
SENDER_UNSETTLED: Final = 0
SENDER_SETTLED: Final = 1
SENDER_MIXED: Final = 2
RECEIVER_FIRST: Final = 0
RECEIVER_SECOND: Final = 1

# Codes of a SASL outcome.
SASL_OK: Final = 0
SASL_AUTH: Final = 1

# Error codes that ProtocolError carries.
INTERNAL_ERROR: Final = 1
FRAMING_ERROR: Final = 3
NOT_ALLOWED: Final = 4
INVALID_FIELD: Final = 5
NOT_IMPLEMENTED: Final = 6
ILLEGAL_STATE: Final = 7
FRAME_SIZE_TOO_SMALL: Final = 8
UNATTACHED_HANDLE: Final = 9
HANDLE_IN_USE: Final = 10
WINDOW_VIOLATION: Final = 11
MESSAGE_SIZE_EXCEEDED: Final = 12
TRANSFER_LIMIT_EXCEEDED: Final = 13
CONNECTION_FORCED: Final = 14
UNKNOWN_TRANSACTION: Final = 15
TRANSACTION_ROLLBACK: Final = 16
RESOURCE_LIMIT: Final = 17
STOLEN: Final = 18
RESOURCE_DELETED: Final = 19
ERRANT_LINK: Final = 20
UNAUTHORIZED: Final = 21
NOT_FOUND: Final = 22
CONTAINER_IN_USE: Final = 23

_CONDITIONS: Final = {
    INTERNAL_ERROR: "amqp:internal-error",
    DECODE_ERROR: "amqp:decode-error",
    FRAMING_ERROR: "amqp:connection:framing-error",
    NOT_ALLOWED: "amqp:not-allowed",
    INVALID_FIELD: "amqp:invalid-field",
    NOT_IMPLEMENTED: "amqp:not-implemented",
    ILLEGAL_STATE: "amqp:illegal-state",
    FRAME_SIZE_TOO_SMALL: "amqp:frame-size-too-small",
    UNATTACHED_HANDLE: "amqp:session:unattached-handle",
    HANDLE_IN_USE: "amqp:session:handle-in-use",
    WINDOW_VIOLATION: "amqp:session:window-violation",
    ERRANT_LINK: "amqp:session:errant-link",
    MESSAGE_SIZE_EXCEEDED: "amqp:link:message-size-exceeded",
    TRANSFER_LIMIT_EXCEEDED: "amqp:link:transfer-limit-exceeded",
    STOLEN: "amqp:link:stolen",
    CONNECTION_FORCED: "amqp:connection:forced",
    UNKNOWN_TRANSACTION: "amqp:transaction:unknown-id",
    TRANSACTION_ROLLBACK: "amqp:transaction:rollback",
    RESOURCE_LIMIT: "amqp:resource-limit-exceeded",
    RESOURCE_DELETED: "amqp:resource-deleted",
    UNAUTHORIZED: "amqp:unauthorized-access",
    NOT_FOUND: "amqp:not-found",
    CONTAINER_IN_USE: "amqp:invalid-field",
}
# The first kind that matches counts.
_CONDITIONS_OF_KINDS: Final[tuple[tuple[type[HeadraceError], str], ...]] = (
    (NotFound, "amqp:not-found"),
    (AccessRefused, "amqp:unauthorized-access"),
    (ResourceLocked, "amqp:resource-locked"),
    (TooLarge, "amqp:link:message-size-exceeded"),
    (PreconditionFailed, "amqp:precondition-failed"),
    (Refused, "amqp:precondition-failed"),
    (Corrupt, "amqp:internal-error"),
    (Unavailable, "amqp:resource-limit-exceeded"),
)

# These errors end one link or one session. All others end the connection.
_OF_LINK: Final = frozenset(
    {
        MESSAGE_SIZE_EXCEEDED,
        TRANSFER_LIMIT_EXCEEDED,
        NOT_IMPLEMENTED,
        INVALID_FIELD,
        NOT_FOUND,
        RESOURCE_LIMIT,
        UNAUTHORIZED,
    }
)
_OF_SESSION: Final = frozenset({UNATTACHED_HANDLE, HANDLE_IN_USE, WINDOW_VIOLATION, ERRANT_LINK, NOT_ALLOWED})


def condition_of(error: HeadraceError) -> str:
    """Return the standard name of an error."""
    if isinstance(error, ProtocolError):
        return _CONDITIONS.get(error.code, "amqp:internal-error")
    for kind, condition in _CONDITIONS_OF_KINDS:
        if isinstance(error, kind):
            return condition
    return "amqp:internal-error"


def ends_link_only(error: HeadraceError) -> bool:
    return not isinstance(error, ProtocolError) or error.code in _OF_LINK


def ends_session_only(error: ProtocolError) -> bool:
    return error.code in _OF_SESSION

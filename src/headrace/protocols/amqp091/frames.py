"""The frames of AMQP 0-9-1 and its numbers. Constants only; codec.py reads and writes with them.

A frame:

    0        1          3               7                   7+size
    +--------+----------+---------------+------------- - - -+------+
    | type   | channel  | size          | payload           | 0xCE |
    | 1 byte | 2 bytes  | 4 bytes       | size bytes        |      |
    +--------+----------+---------------+------------- - - -+------+

The payload of a method frame: class (2 bytes), method (2 bytes), arguments. Of a header frame: class (2), weight (2,
zero), body size (8), property flags (2 or more), property list. Of a body frame: a piece of the body. Of a heartbeat:
nothing. All numbers are unsigned and big-endian.
"""

from typing import Final

from headrace.wire.amqp091 import SYNTAX_ERROR as SYNTAX_ERROR

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
FRAME_OVERHEAD: Final = 8
FRAME_MIN_SIZE: Final = 4096
FRAME_MAX_SIZE: Final = 131072
CHANNEL_MAX: Final = 2047
HEARTBEAT_SECONDS: Final = 60
MAX_BODY_BYTES: Final = 128 << 20

BASIC: Final = 60

# class << 16 | method, of the methods that codec.py handles itself.
BASIC_PUBLISH: Final = 0x003C0028
BASIC_DELIVER: Final = 0x003C003C
BASIC_ACK: Final = 0x003C0050
ACK_BYTES: Final = 13
"""The payload of such a frame, in bytes."""

# Reply codes.
CONTENT_TOO_LARGE: Final = 311
NO_ROUTE: Final = 312
NO_CONSUMERS: Final = 313
CONNECTION_FORCED: Final = 320
INVALID_PATH: Final = 402
ACCESS_REFUSED: Final = 403
NOT_FOUND: Final = 404
RESOURCE_LOCKED: Final = 405
PRECONDITION_FAILED: Final = 406
FRAME_ERROR: Final = 501
COMMAND_INVALID: Final = 503
CHANNEL_ERROR: Final = 504
UNEXPECTED_FRAME: Final = 505
RESOURCE_ERROR: Final = 506
NOT_ALLOWED: Final = 530
NOT_IMPLEMENTED: Final = 540
INTERNAL_ERROR: Final = 541

REPLY_NAMES: Final = {
    CONTENT_TOO_LARGE: "CONTENT_TOO_LARGE",
    NO_ROUTE: "NO_ROUTE",
    NO_CONSUMERS: "NO_CONSUMERS",
    CONNECTION_FORCED: "CONNECTION_FORCED",
    INVALID_PATH: "INVALID_PATH",
    ACCESS_REFUSED: "ACCESS_REFUSED",
    NOT_FOUND: "NOT_FOUND",
    RESOURCE_LOCKED: "RESOURCE_LOCKED",
    PRECONDITION_FAILED: "PRECONDITION_FAILED",
    FRAME_ERROR: "FRAME_ERROR",
    SYNTAX_ERROR: "SYNTAX_ERROR",
    COMMAND_INVALID: "COMMAND_INVALID",
    CHANNEL_ERROR: "CHANNEL_ERROR",
    UNEXPECTED_FRAME: "UNEXPECTED_FRAME",
    RESOURCE_ERROR: "RESOURCE_ERROR",
    NOT_ALLOWED: "NOT_ALLOWED",
    NOT_IMPLEMENTED: "NOT_IMPLEMENTED",
    INTERNAL_ERROR: "INTERNAL_ERROR",
}

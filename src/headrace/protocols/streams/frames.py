"""The numbers of the stream protocol: commands with their fields, versions, response codes, limits. No bytes."""

from typing import Final

DECLARE_PUBLISHER: Final = 0x01
PUBLISH: Final = 0x02
PUBLISH_CONFIRM: Final = 0x03
PUBLISH_ERROR: Final = 0x04
QUERY_PUBLISHER_SEQUENCE: Final = 0x05
DELETE_PUBLISHER: Final = 0x06
SUBSCRIBE: Final = 0x07
DELIVER: Final = 0x08
CREDIT: Final = 0x09
STORE_OFFSET: Final = 0x0A
QUERY_OFFSET: Final = 0x0B
UNSUBSCRIBE: Final = 0x0C
CREATE: Final = 0x0D
DELETE: Final = 0x0E
METADATA: Final = 0x0F
METADATA_UPDATE: Final = 0x10
PEER_PROPERTIES: Final = 0x11
SASL_HANDSHAKE: Final = 0x12
SASL_AUTHENTICATE: Final = 0x13
TUNE: Final = 0x14
OPEN: Final = 0x15
CLOSE: Final = 0x16
HEARTBEAT: Final = 0x17
ROUTE: Final = 0x18
PARTITIONS: Final = 0x19
CONSUMER_UPDATE: Final = 0x1A
EXCHANGE_COMMAND_VERSIONS: Final = 0x1B
STREAM_STATS: Final = 0x1C
CREATE_SUPER_STREAM: Final = 0x1D
DELETE_SUPER_STREAM: Final = 0x1E

RESPONSE: Final = 0x8000
"""The bit of a key that makes a response of it."""

VERSIONS: Final = {
    **dict.fromkeys(range(DECLARE_PUBLISHER, DELETE_SUPER_STREAM + 1), (1, 1)),
    PUBLISH: (1, 2),
    DELIVER: (1, 2),
}
"""The first and the last version of each command."""

# Kinds of fields.
U8: Final = "b"
U16: Final = "h"
U32: Final = "i"
U64: Final = "q"
TEXT: Final = "s"
BYTES: Final = "y"
TEXTS: Final = "S"
TABLE: Final = "T"
POSITION: Final = "P"
"""A kind of position (u16), and for two of the kinds an offset or a time (64 bits)."""
RANGES: Final = "R"
"""Commands, each with its first and last version."""
CORRELATED: Final = "c"
"""A number that the response repeats."""

FIELDS: Final = {
    DECLARE_PUBLISHER: "cbss",
    QUERY_PUBLISHER_SEQUENCE: "css",
    DELETE_PUBLISHER: "cb",
    SUBSCRIBE: "cbsPhT",
    CREDIT: "bh",
    STORE_OFFSET: "ssq",
    QUERY_OFFSET: "css",
    UNSUBSCRIBE: "cb",
    CREATE: "csT",
    DELETE: "cs",
    METADATA: "cS",
    PEER_PROPERTIES: "cT",
    SASL_HANDSHAKE: "c",
    SASL_AUTHENTICATE: "csy",
    TUNE: "ii",
    TUNE | RESPONSE: "ii",
    OPEN: "cs",
    CLOSE: "chs",
    CLOSE | RESPONSE: "ch",
    HEARTBEAT: "",
    HEARTBEAT | RESPONSE: "",
    ROUTE: "css",
    PARTITIONS: "cs",
    CONSUMER_UPDATE | RESPONSE: "chP",
    EXCHANGE_COMMAND_VERSIONS: "cR",
    STREAM_STATS: "cs",
    CREATE_SUPER_STREAM: "csSST",
    DELETE_SUPER_STREAM: "cs",
}
"""The fields of each frame that a client sends, but for publishes. Fields at the end may be missing."""

# Positions in a stream.
FIRST: Final = 1
LAST: Final = 2
NEXT: Final = 3
OFFSET: Final = 4
TIMESTAMP: Final = 5

# Response codes.
OK: Final = 0x01
STREAM_DOES_NOT_EXIST: Final = 0x02
SUBSCRIPTION_ID_EXISTS: Final = 0x03
SUBSCRIPTION_ID_DOES_NOT_EXIST: Final = 0x04
STREAM_EXISTS: Final = 0x05
STREAM_NOT_AVAILABLE: Final = 0x06
MECHANISM_NOT_SUPPORTED: Final = 0x07
AUTHENTICATION_FAILURE: Final = 0x08
SASL_ERROR: Final = 0x09
AUTHENTICATION_FAILURE_LOOPBACK: Final = 0x0B
HOST_ACCESS_FAILURE: Final = 0x0C
UNKNOWN_FRAME: Final = 0x0D
FRAME_TOO_LARGE: Final = 0x0E
INTERNAL_ERROR: Final = 0x0F
ACCESS_REFUSED: Final = 0x10
PRECONDITION_FAILED: Final = 0x11
PUBLISHER_DOES_NOT_EXIST: Final = 0x12
NO_OFFSET: Final = 0x13

FRAME_MAX_BYTES: Final = 1 << 20
FRAME_MIN_BYTES: Final = 4096
LOGIN_FRAME_BYTES: Final = 64 << 10
"""The largest frame before the login."""
HEARTBEAT_SECONDS: Final = 60
MAX_REFERENCE_CHARACTERS: Final = 255
MAX_IDS: Final = 256
"""Publishers or subscriptions of a connection: their ids have 8 bits."""

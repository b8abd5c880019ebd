"""The reason codes of MQTT 5, MQTT 3's return codes that stand for them, and the code of each error. No packets.

The broker uses the codes of MQTT 5; the code for an MQTT 3 client is looked up when a packet is encoded.
"""

from typing import Final

from headrace.errors import (
    AccessRefused,
    HeadraceError,
    NotFound,
    PreconditionFailed,
    ProtocolError,
    Refused,
    ResourceLocked,
    TooLarge,
    Unavailable,
)
from headrace.wire.mqtt5 import MALFORMED_PACKET as MALFORMED_PACKET
from headrace.wire.mqtt5 import PROTOCOL_ERROR as PROTOCOL_ERROR
from headrace.wire.mqtt5 import TOPIC_ALIAS_INVALID as TOPIC_ALIAS_INVALID

SUCCESS: Final = 0x00
NORMAL_DISCONNECTION: Final = 0x00
NO_MATCHING_SUBSCRIBERS: Final = 0x10
NO_SUBSCRIPTION_EXISTED: Final = 0x11
UNSPECIFIED_ERROR: Final = 0x80
IMPLEMENTATION_SPECIFIC_ERROR: Final = 0x83
UNSUPPORTED_PROTOCOL_VERSION: Final = 0x84
CLIENT_IDENTIFIER_NOT_VALID: Final = 0x85
BAD_USER_NAME_OR_PASSWORD: Final = 0x86
NOT_AUTHORIZED: Final = 0x87
SERVER_UNAVAILABLE: Final = 0x88
SERVER_BUSY: Final = 0x89
BANNED: Final = 0x8A
SERVER_SHUTTING_DOWN: Final = 0x8B
BAD_AUTHENTICATION_METHOD: Final = 0x8C
KEEP_ALIVE_TIMEOUT: Final = 0x8D
SESSION_TAKEN_OVER: Final = 0x8E
TOPIC_FILTER_INVALID: Final = 0x8F
TOPIC_NAME_INVALID: Final = 0x90
PACKET_IDENTIFIER_NOT_FOUND: Final = 0x92
RECEIVE_MAXIMUM_EXCEEDED: Final = 0x93
PACKET_TOO_LARGE: Final = 0x95
QUOTA_EXCEEDED: Final = 0x97
ADMINISTRATIVE_ACTION: Final = 0x98
USE_ANOTHER_SERVER: Final = 0x9C
CONNECTION_RATE_EXCEEDED: Final = 0x9F

FAILURE: Final = 0x80
"""Codes from here on are failures; MQTT 3 has this one in a SUBACK."""

# MQTT 3.1.1 [3.2.2.3]: the return code of a CONNACK. A refusal without a code is not answered.
CONNACK_OF_MQTT_3: Final[dict[int, int]] = {
    SUCCESS: 0,
    UNSUPPORTED_PROTOCOL_VERSION: 1,
    CLIENT_IDENTIFIER_NOT_VALID: 2,
    SERVER_UNAVAILABLE: 3,
    SERVER_BUSY: 3,
    SERVER_SHUTTING_DOWN: 3,
    QUOTA_EXCEEDED: 3,
    USE_ANOTHER_SERVER: 3,
    CONNECTION_RATE_EXCEEDED: 3,
    BAD_USER_NAME_OR_PASSWORD: 4,
    NOT_AUTHORIZED: 5,
    BANNED: 5,
}

# The codes that a client may send in each packet: MQTT 5 [3.4.2.1], [3.6.2.1], [3.14.2.1], [3.15.2.1].
OF_PUBACK: Final = frozenset((0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99))
OF_PUBREL: Final = frozenset((0x00, 0x92))
OF_DISCONNECT: Final = frozenset((0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99))
OF_AUTH: Final = frozenset((0x18, 0x19))


def code_of_publish(error: HeadraceError) -> int:
    """The same for a message that core did not store: a queue refuses messages because of its limits."""
    return QUOTA_EXCEEDED if type(error) is Refused else code_of(error)


def code_of(error: HeadraceError) -> int:
    """The reason code of MQTT 5 for an error, in PUBACK, PUBREC and SUBACK."""
    if isinstance(error, ProtocolError):
        return error.code
    if isinstance(error, AccessRefused | ResourceLocked):
        return NOT_AUTHORIZED
    if isinstance(error, TooLarge | PreconditionFailed | Unavailable):
        return QUOTA_EXCEEDED
    if isinstance(error, NotFound):
        return UNSPECIFIED_ERROR
    return UNSPECIFIED_ERROR if isinstance(error, Refused) else IMPLEMENTATION_SPECIFIC_ERROR

"""Which reason code tells a client of which error: the one table. No packets."""

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
from headrace.protocols.mqtt.reasons import (
    IMPLEMENTATION_SPECIFIC_ERROR,
    NOT_AUTHORIZED,
    QUOTA_EXCEEDED,
    UNSPECIFIED_ERROR,
)


def code_of_publish(error: HeadraceError) -> int:
    """The same for a message that core was to keep: when a queue does not take it, that is for its limits."""
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

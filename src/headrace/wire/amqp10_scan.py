"""Messages of AMQP 1.0 without objects: whether a publish depends on their head, and where annotations go on delivery.

Most heads decide nothing but a priority, also where each message has ids and application properties of its own. A scan
of their usual forms finds that out; `scan_head` and `with_changes` of amqp10.py do the rest. Spark's tasks have no
librt, so amqp10.py, which they load, imports nothing from here.
"""

from typing import Final

from librt.strings import read_i32_be
from mypy_extensions import i64

from headrace.wire.amqp10 import (
    ABSOLUTE_EXPIRY_TIME,
    CORRELATION_ID,
    CREATION_TIME,
    DATA,
    GROUP_SEQUENCE,
    HEADER,
    MESSAGE_ANNOTATIONS,
    MESSAGE_ID,
    PROPERTIES,
    USER_ID,
    annotation_keys,
)
from headrace.wire.amqp10_values import (
    FALSE,
    LIST0,
    LIST8,
    LIST32,
    MAP8,
    MAP32,
    NULL,
    SMALLUINT,
    STR8,
    STR32,
    SYM8,
    SYM32,
    TIMESTAMP,
    TRUE,
    UBYTE,
    UINT,
    UINT0,
    VBIN8,
    VBIN32,
)

DEFAULT_PRIORITY: Final = 4
DELIVERY_TIME: Final = "x-opt-delivery-time"
DELIVERY_DELAY: Final = "x-opt-delivery-delay"
"""Annotations with the time or the delay of a delivery, in milliseconds."""
UNSURE: Final = -1
_HAS_FOOTER: Final = 0x80
_FIELDS_OF_HEADER: Final = 5
_FIELDS_OF_PROPERTIES: Final = 13
_DELAYS: Final = annotation_keys(DELIVERY_TIME, DELIVERY_DELAY)


def plain_priority(properties: bytes) -> int:
    """Return the priority of a message whose stored head decides nothing else on a link with a fixed target.

    Returns UNSURE for a head with an expiry, a delay or a user, for one in other forms, and for bytes that
    `decode_head` refuses.
    """
    size: i64 = len(properties)
    if not size or properties[0] & _HAS_FOOTER:
        return UNSURE
    at: i64 = 1
    last: i64 = 0
    priority: i64 = DEFAULT_PRIORITY
    while at < size:
        kind: i64 = _kind(properties, at, size)
        if kind <= last:
            return UNSURE
        last = kind
        end = _end(properties, at, size)
        if end < 0:
            return UNSURE
        if kind == HEADER:
            priority = _priority(properties, at, end)
            if priority < 0:
                return UNSURE
        elif kind == PROPERTIES:
            if not _passes(properties, at, end):
                return UNSURE
        elif not _is_plain_map(properties, at, end, kind == MESSAGE_ANNOTATIONS):
            return UNSURE
        at = end
    return int(priority)


def annotations_place(properties: bytes) -> int:
    """Return where message annotations go into stored properties; UNSURE if there are some, or in other forms."""
    size: i64 = len(properties)
    if not size or properties[0] & _HAS_FOOTER:
        return UNSURE
    at: i64 = 1
    while at < size:
        kind = _kind(properties, at, size)
        if kind < 0 or kind == MESSAGE_ANNOTATIONS:
            return UNSURE
        if kind > MESSAGE_ANNOTATIONS:
            return int(at)
        at = _end(properties, at, size)
        if at < 0:
            return UNSURE
    return int(at)


def _kind(raw: bytes, at: i64, size: i64) -> i64:
    """The number of the section that begins here, before the body; UNSURE if there is none in its usual form."""
    if size - at < 4 or raw[at] != 0 or raw[at + 1] != 0x53:
        return UNSURE
    kind = i64(raw[at + 2])
    return kind if HEADER <= kind < DATA else UNSURE


def _end(raw: bytes, at: i64, size: i64) -> i64:
    """The end of the section that begins here; UNSURE if it is neither a list nor a map within these bytes."""
    code = i64(raw[at + 3])
    end: i64 = UNSURE
    if code == LIST0:
        end = at + 4
    elif code in (LIST8, MAP8):
        if size - at > 5:
            end = at + 5 + i64(raw[at + 4])
    elif code in (LIST32, MAP32) and size - at > 11:
        length = i64(read_i32_be(raw, at + 4))
        if length >= 4:
            end = at + 8 + length
    return end if end <= size else UNSURE


def _items(raw: bytes, at: i64) -> i64:
    """The start of the section's items."""
    return at + 6 if raw[at + 3] < LIST32 else at + 12


def _count(raw: bytes, at: i64) -> i64:
    return i64(raw[at + 5]) if raw[at + 3] < LIST32 else i64(read_i32_be(raw, at + 8))


def _priority(raw: bytes, at: i64, end: i64) -> i64:
    """The priority of a header without a time to live; UNSURE for others."""
    if raw[at + 3] == LIST0:
        return DEFAULT_PRIORITY
    count = _count(raw, at)
    if raw[at + 3] & 0xF != 0 or count < 0 or count > _FIELDS_OF_HEADER:
        return UNSURE
    at = _items(raw, at)
    priority: i64 = DEFAULT_PRIORITY
    index: i64 = 0
    while index < count:
        if at >= end:
            return UNSURE
        code = i64(raw[at])
        at += 1
        if code == UBYTE and index == 1:
            if at >= end:
                return UNSURE
            priority = i64(raw[at])
            at += 1
        elif code != NULL and not (code in (TRUE, FALSE) and index in (0, 3)):
            return UNSURE
        index += 1
    return priority if at == end else UNSURE


def _passes(raw: bytes, at: i64, end: i64) -> bool:
    """True for properties without a user and an expiry, whose fields have types that they may have."""
    if raw[at + 3] == LIST0:
        return True
    count = _count(raw, at)
    if raw[at + 3] & 0xF != 0 or count < 0 or count > _FIELDS_OF_PROPERTIES:
        return False
    at = _items(raw, at)
    index: i64 = 0
    while index < count:
        if at >= end:
            return False
        code = i64(raw[at])
        if code != NULL and not _may_be(index, code):
            return False
        at = _step(raw, at, end)
        if at < 0:
            return False
        index += 1
    return at == end


def _may_be(index: i64, code: i64) -> bool:
    """True if a field of the properties decides nothing and may have this code."""
    if index in (MESSAGE_ID, CORRELATION_ID):
        return True
    if index in (USER_ID, ABSOLUTE_EXPIRY_TIME):
        return False
    if index == CREATION_TIME:
        return code == TIMESTAMP
    if index == GROUP_SEQUENCE:
        return code in (UINT0, SMALLUINT, UINT)
    return code in (STR8, SYM8, STR32, SYM32)


def _is_plain_map(raw: bytes, at: i64, end: i64, has_delays: bool) -> bool:
    """True for a map of simple values, none of which delays the message."""
    if raw[at + 3] & 0xF != 1:
        return False
    count = _count(raw, at)
    if count < 0 or count & 1:
        return False
    at = _items(raw, at)
    while count > 0:
        if at >= end:
            return False
        start = at
        at = _step(raw, at, end)
        if at < 0 or at >= end or (has_delays and raw[start:at] in _DELAYS):
            return False
        at = _step(raw, at, end)
        if at < 0:
            return False
        count -= 2
    return at == end


def _step(raw: bytes, at: i64, end: i64) -> i64:
    """The end of a simple value; UNSURE for a text that is not ASCII, and for values that hold others."""
    code = i64(raw[at])
    width = code >> 4
    at += 1
    if width >= 0xA:
        start = at + 1
        if code in (STR8, SYM8, VBIN8):
            if at >= end:
                return UNSURE
            stop = start + i64(raw[at])
        elif code in (STR32, SYM32, VBIN32):
            start = at + 4
            if start > end:
                return UNSURE
            length = i64(read_i32_be(raw, at))
            if length < 0:
                return UNSURE
            stop = start + length
        else:
            return UNSURE
        if stop > end or (code & 0xF != 0 and not raw[start:stop].isascii()):
            return UNSURE
        return stop
    if width == 4:
        stop = at if code < 0x46 else UNSURE
    elif width == 5:
        stop = at + 1 if code < 0x56 else UNSURE
    elif width == 6:
        stop = at + 2 if code < 0x62 else UNSURE
    elif width == 7:
        stop = at + 4 if code < 0x73 else UNSURE
    elif width == 8:
        stop = at + 8 if code < 0x85 else UNSURE
    elif code == 0x98:
        stop = at + 16
    else:
        stop = UNSURE
    return stop if stop <= end else UNSURE

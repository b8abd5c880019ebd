"""The sections of a message: before its body, the body's content, and the footer. No links.

A message of AMQP 1.0 keeps all its bytes. Its payload is the content of the body if that is one piece (a data section,
a string or binary value), so that every protocol and Spark read it as it is. Of any other body it is the sections
themselves. `properties` of the stored message holds the rest:

    +--------+------------------+---------- - - - ---+-------- - - -+
    | form   | size of the head | head: header,      | footer       |     size and footer are there only when the
    | 1 byte | 4 bytes          | annotations, ...   |              |     highest bit of the form is set
    +--------+------------------+---------- - - - ---+-------- - - -+

A head keeps its typed values, so writing it again changes only the fields that were changed. properties.py has the
meaning of the values to core and to other protocols.
"""

import struct
from typing import Final, final

from headrace.errors import ProtocolError
from headrace.protocols.amqp10 import frames
from headrace.protocols.amqp10.frames import DATA, DECODE_ERROR, FOOTER, HEADER, VALUE
from headrace.protocols.amqp10.types import Map, Timestamp, UByte, UInt
from headrace.protocols.amqp10.values import Reader, encode_described, encode_value

_U32: Final = struct.Struct(">I")

# Forms of the body around its content. Stored on disk: never renumber.
DATA_BODY: Final = 0
"""One data section, its length in the fewest bytes."""
DATA_BODY_LONG: Final = 1
"""One data section, its length in four bytes where one would do."""
STRING_BODY: Final = 2
STRING_BODY_LONG: Final = 3
BINARY_BODY: Final = 4
BINARY_BODY_LONG: Final = 5
WHOLE_BODY: Final = 6
"""Any other body: the content is its sections."""
_HAS_FOOTER: Final = 0x80

_SHORT: Final = {
    DATA_BODY: b"\x00\x53\x75\xa0",
    STRING_BODY: b"\x00\x53\x77\xa1",
    BINARY_BODY: b"\x00\x53\x77\xa0",
}
_LONG: Final = {
    DATA_BODY: b"\x00\x53\x75\xb0",
    STRING_BODY: b"\x00\x53\x77\xb1",
    BINARY_BODY: b"\x00\x53\x77\xb0",
}
_FORMS: Final = {start: form for starts in (_SHORT, _LONG) for form, start in starts.items()}


def split(message: bytes) -> tuple[bytes, bytes]:
    """Split a message into the properties to store and the payload. Raises ProtocolError.

    Some clients write the body before the properties, so sections out of order are put in order.
    """
    try:
        return _split(message)
    except ProtocolError:
        ordered = _in_order(message)
        if ordered == message:
            raise
        return _split(ordered)


def _in_order(message: bytes) -> bytes:
    found: list[tuple[int, int, int]] = []
    at = 0
    while at < len(message):
        reader = Reader(message, at)
        kind = _kind(reader)
        reader.skip()
        found.append((kind, at, reader.at))
        at = reader.at
    return b"".join([message[start:end] for _, start, end in sorted(found)])


def _split(message: bytes) -> tuple[bytes, bytes]:
    size = len(message)
    at = _quick_steps(message, size)
    while at < size and (at + 2 >= size or message[at : at + 2] != b"\x00\x53" or message[at + 2] < DATA):
        reader = Reader(message, at)
        if DATA <= _kind(reader) <= VALUE:
            break
        reader.skip()
        at = reader.at
    found = _whole_body(message, at)
    if found is not None:
        form, start = found
        return bytes([form]) + message[:at], message[start:]
    body = _body_end(message, at)
    if body == size:
        return bytes([WHOLE_BODY]) + message[:at], message[at:]
    head, content = message[:at], message[at:body]
    single = _whole_body(content, 0)
    form = WHOLE_BODY if single is None else single[0]
    properties = b"".join((bytes([form | _HAS_FOOTER]), _U32.pack(at), head, message[body:]))
    return properties, content if single is None else content[single[1] :]


def _quick_steps(message: bytes, size: int) -> int:
    """Step over sections before the body in their usual forms. Return the start of the first other one.

    0.4 us for one section; a reader takes 2.
    """
    at = 0
    while size - at > 8 and message[at] == 0 and message[at + 1] == 0x53 and HEADER <= message[at + 2] < DATA:
        code = message[at + 3]
        if code == 0xC0 or code == 0xC1:
            after = at + 5 + message[at + 4]
        elif code == 0xD0 or code == 0xD1:
            after = at + 8 + _U32.unpack_from(message, at + 4)[0]
        else:
            break
        if after > size:
            break
        at = after
    return at


def joined(properties: bytes, payload: bytes) -> bytes:
    """Return the message again, byte for byte."""
    form = properties[0]
    if form == DATA_BODY and len(payload) < 256:
        return b"".join((properties[1:], b"\x00\x53\x75\xa0", bytes([len(payload)]), payload))
    if form & _HAS_FOOTER:
        head, footer = parts(properties)
        return b"".join((head, body_start(form & 0x7F, payload), payload, footer))
    return b"".join((properties[1:], body_start(form, payload), payload))


def parts(properties: bytes) -> tuple[bytes, bytes]:
    """Return the sections before the body, and the footer."""
    if not properties[0] & _HAS_FOOTER:
        return properties[1:], b""
    end = 5 + _U32.unpack_from(properties, 1)[0]
    return properties[5:end], properties[end:]


def stored(form: int, head: bytes, footer: bytes) -> bytes:
    """Return the properties of a message with these parts."""
    if not footer:
        return bytes([form & 0x7F]) + head
    return b"".join((bytes([form | _HAS_FOOTER]), _U32.pack(len(head)), head, footer))


def body_start(form: int, payload: bytes) -> bytes:
    """Return the bytes before the content of the body."""
    if form == WHOLE_BODY:
        return b""
    size = len(payload)
    kind = form & 0x06
    if form & 1 or size > 255:
        return _LONG[kind] + _U32.pack(size)
    return _SHORT[kind] + bytes([size])


def _whole_body(message: bytes, at: int) -> tuple[int, int] | None:
    """Return the form of a body that is one piece up to the end of the message, and the start of its content."""
    start = message[at : at + 4]
    form = _FORMS.get(start)
    if form is None:
        return None
    if start[3] < 0xB0:
        if at + 5 > len(message) or at + 5 + message[at + 4] != len(message):
            return None
        return form, at + 5
    if at + 8 > len(message):
        return None
    size = _U32.unpack_from(message, at + 4)[0]
    if at + 8 + size != len(message):
        return None
    return form | (1 if size < 256 else 0), at + 8


def _body_end(message: bytes, at: int) -> int:
    """Return the end of the body, behind its last section. Raises ProtocolError if it mixes kinds of sections."""
    size = len(message)
    body = 0
    while at < size:
        reader = Reader(message, at)
        kind = _kind(reader)
        if kind == FOOTER:
            reader.skip()
            if not reader.is_at_end:
                raise ProtocolError(DECODE_ERROR, "there is something behind the footer of a message")
            return at
        if kind < DATA or (body and (kind != body or kind == VALUE)):
            raise ProtocolError(DECODE_ERROR, f"a message has the section {kind:#x} where it cannot be")
        body = kind
        reader.skip()
        at = reader.at
    return at


def _kind(reader: Reader) -> int:
    """Return the number of the next section. Raises ProtocolError if there is none."""
    kind = reader.descriptor()
    if not HEADER <= kind <= FOOTER:
        raise ProtocolError(DECODE_ERROR, f"{kind:#x} is no section of a message")
    return kind


def sections(head: bytes) -> list[tuple[int, int, int]]:
    """Return number, start and end of each section before a body. Raises ProtocolError for others."""
    found: list[tuple[int, int, int]] = []
    at = 0
    while at < len(head):
        reader = Reader(head, at)
        kind = _kind(reader)
        if kind >= DATA or (found and kind <= found[-1][0]):
            raise ProtocolError(DECODE_ERROR, f"a message has the section {kind:#x} where it cannot be")
        reader.skip()
        found.append((kind, at, reader.at))
        at = reader.at
    return found


# Fields of the header.
DURABLE: Final = 0
PRIORITY: Final = 1
TTL: Final = 2
FIRST_ACQUIRER: Final = 3
DELIVERY_COUNT: Final = 4
_HEADER_TYPES: Final[tuple[tuple[str, tuple[type, ...]], ...]] = (
    ("durable", (bool,)),
    ("priority", (UByte,)),
    ("ttl", (UInt,)),
    ("first-acquirer", (bool,)),
    ("delivery-count", (UInt,)),
)

# Fields of the properties.
MESSAGE_ID: Final = 0
USER_ID: Final = 1
TO: Final = 2
SUBJECT: Final = 3
REPLY_TO: Final = 4
CORRELATION_ID: Final = 5
CONTENT_TYPE: Final = 6
CONTENT_ENCODING: Final = 7
ABSOLUTE_EXPIRY_TIME: Final = 8
CREATION_TIME: Final = 9
GROUP_ID: Final = 10
GROUP_SEQUENCE: Final = 11
_PROPERTY_TYPES: Final[tuple[tuple[str, tuple[type, ...]], ...]] = (
    ("message-id", (object,)),
    ("user-id", (bytes,)),
    ("to", (str,)),
    ("subject", (str,)),
    ("reply-to", (str,)),
    ("correlation-id", (object,)),
    ("content-type", (str,)),
    ("content-encoding", (str,)),
    ("absolute-expiry-time", (Timestamp,)),
    ("creation-time", (Timestamp,)),
    ("group-id", (str,)),
    ("group-sequence", (UInt,)),
    ("reply-to-group-id", (str,)),
)


@final
class Head:
    """The sections before the body; None for a missing one. Many messages share it, so nobody may change it."""

    __slots__ = ("annotations", "application", "delivery_annotations", "header", "properties")

    def __init__(self) -> None:
        self.header: list[object] | None = None
        self.delivery_annotations: Map | None = None
        self.annotations: Map | None = None
        self.properties: list[object] | None = None
        self.application: Map | None = None

    def header_field(self, index: int) -> object:
        header = self.header
        return header[index] if header is not None and index < len(header) else None

    def property_field(self, index: int) -> object:
        properties = self.properties
        return properties[index] if properties is not None and index < len(properties) else None

    @property
    def ttl_ms(self) -> int | None:
        value = self.header_field(TTL)
        return value if isinstance(value, int) else None

    @property
    def priority(self) -> int | None:
        value = self.header_field(PRIORITY)
        return value + 0 if isinstance(value, int) else None  # a plain int

    def encode(self) -> bytes:
        out: list[bytes] = []
        if self.header is not None:
            out.append(encode_described(HEADER, self.header))
        for number, table in (
            (frames.DELIVERY_ANNOTATIONS, self.delivery_annotations),
            (frames.MESSAGE_ANNOTATIONS, self.annotations),
        ):
            if table is not None:
                out.append(_encode_table(number, table))
        if self.properties is not None:
            out.append(encode_described(frames.PROPERTIES, self.properties))
        if self.application is not None:
            out.append(_encode_table(frames.APPLICATION_PROPERTIES, self.application))
        return b"".join(out)


def decode_head(raw: bytes) -> Head:
    """Decode the sections before a body, in their order. Raises ProtocolError for other bytes."""
    head = Head()
    for kind, start, end in sections(raw):
        reader = Reader(raw, start, end)
        reader.descriptor()
        if kind == HEADER:
            head.header = _checked("header", reader.fields(), _HEADER_TYPES)
        elif kind == frames.PROPERTIES:
            head.properties = _checked("properties", reader.fields(), _PROPERTY_TYPES)
        else:
            table = reader.value()
            if not isinstance(table, Map):
                raise ProtocolError(DECODE_ERROR, f"the section {kind:#x} of a message is no map")
            if kind == frames.DELIVERY_ANNOTATIONS:
                head.delivery_annotations = table
            elif kind == frames.MESSAGE_ANNOTATIONS:
                head.annotations = table
            else:
                head.application = table
    return head


def with_changes(raw: bytes, delivery_count: int | None, annotations: dict[str, object]) -> bytes:
    """Return a head with another delivery count and more annotations. Its other sections stay as they are.

    The bytes must be a head.
    """
    old: dict[int, bytes] = {kind: raw[start:end] for kind, start, end in sections(raw)}
    if delivery_count is not None:
        header = decode_head(old.get(HEADER, b"")).header or []
        header = [*header, *[None] * (DELIVERY_COUNT + 1 - len(header))]
        header[DELIVERY_COUNT] = UInt(delivery_count)
        old[HEADER] = encode_described(HEADER, header)
    if annotations:
        table = decode_head(old.get(frames.MESSAGE_ANNOTATIONS, b"")).annotations or Map()
        old[frames.MESSAGE_ANNOTATIONS] = _encode_table(
            frames.MESSAGE_ANNOTATIONS, annotated(table, Map.of(annotations))
        )
    return b"".join([old[kind] for kind in sorted(old)])


def annotated(table: Map, more: Map) -> Map:
    """Return a map with further entries, which replace entries of the same name."""
    names = {str(key) for key, _ in more.pairs if isinstance(key, str)}
    kept = [pair for pair in table.pairs if not (isinstance(pair[0], str) and pair[0] in names)]
    return Map([*kept, *more.pairs])


def _checked(section: str, values: list[object], types: tuple[tuple[str, tuple[type, ...]], ...]) -> list[object]:
    if len(values) > len(types):
        raise ProtocolError(DECODE_ERROR, f"the {section} of a message has {len(values)} fields")
    for value, (name, kinds) in zip(values, types, strict=False):
        if value is not None and not isinstance(value, kinds):
            raise ProtocolError(
                DECODE_ERROR, f"the field '{name}' of a message's {section} cannot be a {type(value).__name__.lower()}"
            )
    return values


def _encode_table(number: int, table: Map) -> bytes:
    return bytes((0x00, 0x53, number)) + encode_value(table)

"""What stands before a message's body: header, annotations, properties, application properties, as values.

The typed values are kept, so that writing a head again changes nothing but what was meant to change. What the values
mean to core and to other protocols is in properties.py.
"""

from typing import Final, final

from headrace.errors import ProtocolError
from headrace.protocols.amqp10.frames import (
    APPLICATION_PROPERTIES,
    DECODE_ERROR,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
)
from headrace.protocols.amqp10.reading import Reader
from headrace.protocols.amqp10.sections import sections
from headrace.protocols.amqp10.types import Map, Timestamp, UByte, UInt
from headrace.protocols.amqp10.writing import encode_described, encode_value

# The fields of the header.
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

# The fields of the properties.
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
    """The sections before the body; None for one that is not there. Read once, shared: never to be changed."""

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
        return value if isinstance(value, int) else None

    def encode(self) -> bytes:
        out: list[bytes] = []
        if self.header is not None:
            out.append(encode_described(HEADER, self.header))
        for number, table in (
            (DELIVERY_ANNOTATIONS, self.delivery_annotations),
            (MESSAGE_ANNOTATIONS, self.annotations),
        ):
            if table is not None:
                out.append(_encode_table(number, table))
        if self.properties is not None:
            out.append(encode_described(PROPERTIES, self.properties))
        if self.application is not None:
            out.append(_encode_table(APPLICATION_PROPERTIES, self.application))
        return b"".join(out)


def decode_head(raw: bytes) -> Head:
    """Raises ProtocolError when the bytes are not the sections before a body, in their order and whole."""
    head = Head()
    for kind, start, end in sections(raw):
        reader = Reader(raw, start, end)
        reader.descriptor()
        if kind == HEADER:
            head.header = _checked("header", reader.fields(), _HEADER_TYPES)
        elif kind == PROPERTIES:
            head.properties = _checked("properties", reader.fields(), _PROPERTY_TYPES)
        else:
            table = reader.value()
            if not isinstance(table, Map):
                raise ProtocolError(DECODE_ERROR, f"the section {kind:#x} of a message is no map")
            if kind == DELIVERY_ANNOTATIONS:
                head.delivery_annotations = table
            elif kind == MESSAGE_ANNOTATIONS:
                head.annotations = table
            else:
                head.application = table
    return head


def with_changes(raw: bytes, delivery_count: int | None, annotations: dict[str, object]) -> bytes:
    """The same head with how often it was delivered in vain and with more annotations; its other sections as they are.

    The bytes must be a head.
    """
    old: dict[int, bytes] = {kind: raw[start:end] for kind, start, end in sections(raw)}
    if delivery_count is not None:
        header = decode_head(old.get(HEADER, b"")).header or []
        header = [*header, *[None] * (DELIVERY_COUNT + 1 - len(header))]
        header[DELIVERY_COUNT] = UInt(delivery_count)
        old[HEADER] = encode_described(HEADER, header)
    if annotations:
        table = decode_head(old.get(MESSAGE_ANNOTATIONS, b"")).annotations or Map()
        old[MESSAGE_ANNOTATIONS] = _encode_table(MESSAGE_ANNOTATIONS, annotated(table, Map.of(annotations)))
    return b"".join([old[kind] for kind in sorted(old)])


def annotated(table: Map, more: Map) -> Map:
    """A map with further entries; those of the same name replace what was there."""
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

"""The keys of the database, and the encoding of numbers, texts and byte strings. Values are in records.py.

A key begins with a version and a type. Types 01 to 06 are OpenData-Queue's; it leaves the others free. The metadata log
has OpenData-Log's keys, which begin with another byte.

    01 01 | message id u64                        payload
    01 02 | TB(queue id) | bucket id u64          active messages       03 done, 04 failed: the same
    01 05 | TB(queue id) | message id u64         attempts
    01 06 | queue id                              queue specification
    01 07                                         sequence of ids
    01 08 | log id u64                            log
    01 09 | TB(queue id)                          progress of a queue
    01 0a | TB(table) | key                       keyed state
    01 0b | log id u64                            the end of a log's collected messages
    01 0c | log id u64                            a dropped log that is being collected
    01 0d | TB(queue id)                          a deleted queue that is being collected
    01 0e | log id u64 | time i64                 index of times
    01 0f | message id u64 | log id u64           reference to a payload that several logs share
    01 0f | message id u64 | log id u64 | offset u64    reference of a message copied from another log
    01 10                                         instance
    01 11 | log id u64                            a log with payloads that others refer to
    01 12 | message id u64                        payloads of messages with consecutive ids, from this one on
    03 01 | segment u32 | 10 | TB(log key) | var_u64(sequence)     entry of the metadata log
    03 01 | 00000000 | 30 | segment u32                            segment of the metadata log
    03 01 | segment u32 | 40 | log key                             listing of the metadata log

A bucket id and a claim id are 4 bits of exponent and 60 bits of number: the bucket has room for 10^exponent messages.

Numbers are big-endian in keys, so that bytes sort as the numbers do, and little-endian in values.

    TerminatedBytes  00 -> 01 01, 01 -> 01 02, other bytes unchanged, then 00         keys; sorts as the bytes do
    var_u64          LLLL DDDD: count of more bytes, then the number, big-endian      keys; sorts as the numbers do
    Utf8             u16 length, bytes                                                values
    VarBytes         u32 length, bytes                                                values
    Array<T>         u16 count, elements back to back                                 values
"""

import struct
from typing import Final, NamedTuple, final

from headrace.errors import Corrupt, Refused

MAX_UTF8_BYTES: Final = 0xFFFF
MAX_ARRAY: Final = 0xFFFF

_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_I64: Final = struct.Struct("<q")
_SIGN: Final = 1 << 63


def encode_terminated(value: bytes) -> bytes:
    """Encode a part of a key that another part follows."""
    return value.replace(b"\x01", b"\x01\x02").replace(b"\x00", b"\x01\x01") + b"\x00"


def decode_terminated(data: bytes, at: int, where: str) -> tuple[bytes, int]:
    """Decode the part that begins here; returns it and the start of the next. Raises Corrupt."""
    end = data.find(b"\x00", at)
    if end < 0:
        raise Corrupt(where, at, "a part of the key has no end")
    raw = data[at:end]
    if b"\x01" not in raw:
        return raw, end + 1
    found = bytearray()
    position = 0
    while position < len(raw):
        byte = raw[position]
        if byte == 1:
            position += 1
            escaped = raw[position] if position < len(raw) else 0
            if escaped not in (1, 2):
                raise Corrupt(where, at + position, f"01 {escaped:02x} is no escape")
            byte = escaped - 1
        found.append(byte)
        position += 1
    return bytes(found), end + 1


def encode_var_u64(value: int) -> bytes:
    """Encode a number of a key in as few bytes as possible."""
    if value < 1 << 4:
        return bytes((value,))
    more = (value.bit_length() + 3) // 8
    if more < 8:
        return ((more << 4 + 8 * more) | value).to_bytes(more + 1, "big")
    return b"\x80" + value.to_bytes(8, "big")


def decode_var_u64(data: bytes, at: int, where: str) -> tuple[int, int]:
    """Decode the number that begins here; returns it and the start of the next part. Raises Corrupt."""
    if at >= len(data):
        raise Corrupt(where, at, "a number is missing")
    more = data[at] >> 4
    if more > 8 or at + 1 + more > len(data):
        raise Corrupt(where, at, f"{data[at]:02x} is not the beginning of a number")
    value = int.from_bytes(data[at : at + 1 + more], "big") & ((1 << 4 + 8 * more) - 1)
    if value > (1 << 64) - 1:
        raise Corrupt(where, at, "a number is too large")
    return value, at + 1 + more


def encode_sortable_i64(value: int) -> bytes:
    """Encode a number of a key that may be negative."""
    return (value + _SIGN).to_bytes(8, "big")


def decode_sortable_i64(data: bytes) -> int:
    return int.from_bytes(data, "big") - _SIGN


def lexical_successor(prefix: bytes) -> bytes | None:
    """The least key above all keys with this prefix; None if there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else None


def encode_utf8(text: str) -> bytes:
    """Raises Refused when the text is too long or not Unicode."""
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise Refused(f"{text[:64]!r} is not valid Unicode") from error
    if len(raw) > MAX_UTF8_BYTES:
        raise Refused(f"{text[:64]!r} is too long ({MAX_UTF8_BYTES} bytes of UTF-8 at most)")
    return _U16.pack(len(raw)) + raw


def encode_var_bytes(value: bytes) -> bytes:
    return _U32.pack(len(value)) + value


def encode_array(elements: list[bytes]) -> bytes:
    """Raises Refused when there are more elements than an array can have."""
    if len(elements) > MAX_ARRAY:
        raise Refused(f"an array of {len(elements)} elements is too long ({MAX_ARRAY} at most)")
    return _U16.pack(len(elements)) + b"".join(elements)


@final
class Reader:
    """Decodes a value from front to back. Every method raises Corrupt for wrong bytes."""

    __slots__ = ("at", "data", "where")

    def __init__(self, data: bytes, where: str) -> None:
        self.data = data
        self.where = where
        self.at = 0

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise Corrupt(self.where, self.at, f"{count} bytes expected, {len(self.data) - self.at} are left")
        raw = self.data[self.at : end]
        self.at = end
        return raw

    def u8(self) -> int:
        return self.take(1)[0]

    def u16(self) -> int:
        return int(_U16.unpack(self.take(2))[0])

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])

    def i64(self) -> int:
        return int(_I64.unpack(self.take(8))[0])

    def var_u64(self) -> int:
        value, self.at = decode_var_u64(self.data, self.at, self.where)
        return value

    def var_bytes(self) -> bytes:
        return self.take(self.u32())

    def utf8(self) -> str:
        begin = self.at
        try:
            return self.take(self.u16()).decode()
        except UnicodeDecodeError as error:
            raise Corrupt(self.where, begin, "a text is not UTF-8") from error

    def version(self, known: int, earliest: int = 0) -> None:
        """Check the version, the first byte of our own records: `known`, or one from `earliest` on."""
        found = self.u8()
        if found != known and not 0 < earliest <= found < known:
            raise Corrupt(self.where, 0, f"version {found} is not known; this release reads version {known}")

    def end(self) -> None:
        """Check that no bytes are left."""
        if self.at != len(self.data):
            raise Corrupt(self.where, self.at, f"{len(self.data) - self.at} bytes too many")


_QUEUE: Final = b"\x01"
_LOG: Final = b"\x03\x01"
_SEGMENT: Final = b"\x00\x00\x00\x01"

PAYLOAD: Final = _QUEUE + b"\x01"
ACTIVE: Final = _QUEUE + b"\x02"
DONE: Final = _QUEUE + b"\x03"
FAILED: Final = _QUEUE + b"\x04"
ATTEMPTS: Final = _QUEUE + b"\x05"
SPEC: Final = _QUEUE + b"\x06"
SEQUENCE: Final = _QUEUE + b"\x07"
LOG: Final = _QUEUE + b"\x08"
PROGRESS: Final = _QUEUE + b"\x09"
TABLE: Final = _QUEUE + b"\x0a"
COLLECTED: Final = _QUEUE + b"\x0b"
DROPPED_LOG: Final = _QUEUE + b"\x0c"
DROPPED_QUEUE: Final = _QUEUE + b"\x0d"
TIME: Final = _QUEUE + b"\x0e"
REFERENCE: Final = _QUEUE + b"\x0f"
INSTANCE: Final = _QUEUE + b"\x10"
LENT: Final = _QUEUE + b"\x11"
PAYLOADS: Final = _QUEUE + b"\x12"
LOG_SEGMENT: Final = _LOG + b"\x00\x00\x00\x00\x30" + _SEGMENT

MAX_EXPONENT: Final = 4
"""An array has at most 65,535 elements: 10^4 messages fit, 10^5 do not."""
_NUMBER: Final = (1 << 60) - 1
MAX_NUMBER: Final = _NUMBER


class QueueKey(NamedTuple):
    """A key with a queue and a number: a bucket id, or a message id."""

    queue: bytes
    number: int


def u64(value: int) -> bytes:
    return value.to_bytes(8, "big")


def log_id(key: bytes) -> int:
    """The log id in a key of the form type | log id. Raises Corrupt."""
    if len(key) != 10:
        raise Corrupt(describe(key), 2, f"8 bytes expected, {len(key) - 2} are left")
    return int.from_bytes(key[2:], "big")


def payload_key(message_id: int) -> bytes:
    return PAYLOAD + message_id.to_bytes(8, "big")


def payloads_key(message_id: int) -> bytes:
    """The key of a record with the payloads of this message and of those that follow it."""
    return PAYLOADS + message_id.to_bytes(8, "big")


def queue_prefix(kind: bytes, queue: bytes) -> bytes:
    """The prefix of all keys of this kind and queue."""
    return kind + encode_terminated(queue)


def queue_key(kind: bytes, queue: bytes, number: int) -> bytes:
    """The key of a bucket, or of a message's attempts."""
    return kind + encode_terminated(queue) + u64(number)


def decode_queue_key(key: bytes) -> QueueKey:
    """Raises Corrupt."""
    queue, at = decode_terminated(key, 2, describe(key))
    if len(key) != at + 8:
        raise Corrupt(describe(key), at, f"8 bytes expected, {len(key) - at} are left")
    return QueueKey(queue, int.from_bytes(key[at:], "big"))


def spec_key(queue: bytes) -> bytes:
    return SPEC + queue


def table_key(table: str, key: bytes) -> bytes:
    return TABLE + encode_terminated(table.encode()) + key


def decode_table_key(key: bytes) -> tuple[str, bytes]:
    """The table and the key in it. Raises Corrupt."""
    raw, at = decode_terminated(key, 2, describe(key))
    try:
        return raw.decode(), key[at:]
    except UnicodeDecodeError as error:
        raise Corrupt(describe(key), 2, "the name of a table is not UTF-8") from error


def time_key(log_id: int, time_us: int) -> bytes:
    return TIME + u64(log_id) + encode_sortable_i64(time_us)


def reference_key(message_id: int, log_id: int) -> bytes:
    return REFERENCE + u64(message_id) + u64(log_id)


def copy_key(message_id: int, log_id: int, offset: int) -> bytes:
    """The reference of a copied message: a log may have several copies of one message."""
    return reference_key(message_id, log_id) + u64(offset)


def log_name(instance: str, log_id: int) -> bytes:
    """The key of a metadata log, as users of OpenData-Log see it."""
    return f"opendata-queue/{instance}/messages/metadata/{log_id}".encode()


def entry_prefix(log: bytes) -> bytes:
    """The prefix of all entries of a metadata log."""
    return _LOG + _SEGMENT + b"\x10" + encode_terminated(log)


def entry_key(prefix: bytes, sequence: int) -> bytes:
    return prefix + encode_var_u64(sequence)


def decode_entry_key(key: bytes, prefix: bytes) -> int:
    """The sequence number of an entry, which is the offset of its first message. Raises Corrupt."""
    sequence, at = decode_var_u64(key, len(prefix), describe(key))
    if at != len(key):
        raise Corrupt(describe(key), at, "the key is too long")
    return sequence


def listing_key(log: bytes) -> bytes:
    return _LOG + _SEGMENT + b"\x40" + log


def bucket_id(exponent: int, number: int) -> int:
    """The id of the bucket with this message number."""
    capacity = int(10**exponent)
    return exponent << 60 | number // capacity * capacity


def claim_id(exponent: int, number: int) -> int:
    return exponent << 60 | number


def number_of(identifier: int) -> int:
    """The number in a bucket id or a claim id."""
    return identifier & _NUMBER


def describe(key: bytes) -> str:
    """A key in words for an operator."""
    return f"record {key[:96].hex(' ', 1)}{'...' if len(key) > 96 else ''}"

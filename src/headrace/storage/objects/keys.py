"""Where each record is: every key of the database. What is behind a key is in records.py, metadata.py and state.py.

A key begins with a version and a type. Types 01 to 06 are OpenData-Queue's; the others are those it leaves free. The
metadata log has OpenData-Log's keys, which begin with another byte and so never meet these.

    01 01 | message id u64                        payload
    01 02 | TB(queue id) | bucket id u64          active messages       03 done, 04 failed: the same
    01 05 | TB(queue id) | message id u64         attempts
    01 06 | queue id                              queue specification
    01 07                                         sequence of ids
    01 08 | log id u64                            log
    01 09 | TB(queue id)                          progress of a queue
    01 0a | TB(table) | key                       keyed state
    01 0b | log id u64                            up to where a log's messages are collected
    01 0c | log id u64                            a log that was dropped, and is being collected
    01 0d | TB(queue id)                          a queue that was deleted, and is being collected
    01 0e | log id u64 | time i64                 index of times
    01 0f | message id u64 | log id u64           reference to a payload that several logs share
    01 0f | message id u64 | log id u64 | offset u64    the same, of a message that was copied from another log
    01 10                                         instance
    01 11 | log id u64                            a log whose payloads others refer to
    03 01 | segment u32 | 10 | TB(log key) | var_u64(sequence)     entry of the metadata log
    03 01 | 00000000 | 30 | segment u32                            segment of the metadata log
    03 01 | segment u32 | 40 | log key                             listing of the metadata log

A bucket id and a claim id are 4 bits of exponent and 60 bits of number: the bucket has room for 10^exponent messages.
"""

from typing import Final, NamedTuple

from headrace.errors import Corrupt
from headrace.storage.objects.encodings import (
    decode_terminated,
    decode_var_u64,
    encode_sortable_i64,
    encode_terminated,
    encode_var_u64,
)

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
LOG_SEGMENT: Final = _LOG + b"\x00\x00\x00\x00\x30" + _SEGMENT

MAX_EXPONENT: Final = 4
"""10^4 messages fill the 65,535 elements of an array best; 10^5 do not fit."""
_NUMBER: Final = (1 << 60) - 1
MAX_NUMBER: Final = _NUMBER


class QueueKey(NamedTuple):
    """A key with a queue and a number: a bucket id, or a message id."""

    queue: bytes
    number: int


def u64(value: int) -> bytes:
    return value.to_bytes(8, "big")


def log_id(key: bytes) -> int:
    """The id in the key of a record that each log has. Raises Corrupt."""
    if len(key) != 10:
        raise Corrupt(describe(key), 2, f"8 bytes expected, {len(key) - 2} are left")
    return int.from_bytes(key[2:], "big")


def payload_key(message_id: int) -> bytes:
    return PAYLOAD + message_id.to_bytes(8, "big")


def queue_prefix(kind: bytes, queue: bytes) -> bytes:
    """What all keys of this kind and queue begin with."""
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
    """The reference of a message that was copied: a log may have several copies of one."""
    return reference_key(message_id, log_id) + u64(offset)


def log_name(instance: str, log_id: int) -> bytes:
    """The key of a metadata log, as OpenData-Log's user sees it."""
    return f"opendata-queue/{instance}/messages/metadata/{log_id}".encode()


def entry_prefix(log: bytes) -> bytes:
    """What the keys of all entries of a metadata log begin with."""
    return _LOG + _SEGMENT + b"\x10" + encode_terminated(log)


def entry_key(prefix: bytes, sequence: int) -> bytes:
    return prefix + encode_var_u64(sequence)


def decode_entry_key(key: bytes, prefix: bytes) -> int:
    """The sequence number of an entry: the offset of its first message. Raises Corrupt."""
    sequence, at = decode_var_u64(key, len(prefix), describe(key))
    if at != len(key):
        raise Corrupt(describe(key), at, "the key is too long")
    return sequence


def listing_key(log: bytes) -> bytes:
    return _LOG + _SEGMENT + b"\x40" + log


def bucket_id(exponent: int, number: int) -> int:
    """The id of the bucket that the message with this number is in."""
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

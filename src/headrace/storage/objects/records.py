"""The values of OpenData-Queue's records as bytes and back. Keys are in keys.py, our own records in state.py.

    metadata log entry  Array<message id u64 | metadata VarBytes>
    active   Array<message id u64 | claim id u64 | attempts u16 | metadata VarBytes>
             Array<message id u64 | claim id u64 | claimed at i64 | lease deadline i64 | attempts u16
                   | metadata VarBytes>
    done     Array<message id u64 | claim id u64 | done at i64 | attempts u16 | metadata VarBytes>    failed: the same
    attempts Array<claimed at i64 | consumer id Utf8>
    spec     FilterExpression | max attempts u16 | done retention u32 (s) | bucket size u8 | description Utf8
             FilterExpression: kind u8 (0 none, 1 topic filter) | text Utf8

Times are microseconds since 1970 UTC. Decoding raises Corrupt where the bytes are not what they should be.
"""

import struct
from typing import Final, NamedTuple

from headrace.errors import Corrupt
from headrace.storage.objects.encodings import Reader, encode_array, encode_utf8
from headrace.storage.objects.keys import MAX_EXPONENT

MAX_ATTEMPTS: Final = 0xFFFF
NO_FILTER: Final = 0
TOPIC_FILTER: Final = 1

_COUNT: Final = struct.Struct("<H")
_METADATA: Final = struct.Struct("<QI")
_AVAILABLE: Final = struct.Struct("<QQHI")
_IN_FLIGHT: Final = struct.Struct("<QQqqHI")
_SETTLED: Final = struct.Struct("<QQqHI")
_SPEC: Final = struct.Struct("<HIB")


class Available(NamedTuple):
    message_id: int
    claim_id: int
    attempts: int
    metadata: bytes


class InFlight(NamedTuple):
    message_id: int
    claim_id: int
    claimed_at_us: int
    lease_deadline_us: int
    attempts: int
    metadata: bytes


class Settled(NamedTuple):
    """A message that is done or failed, and since when."""

    message_id: int
    claim_id: int
    at_us: int
    attempts: int
    metadata: bytes


class Attempt(NamedTuple):
    claimed_at_us: int
    consumer: str


class Spec(NamedTuple):
    """What a queue is to do. The number of attempts is 0 where the broker decides by itself."""

    filter: str
    max_attempts: int
    done_retention_s: int
    bucket_size: int
    description: str


def encode_entry(ids: list[int], metadata: list[bytes]) -> bytes:
    """An entry of the metadata log. Raises Refused when it has too many messages."""
    pack = _METADATA.pack
    return encode_array([pack(each, len(about)) + about for each, about in zip(ids, metadata, strict=True)])


def decode_entry(data: bytes, where: str) -> tuple[list[int], list[bytes]]:
    ids: list[int] = []
    metadata: list[bytes] = []
    unpack = _METADATA.unpack_from
    size = len(data)
    at = 2
    try:
        for _ in range(_COUNT.unpack_from(data, 0)[0]):
            message_id, length = unpack(data, at)
            at += 12 + length
            ids.append(message_id)
            metadata.append(data[at - length : at])
    except struct.error as error:
        raise Corrupt(where, at, "the entry ends too early") from error
    if at != size:
        raise Corrupt(where, min(at, size), f"the entry has {size} bytes, its messages have {at}")
    return ids, metadata


def encode_available(message: Available) -> bytes:
    message_id, claim, attempts, metadata = message
    return _AVAILABLE.pack(message_id, claim, min(attempts, MAX_ATTEMPTS), len(metadata)) + metadata


def encode_in_flight(message: InFlight) -> bytes:
    message_id, claim, claimed_at, deadline, attempts, metadata = message
    attempts = min(attempts, MAX_ATTEMPTS)
    return _IN_FLIGHT.pack(message_id, claim, claimed_at, deadline, attempts, len(metadata)) + metadata


def encode_active(available: list[bytes], in_flight: list[bytes]) -> bytes:
    return encode_array(available) + encode_array(in_flight)


def decode_active(data: bytes, where: str) -> tuple[list[Available], list[InFlight]]:
    reader = Reader(data, where)
    available = []
    for _ in range(reader.u16()):
        available.append(Available(reader.u64(), reader.u64(), reader.u16(), reader.var_bytes()))
    in_flight = []
    for _ in range(reader.u16()):
        message_id, claim, claimed_at, deadline = reader.u64(), reader.u64(), reader.i64(), reader.i64()
        in_flight.append(InFlight(message_id, claim, claimed_at, deadline, reader.u16(), reader.var_bytes()))
    reader.end()
    return available, in_flight


def encode_settled(message: Settled) -> bytes:
    message_id, claim, at_us, attempts, metadata = message
    return _SETTLED.pack(message_id, claim, at_us, min(attempts, MAX_ATTEMPTS), len(metadata)) + metadata


def decode_settled(data: bytes, where: str) -> list[Settled]:
    reader = Reader(data, where)
    found = []
    for _ in range(reader.u16()):
        message_id, claim, at_us = reader.u64(), reader.u64(), reader.i64()
        found.append(Settled(message_id, claim, at_us, reader.u16(), reader.var_bytes()))
    reader.end()
    return found


def encode_attempts(attempts: list[Attempt]) -> bytes:
    return encode_array([struct.pack("<q", each.claimed_at_us) + encode_utf8(each.consumer) for each in attempts])


def decode_attempts(data: bytes, where: str) -> list[Attempt]:
    reader = Reader(data, where)
    found = [Attempt(reader.i64(), reader.utf8()) for _ in range(reader.u16())]
    reader.end()
    return found


def encode_spec(spec: Spec) -> bytes:
    kind = TOPIC_FILTER if spec.filter else NO_FILTER
    numbers = _SPEC.pack(spec.max_attempts, spec.done_retention_s, spec.bucket_size)
    return bytes((kind,)) + encode_utf8(spec.filter) + numbers + encode_utf8(spec.description)


def decode_spec(data: bytes, where: str) -> Spec:
    reader = Reader(data, where)
    kind = reader.u8()
    if kind not in (NO_FILTER, TOPIC_FILTER):
        raise Corrupt(where, 0, f"there is no kind {kind} of filter")
    spec = Spec(reader.utf8(), reader.u16(), reader.u32(), reader.u8(), reader.utf8())
    reader.end()
    if spec.bucket_size > MAX_EXPONENT:
        raise Corrupt(where, 0, f"a bucket size of {spec.bucket_size} is too large ({MAX_EXPONENT} at most)")
    if bool(spec.filter) != (kind == TOPIC_FILTER):
        raise Corrupt(where, 0, f"a filter of kind {kind} has the text {spec.filter[:64]!r}")
    return spec

"""The values of the database as bytes and back: OpenData-Queue's records and our own. Keys are in keys.py.

    payloads version u8 = 1 | count u16 | the length of each u32 | payloads
    metadata log entry  Array<message id u64 | metadata VarBytes>
    active   Array<message id u64 | claim id u64 | attempts u16 | metadata VarBytes>
             Array<message id u64 | claim id u64 | claimed at i64 | lease deadline i64 | attempts u16
                   | metadata VarBytes>
    done     Array<message id u64 | claim id u64 | done at i64 | attempts u16 | metadata VarBytes>    failed: the same
    attempts Array<claimed at i64 | consumer id Utf8>
    spec     FilterExpression | max attempts u16 | done retention u32 (s) | bucket size u8 | description Utf8
             FilterExpression: kind u8 | text Utf8 [| expression Utf8]
             kind 0 none, 1 topic filter, 2 filter expression, 3 topic filter and filter expression

Times are microseconds since 1970 UTC. Decoding raises Corrupt for wrong bytes.

The metadata of a message in its log, little-endian:

    version u8 = 1 | flags u8 | encoding u8 | priority u8 | payload length u32 | timestamp i64
    [expires i64] [not before i64]                                  with flags 2, 4
    topic Utf8 | exchange Utf8 | client id Utf8 | protocol Utf8 | properties: the rest
    flag 8: the payload is shared with other logs; flag 16: it is in a record of several payloads

The metadata of a message in a bucket has only what its log does not have:

    version u8 = 2 | 1 | visible at i64          available: the message may be claimed again from then on
    version u8 = 2 | 2 | consumer id Utf8        in flight
    nothing                                      done and failed

Releases before wrote there the metadata of the log, with flag 1 and "visible at" behind the timestamp if available.

log        version u8 = 1 | first offset u64 | next offset u64 | bytes u64 | latest time i64
               | indexed offset u64 | name Utf8
progress   version u8 = 1 | mode u8 | log id u64 | cursor u64 | committed u64 | name Utf8
           then, for each range of settled offsets above committed: gap var_u64 | length var_u64
instance   version u8 = 2 | instance id Utf8        version 1: a store without records of several payloads

SeqBlock   base u64 | size u64, both big-endian: every number below base + size may be in use
"""

import struct
from typing import Final, NamedTuple, final

from headrace.errors import Corrupt
from headrace.model import Message, Source
from headrace.storage.group_state import MODE_NAMES, GroupState
from headrace.storage.objects.keys import MAX_EXPONENT, Reader, encode_array, encode_utf8, encode_var_u64

BLOCK_SIZE: Final = 4096
_BLOCK: Final = struct.Struct(">QQ")


def encode_block(base: int, size: int) -> bytes:
    return _BLOCK.pack(base, size)


def decode_block(data: bytes, where: str) -> tuple[int, int]:
    """Base and size. Raises Corrupt."""
    if len(data) != _BLOCK.size:
        raise Corrupt(where, 0, f"a sequence block has {_BLOCK.size} bytes, not {len(data)}")
    base, size = _BLOCK.unpack(data)
    if base + size > 1 << 63:
        raise Corrupt(where, 0, f"the block of {size} numbers from {base} on is beyond the end of all numbers")
    return base, size


@final
class Sequence:
    """Allocates numbers. `record` is a block to store together with their first use; None when it is stored."""

    def __init__(self, stored: bytes | None, where: str) -> None:
        """Continue behind the stored block: its numbers may be in use. Raises Corrupt."""
        base, size = decode_block(stored, where) if stored is not None else (0, 0)
        self._next = base + size
        self._end = base + size
        self.record: bytes | None = None

    def allocate(self, count: int) -> int:
        """Allocate `count` consecutive numbers; returns the first."""
        first = self._next
        self._next += count
        if self._next > self._end:
            size = max(self._next - self._end, BLOCK_SIZE)
            self.record = encode_block(self._end, size)
            self._end += size
        return first


VERSION: Final = 1
STORE_VERSION: Final = 2
"""The version of the whole store: a release that does not know it does not open the store."""

_LOG: Final = struct.Struct("<BQQQqQ")
_PROGRESS: Final = struct.Struct("<BBQQQ")


class LogState(NamedTuple):
    name: str
    first_offset: int
    next_offset: int
    size_bytes: int
    latest_us: int
    """The latest timestamp of all messages that the log ever had."""
    indexed: int
    """The offset of the last index entry for times."""


class Progress(NamedTuple):
    log_id: int
    state: GroupState
    """The state without pending entries and filter, which other records have."""


def encode_log(log: LogState) -> bytes:
    numbers = (log.first_offset, log.next_offset, log.size_bytes, log.latest_us, log.indexed)
    return _LOG.pack(VERSION, *numbers) + encode_utf8(log.name)


def decode_log(data: bytes, where: str) -> LogState:
    """Raises Corrupt."""
    reader = Reader(data, where)
    reader.version(VERSION)
    first, following, size, latest_us, indexed = reader.u64(), reader.u64(), reader.u64(), reader.i64(), reader.u64()
    name = reader.utf8()
    reader.end()
    if first > following or indexed > following:
        raise Corrupt(where, 1, f"the log goes from {first} to {following}, and its index to {indexed}")
    return LogState(name, first, following, size, latest_us, indexed)


def encode_progress(log_id: int, state: GroupState) -> bytes:
    parts = [
        _PROGRESS.pack(VERSION, state.mode, log_id, state.cursor, state.committed),
        encode_utf8(state.name),
    ]
    at = state.committed
    for start, stop in state.settled:
        parts.append(encode_var_u64(start - at))
        parts.append(encode_var_u64(stop - start))
        at = stop
    return b"".join(parts)


def decode_progress(data: bytes, where: str) -> Progress:
    """Raises Corrupt."""
    reader = Reader(data, where)
    reader.version(VERSION)
    mode, log_id, cursor, committed = reader.u8(), reader.u64(), reader.u64(), reader.u64()
    if mode not in MODE_NAMES:
        raise Corrupt(where, 1, f"there is no mode {mode}")
    state = GroupState(reader.utf8(), mode, "", committed)
    state.cursor = cursor
    at = committed
    while reader.at < len(data):
        start = at + reader.var_u64()
        at = start + reader.var_u64()
        if at == start:
            raise Corrupt(where, reader.at, "a range of settled offsets is empty")
        state.add_settled(start, at)
    return Progress(log_id, state)


def encode_instance(instance: str) -> bytes:
    return bytes((STORE_VERSION,)) + encode_utf8(instance)


def decode_instance(data: bytes, where: str) -> str:
    """Raises Corrupt."""
    reader = Reader(data, where)
    reader.version(STORE_VERSION, VERSION)
    instance = reader.utf8()
    reader.end()
    return instance


VISIBLE: Final = 1
EXPIRES: Final = 2
NOT_BEFORE: Final = 4
SHARED: Final = 8
PACKED: Final = 16
KNOWN_FLAGS: Final = VISIBLE | EXPIRES | NOT_BEFORE | SHARED | PACKED

HEAD: Final = struct.Struct("<BBBBIq")
TIME: Final = struct.Struct("<q")
_MAX_KNOWN: Final = 10_000


@final
class MetadataEncoder:
    """Encodes the metadata of messages; the part of each source is encoded once."""

    def __init__(self) -> None:
        self._known: dict[Source, bytes] = {}

    def encode(self, message: Message, flags: int = 0) -> bytes:
        """Encode a message that is SHARED or PACKED. Raises Refused when a text of its source is too long."""
        source = message.source
        about = self._known.get(source)
        if about is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            about = self._known[source] = _encode_source(source)
        times = b""
        if message.expires_us:
            flags |= EXPIRES
            times = TIME.pack(message.expires_us)
        if message.not_before_us:
            flags |= NOT_BEFORE
            times += TIME.pack(message.not_before_us)
        size = len(message.payload)
        head = HEAD.pack(VERSION, flags, source.encoding, message.priority, size, message.timestamp_us)
        return head + times + about + message.properties


@final
class MetadataDecoder:
    """Decodes messages; those of one source share it."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str, str, int], Source] = {}
        self._last = Source("")
        self._texts = b""
        """The texts of the last source, encoded; "" if there is none."""

    def decode(self, metadata: bytes, payload: bytes, where: str) -> Message:
        """Raises Corrupt when the metadata is damaged or belongs to another payload."""
        _, flags, encoding, priority, size, time_us = head_of(metadata, where)
        if size != len(payload):
            raise Corrupt(where, 4, f"a payload of {size} bytes expected, {len(payload)} were found")
        at = HEAD.size + (8 if flags & VISIBLE else 0)
        expires_us = not_before_us = 0
        if flags & (EXPIRES | NOT_BEFORE):
            reader = Reader(metadata, where)
            reader.at = at
            expires_us = reader.i64() if flags & EXPIRES else 0
            not_before_us = reader.i64() if flags & NOT_BEFORE else 0
            at = reader.at
        texts = self._texts
        if not texts or encoding != self._last.encoding or not metadata.startswith(texts, at):
            texts = self._look_up(metadata, at, encoding, where)
        return Message(self._last, payload, time_us, metadata[at + len(texts) :], priority, expires_us, not_before_us)

    def _look_up(self, metadata: bytes, at: int, encoding: int, where: str) -> bytes:
        """Make the source that begins here the last one; returns its texts, encoded. Raises Corrupt."""
        reader = Reader(metadata, where)
        reader.at = at
        names = (reader.utf8(), reader.utf8(), reader.utf8(), reader.utf8(), encoding)
        source = self._known.get(names)
        if source is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            source = self._known[names] = Source(*names)
        self._last, self._texts = source, metadata[at : reader.at]
        return self._texts


def payload_length(metadata: bytes, where: str) -> int:
    """Raises Corrupt."""
    return head_of(metadata, where)[4]


def timestamp_us(metadata: bytes, where: str) -> int:
    """Raises Corrupt."""
    return head_of(metadata, where)[5]


def flags_of(metadata: bytes, where: str) -> int:
    """True if the payload is SHARED or PACKED, among others. Raises Corrupt."""
    return head_of(metadata, where)[1]


def _encode_source(source: Source) -> bytes:
    names = (source.topic, source.exchange, source.client_id, source.protocol)
    return b"".join([encode_utf8(name) for name in names])


def head_of(metadata: bytes, where: str) -> tuple[int, int, int, int, int, int]:
    if len(metadata) < HEAD.size:
        raise Corrupt(where, 0, f"metadata has at least {HEAD.size} bytes, not {len(metadata)}")
    head: tuple[int, int, int, int, int, int] = HEAD.unpack_from(metadata)
    if head[0] != VERSION:
        raise Corrupt(where, 0, f"version {head[0]} of the metadata is not known; this release reads version {VERSION}")
    if head[1] & ~KNOWN_FLAGS:
        raise Corrupt(where, 1, f"the metadata has unknown flags {head[1]:02x}")
    return head


_PAYLOADS: Final = struct.Struct("<BH")


def packed_runs(ids: list[int], metadata: list[bytes]) -> list[tuple[int, int]]:
    """The rows of an entry whose payloads are in one record each: from the first up to but not including the second.

    Rows with consecutive ids and flag PACKED are together.
    """
    found: list[tuple[int, int]] = []
    start = -1
    for row, about in enumerate(metadata):
        is_packed = len(about) >= HEAD.size and about[1] & PACKED
        if start >= 0 and not (is_packed and ids[row] == ids[row - 1] + 1):
            found.append((start, row))
            start = -1
        if is_packed and start < 0:
            start = row
    if start >= 0:
        found.append((start, len(ids)))
    return found


def encode_payloads(payloads: list[bytes]) -> bytes:
    """Encode the payloads of up to 65,535 messages with consecutive ids."""
    count = len(payloads)
    lengths = struct.pack(f"<{count}I", *[len(payload) for payload in payloads])
    return b"".join([_PAYLOADS.pack(VERSION, count), lengths, *payloads])


def payload_places(data: bytes, where: str) -> tuple[int, tuple[int, ...]]:
    """The position of the first payload, and the lengths of all. Raises Corrupt."""
    if len(data) < _PAYLOADS.size:
        raise Corrupt(where, 0, "the record of payloads ends too early")
    version, count = _PAYLOADS.unpack_from(data)
    if version != VERSION:
        raise Corrupt(where, 0, f"version {version} of payloads is not known; this release reads version {VERSION}")
    start = _PAYLOADS.size + 4 * count
    lengths: tuple[int, ...] = struct.unpack_from(f"<{count}I", data, _PAYLOADS.size) if start <= len(data) else ()
    if start + sum(lengths) != len(data):
        raise Corrupt(where, 1, f"the record has {len(data)} bytes, which is not what its payloads have")
    return start, lengths


def decode_payloads(data: bytes, where: str) -> list[bytes]:
    """Raises Corrupt."""
    at, lengths = payload_places(data, where)
    found: list[bytes] = []
    for length in lengths:
        found.append(data[at : at + length])
        at += length
    return found


BUCKET_VERSION: Final = 2
_VISIBLE_AT: Final = 1
_CONSUMER: Final = 2
_VISIBLE_HEAD: Final = bytes((BUCKET_VERSION, _VISIBLE_AT))
_CONSUMER_HEAD: Final = bytes((BUCKET_VERSION, _CONSUMER))


def encode_visible_at(time_us: int) -> bytes:
    """The metadata of a requeued message in its bucket: the time from which it may be claimed again."""
    return _VISIBLE_HEAD + TIME.pack(time_us)


def decode_visible_at(metadata: bytes, where: str) -> int | None:
    """The time from which a message may be claimed again; None if it was never claimed. Raises Corrupt."""
    if not metadata.startswith(_VISIBLE_HEAD):
        if not metadata or not head_of(metadata, where)[1] & VISIBLE:
            return None
        at = HEAD.size  # a release before wrote the metadata of the log
    else:
        at = len(_VISIBLE_HEAD)
    reader = Reader(metadata, where)
    reader.at = at
    return reader.i64()


def encode_consumer(consumer: str) -> bytes:
    """The metadata of a message in flight in its bucket. Raises Refused when the name is too long."""
    return _CONSUMER_HEAD + encode_utf8(consumer)


def decode_consumer(metadata: bytes, where: str) -> str | None:
    """The consumer of a message in flight; None if only its attempts have it. Raises Corrupt."""
    if not metadata.startswith(_CONSUMER_HEAD):
        return None
    reader = Reader(metadata, where)
    reader.at = len(_CONSUMER_HEAD)
    consumer = reader.utf8()
    reader.end()
    return consumer


MAX_ATTEMPTS: Final = 0xFFFF
NO_FILTER: Final = 0
TOPIC_FILTER: Final = 1
EXPRESSION: Final = 2
BOTH: Final = TOPIC_FILTER | EXPRESSION

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
    """A done or failed message, and the time when it was settled."""

    message_id: int
    claim_id: int
    at_us: int
    attempts: int
    metadata: bytes


class Attempt(NamedTuple):
    claimed_at_us: int
    consumer: str


class Spec(NamedTuple):
    """The specification of a queue; `max_attempts` is 0 without a limit."""

    filter: str
    """The topic filter of the group."""
    max_attempts: int
    done_retention_s: int
    bucket_size: int
    description: str
    expression: str = ""
    """The filter expression of messages that may enter the queue."""


def encode_entry(ids: list[int], metadata: list[bytes]) -> bytes:
    """Encode an entry of the metadata log. Raises Refused when it has too many messages."""
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


def settled_at(message: bytes) -> int:
    """The time when a message of a done or failed record was settled."""
    at_us: int = _SETTLED.unpack_from(message)[2]
    return at_us


def decode_settled(data: bytes, where: str) -> list[Settled]:
    reader = Reader(data, where)
    found = []
    for _ in range(reader.u16()):
        message_id, claim, at_us = reader.u64(), reader.u64(), reader.i64()
        found.append(Settled(message_id, claim, at_us, reader.u16(), reader.var_bytes()))
    reader.end()
    return found


def encode_attempts(attempts: tuple[Attempt, ...]) -> bytes:
    return encode_array([struct.pack("<q", each.claimed_at_us) + encode_utf8(each.consumer) for each in attempts])


def decode_attempts(data: bytes, where: str) -> list[Attempt]:
    reader = Reader(data, where)
    found = [Attempt(reader.i64(), reader.utf8()) for _ in range(reader.u16())]
    reader.end()
    return found


def encode_spec(spec: Spec) -> bytes:
    """Raises Refused when a text is too long."""
    kind = (TOPIC_FILTER if spec.filter else NO_FILTER) | (EXPRESSION if spec.expression else NO_FILTER)
    if kind == BOTH:
        text = encode_utf8(spec.filter) + encode_utf8(spec.expression)
    else:
        text = encode_utf8(spec.filter or spec.expression)
    numbers = _SPEC.pack(spec.max_attempts, spec.done_retention_s, spec.bucket_size)
    return bytes((kind,)) + text + numbers + encode_utf8(spec.description)


def decode_spec(data: bytes, where: str) -> Spec:
    reader = Reader(data, where)
    kind = reader.u8()
    if kind > BOTH:
        raise Corrupt(where, 0, f"there is no kind {kind} of filter")
    topic_filter = "" if kind == EXPRESSION else reader.utf8()
    expression = reader.utf8() if kind & EXPRESSION else ""
    attempts, retention_s, bucket_size = reader.u16(), reader.u32(), reader.u8()
    spec = Spec(topic_filter, attempts, retention_s, bucket_size, reader.utf8(), expression)
    reader.end()
    if spec.bucket_size > MAX_EXPONENT:
        raise Corrupt(where, 0, f"a bucket size of {spec.bucket_size} is too large ({MAX_EXPONENT} at most)")
    if bool(topic_filter) != bool(kind & TOPIC_FILTER) or bool(expression) != bool(kind & EXPRESSION):
        raise Corrupt(where, 0, f"a filter of kind {kind} has the text {(topic_filter + expression)[:64]!r}")
    return spec

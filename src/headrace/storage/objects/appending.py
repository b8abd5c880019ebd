"""New messages as records: payloads, entries of the metadata log, the index of times. Nothing here is changed later."""

from collections.abc import Callable
from typing import Final, final

from headrace.errors import Corrupt, Unavailable
from headrace.model import Message, Source
from headrace.storage.api import Append, Commit
from headrace.storage.objects.batch import Batch
from headrace.storage.objects.keys import (
    copy_key,
    entry_key,
    listing_key,
    log_name,
    payload_key,
    reference_key,
    time_key,
)
from headrace.storage.objects.log import LogContext, ObjectLog
from headrace.storage.objects.records import MetadataEncoder, Sequence, encode_entry, payload_length, timestamp_us

_ENTRY_ROWS: Final = 1000
_ENTRY_BYTES: Final = 1 << 20
_COPIED_BYTES: Final = 1024
"""A smaller payload is stored again in each log that copies it: two references would cost more."""
_INDEX_ROWS: Final = 1024
"""The time index has one entry for about so many messages."""


Find = Callable[[str], ObjectLog]
Mark = tuple[int, int, int]
"""A payload of one commit: the identity of its bytes, that of its source if they are few, and how often its log had it.

Queues with a time to live get copies of a message, which have its payload and source. Python has each payload of one
byte once, so that messages which have nothing else in common would share it.
"""


@final
class Prepared:
    """The messages of one append with their metadata; `shared` marks payloads that other logs get as well."""

    __slots__ = ("append", "lender", "lent", "messages", "metadata", "shared")

    def __init__(
        self, append: Append, messages: list[Message], metadata: list[bytes], shared: list[Mark | None]
    ) -> None:
        self.append = append
        self.messages = messages
        self.metadata = metadata
        self.shared = shared
        self.lender: ObjectLog | None = None
        """The log that holds some of them already."""
        self.lent: list[int] = []
        """The ids of these messages there, -1 for the others; empty if there are none."""


@final
class Appender:
    """Adds messages to logs."""

    def __init__(self, surroundings: LogContext, sequence: Sequence) -> None:
        self._surroundings = surroundings
        self._sequence = sequence
        self._encoder = MetadataEncoder()
        self.no_metadata = self._encoder.encode(Message(Source(""), b"", 0))
        """The metadata of an offset without a message."""

    def prepare(self, commit: Commit, find: Find) -> list[Prepared]:
        """Encode the appends of a commit. Raises Refused when a message cannot be stored."""
        found: list[Prepared] = []
        encode = self._encoder.encode
        takers = _takers(commit)
        rows = _messages(commit)
        for append, messages, shared in zip(commit.appends, rows, _sharing(commit, rows), strict=True):
            is_shared = [mark is not None for mark in shared]
            lent: list[int] = []
            lender = find(append.origin.log) if append.origin is not None else None
            if append.origin is not None and lender is not None:
                offsets, log = append.origin.offsets, append.origin.log
                lent = [
                    _lent(lender, offset, message, takers[log, offset])
                    for offset, message in zip(offsets, messages, strict=True)
                ]
                is_shared = [each or payload >= 0 for each, payload in zip(is_shared, lent, strict=True)]
            metadata = [encode(message, each) for message, each in zip(messages, is_shared, strict=True)]
            prepared = Prepared(append, messages, metadata, shared)
            prepared.lender, prepared.lent = lender, lent
            found.append(prepared)
        return found

    def create(self, batch: Batch, log: ObjectLog) -> None:
        """Store the log, if it is not stored yet."""
        if log.id < 0:
            log.identify(self._sequence.allocate(1))
            batch.new[listing_key(log_name(self._surroundings.instance, log.id))] = b""
            batch.logs[log] = log.staged

    def append(self, batch: Batch, log: ObjectLog, prepared: Prepared, shared_ids: dict[Mark, int]) -> None:
        """Stage the messages at the end of the log."""
        messages, metadata = prepared.messages, prepared.metadata
        base = prepared.append.base = log.staged.next_offset
        if not messages:
            return
        self.create(batch, log)
        ids = self._store_payloads(batch, log, prepared, shared_ids)
        self._index_time(batch, log)
        _store_entries(batch, log, base, ids, metadata)
        size = sum([len(message.payload) + len(message.properties) for message in messages])
        staged = log.staged
        log.staged = batch.logs[log] = staged._replace(
            next_offset=base + len(messages),
            size_bytes=staged.size_bytes + size,
            latest_us=max(staged.latest_us, max([message.timestamp_us for message in messages])),
        )
        log.shelf.append(base, ids, metadata, messages, self._surroundings.recent)

    def _store_payloads(
        self, batch: Batch, log: ObjectLog, prepared: Prepared, shared_ids: dict[Mark, int]
    ) -> list[int]:
        first = self._sequence.allocate(len(prepared.messages))
        ids = list(range(first, first + len(prepared.messages)))
        for row, message in enumerate(prepared.messages):
            if prepared.lent and prepared.lent[row] >= 0:
                ids[row] = self._borrow(batch, log, prepared, row)
                continue
            mark = prepared.shared[row]
            if mark is not None:
                ids[row] = shared_ids.setdefault(mark, ids[row])
                batch.new[reference_key(ids[row], log.id)] = b""
            batch.new[payload_key(ids[row])] = message.payload
        return ids

    def _borrow(self, batch: Batch, log: ObjectLog, prepared: Prepared, row: int) -> int:
        """Let a message refer to a payload of another log, and add that log's own reference."""
        lender, payload = prepared.lender, prepared.lent[row]
        assert lender is not None
        batch.new[copy_key(payload, log.id, prepared.append.base + row)] = b""
        batch.lasting[reference_key(payload, lender.id)] = b""
        if not lender.is_lent:
            lender.is_lent = True
            batch.lenders[lender] = None
        return payload

    def _index_time(self, batch: Batch, log: ObjectLog) -> None:
        """Note the latest time of all messages so far, once for many messages."""
        staged = log.staged
        if staged.next_offset - staged.indexed >= _INDEX_ROWS:
            batch.new[time_key(log.id, staged.latest_us)] = staged.next_offset.to_bytes(8, "little")
            log.staged = staged._replace(indexed=staged.next_offset)


def _store_entries(batch: Batch, log: ObjectLog, base: int, ids: list[int], metadata: list[bytes]) -> None:
    """Add to the metadata log, in entries of a size that reads well."""
    start = size = 0
    for row, about in enumerate(metadata):
        size += len(about)
        if row - start >= _ENTRY_ROWS or (size > _ENTRY_BYTES and row > start):
            batch.new[entry_key(log.prefix, base + start)] = encode_entry(ids[start:row], metadata[start:row])
            start, size = row, len(about)
    batch.new[entry_key(log.prefix, base + start)] = encode_entry(ids[start:], metadata[start:])


def _takers(commit: Commit) -> dict[tuple[str, int], int]:
    """The number of logs that copy each message of another log."""
    found: dict[tuple[str, int], int] = {}
    for origin in [append.origin for append in commit.appends if append.origin is not None]:
        for offset in origin.offsets:
            found[origin.log, offset] = found.get((origin.log, offset), 0) + 1
    return found


def _lent(lender: ObjectLog, offset: int, message: Message, takers: int) -> int:
    """The id of this payload in another log; -1 if it is gone there, or cheaper to store again."""
    if takers == 1 and len(message.payload) < _COPIED_BYTES:
        return -1
    try:
        about = lender.about(offset)
    except (Corrupt, Unavailable):
        return -1
    if about is None or payload_length(about[1], lender.name) != len(message.payload):
        return -1
    return about[0] if timestamp_us(about[1], lender.name) == message.timestamp_us else -1


def _messages(commit: Commit) -> list[list[Message]]:
    """The messages of each append. Equal payloads of encoded messages become one object."""
    found: list[list[Message]] = []
    known: dict[bytes, bytes] = {}
    for append in commit.appends:
        encoded = append.encoded
        if encoded is None:
            found.append(list(append.messages))
            continue
        messages = encoded.messages(0, encoded.count)
        if len(commit.appends) > 1:
            for message in messages:
                message.payload = known.setdefault(message.payload, message.payload)
        found.append(messages)
    return found


def _sharing(commit: Commit, rows: list[list[Message]]) -> list[list[Mark | None]]:
    """The marks of payloads that go to other logs as well, for each append; None for the others.

    A payload that a log gets twice has two marks: an id stands for one message of a log.
    """
    if len(rows) < 2:
        return [[None] * len(messages) for messages in rows]
    seen: dict[tuple[str, int, int], int] = {}
    logs: dict[Mark, int] = {}
    marks: list[list[Mark]] = []
    for append, messages in zip(commit.appends, rows, strict=True):
        name = append.log
        own: list[Mark] = []
        for message in messages:
            payload = id(message.payload)
            source = id(message.source) if len(message.payload) < 2 else 0
            times = seen.get((name, payload, source), 0)
            seen[name, payload, source] = times + 1
            mark = (payload, source, times)
            logs[mark] = logs.get(mark, 0) + 1
            own.append(mark)
        marks.append(own)
    return [[mark if logs[mark] > 1 else None for mark in own] for own in marks]

"""One commit on its way into the store: its records, and the effects that readers see once these are durable.

New messages become records here: payloads, entries of the metadata log, the index of times. Nothing of these is changed
later.
"""

from collections.abc import Callable, Iterator
from typing import Final, final

from headrace.errors import Corrupt, HeadraceError, Unavailable
from headrace.model import Message
from headrace.storage.api import Append, Commit, Done
from headrace.storage.objects.database import Change
from headrace.storage.objects.group import Changes, ObjectGroup
from headrace.storage.objects.keys import (
    LENT,
    LOG,
    SEQUENCE,
    copy_key,
    entry_key,
    listing_key,
    log_name,
    payload_key,
    payloads_key,
    reference_key,
    table_key,
    time_key,
    u64,
)
from headrace.storage.objects.log import LogContext, ObjectLog
from headrace.storage.objects.records import (
    PACKED,
    SHARED,
    LogState,
    MetadataEncoder,
    Sequence,
    encode_entry,
    encode_log,
    encode_payloads,
    packed_runs,
)

CREATE: Final = 1
DELETE: Final = 2
DROP: Final = 3


@final
class Effect:
    """A group that begins or ends, or a log that ends, once the batch is durable; the order matters."""

    __slots__ = ("group", "kind", "log", "replacement")

    def __init__(self, kind: int, log: ObjectLog, group: ObjectGroup | None = None) -> None:
        self.kind = kind
        self.log = log
        self.group = group
        self.replacement: ObjectLog | None = None
        """The empty log that replaces a dropped one."""


@final
class Batch:
    """A commit that is written atomically."""

    __slots__ = (
        "_lasting",
        "done",
        "effects",
        "error",
        "groups",
        "is_urgent",
        "lenders",
        "logs",
        "new",
        "puts",
        "records",
        "size_bytes",
    )

    def __init__(self, done: Done, size_bytes: int = 0, is_urgent: bool = False) -> None:
        self.done = done
        self.size_bytes = size_bytes
        self.is_urgent = is_urgent
        """True if it is reported once the database has it in memory: nobody waits for the store."""
        self.error: HeadraceError | None = None
        """The reason why it did not become durable, if it did not."""
        self.new: Changes = {}
        """Records that did not exist before."""
        self._lasting: Changes = {}
        """Records that may have existed before. They do no harm, so they stay when the batch is undone."""
        self.lenders: dict[ObjectLog, None] = {}
        """Logs whose payloads others refer to from now on."""
        self.groups: dict[ObjectGroup, Changes] = {}
        """The records of each group that changed."""
        self.logs: dict[ObjectLog, LogState] = {}
        """The state of each log that changed."""
        self.puts: dict[tuple[str, bytes], bytes | None] = {}
        self.effects: list[Effect] = []
        self.records: list[Change] = []
        """All records of the batch, once it is complete."""

    def refer(self, key: bytes) -> None:
        """Add a reference that may exist already."""
        self._lasting[key] = b""

    def complete(self) -> None:
        """Encode everything that changed."""
        for group, changes in self.groups.items():
            group.flush(changes)
        found: list[Change] = [*self.new.items(), *self._lasting.items()]
        found += [(LENT + u64(log.id), b"") for log in self.lenders]
        for changes in self.groups.values():
            found += changes.items()
        for log, state in self.logs.items():
            found.append((LOG + u64(log.id), encode_log(state)))
        for log in self.dropped():
            found.append((LOG + u64(log.id), None))
        for (table, key), value in self.puts.items():
            found.append((table_key(table, key), value))
        self.records = found

    def undo(self, changes: Changes, tables: dict[str, dict[bytes, bytes]]) -> None:
        """Add the records that take back this batch; the last durable batch left the groups, logs and tables so."""
        changes.update([(key, None) for key in self.new if key != SEQUENCE])
        for group, changed in self.groups.items():
            changes.update([(key, group.records.get(key)) for key in changed])
        for log in (*self.logs, *self.dropped()):
            changes[LOG + u64(log.id)] = encode_log(log.stored) if log.is_stored else None
        for table, key in self.puts:
            changes[table_key(table, key)] = tables.get(table, {}).get(key)

    def dropped(self) -> Iterator[ObjectLog]:
        for effect in self.effects:
            if effect.kind == DROP:
                yield effect.log


_ENTRY_ROWS: Final = 1000
_ENTRY_BYTES: Final = 1 << 20
"""The limit of an entry and its payloads together: a reader takes all of it."""
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
        self, append: Append, messages: list[Message], metadata: list[bytes], shared: list[Mark | None] | None
    ) -> None:
        self.append = append
        self.messages = messages
        self.metadata = metadata
        self.shared = shared
        """None if no other log gets any of them."""
        self.lender: ObjectLog | None = None
        """The log that holds some of them already."""
        self.lent: list[int] = []
        """The ids of these messages there, -1 for the others; empty if there are none."""


@final
class Appender:
    """Adds messages to logs."""

    def __init__(self, context: LogContext, sequence: Sequence) -> None:
        self._context = context
        self._sequence = sequence
        self._encoder = MetadataEncoder()

    def prepare(self, commit: Commit, find: Find) -> list[Prepared]:
        """Encode the appends of a commit. Raises Refused when a message cannot be stored."""
        rows = _messages(commit)
        takers = _takers(commit)
        shared = _sharing(commit, rows)
        return [
            self._prepare(append, messages, marks, takers, find)
            for append, messages, marks in zip(commit.appends, rows, shared, strict=True)
        ]

    def _prepare(
        self,
        append: Append,
        messages: list[Message],
        shared: list[Mark | None] | None,
        takers: dict[tuple[str, int], int],
        find: Find,
    ) -> Prepared:
        encode = self._encoder.encode
        origin = append.origin
        if origin is None and shared is None:
            return Prepared(append, messages, [encode(message, PACKED) for message in messages], None)
        flags = [PACKED] * len(messages) if shared is None else [PACKED if mark is None else SHARED for mark in shared]
        lent: list[int] = []
        lender = find(origin.log) if origin is not None else None
        if origin is not None and lender is not None:
            lent = [
                _lent(lender, offset, message, takers[origin.log, offset])
                for offset, message in zip(origin.offsets, messages, strict=True)
            ]
            flags = [each if payload < 0 else SHARED for each, payload in zip(flags, lent, strict=True)]
        metadata = [encode(message, each) for message, each in zip(messages, flags, strict=True)]
        prepared = Prepared(append, messages, metadata, shared)
        prepared.lender, prepared.lent = lender, lent
        return prepared

    def create(self, batch: Batch, log: ObjectLog) -> None:
        """Store the log, if it is not stored yet."""
        if log.id < 0:
            log.identify(self._sequence.allocate(1))
            batch.new[listing_key(log_name(self._context.instance, log.id))] = b""
            batch.logs[log] = log.staged

    def append(self, batch: Batch, log: ObjectLog, prepared: Prepared, shared_ids: dict[Mark, int]) -> None:
        """Stage the messages at the end of the log."""
        messages = prepared.messages
        base = prepared.append.base = log.staged.next_offset
        if not messages:
            return
        self.create(batch, log)
        first = self._sequence.allocate(len(messages))
        ids = list(range(first, first + len(messages)))
        if prepared.shared is not None or prepared.lent:
            self._share(batch, log, prepared, ids, shared_ids)
        self._index_time(batch, log)
        self._store_entries(batch, log, base, ids, prepared)
        size = sum([len(message.payload) + len(message.properties) for message in messages])
        staged = log.staged
        log.staged = batch.logs[log] = staged._replace(
            next_offset=base + len(messages),
            size_bytes=staged.size_bytes + size,
            latest_us=max(staged.latest_us, max([message.timestamp_us for message in messages])),
        )
        log.shelf.append(base, ids, messages, self._context.recent)

    def _share(
        self, batch: Batch, log: ObjectLog, prepared: Prepared, ids: list[int], shared_ids: dict[Mark, int]
    ) -> None:
        """Store payloads that several logs get once, with a reference of each log, and set their ids."""
        for row, message in enumerate(prepared.messages):
            if prepared.lent and prepared.lent[row] >= 0:
                ids[row] = self._borrow(batch, log, prepared, row)
                continue
            mark = None if prepared.shared is None else prepared.shared[row]
            if mark is not None:
                ids[row] = shared_ids.setdefault(mark, ids[row])
                batch.new[reference_key(ids[row], log.id)] = b""
                batch.new[payload_key(ids[row])] = message.payload

    def _borrow(self, batch: Batch, log: ObjectLog, prepared: Prepared, row: int) -> int:
        """Let a message refer to a payload of another log, and add that log's own reference."""
        lender, payload = prepared.lender, prepared.lent[row]
        assert lender is not None
        batch.new[copy_key(payload, log.id, prepared.append.base + row)] = b""
        batch.refer(reference_key(payload, lender.id))
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

    def _store_entries(self, batch: Batch, log: ObjectLog, base: int, ids: list[int], prepared: Prepared) -> None:
        """Add to the metadata log, in entries of a size that reads well, each with its payloads."""
        start = size = 0
        payloads = [message.payload for message in prepared.messages]
        metadata = prepared.metadata
        for row, about in enumerate(metadata):
            row_size = len(about) + len(payloads[row])
            size += row_size
            if row - start >= _ENTRY_ROWS or (size > _ENTRY_BYTES and row > start):
                _store_entry(batch, log, base + start, ids[start:row], metadata[start:row], payloads[start:row])
                start, size = row, row_size
        _store_entry(batch, log, base + start, ids[start:], metadata[start:], payloads[start:])


def _store_entry(
    batch: Batch, log: ObjectLog, base: int, ids: list[int], metadata: list[bytes], payloads: list[bytes]
) -> None:
    batch.new[entry_key(log.prefix, base)] = encode_entry(ids, metadata)
    for start, stop in packed_runs(ids, metadata):
        batch.new[payloads_key(ids[start])] = encode_payloads(payloads[start:stop])


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
        found = lender.staged_message(offset)
    except (Corrupt, Unavailable):
        return -1
    if found is None or len(found[1].payload) != len(message.payload):
        return -1
    return found[0] if found[1].timestamp_us == message.timestamp_us else -1


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


def _sharing(commit: Commit, rows: list[list[Message]]) -> list[list[Mark | None] | None]:
    """The marks of payloads that go to other logs as well, for each append; None for the others.

    A payload that a log gets twice has two marks: an id stands for one message of a log.
    """
    if len(rows) < 2 or _are_distinct(rows):
        return [None] * len(rows)
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


def _are_distinct(rows: list[list[Message]]) -> bool:
    """True if no two messages have the same payload in memory, as is usual."""
    return len({id(message.payload) for messages in rows for message in messages}) == sum(map(len, rows))

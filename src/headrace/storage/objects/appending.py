"""New messages as records: payloads, entries of the metadata log, the index of times. Nothing here is changed later."""

from typing import Final, final

from headrace.model import Message, Source
from headrace.storage.api import Append, Commit
from headrace.storage.objects.batch import Batch
from headrace.storage.objects.keys import (
    entry_key,
    listing_key,
    log_name,
    payload_key,
    reference_key,
    time_key,
)
from headrace.storage.objects.log import ObjectLog, Surroundings
from headrace.storage.objects.metadata import MetadataEncoder
from headrace.storage.objects.records import encode_entry
from headrace.storage.objects.sequence import Sequence

_ENTRY_ROWS: Final = 1000
_ENTRY_BYTES: Final = 1 << 20
_INDEX_ROWS: Final = 1024
"""Times are indexed once for about so many messages."""


@final
class Prepared:
    """The messages of one append with their metadata; `shared` says whose payloads other logs get as well."""

    __slots__ = ("append", "messages", "metadata", "shared")

    def __init__(self, append: Append, messages: list[Message], metadata: list[bytes], shared: list[bool]) -> None:
        self.append = append
        self.messages = messages
        self.metadata = metadata
        self.shared = shared


@final
class Appender:
    """Adds messages to logs."""

    def __init__(self, surroundings: Surroundings, sequence: Sequence) -> None:
        self._surroundings = surroundings
        self._sequence = sequence
        self._encoder = MetadataEncoder()
        self.no_metadata = self._encoder.encode(Message(Source(""), b"", 0))
        """For an offset at which there is no message."""

    def prepare(self, commit: Commit) -> list[Prepared]:
        """Everything that a commit appends. Raises Refused when a message cannot be stored."""
        found: list[Prepared] = []
        encode = self._encoder.encode
        for append, shared in zip(commit.appends, _sharing(commit), strict=True):
            encoded = append.encoded
            messages = list(append.messages) if encoded is None else encoded.messages(0, encoded.count)
            shared = shared or [False] * len(messages)
            metadata = [encode(message, each) for message, each in zip(messages, shared, strict=True)]
            found.append(Prepared(append, messages, metadata, shared))
        return found

    def create(self, batch: Batch, log: ObjectLog) -> None:
        """Have the log be one that is stored."""
        if log.id < 0:
            log.identify(self._sequence.allocate(1))
            batch.new[listing_key(log_name(self._surroundings.instance, log.id))] = b""
            batch.logs[log] = log.staged

    def append(self, batch: Batch, log: ObjectLog, prepared: Prepared, shared_ids: dict[int, int]) -> None:
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
        self, batch: Batch, log: ObjectLog, prepared: Prepared, shared_ids: dict[int, int]
    ) -> list[int]:
        first = self._sequence.allocate(len(prepared.messages))
        ids = list(range(first, first + len(prepared.messages)))
        for row, message in enumerate(prepared.messages):
            if prepared.shared[row]:
                ids[row] = shared_ids.setdefault(id(message), ids[row])
                batch.new[reference_key(ids[row], log.id)] = b""
            batch.new[payload_key(ids[row])] = message.payload
        return ids

    def _index_time(self, batch: Batch, log: ObjectLog) -> None:
        """Everything below the next offset has at most the latest time: note that now and then."""
        staged = log.staged
        if staged.next_offset - staged.indexed >= _INDEX_ROWS:
            batch.new[time_key(log.id, staged.latest_us)] = staged.next_offset.to_bytes(8, "little")
            log.staged = staged._replace(indexed=staged.next_offset)


def _store_entries(batch: Batch, log: ObjectLog, base: int, ids: list[int], metadata: list[bytes]) -> None:
    """Add to the metadata log, in entries that are good to read."""
    start = size = 0
    for row, about in enumerate(metadata):
        size += len(about)
        if row - start >= _ENTRY_ROWS or (size > _ENTRY_BYTES and row > start):
            batch.new[entry_key(log.prefix, base + start)] = encode_entry(ids[start:row], metadata[start:row])
            start, size = row, len(about)
    batch.new[entry_key(log.prefix, base + start)] = encode_entry(ids[start:], metadata[start:])


def _sharing(commit: Commit) -> list[list[bool]]:
    """For each append, which of its messages go to other logs as well; nothing where none does.

    A message that a log gets twice shares its payload once: an id stands for one message of a log.
    """
    if len(commit.appends) < 2:
        return [[] for _ in commit.appends]
    logs: dict[int, set[str]] = {}
    for append in commit.appends:
        for message in append.messages:
            logs.setdefault(id(message), set()).add(append.log)
    if all([len(names) == 1 for names in logs.values()]):
        return [[] for _ in commit.appends]
    given: set[tuple[int, str]] = set()
    found: list[list[bool]] = []
    for append in commit.appends:
        shared: list[bool] = []
        for message in append.messages:
            place = (id(message), append.log)
            shared.append(len(logs[id(message)]) > 1 and place not in given)
            given.add(place)
        found.append(shared)
    return found

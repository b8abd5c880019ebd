"""Messages out of the store: by offset and by time. Knows keys and records; what is held in memory is in chunks.py.

The owner of the engine waits for these reads, and with it everybody else. So it does not wait long, and once the store
did not answer, it is not asked again for a while.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple, final

from headrace.errors import Corrupt, Unavailable
from headrace.model import Message
from headrace.storage.objects.encodings import lexical_successor
from headrace.storage.objects.keys import (
    PAYLOAD,
    TIME,
    decode_entry_key,
    describe,
    entry_key,
    payload_key,
    time_key,
    u64,
)
from headrace.storage.objects.metadata import MetadataDecoder, payload_length, timestamp_us
from headrace.storage.objects.readable import Readable
from headrace.storage.objects.records import decode_entry

PATIENCE_MS: Final = 2000
_REST_US: Final = 5_000_000
"""For how long the store is not asked again after it did not answer."""
READ_ROWS: Final = 512
READ_BYTES: Final = 1 << 20
_ENTRIES: Final = 16
_GAP: Final = 8
"""Payloads so near to each other are read in one go, with those of other logs between them."""


class Rows(NamedTuple):
    """Some messages of a log without their payloads."""

    base: int
    ids: list[int]
    metadata: list[bytes]


@final
class StoreReader:
    """Reads logs of one database. Not for several threads at once: the decoder remembers."""

    def __init__(self, database: Readable, patience_ms: int = PATIENCE_MS) -> None:
        self._database = database.within(patience_ms)
        self._decoder = MetadataDecoder()
        self._asked_again_us = 0

    def entries(self, prefix: bytes, offset: int, stop: int) -> Iterator[Rows]:
        """The entries of a metadata log from the one with `offset` up to `stop`. Raises Corrupt and Unavailable."""
        row = self._database.last(prefix, entry_key(prefix, offset + 1))
        start = row[0] if row is not None else entry_key(prefix, offset)
        for found in self._database.scan(start, entry_key(prefix, stop), at_once=_ENTRIES):
            for key, value in found:
                yield Rows(decode_entry_key(key, prefix), *decode_entry(value, describe(key)))

    def read(self, prefix: bytes, offset: int, stop: int) -> tuple[list[int], list[bytes], list[Message]]:
        """Messages from `offset` on, at least one, as many as is good to read at once. Raises Corrupt, Unavailable."""
        self._check()
        try:
            ids, metadata = self._plan(prefix, offset, stop)
            payloads = self._payloads(ids)
        except Unavailable:
            self._rest()
            raise
        messages = []
        for message_id, about in zip(ids, metadata, strict=True):
            where = describe(payload_key(message_id))
            payload = payloads.get(message_id)
            if payload is None:
                raise Corrupt(where, 0, "the payload is missing")
            messages.append(self._decoder.decode(about, payload, where))
        return ids, metadata, messages

    def find(self, log_id: int, prefix: bytes, first: int, stop: int, time_us: int) -> int:
        """The offset of the first message with at least this time, or `stop`. Raises Corrupt and Unavailable."""
        self._check()
        try:
            return self._find(log_id, prefix, first, stop, time_us)
        except Unavailable:
            self._rest()
            raise

    def _check(self) -> None:
        if self._database.clock.monotonic_us() < self._asked_again_us:
            raise Unavailable(f"{self._database.place} does not answer, and is asked again in a few seconds")

    def _rest(self) -> None:
        self._asked_again_us = self._database.clock.monotonic_us() + _REST_US

    def _find(self, log_id: int, prefix: bytes, first: int, stop: int, time_us: int) -> int:
        row = self._database.last(TIME + u64(log_id), time_key(log_id, time_us))
        start = max(first, int.from_bytes(row[1], "little")) if row is not None else first
        for base, _, metadata in self.entries(prefix, start, stop) if start < stop else ():
            for offset, about in enumerate(metadata, base):
                if start <= offset < stop and timestamp_us(about, describe(prefix)) >= time_us:
                    return offset
        return stop

    def _plan(self, prefix: bytes, offset: int, stop: int) -> tuple[list[int], list[bytes]]:
        """What to read: the ids and the metadata of messages in a row."""
        ids: list[int] = []
        metadata: list[bytes] = []
        size = 0
        at = offset
        for base, found, about in self.entries(prefix, offset, stop):
            if base > at or base + len(found) <= at:
                break
            for row in range(at - base, min(len(found), stop - base)):
                size += payload_length(about[row], describe(prefix))
                if ids and (size > READ_BYTES or len(ids) >= READ_ROWS):
                    return ids, metadata
                ids.append(found[row])
                metadata.append(about[row])
            at = base + len(found)
            if at >= stop:
                break
        if not ids:
            raise Corrupt(describe(prefix), 0, f"no entry of the metadata log has offset {offset}")
        return ids, metadata

    def _payloads(self, ids: list[int]) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for first, last in _runs(sorted(ids)):
            if first == last:
                payload = self._database.get(payload_key(first))
                if payload is not None:
                    found[first] = payload
                continue
            end = lexical_successor(payload_key(last))
            for rows in self._database.scan(payload_key(first), end, at_once=min(last - first + 1, READ_ROWS)):
                for key, payload in rows:
                    found[int.from_bytes(key[len(PAYLOAD) :], "big")] = payload
        return found


def _runs(ids: list[int]) -> Iterator[tuple[int, int]]:
    """Ids that are near to each other, as first and last."""
    first = last = ids[0]
    for each in ids[1:]:
        if each - last > _GAP:
            yield first, last
            first = each
        last = each
    yield first, last

"""The log of a queue that was declared again before its predecessor's log is gone: empty, until there is a real one."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, final

from headrace.model import Message
from headrace.storage.api import NO_LIMIT, Log
from headrace.storage.group_state import GroupState

if TYPE_CHECKING:
    import pyarrow as pa


@final
class UnbornLog(Log):
    """Nothing is in it and nothing can be read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.first_offset = 0
        self.next_offset = 0

    @property
    def size_bytes(self) -> int:
        return 0

    @property
    def groups(self) -> Mapping[str, GroupState]:
        return {}

    def read(self, offset: int, max_messages: int, max_bytes: int = NO_LIMIT) -> list[Message]:
        return []

    def find(self, timestamp_us: int) -> int:
        return 0

    def record_batches(self, start: int, stop: int) -> "Iterator[pa.RecordBatch]":
        return iter(())

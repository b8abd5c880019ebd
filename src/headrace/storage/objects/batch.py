"""Commits on their way into the store: their records, and the effects that readers see once these are durable."""

from collections.abc import Iterator
from typing import Final, final

from headrace.errors import HeadraceError
from headrace.storage.api import Done
from headrace.storage.group_state import Transition
from headrace.storage.objects.database import Change
from headrace.storage.objects.group import Changes, ObjectGroup
from headrace.storage.objects.keys import LENT, LOG, SEQUENCE, table_key, u64
from headrace.storage.objects.log import ObjectLog
from headrace.storage.objects.records import LogState, encode_log

STEP: Final = 0
CREATE: Final = 1
DELETE: Final = 2
DROP: Final = 3


@final
class Effect:
    """One change that readers see once the batch is durable; the order matters."""

    __slots__ = ("group", "kind", "log", "replacement", "step")

    def __init__(
        self, kind: int, log: ObjectLog, group: ObjectGroup | None = None, step: Transition | None = None
    ) -> None:
        self.kind = kind
        self.log = log
        self.group = group
        self.step = step
        self.replacement: ObjectLog | None = None
        """The empty log that replaces a dropped one."""


@final
class Batch:
    """Commits that are written as one."""

    __slots__ = (
        "commits",
        "effects",
        "error",
        "groups",
        "is_undone",
        "is_urgent",
        "lasting",
        "lenders",
        "logs",
        "new",
        "puts",
        "records",
    )

    def __init__(self) -> None:
        self.commits: list[tuple[Done, int]] = []
        self.new: Changes = {}
        """Records that did not exist before."""
        self.lasting: Changes = {}
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
        """The records to be written: those of the batch, or those that take it back."""
        self.is_urgent = False
        """True if it is reported once the database has it in memory: nobody waits for the store."""
        self.is_undone = False
        """True from the moment it is taken back."""
        self.error: HeadraceError | None = None

    def changes(self) -> list[Change]:
        """All records of the batch."""
        found: list[Change] = [*self.new.items(), *self.lasting.items()]
        found += [(LENT + u64(log.id), b"") for log in self.lenders]
        for changes in self.groups.values():
            found += changes.items()
        for log, state in self.logs.items():
            found.append((LOG + u64(log.id), encode_log(state)))
        for log in self.dropped():
            found.append((LOG + u64(log.id), None))
        for (table, key), value in self.puts.items():
            found.append((table_key(table, key), value))
        return found

    def undoing(self, tables: dict[str, dict[bytes, bytes]]) -> list[Change]:
        """The records that take back this batch, which was not applied."""
        found: list[Change] = [(key, None) for key in self.new if key != SEQUENCE]
        for group, changes in self.groups.items():
            found += [(key, group.records.get(key)) for key in changes]
        for log in (*self.logs, *self.dropped()):
            found.append((LOG + u64(log.id), encode_log(log.stored) if log.is_stored else None))
        for table, key in self.puts:
            found.append((table_key(table, key), tables.get(table, {}).get(key)))
        return found

    def dropped(self) -> Iterator[ObjectLog]:
        for effect in self.effects:
            if effect.kind == DROP:
                yield effect.log

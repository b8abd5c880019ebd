"""All logs, groups and tables of a directory, as they are in memory, and how batches change them. No threads.

A batch is first resolved and staged: names become objects and ids, messages get offsets. Once its record is in the
journal it is applied, and readers see it. Replaying the journal applies the same batches.
"""

from pathlib import Path
from typing import final

from librt.strings import BytesWriter

from headrace.storage.api import Commit, check_name, check_step
from headrace.storage.group_state import CREATED, DELETED, GroupState, Transition
from headrace.storage.local.batch import Batch, Change, Cut
from headrace.storage.local.checkpoint import GROUPS, LogEntry
from headrace.storage.local.encoding import decode_messages, write_run, write_step, write_truncate
from headrace.storage.local.flusher import Job, RemoveSegments, RemoveTree
from headrace.storage.local.group_files import group_key
from headrace.storage.local.log import MERGE_ROWS, MESSAGE_BYTES, LocalGroup, LocalLog, Memory
from headrace.storage.local.record import (
    CREATE_LOG,
    DELETE,
    DROP_LOG,
    PUT,
    TRUNCATE,
    Record,
    decode_operations,
    encode_create_log,
    encode_drop_log,
    encode_put,
)
from headrace.storage.local.segment import BlockCache
from headrace.storage.local.tables import Table


@final
class Catalog:
    """The logs, groups and tables of one directory. The engine's owner thread owns it."""

    def __init__(self, root: Path, cache: BlockCache) -> None:
        self.root = root
        self._queues = root / "queues"
        self.cache = cache
        self.next_id = 1
        self.logs: dict[str, LocalLog] = {}
        self.logs_by_id: dict[int, LocalLog] = {}
        self.groups_by_id: dict[int, LocalGroup] = {}
        self.tables: dict[str, Table] = {}
        self._dirty_groups: set[LocalGroup] = set()
        """Groups whose `is_dirty` is set."""
        self._tails: set[LocalLog] = set()
        """Logs that had messages in no segment: `is_in_tails` is set until `forget_empty_tails`."""
        self.memory = Memory()
        self.tails_generation = 0
        """The number of the file with the small tails of the last checkpoint; 0 if it has none."""
        self.chores: list[Job] = []
        """Files to remove: nothing refers to them any more."""
        self._staged_drops: dict[str, Change] = {}
        self._staged_groups: dict[tuple[LocalLog, str], tuple[Transition, LocalGroup]] = {}
        """Groups that come or go with a batch which is not applied yet, with the step that says so."""

    def log(self, name: str) -> LocalLog:
        """The log of that name as readers see it."""
        log = self.logs.get(name)
        if log is None:
            log = self.logs[name] = self._new_log(name)
        return log

    def _new_log(self, name: str) -> LocalLog:
        return LocalLog(name, self._queues, self.cache, self.memory)

    def table(self, name: str) -> Table:
        table = self.tables.get(name)
        if table is None:
            table = self.tables[name] = Table(name)
        return table

    def resolve(self, batch: Batch) -> list[LocalGroup | None]:
        """Find the logs and groups of a batch as the batches before it leave them, without changing anything.

        Returns the group of each step, None for those that come or go with the batch. Raises Refused or Corrupt.
        """
        logs: list[LocalLog] = []
        for append in batch.appends:
            log = append.at
            if not isinstance(log, LocalLog) or log.dropped or self._staged_drops:
                log = self._staging(append.log)
            if log.damage is not None or log.id == 0:
                _check_log(log)
            logs.append(log)
        batch.targets = batch.logs = logs
        return self._groups_of(batch.steps) if batch.steps else []

    def stage(self, batch: Batch, groups: list[LocalGroup | None], seq: int) -> None:
        """Give a resolved and encoded batch its ids and offsets, and make its record, which has the number `seq`."""
        commit = batch.commit
        operations = BytesWriter()
        for number, append in enumerate(commit.appends):
            log = batch.targets[number]
            if log.id == 0:
                self._create(log, batch, operations)
            append.base = log.staged_next
            log.staged_next += append.count
        for number, step in enumerate(batch.steps):
            group = groups[number]
            if group is None:
                group = self._stage_new(step, batch, operations)
            batch.groups.append(group)
            log = group.log
            step.cut = min(step.cut, log.staged_next)
            write_step(operations, step, log.id, group.id)
        for (table, key), value in commit.puts.items():
            change = Change(DELETE if value is None else PUT)
            change.table, change.key, change.value = table, key, value
            batch.changes.append(change)
            operations.write(encode_put(table, key, value))
        for name, before in commit.truncations.items():
            self._stage_truncation(name, before, batch, operations)
        for name in commit.drops:
            self._stage_drop(name, batch, operations)
        runs = BytesWriter()
        for number, append in enumerate(batch.appends):
            write_run(runs, batch.logs[number].id, append.count, append.base)
        batch.seq = seq
        batch.operations = operations.getvalue()
        batch.runs = runs.getvalue()

    def forget_staged(self) -> None:
        """Forget all ids and offsets that batches were given which are not written and never will be."""
        self._staged_drops.clear()
        self._staged_groups.clear()
        for log in self.logs.values():
            log.staged_next = log.next_offset
            if log.id not in self.logs_by_id:
                log.id = 0

    def replay(self, record: Record) -> Batch:
        """The batch of a record, as far as it can still be applied. Raises ValueError."""
        batch = Batch(Commit())
        batch.blocks = record.blocks
        drops: dict[str, Change] = {}
        for operation in decode_operations(record.operations):
            if operation.step is not None:
                batch.steps.append(operation.step)
                batch.groups.append(self._replay_step(operation.step, operation.log_id, operation.group_id))
                continue
            if operation.kind == TRUNCATE:
                batch.cuts.append((self.logs_by_id[operation.log_id], operation.offset))
                continue
            change = Change(operation.kind)
            change.table, change.key, change.value = operation.table, operation.key, operation.value
            if operation.kind == CREATE_LOG:
                change.log = self._replay_create(operation.name, operation.log_id, drops)
            elif operation.kind == DROP_LOG:
                change.log = self.logs_by_id[operation.log_id]
                drops[change.log.name] = change
            batch.changes.append(change)
        for log_id, count, base in record.runs:
            batch.add_run(self.logs_by_id[log_id], base, count)
        return batch

    def restore(self, record: Record) -> None:
        """Put the messages of a record into the tails of their logs. Raises KeyError when there is no such log."""
        batch = Batch(Commit())
        batch.blocks = record.blocks
        for log_id, count, base in record.runs:
            batch.add_run(self.logs_by_id[log_id], base, count)
        self._append(batch)

    def apply(self, batch: Batch, seq: int) -> None:
        """Make a batch visible: it is in the journal as record `seq`."""
        for change in batch.changes:
            if change.kind == CREATE_LOG and change.log is not None:
                self.logs_by_id[change.log.id] = change.log
        late = self._step(batch, seq)
        self._append(batch)
        for log, before in (*late, *batch.cuts):
            self._cut(log, before)
        for change in batch.changes:
            if change.kind in (PUT, DELETE):
                self.table(change.table).put(change.key, change.value)
            elif change.kind == DROP_LOG and change.log is not None:
                self._apply_drop(change, change.log)

    def _step(self, batch: Batch, seq: int) -> list[Cut]:
        """Apply the steps of groups; returns the cuts beyond the ends of their logs, which follow the appends.

        Other cuts are made at once, so that a log is empty when its next message comes and need not hold both.
        """
        late: list[Cut] = []
        for number, step in enumerate(batch.steps):
            group = batch.groups[number]
            if not group.is_dirty:
                self.note_dirty(group)
            if step.kind in (CREATED, DELETED):
                self._apply_new(step, group)
                continue
            if seq > group.progress_seq and seq > group.pending_seq:
                group.state.apply(step)
            else:
                group.replay(step, seq)
            if step.cut > group.log.next_offset:
                late.append((group.log, step.cut))
            elif step.cut:
                self._cut(group.log, step.cut)
        return late

    def _cut(self, log: LocalLog, before: int) -> None:
        log.cut(before)
        if log.has_segments:
            self.trim(log)

    def _append(self, batch: Batch) -> None:
        """Add the messages of a batch to the tails of their logs."""
        if not batch.blocks:
            return
        is_shared = len(batch.blocks) == 1
        block = batch.blocks[0]
        row_bytes = block.row_bytes + MESSAGE_BYTES
        row = 0
        for number, log in enumerate(batch.logs):
            append = batch.appends[number]
            base, count, messages = append.base, append.count, append.messages
            if not log.is_in_tails:
                log.is_in_tails = True
                self._tails.add(log)
            if not is_shared:
                block, row = batch.blocks[number], 0
                row_bytes = block.row_bytes + MESSAGE_BYTES
            if count >= MERGE_ROWS:
                log.append_rows(base, block, row, count)
            elif count == 1 and messages:
                log.append_one(base, messages[0], row_bytes)
            else:
                few = list(messages) if messages else decode_messages(block, row, row + count)
                log.append(base, few, row_bytes * count)
            row += count

    def tails(self) -> list[LocalLog]:
        """The logs with messages that are in no segment yet."""
        return [log for log in self._tails if log.has_tail]

    def forget_empty_tails(self) -> None:
        """Forget logs whose messages are in segments by now, or gone."""
        for log in [log for log in self._tails if not log.has_tail]:
            self._tails.discard(log)
            log.is_in_tails = False

    def note_dirty(self, group: LocalGroup) -> None:
        """Note that a group differs from the last checkpoint."""
        group.is_dirty = True
        self._dirty_groups.add(group)

    def forget_dirty(self, group: LocalGroup) -> None:
        """Leave the group out of the next checkpoint."""
        group.is_dirty = False
        self._dirty_groups.discard(group)

    def take_dirty(self) -> list[LocalGroup]:
        """Take all groups that changed since the last checkpoint, and mark them unchanged."""
        dirty = list(self._dirty_groups)
        self._dirty_groups.clear()
        for group in dirty:
            group.is_dirty = False
        return dirty

    def trim(self, log: LocalLog) -> None:
        """Remove the segments in which no message is left."""
        paths = log.trim()
        if paths:
            self.chores.append(RemoveSegments(paths))

    def _groups_of(self, steps: list[Transition]) -> list[LocalGroup | None]:
        """The group of each step, None for those that come or go with these steps.

        Raises Refused when a group does not exist, and Corrupt when its log is damaged.
        """
        found: list[LocalGroup | None] = []
        changing: dict[tuple[str, str], bool] = {}
        """True for groups that exist after the steps so far, if one of these created or deleted them."""
        is_quiet = not (self._staged_drops or self._staged_groups)
        for step in steps:
            log = step.at
            if not isinstance(log, LocalLog) or log.dropped or self._staged_drops:
                log = self._staging(step.log)
            if log.damage is not None or log.id == 0:
                _check_log(log)
            group = log.last_group
            if is_quiet and not changing and step.kind not in (CREATED, DELETED):
                if group is None or group.state.name != step.group:
                    group = log.last_group = self._staged_group(log, step.group)
                if group is not None:
                    found.append(group)
                    continue
            group = self._staged_group(log, step.group)
            exists = group is not None
            if changing or step.kind in (CREATED, DELETED):
                key = (step.log, step.group)
                exists = changing.get(key, exists)
                if step.kind in (CREATED, DELETED):
                    changing[key] = step.kind == CREATED
                if key in changing:
                    group = None
            if not exists or step.kind == CREATED:
                check_step(step, exists)
            found.append(group)
        return found

    def _staging(self, name: str) -> LocalLog:
        """The log of that name as the next batch finds it."""
        if self._staged_drops:
            drop = self._staged_drops.get(name)
            if drop is not None and drop.replacement is not None:
                return drop.replacement
        return self.log(name)

    def _create(self, log: LocalLog, batch: Batch, operations: BytesWriter) -> None:
        log.id = self._new_id()
        batch.changes.append(Change(CREATE_LOG, log))
        operations.write(encode_create_log(log.id, log.name))

    def _staged_group(self, log: LocalLog, name: str) -> LocalGroup | None:
        if self._staged_groups:
            found = self._staged_groups.get((log, name))
            if found is not None:
                return found[1] if found[0].kind == CREATED else None
        return log.groups_by_name.get(name) if log.groups_by_name is not None else None

    def _stage_new(self, step: Transition, batch: Batch, operations: BytesWriter) -> LocalGroup:
        """The group of a step that creates it, deletes it, or comes behind such a step in its batch."""
        log = self._staging(step.log)
        if log.id == 0:
            self._create(log, batch, operations)
        if step.kind == CREATED:
            group: LocalGroup | None = self._new_group(self._new_id(), log, step)
        else:
            group = self._staged_group(log, step.group)
        assert group is not None, "resolve found it"
        if step.kind in (CREATED, DELETED):
            self._staged_groups[log, step.group] = (step, group)
        return group

    def _new_group(self, group_id: int, log: LocalLog, step: Transition) -> LocalGroup:
        return LocalGroup(group_id, log, GroupState(step.group, step.mode, step.filter, step.start), 0, 0)

    def _stage_truncation(self, name: str, before: int, batch: Batch, operations: BytesWriter) -> None:
        log = self._staging(name)
        if log.id == 0:
            return
        before = min(before, log.staged_next)
        batch.cuts.append((log, before))
        write_truncate(operations, log.id, before)

    def _stage_drop(self, name: str, batch: Batch, operations: BytesWriter) -> None:
        log = self._staging(name)
        if log.id == 0:
            return
        change = Change(DROP_LOG, log)
        change.replacement = self._new_log(name)
        self._staged_drops[name] = change
        batch.changes.append(change)
        operations.write(encode_drop_log(log.id))

    def _new_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def _replay_create(self, name: str, log_id: int, drops: dict[str, Change]) -> LocalLog:
        log = self.log(name)
        if log.id in self.logs_by_id:  # the log it replaces is dropped by this very record
            log = self._new_log(name)
            drops[name].replacement = log
        log.id = log_id
        log.unloaded = LogEntry(log_id, name, 0, 0)  # its segments are older: the journal has everything
        self.logs_by_id[log_id] = log
        self.next_id = max(self.next_id, log_id + 1)
        return log

    def _replay_step(self, step: Transition, log_id: int, group_id: int) -> LocalGroup:
        if step.kind == CREATED:
            group = self._new_group(group_id, self.logs_by_id[log_id], step)
            self.groups_by_id[group_id] = group
            self.next_id = max(self.next_id, group_id + 1)
        else:
            group = self.groups_by_id[group_id]
        step.log = group.log.name
        step.group = group.state.name
        return group

    def _apply_new(self, step: Transition, group: LocalGroup) -> None:
        """Create or delete a group."""
        log = group.log
        if step.kind == CREATED:
            if log.groups_by_name is None:
                log.groups_by_name = {}
            log.groups_by_name[step.group] = group
            self.groups_by_id[group.id] = group
        else:
            if log.groups_by_name is not None:
                log.groups_by_name.pop(step.group, None)
            log.last_group = None
            self._forget_group(group)
            self.chores.append(RemoveTree(group.directory, log.directory / "consumers" / f".trash-{group.id}"))
        staged = self._staged_groups.get((log, step.group))
        if staged is not None and staged[0] is step:
            del self._staged_groups[log, step.group]

    def _apply_drop(self, change: Change, log: LocalLog) -> None:
        log.dropped = True
        self.cache.forget_log(log.id)
        self.logs_by_id.pop(log.id, None)
        for group in (log.groups_by_name or {}).values():
            self._forget_group(group)
        log.groups_by_name = log.last_group = None
        self._tails.discard(log)
        log.drop_tail()
        if self.logs.get(log.name) is log:
            if change.replacement is not None and change.replacement.id:
                self.logs[log.name] = change.replacement
            else:
                del self.logs[log.name]
        if self._staged_drops.get(log.name) is change:
            del self._staged_drops[log.name]
        self.chores.append(RemoveTree(log.directory, self._queues / f".trash-{log.id}"))

    def _forget_group(self, group: LocalGroup) -> None:
        self.groups_by_id.pop(group.id, None)
        self.forget_dirty(group)
        if group.is_shared:
            self.table(GROUPS).put(group_key(group.id), None)


def _check_log(log: LocalLog) -> None:
    """Raises Corrupt when a log is damaged, and Refused when it is new and its name is not valid."""
    if log.damage is not None:
        raise log.damage
    if log.id == 0:
        check_name("log", log.name)

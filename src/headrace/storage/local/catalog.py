"""All logs, groups and tables of a directory, as they are in memory, and how commits change them. No threads.

A commit is first staged: its names become objects and ids, its messages get offsets. Once it is in the journal it is
applied, and only then does a reader see it. Replaying the journal applies the same batches.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import final

from headrace.errors import Refused
from headrace.model import Message
from headrace.storage.api import Append, Commit, Done, check_name, check_step
from headrace.storage.group_state import CREATED, DELETED, GroupState, Transition
from headrace.storage.local.batch import STEP, Batch, Change, Rows, Staged
from headrace.storage.local.block import Block, encode_block
from headrace.storage.local.cache import BlockCache
from headrace.storage.local.checkpoint import LogEntry
from headrace.storage.local.encoded import EncodedBlock, EncodedRows
from headrace.storage.local.flusher import Job, RemoveSegments, RemoveTree
from headrace.storage.local.log import MERGE_ROWS, LocalGroup, LocalLog
from headrace.storage.local.names import encode_name
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
    encode_step,
    encode_truncate,
)
from headrace.storage.local.tables import Table


@final
class Catalog:
    """What there is. Belongs to the engine's owner thread."""

    def __init__(self, root: Path, cache: BlockCache) -> None:
        self.root = root
        self.cache = cache
        self.next_id = 1
        self.logs: dict[str, LocalLog] = {}
        self.logs_by_id: dict[int, LocalLog] = {}
        self.groups_by_id: dict[int, LocalGroup] = {}
        self.tables: dict[str, Table] = {}
        self.dirty_groups: set[LocalGroup] = set()
        self.tails: set[LocalLog] = set()
        """Logs with messages that are in no segment yet."""
        self.tail_bytes = 0
        self.chores: list[Job] = []
        """Files to remove, now that nothing refers to them."""
        self._staged_drops: dict[str, Change] = {}
        self._staged_groups: dict[tuple[LocalLog, str], Change] = {}

    def log(self, name: str) -> LocalLog:
        """The log of that name as readers see it."""
        log = self.logs.get(name)
        if log is None:
            log = self.logs[name] = LocalLog(name, self.root / "queues", self.cache)
        return log

    def table(self, name: str) -> Table:
        table = self.tables.get(name)
        if table is None:
            table = self.tables[name] = Table(name)
        return table

    def stage(self, commit: Commit, done: Done, durable: bool) -> Staged:
        """Resolve a commit against what is there and what is staged already. Raises Refused or Corrupt."""
        logs = [self._undamaged(append.log) for append in commit.appends]
        if commit.steps:
            self._check_steps(commit)
        staged = Staged(commit, done, durable)
        for log, append in zip(logs, commit.appends, strict=True):
            if log.id == 0:
                self._create(log, staged)
            append.base = log.staged_next
            log.staged_next += append.count
            staged.appends.append((log, append))
        for step in commit.steps:
            self._stage_step(step, staged)
        for (table, key), value in commit.puts.items():
            change = Change(DELETE if value is None else PUT)
            change.table, change.key, change.value = table, key, value
            staged.changes.append(change)
            staged.operations.append(encode_put(table, key, value))
        for name, before in commit.truncations.items():
            self._stage_truncation(name, before, staged)
        for name in commit.drops:
            self._stage_drop(name, staged)
        return staged

    def unstage_all(self) -> None:
        """Forget everything staged and not applied: a commit failed, and those behind it must be staged anew."""
        self._staged_drops.clear()
        self._staged_groups.clear()
        for log in self.logs.values():
            log.staged_next = log.next_offset
            if log.id not in self.logs_by_id:
                log.id = 0

    def batch(self, commits: list[Staged]) -> Batch:
        """Put staged commits together, the messages of each log next to each other, and encode them. Raises Refused."""
        if commits and commits[0].is_encoded:
            return self._batch_encoded(commits[0])
        batch = Batch(commits)
        by_log: dict[LocalLog, Rows] = {}
        for staged in commits:
            for log, append in staged.appends:
                rows = by_log.get(log)
                if rows is None:
                    by_log[log] = Rows(log, append.base, list(append.messages), 0, 0)
                else:
                    rows.messages += append.messages
            batch.changes += staged.changes
        batch.operations = b"".join([operation for staged in commits for operation in staged.operations])
        batch.rows = [rows for rows in by_log.values() if rows.messages]
        messages: Sequence[Message] = []
        if len(batch.rows) == 1:
            messages = batch.rows[0].messages
            batch.rows[0].count = len(messages)
        elif batch.rows:
            every: list[Message] = []
            for rows in batch.rows:
                rows.start = len(every)
                rows.count = len(rows.messages)
                every += rows.messages
            messages = every
        if messages:
            block = encode_block(batch.rows[0].base if len(batch.rows) == 1 else 0, messages)
            batch.blocks = [block]
            for rows in batch.rows:
                rows.block = block
        return batch

    def _batch_encoded(self, staged: Staged) -> Batch:
        """A batch of one commit, with a block for each of its appends unless they came in one. Raises Refused."""
        batch = Batch([staged])
        batch.changes += staged.changes
        batch.operations = b"".join(staged.operations)
        shared = _shared_block(staged.commit.appends)
        if shared is not None:
            batch.blocks.append(shared)
        row = 0
        for log, append in staged.appends:
            if shared is not None:
                messages = shared.messages(row, row + append.count) if append.count < MERGE_ROWS else []
                batch.rows.append(Rows(log, append.base, messages, row, append.count, shared))
                row += append.count
            elif append.count:
                block = _block_of(append)
                messages = block.messages(0, block.count) if block.count < MERGE_ROWS else []
                batch.blocks.append(block)
                batch.rows.append(Rows(log, append.base, messages, 0, append.count, block))
        return batch

    def replay(self, record: Record) -> Batch:
        """The batch that a record was made of, as far as it can still be applied. Raises ValueError."""
        batch = Batch([])
        batch.blocks = record.blocks
        drops: dict[str, Change] = {}
        for operation in decode_operations(record.operations):
            change = Change(operation.kind)
            change.offset = operation.offset
            change.table, change.key, change.value = operation.table, operation.key, operation.value
            if operation.kind == CREATE_LOG:
                change.log = self._replay_create(operation.name, operation.log_id, drops)
            elif operation.kind in (DROP_LOG, TRUNCATE):
                change.log = self.logs_by_id[operation.log_id]
                if operation.kind == DROP_LOG:
                    drops[change.log.name] = change
            elif operation.step is not None:
                self._replay_step(change, operation.step, operation.log_id, operation.group_id)
            batch.changes.append(change)
        for log_id, count, base, block, start in record.appends():
            messages: list[Message] = []
            if count < MERGE_ROWS:
                messages = block.messages(start, start + count)
            batch.rows.append(Rows(self.logs_by_id[log_id], base, messages, start, count, block))
        return batch

    def apply(self, batch: Batch, seq: int) -> None:
        """Make a batch visible: it is in the journal as record `seq`."""
        for change in batch.changes:
            if change.kind == CREATE_LOG and change.log is not None:
                self.logs_by_id[change.log.id] = change.log
        for rows in batch.rows:
            if rows.block is not None:
                self.tail_bytes += rows.log.append(rows.base, rows.messages, rows.block, rows.start, rows.count)
                self.tails.add(rows.log)
        for change in batch.changes:
            if change.step is not None:
                self._apply_step(change, change.step, seq)
            elif change.kind in (PUT, DELETE):
                self.table(change.table).put(change.key, change.value)
            elif change.kind == TRUNCATE and change.log is not None:
                self.tail_bytes -= change.log.truncate(change.offset)
                self.trim(change.log)
            elif change.kind == DROP_LOG and change.log is not None:
                self._apply_drop(change, change.log)

    def trim(self, log: LocalLog) -> None:
        """Have the segments removed in which nothing is left."""
        if not log.tail:
            self.tails.discard(log)
        paths = log.trim()
        if paths:
            self.chores.append(RemoveSegments(paths))

    def _check_steps(self, commit: Commit) -> None:
        """Raises, before anything is staged, when a group is not there or its log is damaged."""
        staged: dict[tuple[str, str], bool] = {}
        for step in commit.steps:
            log = self._undamaged(step.log)
            key = (step.log, step.group)
            exists = staged.get(key)
            if exists is None:
                exists = self._staged_group(log, step.group) is not None
            check_step(step, exists)
            staged[key] = step.kind != DELETED

    def _staging(self, name: str) -> LocalLog:
        """The log of that name as the next commit finds it."""
        if self._staged_drops:
            drop = self._staged_drops.get(name)
            if drop is not None and drop.replacement is not None:
                return drop.replacement
        return self.log(name)

    def _undamaged(self, name: str) -> LocalLog:
        """The same. Raises Corrupt when it is damaged, and Refused when there can be no log of that name."""
        log = self._staging(name)
        if log.damage is not None:
            raise log.damage
        if log.id == 0:
            check_name("log", name)
        return log

    def _create(self, log: LocalLog, staged: Staged) -> None:
        log.id = self._new_id()
        staged.changes.append(Change(CREATE_LOG, log))
        staged.operations.append(encode_create_log(log.id, log.name))

    def _staged_group(self, log: LocalLog, name: str) -> LocalGroup | None:
        change = self._staged_groups.get((log, name)) if self._staged_groups else None
        if change is not None and change.step is not None:
            return change.group if change.step.kind == CREATED else None
        return log.groups_by_name.get(name) if log.groups_by_name is not None else None

    def _stage_step(self, step: Transition, staged: Staged) -> None:
        log = self._staging(step.log)
        if log.id == 0:
            self._create(log, staged)
        change = Change(STEP, log)
        change.step = step
        if step.kind == CREATED:
            state = GroupState(step.group, step.mode, step.filter, step.start)
            change.group = LocalGroup(self._new_id(), log, state, 0, 0)
        else:
            change.group = self._staged_group(log, step.group)
        if change.group is None:
            raise Refused(f"group {step.group!r} of {step.log!r} does not exist; create it first")
        if step.kind in (CREATED, DELETED):
            self._staged_groups[log, step.group] = change
        staged.changes.append(change)
        staged.operations.append(encode_step(step, log.id, change.group.id))

    def _stage_truncation(self, name: str, before: int, staged: Staged) -> None:
        log = self._staging(name)
        if log.id == 0:
            return
        change = Change(TRUNCATE, log)
        change.offset = min(before, log.staged_next)
        staged.changes.append(change)
        staged.operations.append(encode_truncate(log.id, change.offset))

    def _stage_drop(self, name: str, staged: Staged) -> None:
        log = self._staging(name)
        if log.id == 0:
            return
        change = Change(DROP_LOG, log)
        change.replacement = LocalLog(name, self.root / "queues", self.cache)
        self._staged_drops[name] = change
        staged.changes.append(change)
        staged.operations.append(encode_drop_log(log.id))

    def _new_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def _replay_create(self, name: str, log_id: int, drops: dict[str, Change]) -> LocalLog:
        log = self.log(name)
        if log.id in self.logs_by_id:  # the log it replaces is dropped by this very record
            log = LocalLog(name, self.root / "queues", self.cache)
            drops[name].replacement = log
        log.id = log_id
        log.unloaded = LogEntry(log_id, name, 0, 0)  # whatever segments it has are from before: the journal has it all
        self.logs_by_id[log_id] = log
        self.next_id = max(self.next_id, log_id + 1)
        return log

    def _replay_step(self, change: Change, step: Transition, log_id: int, group_id: int) -> None:
        change.step = step
        if step.kind == CREATED:
            log = self.logs_by_id[log_id]
            state = GroupState(step.group, step.mode, step.filter, step.start)
            change.group = LocalGroup(group_id, log, state, 0, 0)
            self.groups_by_id[group_id] = change.group
            self.next_id = max(self.next_id, group_id + 1)
        else:
            change.group = self.groups_by_id[group_id]
        change.log = change.group.log
        step.log = change.log.name
        step.group = change.group.state.name

    def _apply_step(self, change: Change, step: Transition, seq: int) -> None:
        log, group = change.log, change.group
        assert log is not None
        assert group is not None
        self.dirty_groups.add(group)
        if step.kind == CREATED:
            if log.groups_by_name is None:
                log.groups_by_name = {}
            log.groups_by_name[step.group] = group
            self.groups_by_id[group.id] = group
        elif step.kind == DELETED:
            if log.groups_by_name is not None:
                log.groups_by_name.pop(step.group, None)
            self._forget_group(group)
            consumers = log.directory / "consumers"
            path = consumers / encode_name(step.group)
            self.chores.append(RemoveTree(path, consumers / f".trash-{group.id}"))
        else:
            if seq > group.progress_seq:
                group.state.apply_progress(step)
            if seq > group.pending_seq:
                group.state.apply_pending(step)
            return
        if self._staged_groups.get((log, step.group)) is change:
            del self._staged_groups[log, step.group]

    def _apply_drop(self, change: Change, log: LocalLog) -> None:
        log.dropped = True
        self.cache.forget_log(log.segments_directory)
        self.logs_by_id.pop(log.id, None)
        for group in (log.groups_by_name or {}).values():
            self._forget_group(group)
        self.tails.discard(log)
        self.tail_bytes -= log.tail_bytes
        log.tail = []
        log.tail_bytes = 0
        if self.logs.get(log.name) is log:
            if change.replacement is not None:
                self.logs[log.name] = change.replacement
            else:
                del self.logs[log.name]
        if self._staged_drops.get(log.name) is change:
            del self._staged_drops[log.name]
        self.cache.forget_below(log.directory)
        self.chores.append(RemoveTree(log.directory, self.root / "queues" / f".trash-{log.id}"))

    def _forget_group(self, group: LocalGroup) -> None:
        self.groups_by_id.pop(group.id, None)
        self.dirty_groups.discard(group)


def _shared_block(appends: list[Append]) -> Block | None:
    """The block of which the appends are the rows, all of them and in turn."""
    first = appends[0].encoded if appends else None
    if not isinstance(first, EncodedRows):
        return None
    row = 0
    for append in appends:
        encoded = append.encoded
        if not isinstance(encoded, EncodedRows) or encoded.block is not first.block or encoded.start != row:
            return None
        row += encoded.count
    return first.block if row == first.block.count else None


def _block_of(append: Append) -> Block:
    """The messages of an append as one block. Raises Refused."""
    encoded = append.encoded
    if encoded is None:
        return encode_block(append.base, append.messages)
    if isinstance(encoded, EncodedBlock):
        return encoded.block
    if isinstance(encoded, EncodedRows):
        return encoded.alone().block
    return encode_block(append.base, encoded.messages(0, encoded.count))

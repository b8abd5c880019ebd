"""Logs, groups and tables of a store in memory: loaded at opening, changed by commits. No threads, no waiting.

A commit becomes a batch at once: names become objects, messages get ids and offsets, groups make their steps, all of it
becomes records. Once these are durable, `apply` shows the batch to readers. If they cannot be made durable, `revert`
makes the state again from the stored records.
"""

import json
from collections import deque
from collections.abc import Iterable, Iterator
from typing import final

from headrace.clock import Clock
from headrace.errors import Corrupt, HeadraceError, Refused, Unavailable
from headrace.storage.api import QUEUES, Commit, Done, check_name, check_step
from headrace.storage.group_state import CLAIMED, CREATED, DELETED, REQUEUED, WORK, GroupState, Transition
from headrace.storage.objects import keys
from headrace.storage.objects.batch import CREATE, DELETE, DROP, Appender, Batch, Effect, Mark
from headrace.storage.objects.collector import Garbage, LogGarbage, QueueGarbage
from headrace.storage.objects.database import Database, Readable
from headrace.storage.objects.group import Changes, ObjectGroup
from headrace.storage.objects.keys import (
    DROPPED_LOG,
    DROPPED_QUEUE,
    MAX_NUMBER,
    MAX_UTF8_BYTES,
    SEQUENCE,
    decode_terminated,
    lexical_successor,
    queue_prefix,
    spec_key,
    u64,
)
from headrace.storage.objects.log import LogContext, ObjectLog
from headrace.storage.objects.records import (
    MAX_ATTEMPTS,
    Sequence,
    Spec,
    decode_instance,
    decode_log,
    decode_progress,
    decode_spec,
    encode_instance,
    encode_spec,
)


def spec_of(state: GroupState, log: str, definition: bytes | None, retention_s: int, bucket_size: int) -> Spec:
    """The specification of a group. The broker's own queues have no definition. Raises Corrupt for a damaged one."""
    try:
        values = json.loads(definition) if definition is not None else {}
    except ValueError as error:
        raise Corrupt(f"the definition of queue {log!r}", 0, "it is not JSON") from error
    attempts = _max_attempts(values) if state.mode == WORK else 0
    expression = str(values.get("filter") or "")
    if len(expression.encode()) > MAX_UTF8_BYTES:
        expression = ""  # too long for a specification; the definition has it
    description = str(values.get("description") or f"{state.name} of {log}")
    description = description.encode()[:MAX_UTF8_BYTES].decode(errors="ignore")
    return Spec(state.filter, attempts, retention_s, bucket_size, description, expression)


def _max_attempts(values: dict[str, object]) -> int:
    """The limit of deliveries of a message; 0 without one."""
    retry = values.get("retry")
    limit = values.get("delivery_limit")
    if limit is None and isinstance(retry, dict):
        limit = retry.get("max_retries")
    # A limit of n allows n attempts beyond the first.
    return min(limit + 1, MAX_ATTEMPTS) if isinstance(limit, int) and limit >= 0 else 0


@final
class Catalog:
    """All logs, groups and tables of a store. Belongs to the engine's owner thread."""

    def __init__(self, context: LogContext, sequence: Sequence, clock: Clock, done_retention_s: int) -> None:
        self.logs: dict[str, ObjectLog] = {}
        self.tables: dict[str, dict[bytes, bytes]] = {}
        self._context = context
        self._sequence = sequence
        self._clock = clock
        self._retention_s = done_retention_s
        self._appender = Appender(context, sequence)
        self.staged: deque[Batch] = deque()
        """The batches that are not applied yet, in order."""
        self._replacements: dict[str, ObjectLog] = {}
        """The new logs in place of logs that a staged commit drops."""

    def log(self, name: str) -> ObjectLog:
        """The log of this name as readers see it."""
        log = self.logs.get(name)
        if log is None:
            log = self.logs[name] = ObjectLog(name, self._context)
        return log

    # -- staging -----------------------------------------------------------------------------------------------------

    def stage(self, commit: Commit, done: Done, is_urgent: bool) -> Batch:
        """Make a commit a batch. Raises Refused, Corrupt and Unavailable, and stages nothing then."""
        for append in commit.appends:
            check_name("log", append.log)
        self._check_steps(commit)
        prepared = self._appender.prepare(commit, self._staging)
        known = [self._ids(step) for step in commit.steps]
        batch = Batch(done, commit.size_bytes, is_urgent)
        shared_ids: dict[Mark, int] = {}
        for each in prepared:
            self._appender.append(batch, self._staging(each.append.log), each, shared_ids)
        batch.puts.update(commit.puts)
        for step, ids in zip(commit.steps, known, strict=True):
            self._step(batch, step, ids)
            if step.cut:
                self._truncate(batch, self._staging(step.log), step.cut)
        for table, key in commit.puts:
            if table == QUEUES:
                self._specify(batch, self._staging(key.decode()))
        for name, before in commit.truncations.items():
            self._truncate(batch, self._staging(name), before)
        for name in commit.drops:
            self._drop(batch, self._staging(name))
        return self._complete(batch)

    def _complete(self, batch: Batch) -> Batch:
        if self._sequence.record is not None:
            batch.new[SEQUENCE] = self._sequence.record
            self._sequence.record = None
        batch.complete()
        self.staged.append(batch)
        return batch

    def _staging(self, name: str) -> ObjectLog:
        """The log of this name as the next commit finds it."""
        return self._replacements.get(name) or self.log(name)

    def _check_steps(self, commit: Commit) -> None:
        staged: dict[tuple[str, str], bool] = {}
        for step in commit.steps:
            check_name("log", step.log)
            key = (step.log, step.group)
            exists = staged.get(key)
            if exists is None:
                exists = step.group in self._staging(step.log).staged_groups
            check_step(step, exists)
            staged[key] = step.kind != DELETED
            if step.kind in (CLAIMED, REQUEUED) and step.stop > MAX_NUMBER:
                raise Refused(f"group {step.group!r}: offset {step.stop} is too large ({MAX_NUMBER} at most)")

    def _ids(self, step: Transition) -> list[int]:
        """The ids of the messages of a step, except those that its own commit appends."""
        if step.kind not in (CLAIMED, REQUEUED):
            return []
        log = self._staging(step.log)
        return log.staged_ids(step.start, min(step.stop, max(step.start, log.staged.next_offset)))

    def _step(self, batch: Batch, step: Transition, ids: list[int]) -> None:
        log = self._staging(step.log)
        if step.kind == CREATED:
            self._create_group(batch, log, step)
            return
        group = log.staged_groups[step.group]
        if step.kind == DELETED:
            self._delete_group(batch, group)
            batch.effects.append(Effect(DELETE, log, group))
            return
        if step.kind in (CLAIMED, REQUEUED):  # messages that this very commit appended are known now
            ids += log.staged_ids(step.start + len(ids), step.stop)
        group.stage(step, ids, self._clock.now_us())
        batch.groups.setdefault(group, {})

    def _create_group(self, batch: Batch, log: ObjectLog, step: Transition) -> None:
        self._appender.create(batch, log)
        state = GroupState(step.group, step.mode, step.filter, step.start)
        group = ObjectGroup(self._sequence.allocate(1), log, state)
        log.staged_groups[step.group] = group
        group.create(self._spec_of(group, batch), batch.groups.setdefault(group, {}))
        batch.effects.append(Effect(CREATE, log, group))

    def _specify(self, batch: Batch, log: ObjectLog) -> None:
        """Renew the specifications of a log's groups after its queue was defined."""
        for group in log.staged_groups.values():
            group.specify(self._spec_of(group, batch), batch.groups.setdefault(group, {}))

    def _spec_of(self, group: ObjectGroup, batch: Batch) -> Spec:
        definition = self._definition(group.log.name.encode(), batch)
        return spec_of(group.state, group.log.name, definition, self._retention_s, group.exponent)

    def _definition(self, key: bytes, batch: Batch) -> bytes | None:
        """The definition of a queue as this batch leaves it."""
        for each in (batch, *reversed(self.staged)):
            if (QUEUES, key) in each.puts:
                return each.puts[QUEUES, key]
        return self.tables.get(QUEUES, {}).get(key)

    def _delete_group(self, batch: Batch, group: ObjectGroup) -> None:
        """Delete the records that announce the group; the collector removes the others."""
        del group.log.staged_groups[group.state.name]
        group.delete(batch.groups.setdefault(group, {}))
        batch.new[queue_prefix(DROPPED_QUEUE, group.queue)] = b""

    def _truncate(self, batch: Batch, log: ObjectLog, before: int) -> None:
        staged = log.staged
        first = max(staged.first_offset, min(before, staged.next_offset))
        if first == staged.first_offset:
            return
        count = staged.next_offset - staged.first_offset
        size = staged.size_bytes * (staged.next_offset - first) // count
        log.staged = batch.logs[log] = staged._replace(first_offset=first, size_bytes=size)

    def _drop(self, batch: Batch, log: ObjectLog) -> None:
        if log.id < 0:
            return
        for group in list(log.staged_groups.values()):
            self._delete_group(batch, group)
        batch.new[DROPPED_LOG + u64(log.id)] = log.staged.next_offset.to_bytes(8, "little")
        batch.logs.pop(log, None)
        effect = Effect(DROP, log)
        effect.replacement = self._replacements[log.name] = ObjectLog(log.name, self._context)
        batch.effects.append(effect)

    def renew_specifications(self) -> Batch | None:
        """Stage specifications that differ from the definitions: earlier releases left parts out."""
        batch = Batch(_nothing)
        for log in self.logs.values():
            for group in log.staged_groups.values():
                spec = self._spec_of(group, batch)
                if group.records.get(spec_key(group.queue)) != encode_spec(spec):
                    group.specify(spec, batch.groups.setdefault(group, {}))
        return self._complete(batch) if batch.groups else None

    def forget_settled(self, groups: Iterable[ObjectGroup], before_us: int) -> Batch | None:
        """Stage the removal of old done and failed messages from buckets that still grow."""
        batch = Batch(_nothing)
        for group in groups:
            if not group.is_deleted and group.forget_settled(before_us):
                batch.groups[group] = {}
        return self._complete(batch) if batch.groups else None

    # -- ends of batches -----------------------------------------------------------------------------------------------

    def apply(self) -> Batch:
        """Show the first batch, which is durable, to readers; returns it."""
        batch = self.staged.popleft()
        for log, state in batch.logs.items():
            log.show(state)
        for effect in batch.effects:
            self._apply(effect)
        for (table, key), value in batch.puts.items():
            if value is None:
                self.tables.get(table, {}).pop(key, None)
            else:
                self.tables.setdefault(table, {})[key] = value
        for group, changes in batch.groups.items():
            group.stored(changes, not self.staged)
        return batch

    def _apply(self, effect: Effect) -> None:
        log, group = effect.log, effect.group
        if effect.kind == DROP:
            self._forget(log, effect.replacement)
        elif group is None:
            return
        elif effect.kind == CREATE:
            log.groups_by_name[group.state.name] = group
        elif effect.kind == DELETE:
            log.groups_by_name.pop(group.state.name, None)

    def _forget(self, log: ObjectLog, replacement: ObjectLog | None) -> None:
        log.groups_by_name = {}
        log.shelf.drop_below(log.staged.next_offset)
        if replacement is not None:
            if self.logs.get(log.name) is log:
                self.logs[log.name] = replacement
            if self._replacements.get(log.name) is replacement and self.logs[log.name] is replacement:
                del self._replacements[log.name]

    def revert(self) -> tuple[list[Batch], Changes]:
        """Forget all staged batches; returns them, and the records that take them back."""
        refused, undoing = list(self.staged), Changes()
        for batch in refused:
            batch.undo(undoing, self.tables)
        self.staged.clear()
        self._replacements = {}
        for batch in refused:
            for lender in batch.lenders:
                lender.is_lent = False
            for log in [*batch.logs, *[effect.log for effect in batch.effects]]:
                log.revert()
            for group in batch.groups:
                if group.log.groups_by_name.get(group.state.name) is group:
                    group.reload()
        return refused, undoing


def _nothing(error: HeadraceError | None) -> None:
    """Nobody waits for a batch that is made here."""


def prepare(database: Database, instance: str, clock: Clock) -> None:
    """Make a new database one of ours. Raises Unavailable when it belongs to another program, and Corrupt."""
    stored = database.get(keys.INSTANCE)
    if stored is not None:
        found = decode_instance(stored, keys.describe(keys.INSTANCE))
        if found != instance:
            raise Unavailable(f"{database.place} belongs to instance {found!r}, not {instance!r}")
        if stored != encode_instance(instance):  # releases before must not open it any more
            database.store([(keys.INSTANCE, encode_instance(instance))])
        return
    for _ in database.scan(b"", None, at_once=1):
        raise Unavailable(f"{database.place} holds something that is not Headrace's; choose another path")
    segment = (0).to_bytes(8, "big") + (clock.now_us() // 1000).to_bytes(8, "big", signed=True)
    database.store([(keys.LOG_SEGMENT, segment), (keys.INSTANCE, encode_instance(instance))])


@final
class Loading:
    """Fills a catalog from a database."""

    def __init__(self, database: Readable, catalog: Catalog, now_us: int) -> None:
        self._database = database
        self._catalog = catalog
        self._now_us = now_us
        self._logs: dict[int, ObjectLog] = {}
        self._groups: dict[bytes, ObjectGroup] = {}

    def load(self) -> list[Garbage]:
        """Load everything; returns the garbage of earlier processes. Raises Corrupt and Unavailable."""
        self._load_logs()
        self._load_groups()
        for key, value in self._database.scan_prefix(keys.TABLE):
            table, row = keys.decode_table_key(key)
            self._catalog.tables.setdefault(table, {})[row] = value
        return list(self._garbage())

    def _load_logs(self) -> None:
        for key, value in self._database.scan_prefix(keys.LOG):
            state = decode_log(value, keys.describe(key))
            log = self._catalog.log(state.name)
            log.identify(keys.log_id(key))
            log.show(state)
            log.revert()
            self._logs[log.id] = log
        for key, _ in self._database.scan_prefix(keys.LENT):
            lender = self._logs.get(keys.log_id(key))
            if lender is not None:
                lender.is_lent = True

    def _load_groups(self) -> None:
        specs = {
            key[len(keys.SPEC) :]: (value, decode_spec(value, keys.describe(key)))
            for key, value in self._database.scan_prefix(keys.SPEC)
        }
        for key, value in self._database.scan_prefix(keys.PROGRESS):
            self._load_group(key, value, specs)
        for queue in specs:
            if queue not in self._groups:
                raise Corrupt(keys.describe(keys.spec_key(queue)), 0, f"queue {queue!r} has no progress")
        for kind in (keys.ACTIVE, keys.ATTEMPTS):
            for key, value in self._database.scan_prefix(kind):
                group = self._groups.get(keys.decode_queue_key(key).queue)
                if group is not None:
                    group.records[key] = value
        for group in self._groups.values():
            group.reload()

    def _load_group(self, key: bytes, value: bytes, specs: dict[bytes, tuple[bytes, Spec]]) -> None:
        where = keys.describe(key)
        log_id, state = decode_progress(value, where)
        queue, _ = decode_terminated(key, 2, where)
        log, spec = self._logs.get(log_id), specs.get(queue)
        if log is None or spec is None or not queue.isdigit():
            raise Corrupt(where, 0, f"queue {queue!r} has no log or no specification")
        state.filter = spec[1].filter
        group = self._groups[queue] = ObjectGroup(int(queue), log, state, spec[1].bucket_size)
        group.settled_us = self._now_us  # at the latest
        group.records = {key: value, keys.spec_key(queue): spec[0]}
        first = keys.bucket_id(group.exponent, state.committed)
        for kind in (keys.DONE, keys.FAILED):  # only buckets that still grow
            end = lexical_successor(keys.queue_prefix(kind, queue))
            for rows in self._database.scan(keys.queue_key(kind, queue, first), end):
                group.records.update(rows)
        log.groups_by_name[state.name] = group
        log.staged_groups[state.name] = group

    def _garbage(self) -> Iterator[Garbage]:
        collected = {
            keys.log_id(key): int.from_bytes(value, "little")
            for key, value in self._database.scan_prefix(keys.COLLECTED)
        }
        for log in self._logs.values():
            if log.first_offset > collected.get(log.id, 0):
                yield LogGarbage(log.id, log.first_offset, False)
        for key, value in self._database.scan_prefix(keys.DROPPED_LOG):
            yield LogGarbage(keys.log_id(key), int.from_bytes(value, "little"), True)
        for key, _ in self._database.scan_prefix(keys.DROPPED_QUEUE):
            yield QueueGarbage(decode_terminated(key, 2, keys.describe(key))[0])

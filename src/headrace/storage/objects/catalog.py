"""All logs, groups and tables of a store as they are in memory, and how commits change them. No threads, no waiting.

A commit is staged at once: names become objects, messages get ids and offsets. `flush` turns everything staged since
the last time into records; once they are durable, `apply` lets readers see it. When it turns out that they cannot be
made durable now, `revert` forgets what is staged.
"""

from typing import final

from headrace.clock import Clock
from headrace.errors import Refused
from headrace.storage.api import Commit, Done, check_name, check_step
from headrace.storage.group_state import CLAIMED, CREATED, DELETED, REQUEUED, GroupState, Transition
from headrace.storage.objects.appending import Appender
from headrace.storage.objects.batch import CREATE, DELETE, DROP, STEP, Batch, Effect
from headrace.storage.objects.group import EXPONENT, NO_MESSAGE, ObjectGroup
from headrace.storage.objects.keys import DROPPED_LOG, DROPPED_QUEUE, MAX_NUMBER, SEQUENCE, queue_prefix, u64
from headrace.storage.objects.log import ObjectLog, Surroundings
from headrace.storage.objects.records import Spec
from headrace.storage.objects.sequence import Sequence


@final
class Catalog:
    """What there is. Belongs to the engine's owner thread."""

    def __init__(self, surroundings: Surroundings, sequence: Sequence, clock: Clock, done_retention_s: int) -> None:
        self.logs: dict[str, ObjectLog] = {}
        self.tables: dict[str, dict[bytes, bytes]] = {}
        self._surroundings = surroundings
        self._sequence = sequence
        self._clock = clock
        self._retention_s = done_retention_s
        self._appender = Appender(surroundings, sequence)
        self._batch = Batch()
        self._replacements: dict[str, ObjectLog] = {}
        """What stands in for logs that are dropped by what is staged."""

    def log(self, name: str) -> ObjectLog:
        """The log of that name as readers see it."""
        log = self.logs.get(name)
        if log is None:
            log = self.logs[name] = ObjectLog(name, self._surroundings)
        return log

    # -- staging -----------------------------------------------------------------------------------------------------

    def stage(self, commit: Commit, done: Done) -> None:
        """Take a commit in. Raises Refused, Corrupt and Unavailable; then nothing of it happens."""
        for append in commit.appends:
            check_name("log", append.log)
        self._check_steps(commit)
        prepared = self._appender.prepare(commit, self._staging)
        about = [self._about(step) for step in commit.steps]
        shared_ids: dict[int, int] = {}
        for each in prepared:
            self._appender.append(self._batch, self._staging(each.append.log), each, shared_ids)
        for step, known in zip(commit.steps, about, strict=True):
            self._step(step, known)
            if step.cut:
                self._truncate(self._staging(step.log), step.cut)
        self._batch.puts.update(commit.puts)
        for name, before in commit.truncations.items():
            self._truncate(self._staging(name), before)
        for name in commit.drops:
            self._drop(self._staging(name))
        self._batch.commits.append((done, commit.size_bytes))

    def _staging(self, name: str) -> ObjectLog:
        """The log of that name as the next commit finds it."""
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

    def _about(self, step: Transition) -> list[tuple[int, bytes]]:
        """Ids and metadata of the messages that a step is about, as far as they are there already."""
        if step.kind not in (CLAIMED, REQUEUED):
            return []
        log = self._staging(step.log)
        stop = min(step.stop, max(step.start, log.staged.next_offset))
        return [self._known(log, offset) for offset in range(step.start, stop)]

    def _known(self, log: ObjectLog, offset: int) -> tuple[int, bytes]:
        return log.about(offset) or (NO_MESSAGE | offset, self._appender.no_metadata)

    def _step(self, step: Transition, about: list[tuple[int, bytes]]) -> None:
        log = self._staging(step.log)
        if step.kind == CREATED:
            self._create_group(log, step)
            return
        group = log.staged_groups[step.group]
        if step.kind == DELETED:
            self._delete_group(group)
            self._batch.effects.append(Effect(DELETE, log, group))
            return
        if step.kind in (CLAIMED, REQUEUED):  # what this very commit appended is known now
            about += [self._known(log, offset) for offset in range(step.start + len(about), step.stop)]
        group.stage(step, about, self._clock.now_us())
        self._batch.groups.setdefault(group, {})
        self._batch.effects.append(Effect(STEP, log, group, step))

    def _create_group(self, log: ObjectLog, step: Transition) -> None:
        self._appender.create(self._batch, log)
        state = GroupState(step.group, step.mode, step.filter, step.start)
        group = ObjectGroup(self._sequence.allocate(1), log, state)
        log.staged_groups[step.group] = group
        spec = Spec(step.filter, 0, self._retention_s, EXPONENT, f"{step.group} of {log.name}")
        group.create(spec, self._batch.groups.setdefault(group, {}))
        self._batch.effects.append(Effect(CREATE, log, group))

    def _delete_group(self, group: ObjectGroup) -> None:
        """Its records go now as far as they say that it is there; the collector removes the others."""
        del group.log.staged_groups[group.state.name]
        group.delete(self._batch.groups.setdefault(group, {}))
        self._batch.new[queue_prefix(DROPPED_QUEUE, group.queue)] = b""

    def _truncate(self, log: ObjectLog, before: int) -> None:
        staged = log.staged
        first = max(staged.first_offset, min(before, staged.next_offset))
        if first == staged.first_offset:
            return
        count = staged.next_offset - staged.first_offset
        size = staged.size_bytes * (staged.next_offset - first) // count
        log.staged = self._batch.logs[log] = staged._replace(first_offset=first, size_bytes=size)

    def _drop(self, log: ObjectLog) -> None:
        if log.id < 0:
            return
        for group in list(log.staged_groups.values()):
            self._delete_group(group)
        self._batch.new[DROPPED_LOG + u64(log.id)] = log.staged.next_offset.to_bytes(8, "little")
        self._batch.logs.pop(log, None)
        effect = Effect(DROP, log)
        effect.replacement = self._replacements[log.name] = ObjectLog(log.name, self._surroundings)
        self._batch.effects.append(effect)

    # -- storing -----------------------------------------------------------------------------------------------------

    @property
    def has_staged(self) -> bool:
        return bool(self._batch.commits)

    def flush(self) -> Batch:
        """Everything staged, as records."""
        batch, self._batch = self._batch, Batch()
        if self._sequence.record is not None:
            batch.new[SEQUENCE] = self._sequence.record
            self._sequence.record = None
        for group, changes in batch.groups.items():
            group.flush(changes)
        return batch

    def apply(self, batch: Batch) -> None:
        """The batch is durable: let readers see it."""
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
            group.stored(changes)

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
        elif effect.step is not None:
            group.state.apply(effect.step)

    def _forget(self, log: ObjectLog, replacement: ObjectLog | None) -> None:
        log.groups_by_name = {}
        log.shelf.drop_below(log.staged.next_offset)
        if replacement is not None:
            if self.logs.get(log.name) is log:
                self.logs[log.name] = replacement
            if self._replacements.get(log.name) is replacement and self.logs[log.name] is replacement:
                del self._replacements[log.name]

    def revert(self, batch: Batch) -> None:
        """Forget a batch that was flushed and all that was staged since, whose commits become those of the batch."""
        staged, self._batch = self._batch, Batch()
        self._replacements = {}
        for each in (batch, staged):
            for lender in each.lenders:
                lender.is_lent = False
            for log in [*each.logs, *[effect.log for effect in each.effects]]:
                log.revert()
            for group in each.groups:
                if group.log.groups_by_name.get(group.state.name) is group:
                    group.reload()
        batch.commits += staged.commits

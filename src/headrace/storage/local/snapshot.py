"""What a checkpoint takes down of everything there is, and what becomes of that when it is written or not. No writing.

Runs in the thread that owns the engine, between two commits; the flusher writes what was taken down.
"""

from pathlib import Path

from headrace.storage.local.catalog import Catalog
from headrace.storage.local.checkpoint import GROUPS, Checkpoint, LogEntry
from headrace.storage.local.group_files import encode_pending, encode_progress, encode_state, group_key
from headrace.storage.local.jobs import CheckpointWrite
from headrace.storage.local.journal import Position
from headrace.storage.local.log import LocalGroup, LocalLog
from headrace.storage.local.tables import table_path
from headrace.storage.local.tails import tails_path


def take_down(root: Path, catalog: Catalog, position: Position, own_files: int) -> CheckpointWrite:
    """All that is there as of `position`, but for the tails; more changed groups than `own_files` share a table."""
    checkpoint = Checkpoint(position, catalog.next_id)
    write = CheckpointWrite(checkpoint)
    for log in catalog.logs_by_id.values():
        checkpoint.logs.append(_entry_of(log))
    _take_groups(write, catalog, own_files)
    for name, table in catalog.tables.items():
        if table.changed:
            old = table.generation
            change = table.write(root, position.seq)
            write.tables.append(change)
            if old and change.generation != old:
                write.obsolete.append(table_path(root, name, old))
            checkpoint.tables[name] = (change.generation, change.length)
        elif table.length or table.values:
            checkpoint.tables[name] = (table.generation, table.length)
    return write


def take_small_tails(write: CheckpointWrite, root: Path, catalog: Catalog, own_files: int, max_bytes: int) -> None:
    """Have the smallest tails, `max_bytes` of them, written to one file, if there are more than `own_files`."""
    tails = catalog.tails()
    for log in tails:
        log.forget_settled()
    generation = catalog.tails_generation
    if generation:
        write.obsolete.append(tails_path(root, generation))
    small = sorted([log for log in tails if log.has_small_tail], key=_tail_bytes_of)
    if len(small) <= own_files:
        return
    write.checkpoint.tails = (generation + 1, 0)
    for log in small:
        max_bytes -= log.tail_bytes
        if max_bytes < 0:
            break
        write.carried.add(log)
        tail = log.copy_tail()
        if tail.messages:
            write.tails.append(tail)


def end_checkpoint(write: CheckpointWrite, catalog: Catalog) -> None:
    """A checkpoint is written: note where things are now."""
    catalog.tails_generation = write.checkpoint.tails[0]
    for table in write.tables:
        catalog.tables[table.name].generation = table.generation
        catalog.tables[table.name].length = table.length
    for group in write.groups:
        group.has_files = not group.is_shared


def undo_checkpoint(write: CheckpointWrite, catalog: Catalog) -> None:
    """A checkpoint was not written: everything it held is still to be."""
    for group in write.groups:
        if catalog.groups_by_id.get(group.id) is group:
            catalog.note_dirty(group)
    for table in write.tables:
        catalog.tables[table.name].changed.update(table.changed)


def _take_groups(write: CheckpointWrite, catalog: Catalog, own_files: int) -> None:
    """The states of all groups that changed: those that have been in the table stay there."""
    dirty = catalog.take_dirty()
    seq = write.checkpoint.position.seq
    is_many = len(dirty) > own_files
    for group in dirty:
        write.groups.append(group)
        if is_many or group.is_shared:
            group.is_shared = True
            catalog.table(GROUPS).put(group_key(group.id), encode_state(group.state))
            if group.has_files:
                write.obsolete_directories.append(group.directory)
        else:
            write.files += _files_of(group, seq)


def _entry_of(log: LocalLog) -> LogEntry:
    entry = LogEntry(log.id, log.name, log.first_offset, log.next_offset)
    if log.unloaded is not None:
        entry.segment = log.unloaded.segment
        entry.segment_length = log.unloaded.segment_length
    elif log.active is not None:
        entry.segment = log.active.base
        entry.segment_length = log.active.length
    entry.stored_bytes = log.stored_bytes
    if log.groups_by_name:
        entry.groups = [(group.id, name) for name, group in log.groups_by_name.items()]
    return entry


def _files_of(group: LocalGroup, seq: int) -> list[tuple[Path, bytes]]:
    """The group's files as they have to be; the pending list comes first, each says what it holds by itself."""
    directory = group.directory
    files: list[tuple[Path, bytes]] = []
    if group.state.pending or group.has_pending_file:
        group.has_pending_file = True
        files.append((directory / "pel.log", encode_pending(group.id, group.state, seq)))
    files.append((directory / "state.json", encode_progress(group.log.name, group.id, group.state, seq)))
    return files


def _tail_bytes_of(log: LocalLog) -> int:
    return log.tail_bytes

"""Opening a directory: read the checkpoint, replay the journal behind it, cut a torn end. Runs before any thread does.

What cannot be trusted is said, never guessed: damage to one log refuses that log, damage to the journal, the
checkpoint or a table refuses the directory.
"""

import logging
import secrets
from pathlib import Path
from typing import Final, final

from headrace.errors import Corrupt
from headrace.storage.api import DEFINITIONS
from headrace.storage.group_state import WORK, GroupState
from headrace.storage.local.catalog import Catalog
from headrace.storage.local.checkpoint import (
    GROUPS,
    SUFFIX,
    Checkpoint,
    LogEntry,
    checkpoint_path,
    decode_checkpoint,
    decode_tails,
    encode_checkpoint,
    tails_path,
)
from headrace.storage.local.disk import Disk
from headrace.storage.local.group_files import check_age, decode_pending, decode_progress, decode_state, group_key
from headrace.storage.local.journal import NEWEST_NAME as NEWEST_NAME
from headrace.storage.local.journal import (
    PAGE,
    JournalFile,
    JournalReader,
    Position,
    mend_headers,
    read_files,
    read_newest,
    wipe_behind,
)
from headrace.storage.local.log import LocalGroup, LocalLog
from headrace.storage.local.tables import decode_definitions, decode_table, definitions_path, table_path

_log: Final = logging.getLogger("headrace.storage")
_FIRST_SEQ_BITS: Final = 62


@final
class Recovery:
    """One opening of one directory; afterwards `files` and `end` say where the journal goes on."""

    def __init__(self, disk: Disk, root: Path, catalog: Catalog) -> None:
        self._disk = disk
        self._root = root
        self._catalog = catalog
        self._suspects: list[tuple[LocalGroup, Corrupt]] = []
        self.files: list[JournalFile] = []
        self.end = Position(0, 0, PAGE)

    def load(self) -> JournalReader:
        """Take in the checkpoint; the reader returned gives the records to replay. Raises Corrupt."""
        self.files = read_files(self._disk, self._root / "journal")
        # What is read from here on may not be on the disk yet; files are changed because of it, so it has to be. So do
        # names: a process that was killed may just have put the checkpoint in place, or made directories.
        self._disk.sync_tree(self._root)
        self._disk.sync_files([file.path for file in self.files])
        checkpoint = self._read_checkpoint()
        self.end = checkpoint.position
        self._catalog.next_id = checkpoint.next_id
        self._load_tables(checkpoint)
        for entry in checkpoint.logs:
            self._load_log(entry, checkpoint)
        self._load_tails(checkpoint)
        directory = self._root / "journal"
        stated, is_damaged = read_newest(self._disk, directory)
        if is_damaged:
            _log.warning("%s is damaged; it is made again from the journal", directory / NEWEST_NAME)
        return JournalReader(self._disk, directory, self.files, checkpoint.position, stated)

    def finish(self, reader: JournalReader) -> None:
        """Cut a torn end off the replayed journal, and refuse damaged logs."""
        self.end = reader.end
        self._check_groups(reader.end)
        mend_headers(self._disk, reader.headless)
        if reader.torn:
            _log.warning(
                "the journal ended in a commit that was never finished; it was cut back to commit %d",
                reader.end.seq,
            )
            wipe_behind(self._disk, self.files, reader.end)
        for group, error in self._suspects:
            if self._catalog.groups_by_id.get(group.id) is group:
                group.log.damage = error
                self._catalog.forget_dirty(group)  # its files stay as they are
        for log in self._catalog.logs.values():
            log.staged_next = log.next_offset
            if log.loaded is not None:
                log.check_segments(log.loaded)
            if log.damage is not None:
                _log.error("the queue is refused: %s", log.damage, extra={"queue": log.name})

    def _check_groups(self, end: Position) -> None:
        """Raises Corrupt when a group's files hold a commit that the journal has lost: both were synced before."""
        for group in self._catalog.groups_by_id.values():
            if max(group.progress_seq, group.pending_seq) > end.seq:
                seq = max(group.progress_seq, group.pending_seq)
                what = f"the journal ends at commit {end.seq}, but {group.directory} holds what commit {seq} did"
                raise Corrupt(str(self._root / "journal"), 0, f"{what}; restore journal/ from a copy")

    def _read_checkpoint(self) -> Checkpoint:
        path = checkpoint_path(self._root)
        if path.exists():
            return decode_checkpoint(path.read_bytes(), path)
        if any((self._root / "queues").glob("*")) or self.files:
            raise Corrupt(str(path), 0, "it is missing, but the directory is not new; restore journal/ from a copy")
        checkpoint = Checkpoint(Position(secrets.randbits(_FIRST_SEQ_BITS), 0, PAGE), 1)
        self._disk.write_file(path, encode_checkpoint(checkpoint))
        return checkpoint

    def _load_log(self, entry: LogEntry, checkpoint: Checkpoint) -> None:
        log = self._catalog.log(entry.name)
        log.id = entry.id
        log.first_offset = log.stored_first = entry.first
        log.next_offset = entry.next
        log.stored_bytes = entry.stored_bytes
        log.unloaded = entry
        self._catalog.logs_by_id[entry.id] = log
        if entry.groups:
            log.groups_by_name = {}
        for group_id, name in entry.groups:
            group = self._load_group(log, group_id, name, checkpoint.files.get(group_id, (0, False)))
            assert log.groups_by_name is not None
            log.groups_by_name[name] = group
            self._catalog.groups_by_id[group_id] = group

    def _load_group(self, log: LocalLog, group_id: int, name: str, files: tuple[int, bool]) -> LocalGroup:
        """Take in a group with its entry in the checkpoint."""
        group = LocalGroup(group_id, log, GroupState(name, WORK, "", 0), 0, 0)
        group.files_seq, group.has_pending_file = files
        shared = self._catalog.tables.get(GROUPS)
        value = shared.values.get(group_key(group_id)) if shared is not None else None
        try:
            if shared is not None and value is not None:
                group.is_shared = True
                group.state = decode_state(value, table_path(self._root, GROUPS, shared.generation), group_id, name)
            else:
                self._read_files_of(group)
        except Corrupt as error:
            # Not a problem when the journal goes on to delete this group.
            self._suspects.append((group, error))
        return group

    def _read_files_of(self, group: LocalGroup) -> None:
        group.has_files = True
        directory = group.directory
        path = directory / "pel.log"
        state = directory / "state.json"
        group.state, group.progress_seq = decode_progress(_read(state), state, group.id)
        check_age(state, group.progress_seq, group.files_seq)
        group.pending_seq = 0  # without a file there were no entries at the checkpoint, even if state.json holds some
        if group.has_pending_file or path.exists():
            group.state.pending, group.pending_seq = decode_pending(_read(path), path, group.id)
            check_age(path, group.pending_seq, group.files_seq)
            group.has_pending_file = True
        group.files_seq = group.files_seq or group.progress_seq

    def _load_tails(self, checkpoint: Checkpoint) -> None:
        """Take in the messages of small tails, and remove files of them that no checkpoint names."""
        generation, length = checkpoint.tails
        path = tails_path(self._root, generation)
        self._catalog.tails_generation = generation
        for found in sorted(path.parent.glob(f"*{SUFFIX}")):
            if found != path:
                self._disk.unlink(found)
        if not length:
            return
        for at, record in decode_tails(_read(path), length, path):
            try:
                self._catalog.restore(record)
            except KeyError as error:
                what = f"log {error} is not in the checkpoint; restore both from one copy"
                raise Corrupt(str(path), at, what) from error
        for log in self._catalog.tails():
            if log.unloaded is None or log.next_offset != log.unloaded.next:
                what = f"queue {log.name!r} ends at {log.next_offset} in it, and elsewhere in the checkpoint"
                raise Corrupt(str(path), 0, f"{what}; restore both from one copy")

    def _load_tables(self, checkpoint: Checkpoint) -> None:
        for name, (generation, length) in checkpoint.tables.items():
            if name in DEFINITIONS:
                path = definitions_path(self._root, name)
                table = decode_definitions(name, _read(path), path, length)
            else:
                path = table_path(self._root, name, generation)
                table = decode_table(name, generation, _read(path), length, path)
            self._catalog.tables[name] = table


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise Corrupt(str(path), 0, "the file is missing") from error

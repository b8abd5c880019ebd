"""What a power cut can leave of a data directory: a model of the page cache, over what a real broker did. No tests.

The recording comes from recorder.c, which a real `headrace serve` has before the C library: no file operation can go
past it, as it could past an injected disk, and the answers are those that foreign clients got from real sockets.
Entries and answers have times of one clock, so a cut at time T is: all before T that was synced before T is there, and
of the rest anything.

Of what was not synced, each sector of 512 bytes has any version that it ever had since, each file any length, and each
name is as it was before or after any change of it.
"""

import random
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

_ENTRY = struct.Struct("<QBQQQqQHH")
CREATE, MKDIR, UNLINK, RMDIR, RENAME, WRITE, TRUNCATE, SYNC, SYNC_RANGE, SYNC_ALL, SYNCED, UNKNOWN = range(1, 13)
_NAMES = (CREATE, MKDIR, UNLINK, RMDIR, RENAME)
_SECTOR = 512
_MODES = ("none", "all", "some", "prefix", "torn", "torn")


def build_recorder(directory: Path) -> Path:
    """Compile the recorder; returns the library."""
    library = directory / "recorder.so"
    source = Path(__file__).with_name("recorder.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl", "-lpthread"], check=True)
    return library


class Entry:
    """One line of a recording; which fields count depends on the kind."""

    __slots__ = ("data", "inode", "kind", "name", "number", "other", "parent", "position", "target", "time_ns")

    def __init__(self, number: int, fields: tuple[int, ...], name: str, other: str, data: bytes) -> None:
        self.number = number
        self.time_ns, self.kind, self.inode, self.parent, self.target, self.position, *_ = fields
        self.name = name
        self.other = other
        self.data = data


def read_recording(path: Path, limit_bytes: int | None = None) -> list[Entry]:
    """Every entry, in order; with a limit, those that the recording had when it had so many bytes."""
    found: list[Entry] = []
    data = path.read_bytes()[:limit_bytes]
    at = 0
    while at + _ENTRY.size <= len(data):
        fields = _ENTRY.unpack_from(data, at)
        length, name_length, other_length = fields[6:]
        name_at = at + _ENTRY.size
        other_at = name_at + name_length
        data_at = other_at + other_length
        at = data_at + length
        if at > len(data):
            break  # the broker was killed while it wrote this
        name, other = data[name_at:other_at].decode(), data[other_at:data_at].decode()
        assert fields[1] != UNKNOWN, f"the model does not know {name}"
        found.append(Entry(len(found), fields, name, other, data[data_at:at]))
    return found


class _File:
    """A file: what of it is safe, and the changes since."""

    def __init__(self) -> None:
        self.safe = bytearray()
        self.pending: list[Entry] = []

    def sync(self, before: int) -> None:
        """Make safe what was changed before the entry with this number."""
        for entry in self.pending:
            if entry.number < before:
                _change(self.safe, entry)
        self.pending = [entry for entry in self.pending if entry.number >= before]

    def sync_range(self, begun: Entry) -> None:
        """The same for one write alone: what was changed before it elsewhere in the file stays unsafe."""
        last = next((entry for entry in reversed(self.pending) if entry.number < begun.number), None)
        if last is None:
            return
        start, stop = begun.position, begun.position + begun.parent
        kept: list[Entry] = []
        for entry in self.pending:
            if entry.number > last.number:
                kept.append(entry)
            elif entry.kind == TRUNCATE:
                _change(self.safe, entry)
            else:
                kept += _outside(entry, start, stop)
        _change(self.safe, last)
        self.pending = kept

    def contents(self, chance: random.Random) -> bytes:
        """The bytes as they could be."""
        if not self.pending:
            return bytes(self.safe)
        mode = chance.choice(_MODES)
        numbers = [entry.number for entry in self.pending]
        if mode == "none":
            return bytes(self.safe)
        data = bytearray(self.safe)
        if mode == "torn":
            return _tear(data, self.pending, chance)
        until = chance.choice(numbers) if mode == "prefix" else numbers[-1]
        for entry in self.pending:
            if entry.number <= until and (mode != "some" or chance.random() < 0.5):
                _change(data, entry)
        return bytes(data)


def _change(data: bytearray, entry: Entry) -> None:
    if entry.kind == TRUNCATE:
        del data[entry.position :]
        data.extend(bytes(entry.position - len(data)))
        return
    data.extend(bytes(max(0, entry.position - len(data))))
    data[entry.position : entry.position + len(entry.data)] = entry.data


def _outside(entry: Entry, start: int, stop: int) -> list[Entry]:
    """The parts of a write that are not within this range."""
    end = entry.position + len(entry.data)
    if end <= start or entry.position >= stop:
        return [entry]
    parts: list[Entry] = []
    for first, last in ((entry.position, min(end, start)), (max(entry.position, stop), end)):
        if first < last:
            fields = (entry.time_ns, entry.kind, entry.inode, entry.parent, entry.target, first)
            data = entry.data[first - entry.position : last - entry.position]
            parts.append(Entry(entry.number, fields, "", "", data))
    return parts


def _tear(data: bytearray, pending: list[Entry], chance: random.Random) -> bytes:
    """Each sector as it was at some time, and the length as it was at some time."""
    numbers = [-1, *[entry.number for entry in pending]]
    until: dict[int, int] = {}
    lengths = [len(data)]
    for entry in pending:
        end = entry.position + len(entry.data)
        lengths.append(end if entry.kind == TRUNCATE else max(lengths[-1], end))
    for entry in pending:
        if entry.kind == TRUNCATE:
            start, stop = entry.position, len(data)
        else:
            start, stop = entry.position, entry.position + len(entry.data)
        if stop > len(data):
            data.extend(bytes(stop - len(data)))
        at = start
        while at < stop:
            sector = at // _SECTOR
            end = min(stop, (sector + 1) * _SECTOR)
            if sector not in until:
                until[sector] = chance.choice(numbers)
            if entry.number <= until[sector]:
                piece = bytes(end - at) if entry.kind == TRUNCATE else entry.data[at - start : end - start]
                data[at:end] = piece
            at = end
    length = chance.choice(lengths)
    return bytes(data[:length]).ljust(length, b"\0")


class Disk:
    """A directory as a recording goes on; at any time, what a power cut would leave can be written elsewhere."""

    def __init__(self, root: Path) -> None:
        """Take the directory as it is now, before the recording; all of it is safe."""
        self._at = 0
        self._identities: dict[int, int] = {}
        """Which file or directory has an inode number now: numbers are used again."""
        self._count = -1
        self._files: dict[int, _File] = {}
        self._safe: dict[int, dict[str, int]] = {}
        """The entries of each directory that are safe."""
        self._pending: list[tuple[Entry, int, int, int]] = []
        """Changes of names that are not: with the file, the directory, and that which it goes to."""
        self._syncs: dict[int, Entry] = {}
        self._load(root)

    def _load(self, path: Path) -> int:
        """Take a file or a directory with all in it; returns its identity."""
        identity = self._add(path.stat().st_ino, path.is_dir())
        if path.is_dir():
            self._safe[identity] = {below.name: self._load(below) for below in sorted(path.iterdir())}
        else:
            self._files[identity].safe[:] = path.read_bytes()
        return identity

    def _add(self, inode: int, is_directory: bool) -> int:
        self._count += 1
        self._identities[inode] = self._count
        if is_directory:
            self._safe[self._count] = {}
        else:
            self._files[self._count] = _File()
        return self._count

    def advance(self, entries: list[Entry], count: int) -> None:
        """Go on until so many entries of the recording have happened."""
        while self._at < count:
            self._take(entries[self._at])
            self._at += 1

    def _take(self, entry: Entry) -> None:
        if entry.kind in _NAMES:
            self._take_name(entry)
        elif entry.kind in (WRITE, TRUNCATE):
            self._files[self._identities[entry.inode]].pending.append(entry)
        elif entry.kind == SYNCED:
            self._sync(self._syncs.pop(entry.inode))
        else:
            self._syncs[entry.target] = entry

    def _take_name(self, entry: Entry) -> None:
        if entry.kind in (CREATE, MKDIR):
            self._add(entry.inode, entry.kind == MKDIR)
        target = self._identities[entry.target] if entry.kind == RENAME else -1
        self._pending.append((entry, self._identities[entry.inode], self._identities[entry.parent], target))

    def _sync(self, begun: Entry) -> None:
        if begun.kind == SYNC_ALL:
            for each in self._files.values():
                each.sync(begun.number)
            self._sync_names(None, begun.number)
            return
        identity = self._identities[begun.inode]
        file = self._files.get(identity)
        if file is None:
            self._sync_names(identity, begun.number)
        elif begun.kind == SYNC_RANGE:
            file.sync_range(begun)
        else:
            file.sync(begun.number)

    def _sync_names(self, directory: int | None, before: int) -> None:
        kept: list[tuple[Entry, int, int, int]] = []
        for change in self._pending:
            entry, _, parent, target = change
            is_synced = directory is None or (parent == directory and target in (-1, directory))
            if is_synced and entry.number < before:
                _rename(self._safe, change)
            else:
                assert target in (-1, parent), "the model knows renames within a directory only"
                kept.append(change)
        self._pending = kept

    def unsynced(self) -> int:
        """How many changes a cut could lose now."""
        return len(self._pending) + sum(len(file.pending) for file in self._files.values())

    def cut(self, target: Path, chance: random.Random) -> None:
        """Write what a power cut could leave now."""
        tree = {directory: dict(entries) for directory, entries in self._safe.items()}
        mode = chance.choice(_MODES[:4])
        until = chance.randint(0, len(self._pending))
        for number, change in enumerate(self._pending):
            is_kept = mode == "all" or (mode == "prefix" and number < until)
            if is_kept or (mode == "some" and chance.random() < 0.5):
                _rename(tree, change)
        target.mkdir()
        self._write(tree, 0, target, chance)

    def _write(self, tree: dict[int, dict[str, int]], directory: int, target: Path, chance: random.Random) -> None:
        for name, identity in sorted(tree[directory].items()):
            path = target / name
            file = self._files.get(identity)
            if file is None:
                path.mkdir()
                self._write(tree, identity, path, chance)
            elif name != "LOCK":
                path.write_bytes(file.contents(chance))


def _rename(tree: dict[int, dict[str, int]], change: tuple[Entry, int, int, int]) -> None:
    """Make a change of names, as far as it applies to what is there."""
    entry, identity, parent, target = change
    names = tree[parent]
    if entry.kind in (CREATE, MKDIR):
        names[entry.name] = identity
    elif entry.kind == RENAME:
        if names.get(entry.name) == identity:
            del names[entry.name]
        tree[target][entry.other] = identity
    elif names.get(entry.name) == identity and not tree.get(identity):
        del names[entry.name]


def cuts(disk: Disk, entries: list[Entry], count: int, chance: random.Random) -> Iterator[int]:
    """So many moments of a recording, in order: the time of each. The disk is as it is then."""
    for at in sorted(chance.randrange(1, len(entries)) for _ in range(count)):
        disk.advance(entries, at)
        yield entries[at].time_ns

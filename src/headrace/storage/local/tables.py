"""Keyed state: a dict per table in memory, and its files between checkpoints. No journal.

Definitions (queues, exchanges, bindings, virtual hosts, users, permissions) are `config/<table>.json`, written whole:

    {"format": 1, "seq": ..., "<table>": {key: definition, ...}, "crc32": "8 hex digits"}

indented up to 256 definitions, with one line for each definition beyond.

Every other table is `state/<table>.<generation>.kv`, little-endian. Each checkpoint appends the changed entries; when
most of the file is out of date, the next generation is written anew:

     0  4  magic "HRKV"
     4  4  version 1
     8     entries, each: crc32 u32 of the rest of the entry, key length u32, value length u32 (all ones: deleted),
           key, value
"""

import json
import struct
from collections.abc import Iterator
from itertools import islice
from json.encoder import encode_basestring as quoted
from pathlib import Path
from typing import Final, final

from headrace.errors import Corrupt
from headrace.storage.api import DEFINITIONS
from headrace.storage.local.files import crc32, crc32_json, decode_json, encode_json, seal_json

FORMAT: Final = 1
MAGIC: Final = b"HRKV"
VERSION: Final = 1
HEADER: Final = MAGIC + VERSION.to_bytes(4, "little")
_ENTRY: Final = struct.Struct("<III")
_LENGTHS: Final = struct.Struct("<II")
_DELETED: Final = 0xFFFFFFFF
_WASTE_BYTES: Final = 1 << 20
_READABLE: Final = 256
"""Up to this many definitions are indented for people: 11 ms."""
_PIECE: Final = 512
"""Entries that are encoded in one go: 2 ms at most, for compiled code keeps the interpreter until it writes."""


@final
class TableWrite:
    """The write of a checkpoint for one table: its bytes at `position` of `path`, or the whole file.

    The owner takes the entries, the flusher encodes them: 20,000 definitions take 100 ms.
    """

    __slots__ = ("_entries", "_odd", "_untaken", "changed", "generation", "length", "name", "path", "position", "whole")

    def __init__(
        self, table: "Table", path: Path, entries: dict[bytes, bytes | None], position: int, generation: int
    ) -> None:
        self.name = table.name
        self.path = path
        self.position = position
        self.generation = generation
        self.whole = position == 0
        self.length = position
        """The valid length of the file afterwards; for definitions, the commit that they hold."""
        self.changed: set[bytes] = set()
        self._entries = entries
        self._untaken: Iterator[bytes] = iter(())
        self._odd = set(table.odd)

    def begin(self, changed: set[bytes]) -> None:
        """Take the keys that changed; `take` adds their values, unless the whole table is written."""
        self.changed = changed
        if not self.whole:
            self._untaken = iter(changed)

    def take(self, values: dict[bytes, bytes], most: int) -> int:
        """Take the values of up to `most` changed keys; returns how many, fewer than `most` at the end."""
        taken = 0
        for key in islice(self._untaken, most):
            value = values.get(key)
            self._entries[key] = value
            self.length += _ENTRY.size + len(key) + (0 if value is None else len(value))
            taken += 1
        return taken

    def parts(self) -> Iterator[bytes]:
        """The bytes to write, in pieces: other threads run while each is written."""
        if self.name in DEFINITIONS:
            yield from self._document()
            return
        if self.whole:
            yield HEADER
        entries = iter(self._entries.items())
        while some := list(islice(entries, _PIECE)):
            yield b"".join([_encode_entry(key, value) for key, value in some])

    def _document(self) -> Iterator[bytes]:
        if len(self._entries) <= _READABLE:
            values = {key.decode(): json.loads(value) for key, value in self._entries.items() if value is not None}
            yield encode_json({"format": FORMAT, "seq": self.length, self.name: values})
            return
        # Joining stored texts takes 4 ms for 1,000 queues; parsing and indenting them took 42 ms.
        piece = f'{{"format":{FORMAT},"seq":{self.length},"{self.name}":{{\n'.encode()
        crc = 0
        entries = iter(self._entries.items())
        while some := list(islice(entries, _PIECE)):
            piece += b",\n".join([self._line(key, value) for key, value in some])
            crc = crc32_json(piece, crc)
            yield piece
            piece = b",\n"
        yield seal_json(b"\n}}", crc)

    def _line(self, key: bytes, value: bytes | None) -> bytes:
        assert value is not None
        text = encode_definition(json.loads(value)) if key in self._odd else value
        return quoted(key.decode()).encode() + b":" + text


@final
class Table:
    """One table: its values, and the keys that changed since the last checkpoint."""

    __slots__ = ("_is_document", "changed", "generation", "length", "live_bytes", "name", "odd", "values")

    def __init__(self, name: str, generation: int = 0, length: int = 0) -> None:
        self.name = name
        self.values: dict[bytes, bytes] = {}
        self.changed: set[bytes] = set()
        self.generation = generation
        self.length = length
        self.live_bytes = 0
        self._is_document = name in DEFINITIONS
        self.odd: set[bytes] = set()
        """Keys of definitions that are not in their shortest form, and so cannot be copied into a file."""

    def put(self, key: bytes, value: bytes | None) -> None:
        """Set the value of a key; None deletes it."""
        if self._is_document:
            self.odd.discard(key)
            if value is not None and value != encode_definition(json.loads(value)):
                self.odd.add(key)
        self.keep(key, value)

    def keep(self, key: bytes, value: bytes | None) -> None:
        """Set a value that is in its shortest form, or is no definition."""
        old = self.values.pop(key, None) if value is None else self.values.get(key)
        if old is not None:
            self.live_bytes -= _ENTRY.size + len(key) + len(old)
        if value is not None:
            self.values[key] = value
            self.live_bytes += _ENTRY.size + len(key) + len(value)
        self.changed.add(key)

    def write(self, root: Path, seq: int) -> TableWrite:
        """The write that brings the files up to commit `seq`, once it took all values; changed keys start anew."""
        changed, self.changed = self.changed, set()
        write = self._write(root, seq)
        write.begin(changed)
        return write

    def _write(self, root: Path, seq: int) -> TableWrite:
        # Copying a dict takes 5 ns an entry, and no object for each.
        if self._is_document:
            write = TableWrite(self, definitions_path(root, self.name), {**self.values}, 0, 0)
            write.length = seq  # for documents, the checkpoint stores the commit
            return write
        if self.generation == 0 or self.length > 2 * self.live_bytes + _WASTE_BYTES:
            generation = self.generation + 1
            write = TableWrite(self, table_path(root, self.name, generation), {**self.values}, 0, generation)
            write.length = len(HEADER) + self.live_bytes
            return write
        return TableWrite(self, table_path(root, self.name, self.generation), {}, self.length, self.generation)


def definitions_path(root: Path, name: str) -> Path:
    return root / "config" / f"{name}.json"


def table_path(root: Path, name: str, generation: int) -> Path:
    return root / "state" / f"{name}.{generation}.kv"


def stored_path(root: Path, name: str, generation: int) -> Path:
    """The file of a table of either kind."""
    return definitions_path(root, name) if name in DEFINITIONS else table_path(root, name, generation)


def decode_stored(name: str, generation: int, data: bytes, length: int, path: Path) -> Table:
    """Decode a table of either kind; `length` is that of the checkpoint. Raises Corrupt."""
    if name in DEFINITIONS:
        return decode_definitions(name, data, path, length)
    return decode_table(name, generation, data, length, path)


def decode_names(name: str, data: bytes, path: Path) -> list[str]:
    """The names in a table of definitions. Raises Corrupt."""
    values = decode_json(data, path, FORMAT).get(name)
    if not isinstance(values, dict):
        raise Corrupt(str(path), 0, f"it holds no {name}")
    return list(values)


def decode_definitions(name: str, data: bytes, path: Path, least_seq: int = 0) -> Table:
    """Decode a table of definitions, which must be as of commit `least_seq` or later. Raises Corrupt."""
    document = decode_json(data, path, FORMAT)
    values, seq = document.get(name), document.get("seq")
    if not isinstance(values, dict) or not isinstance(seq, int):
        raise Corrupt(str(path), 0, f"it holds no {name}, or does not say as of which commit")
    if seq < least_seq:
        what = f"it is an old version, as of commit {seq}; the one of commit {least_seq} was stored"
        raise Corrupt(str(path), 0, f"{what}; restore it from the copy that the checkpoint is from")
    table = Table(name, 0, seq)
    for key, value in values.items():
        table.keep(key.encode(), encode_definition(value))
    table.changed.clear()
    return table


def encode_definition(value: object) -> bytes:
    """A definition as JSON in its shortest form."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def decode_table(name: str, generation: int, data: bytes, length: int, path: Path) -> Table:
    """Decode a table from the first `length` bytes of its file. Raises Corrupt."""
    file = str(path)
    if len(data) < length or length < len(HEADER):
        raise Corrupt(file, len(data), f"{length} bytes were stored, the file has {len(data)}")
    if data[:4] != MAGIC:
        raise Corrupt(file, 0, f"this is not a table (found {data[:4]!r})")
    version = int.from_bytes(data[4:8], "little")
    if version != VERSION:
        raise Corrupt(file, 4, f"table version {version} is not known to this release; use a newer one")
    table = Table(name, generation, length)
    at = len(HEADER)
    while at < length:
        at = _decode_entry(table, data, at, length, file)
    table.changed.clear()
    return table


def _encode_entry(key: bytes, value: bytes | None) -> bytes:
    checked = _LENGTHS.pack(len(key), _DELETED if value is None else len(value)) + key + (value or b"")
    return crc32(checked).to_bytes(4, "little") + checked


def _decode_entry(table: Table, data: bytes, at: int, length: int, file: str) -> int:
    if at + _ENTRY.size > length:
        raise Corrupt(file, at, "an entry ends early")
    fields: tuple[int, int, int] = _ENTRY.unpack_from(data, at)
    crc, key_length, value_length = fields
    deleted = value_length == _DELETED
    value_at = at + _ENTRY.size + key_length
    end = value_at + (0 if deleted else value_length)
    if end > length or crc32(data[at + 4 : end]) != crc:
        raise Corrupt(file, at, "an entry's checksum is wrong")
    table.put(data[at + _ENTRY.size : value_at], None if deleted else data[value_at:end])
    return end

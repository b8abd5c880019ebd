"""Keyed state and how it is kept between checkpoints."""

from pathlib import Path

import pytest

from headrace.errors import Corrupt
from headrace.storage.api import EXCHANGES, QUEUES, RETAINED
from headrace.storage.local.tables import HEADER, Table, TableWrite, decode_definitions, decode_table, encode_definition

ROOT = Path("data")


def _table(**values: bytes) -> Table:
    table = Table(RETAINED)
    for key, value in values.items():
        table.put(key.encode(), value)
    return table


def _write(table: Table, seq: int) -> TableWrite:
    """The write of a checkpoint, which takes the values of two keys at a time."""
    write = table.write(ROOT, seq)
    while write.take(table.values, 2):
        pass
    return write


def _done(table: Table, write: TableWrite) -> None:
    """As the engine does once the checkpoint is written."""
    table.generation, table.length = write.generation, write.length


def _bytes(write: TableWrite) -> bytes:
    return b"".join(write.parts())


def _decode(data: bytes, length: int = -1) -> dict[bytes, bytes]:
    path = Path("state/retained.1.kv")
    return decode_table(RETAINED, 1, data, len(data) if length < 0 else length, path).values


def test_the_first_write_is_the_whole_table_in_generation_one() -> None:
    table = _table(a=b"1", b=b"")

    write = _write(table, 5)

    assert (write.path, write.position, write.whole) == (ROOT / "state" / "retained.1.kv", 0, True)
    assert _decode(_bytes(write)) == {b"a": b"1", b"b": b""}


def test_later_writes_add_only_what_changed() -> None:
    table = _table(a=b"1", b=b"2", c=b"3")
    first = _write(table, 5)
    _done(table, first)

    table.put(b"b", b"two")
    table.put(b"c", None)
    second = _write(table, 6)

    assert (second.path, second.position, second.whole) == (first.path, len(_bytes(first)), False)
    assert _decode(_bytes(first) + _bytes(second)) == {b"a": b"1", b"b": b"two"}
    assert b"a" not in _bytes(second)[12:13]


def test_a_write_forgets_what_had_changed_and_says_what_it_was() -> None:
    table = _table(a=b"1")

    write = _write(table, 5)

    assert (table.changed, write.changed) == (set(), {b"a"})


def test_a_table_that_is_mostly_out_of_date_is_written_anew_in_the_next_generation() -> None:
    table = _table(a=bytes(600_000))
    _done(table, _write(table, 1))
    for seq in range(2, 6):
        table.put(b"a", bytes([seq]) * 600_000)
        write = _write(table, seq)
        _done(table, write)

    assert (write.generation, write.whole) == (2, True)
    assert _decode(_bytes(write)) == {b"a": bytes([5]) * 600_000}


def test_live_bytes_follow_puts_replacements_and_deletions() -> None:
    table = _table(a=b"12345", b=b"1")
    table.put(b"a", b"1")
    table.put(b"b", None)
    table.put(b"never there", None)

    assert table.live_bytes == len(_bytes(_write(_table(a=b"1"), 1))) - len(HEADER)


def test_what_stands_behind_the_length_is_ignored() -> None:
    data = _bytes(_write(_table(a=b"1"), 1))

    assert _decode(data + b"never finished", len(data)) == {b"a": b"1"}


def test_a_table_that_was_loaded_has_nothing_to_write() -> None:
    data = _bytes(_write(_table(a=b"1"), 1))

    table = decode_table(RETAINED, 3, data, len(data), Path("t"))

    assert (table.changed, table.generation, table.length) == (set(), 3, len(data))
    assert table.live_bytes == len(data) - len(HEADER)


def test_a_table_shorter_than_was_stored_is_corrupt() -> None:
    data = _bytes(_write(_table(a=b"1"), 1))

    with pytest.raises(Corrupt, match=f"{len(data)} bytes were stored, the file has {len(data) - 1}"):
        _decode(data[:-1], len(data))


def test_a_length_within_an_entry_is_corrupt() -> None:
    data = _bytes(_write(_table(a=b"1"), 1))

    for length in range(len(HEADER) + 1, len(data)):
        with pytest.raises(Corrupt):
            _decode(data, length)


def test_a_changed_value_is_corrupt_at_its_entry() -> None:
    data = _bytes(_write(_table(a=b"1", b=b"old"), 1))

    with pytest.raises(Corrupt, match="damaged at byte 22: an entry's checksum is wrong"):
        _decode(data.replace(b"old", b"new"))


def test_bytes_that_are_no_table_are_corrupt() -> None:
    with pytest.raises(Corrupt, match="this is not a table"):
        _decode(bytes(16))


def test_definitions_are_one_readable_document() -> None:
    table = Table(QUEUES)
    table.put("größe".encode(), b'{"type":"stream"}')

    write = _write(table, 5)

    assert (write.path, write.whole) == (ROOT / "config" / "queues.json", True)
    assert '"größe": {\n   "type": "stream"'.encode() in _bytes(write)
    assert decode_definitions(QUEUES, _bytes(write), write.path).values == table.values


def test_many_definitions_are_one_document_with_a_line_for_each_however_they_were_put() -> None:
    table = Table(QUEUES)
    shortest = {f"größe-{number}": encode_definition({"type": "stream", "ü": number / 3}) for number in range(300)}
    for name, value in shortest.items():
        table.put(name.encode(), value)
    table.put(b"with spaces", b'{"type": "stream",  "type": "classic"}')
    table.put(b"again", b'{"type": "stream"}')
    table.put(b"again", b'{"type":"quorum"}')
    table.put(b"gone", b"{ }")
    table.put(b"gone", None)

    write = _write(table, 5)

    assert len(_bytes(write).splitlines()) == 304
    assert '\n"größe-7":{"type":"stream","ü":2.3333333333333335},\n'.encode() in _bytes(write)
    assert decode_definitions(QUEUES, _bytes(write), write.path).values == {
        **{name.encode(): value for name, value in shortest.items()},
        b"with spaces": b'{"type":"classic"}',
        b"again": b'{"type":"quorum"}',
    }


def test_a_definition_is_kept_in_its_shortest_form() -> None:
    assert encode_definition({"a": ["ü", 1]}) == '{"a":["ü",1]}'.encode()


def test_definitions_of_another_table_are_corrupt() -> None:
    write = _write(Table(EXCHANGES), 5)

    with pytest.raises(Corrupt, match="it holds no queues"):
        decode_definitions(QUEUES, _bytes(write), Path("queues.json"))

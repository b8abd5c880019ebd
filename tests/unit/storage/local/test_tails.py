"""The file with the tails of many logs."""

from pathlib import Path

import pytest

from headrace.errors import Corrupt
from headrace.storage.local.checkpoint import Tail, decode_tails, tails_path
from headrace.storage.local.encoding import decode_messages
from headrace.storage.local.flusher import RECORD_BYTES, RECORD_ROWS, encode_tails
from tests.workbench import full_message, many, payloads, plain

PATH = Path("journal/3.tails")


def written(*tails: Tail) -> bytes:
    return b"".join([buffer for buffers in encode_tails(list(tails), 70) for buffer in buffers])


def test_it_stands_beside_the_journal() -> None:
    assert tails_path(Path("data"), 3) == Path("data/journal/3.tails")


def test_the_tails_of_many_logs_are_one_record() -> None:
    data = written(Tail(4, 17, plain(b"a", b"b"), 500), Tail(9, 0, [full_message()], 300))

    ((at, record),) = decode_tails(data, len(data), PATH)

    assert (at, record.seq, record.synced, record.length) == (0, 70, 70, len(data))
    assert record.runs == [(4, 2, 17), (9, 1, 0)]
    assert payloads(decode_messages(record.blocks[0], 0, 3)) == [b"a", b"b", b"paid"]


def test_a_record_ends_where_it_is_large_enough() -> None:
    wide = [Tail(log_id, 0, plain(b"x"), RECORD_BYTES // 2) for log_id in range(1, 6)]
    long = [Tail(log_id, 0, many(RECORD_ROWS // 2), 1) for log_id in range(6, 11)]
    data = written(*wide, *long)

    found = list(decode_tails(data, len(data), PATH))

    assert [[log_id for log_id, _, _ in record.runs] for _, record in found] == [
        [1, 2],
        [3, 4],
        [5, 6, 7],
        [8, 9],
        [10],
    ]
    assert [record.seq for _, record in found] == [70, 71, 72, 73, 74]
    assert found[1][0] == found[0][1].length


def test_damage_is_refused_with_its_position() -> None:
    half = RECORD_BYTES
    first = len(written(Tail(1, 0, plain(b"x"), half)))
    data = bytearray(written(Tail(1, 0, plain(b"x"), half), Tail(2, 0, plain(b"yyyy"), half)))
    data[-2] ^= 1

    with pytest.raises(Corrupt) as caught:
        list(decode_tails(bytes(data), len(data), PATH))

    assert (caught.value.file, caught.value.position) == (str(PATH), first)


@pytest.mark.parametrize("change", [-8, 8])
def test_another_length_is_refused(change: int) -> None:
    data = written(Tail(1, 0, plain(b"x"), 1))

    with pytest.raises(Corrupt, match=f"{len(data) + change} bytes were stored, the file has {len(data)}"):
        list(decode_tails(data, len(data) + change, PATH))

"""A group's state.json and pel.log."""

from pathlib import Path

import pytest

from headrace.errors import Corrupt
from headrace.storage.group_state import STREAM, WORK, GroupState, Pending
from headrace.storage.local.files import encode_json
from headrace.storage.local.group_files import decode_pending, decode_progress, encode_pending, encode_progress

STATE = Path("consumers/billing/state.json")
PEL = Path("consumers/billing/pel.log")


def _state() -> GroupState:
    state = GroupState("größe/1", STREAM, "orders/+", 10)
    state.cursor = 99
    state.add_settled(12, 20)
    state.add_settled(30, 31)
    state.pending = {
        10: Pending(1, 500, "c1"),
        20: Pending(7, -1, ""),
        11: Pending(2, 600, "ç2"),
        21: Pending(1, 500, "c1"),
    }
    return state


def test_progress_comes_back_as_it_was() -> None:
    state, seq = decode_progress(encode_progress("orders", 4, _state(), 17), STATE, 4)

    assert seq == 17
    assert (state.name, state.mode, state.filter) == ("größe/1", STREAM, "orders/+")
    assert (state.cursor, state.committed, list(state.settled)) == (99, 10, [(12, 20), (30, 31)])


def test_progress_says_nothing_of_what_is_pending() -> None:
    state, _ = decode_progress(encode_progress("orders", 4, _state(), 17), STATE, 4)

    assert state.pending == {}


def test_pending_entries_come_back_as_they_were() -> None:
    pending, seq = decode_pending(encode_pending(4, _state(), 17), PEL, 4)

    assert (pending, seq) == (_state().pending, 17)


def test_a_pending_list_may_be_empty() -> None:
    assert decode_pending(encode_pending(4, GroupState("g", WORK, "", 0), 1), PEL, 4) == ({}, 1)


def test_the_progress_of_another_group_is_corrupt() -> None:
    with pytest.raises(Corrupt, match=r"state\.json .*belongs to group 4, not to group 5"):
        decode_progress(encode_progress("orders", 4, _state(), 17), STATE, 5)


def test_the_pending_list_of_another_group_is_corrupt() -> None:
    with pytest.raises(Corrupt, match=r"pel\.log .*belongs to group 4, not to group 5"):
        decode_pending(encode_pending(4, _state(), 17), PEL, 5)


def test_progress_changed_by_hand_is_corrupt() -> None:
    data = encode_progress("orders", 4, _state(), 17).replace(b'"cursor": 99', b'"cursor": 98')

    with pytest.raises(Corrupt, match="the checksum does not fit"):
        decode_progress(data, STATE, 4)


def test_progress_that_was_only_indented_otherwise_is_read() -> None:
    data = encode_progress("orders", 4, _state(), 17).replace(b"\n", b"\r\n   ")

    assert decode_progress(data, STATE, 4)[1] == 17


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"null", b"{", b"\xff", b'{"crc32": 1}'])
def test_what_is_no_progress_at_all_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt, match=r"state\.json"):
        decode_progress(data, STATE, 4)


def test_text_that_a_flipped_bit_made_no_unicode_is_corrupt() -> None:
    """`t` and `u` differ in one bit, and so do a tab followed by `dead` and half of a surrogate pair."""
    state = _state()
    state.filter = "\tdead"
    data = encode_progress("orders", 4, state, 17)
    assert b"\\tdead" in data

    with pytest.raises(Corrupt, match="not valid Unicode"):
        decode_progress(data.replace(b"\\tdead", b"\\udead"), STATE, 4)


def test_a_member_that_is_missing_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="a field is missing"):
        decode_progress(encode_json({"format": 1, "id": 4}), STATE, 4)


def test_bytes_that_are_no_pending_list_are_corrupt() -> None:
    with pytest.raises(Corrupt, match="this is not a pending list"):
        decode_pending(bytes(64), PEL, 4)


def test_a_pending_list_that_is_cut_is_corrupt() -> None:
    data = encode_pending(4, _state(), 17)

    for length in (0, 31, 32, len(data) - 1):
        with pytest.raises(Corrupt):
            decode_pending(data[:length], PEL, 4)

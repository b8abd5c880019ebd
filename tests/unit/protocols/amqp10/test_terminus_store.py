"""Termini in storage: the very bytes, and bytes that are none of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ProtocolError
from headrace.protocols.amqp10.performatives import NEVER, UNSETTLED_STATE, Source, Target
from headrace.protocols.amqp10.suspended import StoredSource, TerminusStore
from tests.house import House

_KEY = ("c1", "link")


def _source() -> StoredSource:
    source = Source("q")
    source.durable, source.expiry_policy = UNSETTLED_STATE, NEVER
    return StoredSource(source, "q", "default")


def test_the_bytes_of_format_1() -> None:
    house = House()
    store = TerminusStore(house.broker.kept)
    target = Target("q")
    target.durable, target.timeout = UNSETTLED_STATE, 60
    store.put_source(_KEY, _source())
    store.put_target(_KEY, target)
    store.accept(_KEY, b"\x07")
    house.run()

    key = "00000002" + b"c1".hex() + "00000004" + b"link".hex()
    assert [(raw.hex(), value.hex()) for raw, value in house.broker.kept.items()] == [
        (b"d".hex() + key + "07", ""),
        (
            b"s".hex() + key,
            "01c02703005328c0150ba101715202a3056e657665724342404040404040a10171a10764656661756c74",
        ),
        (b"t".hex() + key, "01005329c01807a101715202a30b73657373696f6e2d656e64523c424040"),
    ]


def test_what_was_stored_is_found_again_and_tags_without_a_target_go() -> None:
    house = House()
    store = TerminusStore(house.broker.kept)
    store.put_source(_KEY, _source())
    store.put_target(_KEY, Target("q"))
    store.accept(_KEY, b"one")
    store.accept(("c1", "another"), b"two")
    house.run()
    again = TerminusStore(house.broker.kept)
    house.run()

    assert list(again.sources) == [_KEY]
    assert (again.sources[_KEY].queue, again.sources[_KEY].source.expiry_policy) == ("q", NEVER)
    assert again.targets[_KEY].tags == [b"one"]
    assert len(house.broker.kept.items()) == 3
    again.delete_source(_KEY)
    again.delete_target(_KEY)
    again.forget(_KEY, b"one")
    house.run()
    assert house.broker.kept.items() == []


def test_a_terminus_is_of_bounded_size() -> None:
    store = TerminusStore(House().broker.kept)
    with pytest.raises(ProtocolError, match="durable terminus"):
        store.put_source(("c" * 600, "link"), _source())
    with pytest.raises(ProtocolError, match="durable terminus"):
        store.put_source(_KEY, StoredSource(Source("q" * 20_000), "q", ""))


def test_there_are_so_many_termini_and_no_more() -> None:
    store = TerminusStore(House().broker.kept)
    for number in range(4096):
        store.put_target(("c", str(number)), Target("q"))
    store.put_target(("c", "1"), Target("q"))
    with pytest.raises(ProtocolError, match="kept already"):
        store.put_target(("c", "one more"), Target("q"))
    store.delete_target(("c", "1"))
    store.put_target(("c", "one more"), Target("q"))


@given(st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=60)), max_size=5), st.booleans())
def test_what_is_no_terminus_is_left_out(items: list[tuple[bytes, bytes]], is_like_one: bool) -> None:
    house = House()
    for key, value in items:
        like = b"s\x00\x00\x00\x01c\x00\x00\x00\x01" + key[:1] if is_like_one else key
        house.broker.kept.put(like, b"\x01" + value if is_like_one else value)
    house.run()

    TerminusStore(house.broker.kept)

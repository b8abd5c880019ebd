"""Durable sources in storage: their bytes, the keys of earlier versions, and other bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ProtocolError
from headrace.protocols.amqp10.performatives import NEVER, UNSETTLED_STATE, Source
from headrace.protocols.amqp10.server import DurableSources, Key
from tests.house import House

_KEY = ("c1", "link")
_RAW_KEY = "00000002" + b"c1".hex() + "00000004" + b"link".hex()
_RAW_SOURCE = "01c02703005328c0150ba101715202a3056e657665724342404040404040a10171a10764656661756c74"
_RAW_TARGET = "01005329c01807a101715202a30b73657373696f6e2d656e64523c424040"
_PLACE = ("q", "default")


def _source(address: str = "q") -> Source:
    source = Source(address)
    source.durable, source.expiry_policy = UNSETTLED_STATE, NEVER
    return source


def _sources(house: House) -> DurableSources:
    return DurableSources(house.clock, house.broker.protocol_store)


def _attach(sources: DurableSources, key: Key = _KEY, address: str = "q") -> None:
    sources.attached(key, _source(address), _PLACE, lambda: None)


def _kept(house: House) -> list[tuple[str, str]]:
    house.run()
    return [(raw.hex(), value.hex()) for raw, value in house.broker.protocol_store.items()]


def test_the_bytes_of_format_1() -> None:
    house = House()
    _attach(_sources(house))

    assert _kept(house) == [(b"s".hex() + _RAW_KEY, _RAW_SOURCE)]


def test_a_source_is_found_again_and_targets_and_tags_of_earlier_versions_go() -> None:
    house = House()
    key = bytes.fromhex(_RAW_KEY)
    house.broker.protocol_store.put(b"s" + key, bytes.fromhex(_RAW_SOURCE))
    house.broker.protocol_store.put(b"t" + key, bytes.fromhex(_RAW_TARGET))
    house.broker.protocol_store.put(b"d" + key + b"\x07", b"")
    house.run()
    sources = _sources(house)
    found = sources.find(_KEY)

    assert found is not None
    assert (found.address, found.durable, found.expiry_policy) == ("q", UNSETTLED_STATE, NEVER)
    assert [raw for raw, _ in _kept(house)] == [b"s".hex() + _RAW_KEY]
    sources.forget(_KEY)
    assert sources.find(_KEY) is None
    assert _kept(house) == []


def test_a_source_that_is_not_to_be_stored_takes_the_place_of_one_that_was() -> None:
    house = House()
    sources = _sources(house)
    _attach(sources)
    sources.attached(_KEY, Source("q"), None, lambda: None)

    assert sources.find(_KEY) is None
    assert _kept(house) == []


def test_a_detached_source_expires_after_its_timeout_also_after_a_restart() -> None:
    house = House()
    source = _source()
    source.expiry_policy, source.timeout = "connection-close", 60
    sources = _sources(house)
    sources.attached(_KEY, source, _PLACE, lambda: None)
    house.advance(61)
    sources.sweep()
    assert sources.find(_KEY) is not None, "it is attached"
    sources.detached(_KEY)
    house.advance(59)
    sources.sweep()
    assert sources.find(_KEY) is not None
    house.run()

    again = _sources(house)
    house.advance(61)
    again.sweep()
    assert again.find(_KEY) is None
    assert _kept(house) == []


def test_a_terminus_is_of_bounded_size() -> None:
    sources = _sources(House())
    with pytest.raises(ProtocolError, match="durable terminus"):
        _attach(sources, ("c" * 600, "link"))
    with pytest.raises(ProtocolError, match="durable terminus"):
        _attach(sources, address="q" * 20_000)


def test_there_are_so_many_termini_and_no_more() -> None:
    sources = _sources(House())
    for number in range(4096):
        _attach(sources, ("c", str(number)))
    _attach(sources, ("c", "1"))
    with pytest.raises(ProtocolError, match="kept already"):
        _attach(sources, ("c", "one more"))
    sources.forget(("c", "1"))
    _attach(sources, ("c", "one more"))


@given(st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=60)), max_size=5), st.booleans())
def test_what_is_no_terminus_is_left_out(items: list[tuple[bytes, bytes]], is_like_one: bool) -> None:
    house = House()
    for key, value in items:
        like = b"s\x00\x00\x00\x01c\x00\x00\x00\x01" + key[:1] if is_like_one else key
        house.broker.protocol_store.put(like, b"\x01" + value if is_like_one else value)
    house.run()

    _sources(house)

"""Requests to a page, and their senders."""

import asyncio
from typing import cast

import pytest
from starlette.requests import Request

from headrace.admin.pages import Call, NoLogin, _credentials, is_from_here
from headrace.admin.site import Site, Visitor
from headrace.core.queue.definition import declared
from tests.house import House
from tests.refusing_engine import RefusingEngine


def request_from(address: str | None) -> Request:
    return Request({"type": "http", "headers": [], "client": None if address is None else (address, 1)})


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1", None])
def test_a_client_on_this_machine_is_from_here(address: str | None) -> None:
    assert is_from_here(request_from(address))


@pytest.mark.parametrize("address", ["10.0.0.1", "::ffff:10.0.0.1", "2001:db8::1", "localhost", ""])
def test_a_client_elsewhere_is_not(address: str) -> None:
    assert not is_from_here(request_from(address))


def test_a_password_may_have_colons_and_any_bytes() -> None:
    assert _credentials("Basic YW5uYTpwOmFzczr/") == ("anna", b"p:ass:\xff")
    assert _credentials("basic YW5uYTo=") == ("anna", b"")


@pytest.mark.parametrize("header", ["", "Basic", "Digest YTpi", "Basic %%%", "Basic YW5uYQ==", "Basic /zp4"])
def test_what_is_no_login_is_refused(header: str) -> None:
    with pytest.raises(NoLogin):
        _credentials(header)


def test_a_page_waits_for_what_was_declared_and_asks_for_nothing_to_be_stored() -> None:
    engine = RefusingEngine()
    house = House(engine)
    call = Call(request_from(None), cast("Site", None), cast("Visitor", None))

    async def visit() -> None:
        await call.kept(house.broker)
        engine.is_closed_door = True
        house.broker.declare(declared("q", durable=True))
        waiting = asyncio.ensure_future(call.kept(house.broker))
        await asyncio.sleep(0)
        house.run()
        await asyncio.sleep(0)
        assert not waiting.done()
        attempts = engine.attempts
        engine.open_door()
        house.run()
        await waiting
        await call.kept(house.broker)
        assert engine.attempts == attempts + 1

    asyncio.run(visit())

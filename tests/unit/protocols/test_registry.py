"""The table of protocols: who serves a connection, by its listener and its first bytes."""

from dataclasses import fields
from typing import cast

import pytest

from headrace.clock import ManualClock
from headrace.config.settings import ListenerSettings, Settings
from headrace.net.connection import Wire
from headrace.net.handler import Handler
from headrace.protocols import (
    DATAGRAM_LISTENERS,
    LISTENERS,
    WEB_SOCKETS,
    Backend,
    Protocols,
    tracker,
)
from headrace.protocols.amqp091.handover import Amqp091Tracker
from headrace.protocols.amqp10.handover import Amqp10Tracker
from tests.endpoints import access_to
from tests.house import House
from tests.wires import FakeWire


class _Wire(FakeWire):
    def __init__(self) -> None:
        super().__init__()
        self.handler: Handler | None = None

    def hand_over(self, handler: Handler) -> None:
        self.handler = handler


def _protocols() -> Protocols:
    hosts, access = access_to(House().broker)
    return Protocols(Backend(hosts, access, ManualClock(), Settings()))


def test_every_listener_of_a_protocol_has_its_settings() -> None:
    named = {each.name for each in fields(ListenerSettings)}

    assert {*LISTENERS, *[name + "s" for name in LISTENERS], *DATAGRAM_LISTENERS, WEB_SOCKETS} <= named


@pytest.mark.parametrize(
    ("start", "module"),
    [
        (b"AMQP\0\0\x09\x01", "amqp091"),
        (b"AMQP\0\1\0\0", "amqp10"),
        (b"AMQP\3\1\0\0", "amqp10"),
        (b"GET / HTTP/1.1\r\n", "amqp091"),
    ],
)
def test_the_first_bytes_tell_which_protocol_serves(start: bytes, module: str) -> None:
    line = _Wire()
    greeting = _protocols().handler("amqp")
    greeting.opened(cast("Wire", line))
    for at in range(len(start) - 1):
        greeting.feed(start[at : at + 1])
        if line.handler is not None:
            break
    else:
        greeting.feed(start[-1:])

    assert line.handler is not None
    assert type(line.handler).__module__ == f"headrace.protocols.{module}.connection"


def test_a_listener_of_one_protocol_needs_no_greeting() -> None:
    assert type(_protocols().handler("mqtt")).__module__ == "headrace.protocols.mqtt.connection"


def test_a_forwarded_connection_is_followed_by_its_protocol() -> None:
    assert isinstance(tracker("amqp", b"AMQP\0\1\0\0"), Amqp10Tracker)
    assert isinstance(tracker("amqp", b"AMQP\0\0\x09\x01"), Amqp091Tracker)
    assert isinstance(tracker("amqp", b"AMQ"), Amqp091Tracker)

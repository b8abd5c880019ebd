"""Topics may have 64 KiB: no route of a long one is remembered."""

import tracemalloc

import pytest

from headrace.core.access.logins import Account
from headrace.core.access.permissions import Permission, Rights
from headrace.core.access.users import User
from headrace.core.client import Client
from headrace.core.queue.definition import QueueDefinition
from headrace.model import MQTT5
from tests.house import House

_LONG = "x" * 60_000
_COUNT = 100


def _client(house: House) -> Client:
    rights = Rights("u", "/")
    rights.grant(Permission("u", "/", ".*", ".*", ".*"), {})
    return Client(house.broker, Account(User("u")), rights, "c", "mqtt", MQTT5)


@pytest.mark.parametrize("prefix", ["plain", "$queue/q"])
def test_publishes_to_many_long_topics_leave_nothing_in_memory(house: House, prefix: str) -> None:
    house.broker.declare(QueueDefinition("q", max_length=1, overflow="drop-head"))
    client = _client(house)

    def publish(number: int) -> None:
        client.publish_topic(f"{prefix}/{number}/{_LONG}", b"x", house.clock.now_us(), b"", None, 1, False, None, None)
        house.run()

    publish(_COUNT)
    tracemalloc.start()
    for number in range(_COUNT):
        publish(number)
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert kept_bytes < 10 * len(_LONG)

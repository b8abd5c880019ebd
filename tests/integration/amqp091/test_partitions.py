"""Messages shared out by key over several queues: an exchange of RabbitMQ's kind `x-consistent-hash`."""

from collections import Counter
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from tests.paho_helpers import Paho
from tests.servers import Server, drain, serving

KIND = "x-consistent-hash"
KEYS = [f"device-{number}" for number in range(300)]


def partitioned(channel: BlockingChannel, name: str, weights: list[int], **arguments: str) -> list[str]:
    channel.exchange_declare(name, KIND, durable=True, arguments=arguments)
    queues = [f"{name}-{number}" for number in range(len(weights))]
    for queue, weight in zip(queues, weights, strict=True):
        channel.queue_declare(queue, durable=True, arguments={"x-single-active-consumer": True})
        channel.queue_bind(queue, name, str(weight))
    channel.confirm_delivery()
    return queues


def homes(channel: BlockingChannel, queues: list[str]) -> dict[str, list[str]]:
    """The queue that each message is in, by what it says, in order; the queues are empty then."""
    found: dict[str, list[str]] = {}
    for queue in queues:
        count = channel.queue_declare(queue, passive=True).method.message_count
        for body in drain(channel, queue, count):
            found.setdefault(body.decode(), []).append(queue)
    return found


def test_all_messages_of_a_key_are_in_one_queue_also_after_a_restart(tmp_path: Path) -> None:
    with serving(Server(tmp_path)) as own_server:
        _check_homes(own_server)


def _check_homes(own_server: Server) -> None:
    channel = own_server.connect().channel()
    queues = partitioned(channel, "parts", [1, 1, 1, 1])
    for key in KEYS * 2:
        channel.basic_publish("parts", key, key.encode())
    before = homes(channel, queues)
    own_server.close_connections()
    own_server.stop()
    own_server.start()
    channel = own_server.connect().channel()
    channel.confirm_delivery()
    for key in KEYS:
        channel.basic_publish("parts", key, key.encode())
    after = homes(channel, queues)

    assert {key: set(found) for key, found in before.items()} == {key: set(found) for key, found in after.items()}
    assert all(len(set(found)) == 1 and len(found) == 2 for found in before.values())
    assert set(before) == set(KEYS)
    shares = Counter(found[0] for found in before.values())
    assert min(shares.values()) > 40  # 75 each would be equal


def test_weights_count_and_a_queue_that_goes_takes_only_its_own_keys_away(server: Server) -> None:
    channel = server.connect().channel()
    queues = partitioned(channel, "weighed", [1, 3])
    for key in KEYS:
        channel.basic_publish("weighed", key, key.encode())
    before = homes(channel, queues)
    channel.queue_declare("weighed-2", durable=True)
    channel.queue_bind("weighed-2", "weighed", "1")
    for key in KEYS:
        channel.basic_publish("weighed", key, key.encode())
    after = homes(channel, [*queues, "weighed-2"])

    assert (
        2
        < sum(found == ["weighed-1"] for found in before.values())
        / sum(found == ["weighed-0"] for found in before.values())
        < 4.5
    )  # 3 would be exact
    assert {after[key][0] for key in KEYS if after[key] != before[key]} == {"weighed-2"}


def test_a_header_may_be_what_is_hashed(server: Server) -> None:
    channel = server.connect().channel()
    queues = partitioned(channel, "by-header", [1, 1], **{"hash-header": "customer"})
    for number, key in enumerate(KEYS):
        said = pika.BasicProperties(headers={"customer": number % 10})
        channel.basic_publish("by-header", key, str(number % 10).encode(), said)

    found = homes(channel, queues)
    assert all(len(set(queues_of)) == 1 for queues_of in found.values())
    assert {queue for queues_of in found.values() for queue in queues_of} == set(queues)


def test_devices_are_kept_apart_by_topic(server: Server) -> None:
    channel = server.connect().channel()
    queues = partitioned(channel, "topics", [1, 1])
    channel.exchange_bind("topics", "amq.topic", "floor.#")
    device = Paho(server.mqtt_port, "device")
    for number in range(40):
        device.sure(f"floor/{number % 8}", str(number % 8))
    device.close()

    found = homes(channel, queues)
    assert len(found) == 8
    assert all(len(set(queues_of)) == 1 and len(queues_of) == 5 for queues_of in found.values())


@pytest.mark.parametrize("weight", ["", "0", "-1", "eu.#", "1000001"])
def test_a_binding_without_a_weight_is_refused(server: Server, weight: str) -> None:
    channel = server.connect().channel()
    channel.exchange_declare("weights", KIND)
    channel.queue_declare("weights")
    with pytest.raises(ChannelClosedByBroker, match="a number from 1 to 1000000"):
        channel.queue_bind("weights", "weights", weight)


@pytest.mark.parametrize("name", ["message_id", "correlation_id", "timestamp"])
def test_a_property_may_be_what_is_hashed(server: Server, name: str) -> None:
    channel = server.connect().channel()
    queues = partitioned(channel, f"by-{name}", [1, 1], **{"hash-property": name})
    for number, key in enumerate(KEYS):
        hashed: dict[str, object] = {name: number % 10 if name == "timestamp" else str(number % 10)}
        said = pika.BasicProperties(**hashed)
        channel.basic_publish(f"by-{name}", key, str(number % 10).encode(), said)

    found = homes(channel, queues)
    assert all(len(set(queues_of)) == 1 for queues_of in found.values())
    assert {queue for queues_of in found.values() for queue in queues_of} == set(queues)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"hash-header": 5}, "invalid arg 'hash-header'"),
        ({"hash-property": 5}, "invalid arg 'hash-property'"),
        ({"hash-property": "app_id"}, "Unsupported property: app_id"),
        ({"hash-property": "message_id", "hash-header": "x"}, "hash-header and hash-property are mutually exclusive"),
    ],
)
def test_what_cannot_be_hashed_is_refused(server: Server, arguments: dict[str, object], text: str) -> None:
    channel = server.connect().channel()
    with pytest.raises(ChannelClosedByBroker, match=text):
        channel.exchange_declare("unhashed", KIND, arguments=arguments)


def test_a_modulus_shares_messages_out_by_key_whatever_the_bindings_are(server: Server) -> None:
    channel = server.connect().channel()
    channel.exchange_declare("modulus", "x-modulus-hash", durable=True)
    queues = ["modulus-0", "modulus-1", "modulus-2"]
    for queue in reversed(queues):
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, "modulus", "any.key")
    channel.confirm_delivery()
    for key in KEYS * 2:
        channel.basic_publish("modulus", key, key.encode())

    found = homes(channel, queues)
    assert set(found) == set(KEYS)
    assert all(len(set(queues_of)) == 1 and len(queues_of) == 2 for queues_of in found.values())
    assert min(Counter(queues_of[0] for queues_of in found.values()).values()) > 60  # 100 each would be equal


def test_a_random_exchange_shares_messages_out_whatever_their_keys_are(server: Server) -> None:
    channel = server.connect().channel()
    channel.exchange_declare("random", "x-random", durable=True)
    queues = ["random-0", "random-1", "random-2"]
    for queue in queues:
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, "random")
    channel.confirm_delivery()
    for number in range(300):
        channel.basic_publish("random", "", b"%d" % number)

    found = homes(channel, queues)
    assert len(found) == 300
    assert all(len(queues_of) == 1 for queues_of in found.values())
    assert min(Counter(queues_of[0] for queues_of in found.values()).values()) > 50  # 100 each would be equal

"""Rights of a client to publish and read, and changes of these rights."""

from typing import Any

import pytest

from headrace.core.access.permissions import Permission, TopicPermission
from tests.devices import DISCONNECT, PUBACK, PUBLISH, Device, Field
from tests.endpoints import must


def test_the_connections_of_a_removed_user_end() -> None:
    field = Field()
    field.access.put_user("u", "secret", (), must)
    field.access.put_permission(Permission("u", "/", ".*", ".*", ".*"), must)
    device, guest = field.device("1", user="u", password=b"secret"), field.device("2")
    field.access.delete_user("u", must)
    assert device.take_one(DISCONNECT).reason == 0x98
    assert not guest.line.is_closed


def test_topics_are_for_those_who_may() -> None:
    field = Field()
    field.access.put_user("u", "secret", (), must)
    field.access.put_permission(Permission("u", "/", "", ".*", ".*"), must)
    field.access.put_topic_permission(TopicPermission("u", "/", "amq.topic", r"^{client_id}\.", "^public"), must)
    device = field.device("me", user="u", password=b"secret")

    assert device.subscribe("public/#", "private/#") == [1, 0x87]
    device.publish("me/x", qos=1)
    device.publish("you/x", qos=1)
    assert [one.reason for one in device.take()] == [0x10, 0x87]

    field.access.delete_topic_permissions("u", "/", must)
    device.publish("you/x", qos=1)
    assert [one.reason for one in device.take()] == [0x10]


def test_a_session_that_comes_back_reads_only_what_its_user_still_may() -> None:
    field = Field()
    field.access.put_user("u", "secret", (), must)
    field.access.put_permission(Permission("u", "/", "", ".*", ".*"), must)
    options: dict[str, Any] = {"user": "u", "password": b"secret", "clean": False, "said": {0x11: 3600}}
    field.device("me", **options).subscribe("public/a", "private/a")
    field.access.put_topic_permission(TopicPermission("u", "/", "amq.topic", ".*", "^public"), must)

    back = field.device("me", **options)

    writer = field.device("w")
    for topic in ("public/a", "private/a"):
        writer.publish(topic, topic, 1)
    assert back.texts() == ["public/a"]


def _user(field: Field) -> dict[str, Any]:
    """Options for devices of a user whose rights will change."""
    field.access.put_user("u", "secret", (), must)
    field.access.put_permission(Permission("u", "/", "", ".*", ".*"), must)
    return {"user": "u", "password": b"secret"}


def _behind_connack(device: Device) -> list[str]:
    """The payloads that waited for it."""
    return [one.payload.decode() for one in device.more if one.kind == PUBLISH]


def test_a_subscription_ends_with_the_right_to_it_and_its_connection_says_so() -> None:
    field = Field()
    options = _user(field)
    reader = field.device("reader", clean=False, said={0x11: 3600}, **options)
    reader.subscribe("public/a", "private/a", "$share/g/private/#")
    writer, other = field.device("writer"), field.device("other", **options)
    other.subscribe("public/a")

    field.access.put_topic_permission(TopicPermission("u", "/", "amq.topic", ".*", "^public"), must)
    field.run()

    goodbye = reader.take_one(DISCONNECT)
    assert (goodbye.reason, reader.line.is_closed) == (0x87, True)
    assert "may not be read" in goodbye.said[0x1F]
    assert not other.line.is_closed  # it reads what it still may
    for topic in ("private/a", "public/a"):
        writer.publish(topic, topic, 1)
    assert other.texts() == ["public/a"]
    assert _behind_connack(field.device("reader", clean=False, said={0x11: 3600}, **options)) == ["public/a"]


def test_a_session_without_a_connection_collects_nothing_that_may_not_be_read_any_more() -> None:
    field = Field()
    options = _user(field)
    away = field.device("away", clean=False, said={0x11: 3600}, **options)
    away.subscribe("a")
    away.lose()
    back = field.restart()  # whose Access knows nothing of what the other one did
    _user(back)
    back.access.put_permission(Permission("u", "/", "", ".*", "^nothing$"), must)
    back.device("writer").publish("a", "secret", 1)
    back.access.put_permission(Permission("u", "/", "", ".*", ".*"), must)

    assert _behind_connack(back.device("away", clean=False, said={0x11: 3600}, **options)) == []


def test_a_queue_is_read_no_more_when_it_may_not_be() -> None:
    field = Field()
    options = _user(field)
    reader = field.device("reader", version=4, **options)
    reader.subscribe("$queue/jobs")
    field.access.put_permission(Permission("u", "/", "", ".*", "^others$"), must)
    field.run()
    assert reader.line.is_closed

    field.device("writer").publish("$queue/jobs/1", "job", 1)

    worker = field.device("worker")
    worker.subscribe("$queue/jobs", said={0x26: ("consumer-group", "reader")})
    assert worker.texts() == ["job"]


def test_whoever_may_not_enter_any_more_is_put_out_and_leaves_no_will() -> None:
    field = Field()
    options = _user(field)
    watcher = field.device("watcher")
    watcher.subscribe("wills/#")
    device = field.device("c", will=("wills/c", "gone", 1, 0, None), **options)

    field.access.delete_permission("u", "/", must)
    field.run()

    assert device.take_one(DISCONNECT).reason == 0x87
    assert watcher.texts() == []


def test_a_client_of_version_3_that_may_not_publish_is_disconnected() -> None:
    field = Field()
    device = field.device(version=4)
    device.publish("$SYS/x", qos=1)
    assert device.take() == []
    assert device.line.is_closed


@pytest.mark.parametrize("topic", ["$SYS/broker/x", "$other"])
def test_topics_of_the_broker_cannot_be_published_to(topic: str) -> None:
    device = Field().device()
    number = device.publish(topic, qos=1)
    answer = device.take_one(PUBACK)
    assert (answer.number, answer.reason) == (number, 0x87)
    assert "$" in answer.said[0x1F]

"""A client's connection: how it begins and ends, what it is told."""

from typing import Any

import pytest

from headrace.config.settings import MqttSettings
from headrace.core.rights import Permission, TopicPermission
from headrace.core.users import Limits as UserLimits
from tests.devices import CONNACK, DISCONNECT, PINGRESP, PUBACK, PUBLISH, Device, Field, packet, properties, text
from tests.doors import must


@pytest.mark.parametrize("version", [3, 4, 5])
def test_every_version_is_served(version: int) -> None:
    device = Field().device(version=version)
    assert device.connack is not None
    assert (device.connack.reason, device.connack.present) == (0, False)
    device.send(b"\xc0\x00")
    assert device.take_one(PINGRESP)


def test_a_client_of_version_5_is_told_what_holds_here() -> None:
    field = Field(
        limits=MqttSettings(max_packet_bytes=1000, topic_alias_maximum=3, receive_maximum=7, max_keep_alive=60_000)
    )
    device = field.device("", keep_alive=600, said={0x19: 1})
    assert device.connack is not None
    said = device.connack.said
    assert said[0x27] == 1000
    assert said[0x22] == 3
    assert said[0x21] == 7
    assert said[0x13] == 60
    assert said[0x12].startswith("auto-")
    assert said[0x1A] == "responses/" + said[0x12]
    assert device.line.watched == 90


def test_the_keep_alive_of_the_client_counts_one_and_a_half_times() -> None:
    device = Field().device(keep_alive=10)
    assert device.line.watched == 15
    device.connection.silent()
    assert device.take_one(DISCONNECT).reason == 0x8D
    assert device.line.is_closed


def test_a_client_that_cannot_be_told_another_keep_alive_keeps_its_own() -> None:
    field = Field(limits=MqttSettings(max_keep_alive=60_000))
    assert field.device("1", version=4, keep_alive=600).line.watched == 900
    assert field.device("2", version=5, keep_alive=0).line.watched == 90
    assert field.device("3", version=5, keep_alive=20).line.watched == 30


@pytest.mark.parametrize(("asked", "kept"), [(0xFFFF_FFFF, 60), (3600, 60), (30, 30)])
def test_a_session_is_kept_no_longer_than_it_may_be(asked: int, kept: int) -> None:
    field = Field(limits=MqttSettings(max_session_expiry=60_000))
    device = field.device("c", said={0x11: asked})
    assert device.connack is not None
    assert device.connack.said.get(0x11) == (60 if kept != asked else None)
    device.lose()
    field.advance(kept - 1)
    assert field.broker.sessions.get("c") is not None
    field.advance(2)
    assert field.broker.sessions.get("c") is None


def test_the_limit_of_a_session_counts_for_version_3_and_for_a_goodbye() -> None:
    field = Field(limits=MqttSettings(max_session_expiry=60_000))
    old = field.device("old", version=4, clean=False)
    new = field.device("new", said={0x11: 30})
    old.lose()
    new.send(packet(0xE0, b"\x00", properties({0x11: 3600})))
    field.advance(50)
    assert len(field.broker.sessions) == 2
    field.advance(11)
    assert len(field.broker.sessions) == 0


def test_a_client_without_identifier_gets_one_where_nothing_is_kept() -> None:
    field = Field()
    one, other = field.device("", version=4), field.device("", version=4)
    assert one.connack is not None
    assert not one.line.is_closed
    assert not other.line.is_closed
    kept = field.device("", version=4, clean=False)
    assert kept.connack is not None
    assert kept.connack.reason == 2
    assert kept.line.is_closed


def test_a_second_connection_of_the_same_client_ends_the_first() -> None:
    field = Field()
    first = field.device("c")
    second = field.device("c")
    assert first.take_one(DISCONNECT).reason == 0x8E
    assert first.line.is_closed
    first.connection.lost()
    second.subscribe("a")
    second.publish("a", "x")
    assert second.texts() == ["x"]


def test_an_unknown_authentication_method_is_refused() -> None:
    device = Field().device(said={0x15: "SCRAM-SHA-1"})
    assert device.connack is not None
    assert device.connack.reason == 0x8C
    assert device.line.is_closed


def test_auth_without_a_method_is_a_protocol_error() -> None:
    device = Field().device()
    device.send(packet(0xF0, b"\x19", properties({0x15: "x"})))
    assert device.take_one(DISCONNECT).reason == 0x82


@pytest.mark.parametrize(("version", "code"), [(4, 4), (5, 0x86)])
def test_a_wrong_password_is_refused(version: int, code: int) -> None:
    field = Field()
    device = field.device(version=version, user="guest", password=b"wrong")
    field.access._logins._background.pass_time()  # type: ignore[attr-defined]
    answer = device.take_one(CONNACK)
    assert answer.reason == code
    assert device.line.is_closed


@pytest.mark.parametrize(("version", "code"), [(4, 5), (5, 0x87)])
def test_from_elsewhere_nobody_comes_in_without_a_name(version: int, code: int) -> None:
    field = Field()
    device = Device(field, version)
    device.line.is_loopback = False
    device.connect()
    assert device.connack is not None
    assert device.connack.reason == code


def test_packets_behind_connect_wait_for_the_login() -> None:
    field = Field()
    device = Device(field, 4)
    connect = packet(0x10, text("MQTT"), b"\x04\x02\x00\x00", text("c"))
    subscribe = packet(0x82, b"\x00\x01", text("a"), b"\x00")
    device.send(connect + subscribe + packet(0x30, text("a"), b"hello"))
    kinds = [one.kind for one in device.take()]
    assert kinds == [CONNACK, 9, PUBLISH]


def test_a_virtual_host_is_named_before_the_user() -> None:
    field = Field()
    device = field.device(user="/:guest", password=b"guest")
    assert device.connack is not None
    assert device.connack.reason == 0
    other = field.device(user="nowhere:guest", password=b"guest")
    assert other.connack is not None
    assert other.connack.reason == 0x87


def test_a_user_has_no_more_connections_than_it_may() -> None:
    field = Field()
    field.access.set_limits("guest", UserLimits(max_connections=1), must)
    first = field.device("1")
    second = field.device("2")
    assert second.connack is not None
    assert second.connack.reason == 0x97
    first.lose()
    third = field.device("3")
    assert third.connack is not None
    assert third.connack.reason == 0


def test_there_are_no_more_sessions_than_may_be_kept() -> None:
    field = Field(limits=MqttSettings(max_sessions=2))
    field.device("1", clean=False, said={0x11: 3600}).lose()
    field.device("2")
    third = field.device("3")
    assert third.connack is not None
    assert third.connack.reason == 0x97
    back = field.device("1", clean=False)
    assert back.connack is not None
    assert back.connack.present


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


def test_reason_strings_are_for_those_who_want_them() -> None:
    device = Field().device(said={0x17: 0})
    device.publish("$other", qos=1)
    assert device.take_one(PUBACK).said == {}


def test_a_malformed_packet_ends_the_connection_with_its_reason() -> None:
    device = Field().device()
    device.send(b"\x82\x00")
    assert device.take_one(DISCONNECT).reason == 0x81
    assert device.line.is_closed


def test_what_came_before_a_malformed_packet_is_done() -> None:
    field = Field()
    listener, device = field.device("1"), field.device("2")
    listener.subscribe("a")
    device.send(packet(0x30, text("a"), b"\x00", b"first") + b"\xff\xff")
    assert listener.texts() == ["first"]


def test_a_packet_that_is_too_large_is_refused() -> None:
    field = Field(limits=MqttSettings(max_packet_bytes=100))
    device = field.device()
    device.publish("a", b"x" * 200)
    assert device.take_one(DISCONNECT).reason == 0x95


def test_more_messages_than_the_receive_maximum_are_refused() -> None:
    field = Field(limits=MqttSettings(receive_maximum=2))
    device = field.device(clean=False, said={0x11: 100})
    for number in (1, 2):
        device.publish("a", qos=2, number=number)
    assert not device.line.is_closed
    device.publish("a", qos=2, number=3)
    assert device.take()[-1].reason == 0x93


def test_a_user_that_sends_too_fast_is_not_heard_for_a_while() -> None:
    field = Field()
    field.access.set_limits("guest", UserLimits(max_message_rate=1, max_message_bytes=10), must)
    device = field.device()
    for _ in range(5):
        device.publish("a")
    assert device.line.is_paused
    device.publish("a", b"x" * 11, qos=1)
    assert device.take_one(PUBACK).reason == 0x97


def test_publishers_wait_while_the_broker_has_too_much_in_hand() -> None:
    field = Field()
    device = field.device()
    device.publish("a")
    for tell in list(field.broker.on_flow):
        tell(True)
    assert device.line.is_paused
    for tell in list(field.broker.on_flow):
        tell(False)
    assert not device.line.is_paused


def test_a_server_that_stops_says_so() -> None:
    device = Field().device()
    device.connection.stop()
    assert device.take_one(DISCONNECT).reason == 0x8B


def test_the_broker_tells_of_itself() -> None:
    field = Field()
    device = field.device()
    device.subscribe("$SYS/#", "#")
    said = {one.topic: one.payload.decode() for one in device.messages()}
    assert said["$SYS/broker/version"] == "headrace 1.0"
    other = field.device("2")
    field.house.clock.advance(11)
    field.server.tick()
    field.run()
    news = {one.topic: one for one in device.messages()}
    assert news["$SYS/broker/clients/connected"].payload == b"2"
    assert not news["$SYS/broker/clients/connected"].retain
    other.subscribe("#")
    assert other.messages() == []

"""A client's connection: how it begins and ends, what it is told."""

import pytest

from headrace.config.settings import MqttSettings
from headrace.core.access.users import Limits as UserLimits
from tests.devices import CONNACK, DISCONNECT, PINGRESP, PUBACK, PUBLISH, Device, Field, packet, properties, text
from tests.endpoints import must


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
@pytest.mark.parametrize("user", [None, ""])
def test_from_elsewhere_nobody_comes_in_without_a_name(version: int, code: int, user: str | None) -> None:
    field = Field()
    device = Device(field, version)
    device.line.is_loopback = False
    device.connect(user=user)
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
    for tell in list(field.broker.on_flow.values()):
        tell(True)
    assert device.line.is_paused
    for tell in list(field.broker.on_flow.values()):
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

"""Ends of frames in a server's bytes: any cut gives the same ends, and a goodbye fits only between frames."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from headrace.net.handover import Tracker
from headrace.protocols.amqp091.codec import HEARTBEAT_FRAME
from headrace.protocols.amqp091.handover import Amqp091Tracker
from headrace.protocols.amqp091.handshake import start_fields
from headrace.protocols.amqp091.methods import encode_method
from headrace.protocols.amqp10.codec import Decoder as Decoder10
from headrace.protocols.amqp10.codec import encode_frame
from headrace.protocols.amqp10.frames import AMQP_HEADER, EMPTY_FRAME
from headrace.protocols.amqp10.handover import Amqp10Tracker
from headrace.protocols.amqp10.performatives import Close, Open
from headrace.protocols.mqtt.codec import PING_RESPONSE, encode_connack, encode_disconnect, encode_publish
from headrace.protocols.mqtt.handover import MqttTracker, version_of

_START = encode_method(0, commands.Connection.Start, start_fields("1", False))
_OPEN_OK = encode_method(0, commands.Connection.OpenOk)
_BODY = b"\x03\x00\x01" + (300).to_bytes(4) + bytes(300) + b"\xce"
_OPEN = encode_frame(0, Open("x").encode())
_CONNACK = encode_connack(5, False, 0)

STREAMS: list[tuple[Callable[[], Tracker], list[bytes]]] = [
    (Amqp091Tracker, [_START, _OPEN_OK, HEARTBEAT_FRAME, _BODY, encode_method(1, commands.Channel.OpenOk), _BODY]),
    (Amqp10Tracker, [AMQP_HEADER, _OPEN, EMPTY_FRAME, encode_frame(0, b"\x00\x53\x14" + bytes(500)), EMPTY_FRAME]),
    (lambda: MqttTracker(5), [_CONNACK, PING_RESPONSE, encode_publish(5, "a", bytes(3_000), 1, packet_id=1)]),
]


@pytest.mark.parametrize(("make", "frames"), STREAMS, ids=["amqp091", "amqp10", "mqtt"])
@given(cuts=st.sets(st.integers(1, 60) | st.integers(1, 4000), max_size=20))
def test_any_cut_of_the_bytes_gives_the_same(make: Callable[[], Tracker], frames: list[bytes], cuts: set[int]) -> None:
    tracker, whole, start = make(), b"".join(frames), 0
    ends = {sum(len(frame) for frame in frames[: count + 1]) for count in range(len(frames))}
    for end in sorted({cut for cut in cuts | ends if cut <= len(whole)} - {min(ends)}):
        tracker.passed(whole[start:end])
        start = end
        assert tracker.is_between == (end in ends)
        assert bool(tracker.goodbye("why")) == (tracker.is_admitted and end in ends)
    assert tracker.is_admitted


@pytest.mark.parametrize("make", [make for make, _ in STREAMS], ids=["amqp091", "amqp10", "mqtt"])
@given(garbage=st.lists(st.binary(max_size=60)))
def test_whatever_a_server_sends_nothing_is_raised_and_little_is_kept(
    make: Callable[[], Tracker], garbage: list[bytes]
) -> None:
    tracker = make()
    for piece in garbage:
        tracker.passed(piece)
        assert len(tracker._head) < 16


@pytest.mark.parametrize(
    ("make", "frames"),
    [
        (Amqp091Tracker, [_START, _OPEN_OK, encode_method(0, commands.Connection.CloseOk)]),
        (Amqp10Tracker, [AMQP_HEADER, _OPEN, encode_frame(0, Close().encode())]),
        (lambda: MqttTracker(5), [_CONNACK, encode_disconnect(5, 0x8E)]),
        (lambda: MqttTracker(5), [encode_connack(5, False, 0x87)]),
        (Amqp091Tracker, [b"AMQP\x00\x00\x09\x01"]),
        (Amqp091Tracker, [_START]),
        (Amqp10Tracker, [AMQP_HEADER]),
        (lambda: MqttTracker(4), [encode_connack(4, False, 0)]),
    ],
)
def test_there_is_no_goodbye_after_the_servers_own_nor_where_it_would_not_be_understood(
    make: Callable[[], Tracker], frames: list[bytes]
) -> None:
    tracker = make()
    for frame in frames:
        tracker.passed(frame)

    assert tracker.goodbye("why") == b""


def test_a_goodbye_is_what_a_client_reads_as_one() -> None:
    tracker = Amqp10Tracker()
    tracker.passed(AMQP_HEADER + _OPEN)
    decoder = Decoder10()

    events = decoder.feed(AMQP_HEADER + _OPEN + tracker.goodbye("gone"))

    assert isinstance(events[-1], Close)
    assert events[-1].error is not None
    assert events[-1].error.condition == "amqp:connection:forced"


@pytest.mark.parametrize(
    ("start", "version"),
    [
        (b"\x10\x10\x00\x04MQTT\x05", 5),
        (b"\x10\xff\x01\x00\x04MQTT\x04", 4),
        (b"\x10\xff\xff\xff\x7f\x00\x06MQIsdp\x03", 3),
        (b"\x10\x10\x00\x04MQ", 0),
        (b"", 0),
        (b"\x10\xff\xff\xff\xff\xff\xff", 0),
    ],
)
def test_the_version_is_read_from_the_first_bytes(start: bytes, version: int) -> None:
    assert version_of(start) == version

"""Whatever clients send, in any order, is answered or refused in the protocol: nothing is raised."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config.settings import MqttSettings
from headrace.core.access.permissions import Permission
from headrace.core.queue.definition import STREAM, QueueDefinition
from tests.devices import Device, Field, packet, properties, text
from tests.endpoints import must

_topics = st.sampled_from(
    ["a", "a/b", "", "$queue/q", "$queue/q/x", "$queue/s", "$queue/q/$ack", "$queue/s/$commit", "$queue/new/x",
     "$queue/q/$ack/x", "$queue/", "$SYS/x", "$share/g/a", "é/\U0001f600"]
)  # fmt: skip
_patterns = st.sampled_from(
    ["a", "a/#", "#", "+/b", "$SYS/#", "$queue/q", "$queue/q/#", "$queue/s", "$queue/new/#", "$queue/+",
     "$queue/q/$ack", "$share/g/a/#", "$share/g/#", "$share/g", "$share/g/$queue/q", "a/#/b"]
)  # fmt: skip
_user = st.lists(
    st.sampled_from(
        [("consumer-group", "g"), ("message-id", "q:0"), ("message-id", "s:1"), ("message-id", "x"), ("group-id", "g"),
         ("group-id", "g@#"), ("x-stream-offset", "first"), ("x-stream-offset", "?"), ("x-auto-commit", "false"),
         ("x-offset", "1"), ("x-offset", "-")]
    ),
    max_size=3,
)  # fmt: skip
_numbers = st.integers(1, 4)
_said = st.fixed_dictionaries(
    {0x26: _user}, optional={0x02: st.sampled_from([0, 1, 100]), 0x23: st.integers(0, 3), 0x01: st.integers(0, 2)}
)
_of_connect = st.fixed_dictionaries(
    {},
    optional={
        0x11: st.sampled_from([0, 5, 0xFFFFFFFF]),
        0x21: st.integers(0, 3),
        0x22: st.integers(0, 2),
        0x27: st.sampled_from([0, 10, 200]),
        0x19: st.integers(0, 1),
        0x17: st.integers(0, 1),
        0x15: st.just("x"),
    },
)
_will = st.none() | st.tuples(_topics, st.just("w"), st.integers(0, 2), st.booleans(), st.just({0x18: 3}))

_steps = st.one_of(
    st.tuples(
        st.just("connect"), st.sampled_from(["1", "2", ""]), st.booleans(), st.integers(0, 2), _will, _of_connect,
        st.sampled_from([3, 4, 5, 5, 5]),
    ),
    st.tuples(
        st.just("publish"), _topics, st.sampled_from([b"", b"x", b"y" * 300]), st.integers(0, 2), st.booleans(),
        _numbers, st.booleans(), _said,
    ),
    st.tuples(st.just("subscribe"), _patterns, st.integers(0, 47), _user, st.integers(0, 2)),
    st.tuples(st.just("unsubscribe"), _patterns),
    st.tuples(
        st.just("answer"), st.integers(4, 7), st.sampled_from([1, 2, 3, 32768, 32769]), st.sampled_from([0, 0x92])
    ),
    st.tuples(st.just("raw"), st.binary(max_size=12)),
    st.tuples(st.just("ping")),
    st.tuples(st.just("disconnect"), st.sampled_from([0, 4]), st.sampled_from([None, 0, 9])),
    st.tuples(st.just("auth")),
    st.tuples(st.just("lose")),
    st.tuples(st.just("hold"), st.booleans()),
    st.tuples(st.just("advance"), st.sampled_from([0.1, 2.0, 40.0])),
    st.tuples(st.just("rights"), st.sampled_from([".*", "^amq", "^q$", ""])),
    st.tuples(st.just("stop")),
    st.tuples(st.just("silent")),
)  # fmt: skip


class _World:
    def __init__(self) -> None:
        self.field = Field(
            limits=MqttSettings(max_packet_bytes=1000, receive_maximum=3, topic_alias_maximum=2, waiting_messages=5)
        )
        self.field.broker.declare(QueueDefinition("q", lease_ms=10_000))
        self.field.broker.declare(QueueDefinition("s", STREAM))
        self.devices = [self._connected(str(number)) for number in range(2)]

    def _connected(self, client_id: str) -> Device:
        return self.field.device(client_id)

    def do(self, who: int, step: tuple[Any, ...]) -> None:
        device, (name, *values) = self.devices[who], step
        if name == "advance":
            self.field.advance(values[0])
        elif name == "rights":
            self.allow(values[0])
        elif name == "connect":
            client_id, clean, keep_alive, will, said, version = values
            if device in self.field.devices:
                device.lose()
            device = self.devices[who] = Device(self.field, version)
            device.connect(client_id, clean, keep_alive, will, said=said)
        elif device in self.field.devices:
            self._do(device, name, values)
        device.take()

    def allow(self, read: str) -> None:
        """Let everybody read these queues and exchanges and no others."""
        self.field.access.put_permission(Permission("guest", "/", ".*", ".*", read), must)
        self.field.run()

    def _do(self, device: Device, name: str, values: list[Any]) -> None:
        five = device.version == 5
        if name == "publish":
            topic, payload, qos, retain, number, dup, said = values
            device.publish(topic, payload, qos, retain, number, bool(dup and qos), said)
        elif name == "subscribe":
            pattern, options, user, identifier = values
            about = properties({0x26: user, 0x0B: identifier}) if five else b""
            device.send(packet(0x82, b"\0\1", about, text(pattern), bytes((options if five else options & 3,))))
        elif name == "unsubscribe":
            device.send(packet(0xA2, b"\0\1", b"\0" if five else b"", text(values[0])))
        elif name == "answer":
            device.answer(values[0], values[1], values[2] if five else 0)
        elif name == "raw":
            device.send(values[0])
        elif name == "ping":
            device.send(b"\xc0\0")
        elif name == "auth":
            device.send(packet(0xF0, b"\x18", properties({0x15: "x"})))
        elif name == "disconnect":
            device.send(
                packet(0xE0, bytes((values[0],)), properties({0x11: values[1]} if values[1] is not None else {}))
            )
        elif name == "lose":
            device.lose()
        elif name == "hold":
            device.connection.hold_output(values[0])
            self.field.run()
        elif name == "stop":
            device.connection.stop()
        elif name == "silent":
            device.connection.silent()


@settings(max_examples=settings().max_examples * 3 // 2)
@given(st.lists(st.tuples(st.integers(0, 1), _steps), max_size=40))
def test_any_packets_in_any_order_are_answered_or_refused(steps: list[tuple[int, tuple[Any, ...]]]) -> None:
    world = _World()

    for who, step in steps:
        world.do(who, step)

    world.allow(".*")
    witness = world.field.device("witness")
    witness.subscribe(("witness", 0))
    witness.publish("witness", "still there")
    assert witness.texts() == ["still there"]
    for device in list(world.field.devices):
        device.lose()
    again = world.field.restart()
    again.advance(1)
    assert again.broker.sessions.connected == 0

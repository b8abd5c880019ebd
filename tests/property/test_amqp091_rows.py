"""Laws of publishing in rows: what one read brings has the same effect as the same messages in reads of their own."""

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame

from headrace.core.queue.definition import QueueDefinition
from headrace.core.routing.exchange import Binding, Exchange
from headrace.net.connection import Wire
from headrace.protocols.amqp091.codec import encode_content
from headrace.protocols.amqp091.connection import Connection
from headrace.protocols.amqp091.frames import BODY, METHOD, PROTOCOL_HEADER
from headrace.protocols.amqp091.methods import encode_method
from headrace.protocols.amqp091.server import Server
from headrace.wire.amqp091 import encode_properties
from headrace.wire.properties import Properties
from tests.endpoints import access_to
from tests.house import House
from tests.wires import FakeWire

_QUEUES = (
    QueueDefinition("plain"),
    QueueDefinition("other", max_message_bytes=3),
    QueueDefinition("memory", durable=False),
    QueueDefinition("latest", max_length=2),
    QueueDefinition("few", max_length=3, overflow="reject-publish"),
    QueueDefinition("small", max_length_bytes=6, overflow="reject-publish"),
    QueueDefinition("brief", message_ttl_ms=1000, max_length=4),
    QueueDefinition("stream", kind="stream", message_ttl_ms=60_000),
    QueueDefinition("chosen", filter="priority > 3"),
    QueueDefinition("all"),
)
_BINDINGS = (
    *[("t", queue, f"{queue}.#") for queue in ("plain", "other", "latest", "few", "brief", "stream", "chosen")],
    *[("t", "all", "#.x"), ("t", "small", "*.x"), ("amq.topic", "all", "plain.#"), ("h", "plain", "")],
)
_NAMES = st.sampled_from([queue.name for queue in _QUEUES])
_KEYS = {
    "": _NAMES,
    "t": st.builds("{}.{}".format, _NAMES | st.just("none"), st.sampled_from("xy")),
    "odd": st.sampled_from(
        ["$queue/own", "$queue/own/key", "$queue/plain/key", "$queue/plain/$ack", "$queue/", "nowhere", "plain.x", ""]
    ),
}
_EXCHANGES = {"": st.just(""), "t": st.just("t"), "odd": st.sampled_from(["", "amq.topic", "h", "missing"])}


@st.composite
def _message(draw: st.DrawFn, kind: str) -> tuple[dict[str, Any], Properties, str]:
    is_odd = draw(st.integers(0, 9)) == 9
    kind = "odd" if is_odd else kind
    fields = {
        "exchange": draw(_EXCHANGES[kind]),
        "routing_key": draw(_KEYS[kind]),
        "mandatory": draw(st.booleans()),
    }
    headers: dict[str, object] = draw(st.sampled_from([{}, {"a": 1}, {"CC": ["plain"]}])) if is_odd else {}
    properties = Properties(headers)
    properties.expiration = draw(st.sampled_from(["", "500", "5000", "never"] if is_odd else ["", "", "5000"]))
    properties.message_id = draw(st.sampled_from(["", "1", "2"]))
    priority = draw(st.sampled_from([0, 0, 5]))
    properties.extra = {"priority": priority} if priority else {}
    return fields, properties, draw(st.sampled_from(["", "b", "bb", "bbbb"]))


class _Publisher:
    """A connection with a confirming channel over a broker of its own."""

    def __init__(self) -> None:
        self.house = House()
        broker = self.house.broker
        for definition in _QUEUES:
            broker.declare(definition)
        broker.declare_exchange(Exchange("t", "topic"))
        broker.declare_exchange(Exchange("h", "headers"))
        for source, queue, key in _BINDINGS:
            broker.bind(Binding(source, queue, key, {"a": 1} if source == "h" else {}))
        self._connection = Connection(Server(*access_to(broker, clock=self.house.clock), "test"), self.house.clock)
        self._line = FakeWire()
        self._connection.opened(cast("Wire", self._line))
        start = {"mechanism": "PLAIN", "response": b"\0guest\0guest"}
        self._connection.feed(PROTOCOL_HEADER + encode_method(0, commands.Connection.StartOk, start))
        self._connection.feed(encode_method(0, commands.Connection.TuneOk))
        self._connection.feed(encode_method(0, commands.Connection.Open, {"virtual_host": "/"}))
        self.send(encode_method(1, commands.Channel.Open) + encode_method(1, commands.Confirm.Select))

    def send(self, data: bytes) -> None:
        """Have the broker read this at once, and do all that follows."""
        self._connection.feed(data)
        for _ in range(2):
            self.house.run()
            self._line.flush()

    @property
    def answers(self) -> bytes:
        return b"".join(self._line.sent)

    def held(self) -> dict[str, list[tuple[Any, ...]]]:
        """All messages of all queues, in order."""
        broker = self.house.broker
        return {
            name: [
                (found.source.topic, found.payload, found.properties, found.priority, found.expires_us)
                for _, found in queue.browse(0, 1000)
            ]
            for name, queue in sorted(broker.topology.queues.items())
        }


def _outcome(answers: bytes) -> tuple[list[tuple[Any, ...]], dict[int, bool]]:
    """All that was answered but confirms, and whether each publish was taken that was confirmed."""
    told: list[tuple[Any, ...]] = []
    confirmed: dict[int, bool] = {}
    while answers:
        size = 8 + int.from_bytes(answers[3:7])
        if answers[0] == METHOD:
            method = cast("Any", frame.unmarshal(answers[:size])[2])
            if isinstance(method, commands.Basic.Ack | commands.Basic.Nack):
                is_taken = isinstance(method, commands.Basic.Ack)
                first = 1 if method.multiple else method.delivery_tag
                for number in range(first, method.delivery_tag + 1):
                    confirmed.setdefault(number, is_taken)
            else:
                told.append((method.name, dict(method)))
        elif answers[0] == BODY:
            told.append((answers[7 : size - 1],))
        answers = answers[size:]
    return told, confirmed


_rows = st.sampled_from(["", "t", "t"]).flatmap(lambda kind: st.lists(_message(kind), min_size=6, max_size=16))


@given(_rows, st.booleans())
def test_messages_of_one_read_fare_as_messages_of_many(
    messages: list[tuple[dict[str, Any], Properties, str]], is_first: bool
) -> None:
    frames = [
        encode_method(1, commands.Basic.Publish, fields)
        + encode_content(1, encode_properties(properties), f"{number}{body}".encode(), 4096)
        for number, (fields, properties, body) in enumerate(messages)
    ]
    together, apart = _Publisher(), _Publisher()
    if not is_first:  # routes and queues are known then
        warm = b"".join(
            [
                encode_method(1, commands.Basic.Publish, fields) + encode_content(1, b"\0\0", b"w", 4096)
                for fields, *_ in messages
                if fields["exchange"] == "t" or (not fields["exchange"] and "$" not in fields["routing_key"])
            ]
        )
        for publisher in (together, apart):
            publisher.send(warm)
            for queue in publisher.house.broker.topology.queues.values():
                if not queue.is_stream:
                    publisher.house.broker.purge(queue.name)
            publisher.house.run()

    together.send(b"".join(frames))
    for each in frames:
        apart.send(each)

    told, confirmed = _outcome(together.answers)
    told_apart, confirmed_apart = _outcome(apart.answers)
    assert together.held() == apart.held()
    assert told == told_apart
    if "Channel.Close" not in [each[0] for each in told]:  # a channel that ends confirms nothing any more
        assert confirmed == confirmed_apart

"""Counts of flow control, through publishes of every kind, failures, deletions and ends of hosts.

Law: when everything that was taken is consumed or gone, every counter is 0 and nobody is held.
"""

from collections.abc import Callable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.broker import Broker
from headrace.core.flow import Flow
from headrace.core.publishing import TO_QUEUE, TO_TOPIC
from headrace.core.queue.definition import DROP_HEAD, EPHEMERAL, REJECT_PUBLISH, STREAM, QueueDefinition, Retention
from headrace.core.queue.group import ACK, NACK, REJECT, RELEASE
from headrace.core.routing.exchange import Binding, Exchange
from headrace.core.transaction import Publish
from headrace.errors import HeadraceError, Refused, Unavailable
from headrace.model import Message, Source
from headrace.storage.local.encoding import encode_block
from headrace.storage.local.staging import encoded
from tests.house import House, Inbox
from tests.listeners import Listener
from tests.refusing_engine import RefusingEngine

_QUEUES = (
    QueueDefinition("stored", dead_letter_exchange="", dead_letter_key="passing"),
    QueueDefinition("narrow", max_length=2, overflow=REJECT_PUBLISH),
    QueueDefinition("slim", max_length_bytes=100, overflow=DROP_HEAD),
    QueueDefinition("passing", kind=EPHEMERAL, dead_letter_exchange="", dead_letter_key="graves"),
    QueueDefinition("graves", kind=EPHEMERAL, max_length=3),
    QueueDefinition("stream", kind=STREAM, retention=Retention(max_messages=5)),
)
_NAMES = [definition.name for definition in _QUEUES]
_FAILURES = (None, Unavailable("full"), Refused("no"))
_TOPICS = ("orders/1", "$queue/stored", "$queue/fresh")
_OUTCOMES = (ACK, NACK, REJECT, RELEASE)
_names = st.sampled_from(_NAMES)
_sizes = st.integers(0, 90)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), _names, _sizes),
        st.tuples(st.just("publish_to_all"), _sizes),
        st.tuples(st.just("publish_row"), _names, _sizes, st.integers(1, 4)),
        st.tuples(st.just("publish_topic"), st.sampled_from(_TOPICS), _sizes),
        st.tuples(st.just("commit"), _names, _names, _sizes, st.sampled_from(_OUTCOMES)),
        st.tuples(st.just("bulk"), _names, _sizes, st.booleans()),
        st.tuples(st.just("settle"), st.sampled_from(_OUTCOMES)),
        st.tuples(st.just("consume"), _names),
        st.tuples(st.just("delete"), _names),
        st.tuples(st.just("declare"), _names),
        st.tuples(st.just("purge"), _names),
        st.tuples(st.just("listen"), st.integers(0, 1)),
        st.tuples(st.just("leave")),
        st.tuples(st.just("fail"), st.sampled_from(_FAILURES), st.booleans()),
        st.tuples(st.just("refuse"), st.sampled_from(_FAILURES)),
        st.tuples(st.just("shut"), st.booleans()),
        st.tuples(st.just("turn")),
        st.tuples(st.just("advance"), st.sampled_from((0.3, 2.0, 61.0))),
        st.tuples(st.just("limit"), st.integers(50, 500)),
    ),
    max_size=40,
)


class _Town:
    """Two hosts with one flow: one that is used, one that is used and deleted."""

    def __init__(self) -> None:
        self.engine = RefusingEngine()
        self.flow = Flow(400, 200, 600, 300)
        self.house = House(self.engine)
        self._schedule = self.house._soon.append
        self.house.broker = self.main = self._broker("/")
        self.other = self._broker("eu")
        for broker in (self.main, self.other):
            self._furnish(broker)
        self.house.run()
        self.inboxes: list[Inbox] = []
        self.listeners: list[Listener] = []
        self.jobs = 0
        self.is_told_blocked = False
        self.flow.listeners["test"] = self._told

    def _broker(self, host: str) -> Broker:
        return Broker(self.engine, self.house.clock, self._schedule, host, flow=self.flow)

    def _furnish(self, broker: Broker) -> None:
        broker.declare_exchange(Exchange("all", "fanout", durable=True))
        for definition in _QUEUES:
            broker.declare(definition)
            broker.bind(Binding("all", definition.name))

    def _told(self, is_blocked: bool) -> None:
        self.is_told_blocked = is_blocked

    def use(self, broker: Broker) -> None:
        self.house.broker = broker

    # -- steps -------------------------------------------------------------------------------------------------------

    def publish(self, name: str, size: int) -> None:
        self.house.broker.publish(self.house.message("x" * size, name), None if size % 2 else _ignore)

    def publish_to_all(self, size: int) -> None:
        self.house.broker.publish(self.house.message("x" * size, "", "all"), _ignore)

    def publish_row(self, name: str, size: int, count: int) -> None:
        source = Source(name)
        self.house.broker.publish_all([Message(source, b"x" * size, 1) for _ in range(count)])

    def publish_topic(self, topic: str, size: int) -> None:
        self.house.broker.publish_topic(self.house.message("x" * size, topic), _ignore)

    def commit(self, name: str, other: str, size: int, outcome: int) -> None:
        publishes = [Publish(self.house.message("x" * size, each)) for each in (name, other)]
        held = [delivery for inbox in self.inboxes for delivery in inbox.got][:2]
        for inbox in self.inboxes:
            inbox.got[:] = [delivery for delivery in inbox.got if delivery not in held]
        self.house.broker.transaction(publishes, [(delivery, outcome) for delivery in held], _ignore)

    def bulk(self, name: str, size: int, is_undone: bool) -> None:
        bulk = self.house.broker.bulk()
        rows = encoded(encode_block(0, [Message(Source("orders/1"), b"x" * size, 1)] * 2))
        try:
            bulk.add(TO_QUEUE, name, rows)
            bulk.add(TO_TOPIC, "", rows)
        except HeadraceError:
            is_undone = True
        if is_undone:
            bulk.undo()
            return
        self.jobs += 1
        bulk.commit(f"job {self.jobs}", self.jobs, _ignore)

    def settle(self, outcome: int) -> None:
        for inbox in self.inboxes:
            for delivery in inbox.take()[:3]:
                self.house.broker.settle(delivery, outcome)

    def consume(self, name: str) -> None:
        if len(self.inboxes) < 4:
            inbox = Inbox(self.house, f"consumer {len(self.inboxes)}", 3, False, 0, None)
            self.house.broker.consume(name, inbox.consumer)
            self.inboxes.append(inbox)

    def delete(self, name: str) -> None:
        self.house.broker.delete(name)

    def declare(self, name: str) -> None:
        self.house.broker.declare(_QUEUES[_NAMES.index(name)])
        self.house.broker.bind(Binding("all", name))

    def purge(self, name: str) -> None:
        self.house.broker.purge(name)

    def listen(self, number: int) -> None:
        listener = Listener(self.house, str(number), lifetime_s=60)
        listener.subscribe("orders/#", 1)
        self.listeners.append(listener)

    def leave(self) -> None:
        if self.listeners:
            self.listeners.pop().leave()

    def fail(self, failure: HeadraceError | None, fails_all: bool) -> None:
        self.engine.failure, self.engine.fails_all = failure, fails_all

    def refuse(self, refusal: HeadraceError | None) -> None:
        self.engine.refusal = refusal

    def shut(self, is_shut: bool) -> None:
        if is_shut:
            self.engine.is_closed_door = True
        else:
            self.engine.refusal = None
            self.engine.open_door()

    def turn(self) -> None:
        self.house.turn()

    def advance(self, seconds: float) -> None:
        self.house.advance(seconds)

    def limit(self, high_bytes: int) -> None:
        self.house.broker.administration.limit(high_bytes, 2 * high_bytes, 1000)

    # -- the end -----------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Have storage take everything again, for good."""
        self.engine.failure = self.engine.refusal = None
        self.engine.fails_all = False
        self.engine.open_door()
        for _ in range(3):
            for broker in (self.main, self.other):
                self.use(broker)
                self.house.advance(2)

    def consume_everything(self, broker: Broker) -> None:
        self.use(broker)
        for inbox in self.inboxes:
            for delivery in inbox.take():
                _tolerate(broker.settle, delivery, ACK)
            broker.cancel(inbox.consumer)
        self.inboxes.clear()
        while self.listeners:
            self.listeners.pop().leave()
        self.house.advance(120)  # sessions end, delayed messages come back
        for _ in range(3):
            for name in list(broker.topology.queues):
                queue = broker.topology.queues[name]
                if queue.definition.is_stream:
                    broker.delete(name)
                elif not name.startswith("$"):
                    self.house.consume(name, auto_ack=True)
            self.house.advance(2)

    def counters(self, broker: Broker) -> dict[str, int]:
        line = broker._pipeline
        staged = {
            f"staged for {queue.name}": queue.depth._staged + queue.depth._staged_bytes
            for queue in broker.topology.queues.values()
        }
        return {
            "waiting": line.waiting_bytes,
            "in the turn": line.batch.size_bytes,
            "in memory": line.memory.size_bytes,
            "waiting in all": self.flow._waiting_bytes,
            "in memory in all": self.flow._memory_bytes,
            "held": len(self.flow._held),
            "staged in storage": self.engine.staged_bytes,
            **staged,
        }


def _ignore(error: HeadraceError | None) -> None:
    return


def _tolerate(call: Callable[..., object], *arguments: object) -> None:
    try:
        call(*arguments)
    except HeadraceError:
        return


def _play(town: _Town, steps: Sequence[tuple[object, ...]]) -> None:
    for name, *arguments in steps:
        _tolerate(getattr(town, str(name)), *arguments)


@given(_steps, _steps)
@settings(max_examples=2 * settings().max_examples, deadline=None)
def test_all_counters_are_0_once_everything_is_consumed(
    steps: list[tuple[object, ...]], others: list[tuple[object, ...]]
) -> None:
    town = _Town()
    town.use(town.other)
    _play(town, others)
    town.inboxes.clear()
    town.listeners.clear()
    town.use(town.main)
    _play(town, steps)

    ended: list[bool] = []
    administration = town.other.administration
    administration.dissolve(lambda _: administration.end(_ignore, lambda: ended.append(True)))
    town.recover()
    town.consume_everything(town.main)

    assert ended
    _assert_nothing_counts(town)
    for name in ("passing", "graves") * 5:  # no commit of anything durable comes to the rescue
        _tolerate(town.publish, name, 91)
        town.turn()
    _assert_nothing_counts(town)
    assert town.flow._shares.keys() <= {town.main._pipeline}


def _assert_nothing_counts(town: _Town) -> None:
    counters = town.counters(town.main)
    assert counters == dict.fromkeys(counters, 0)
    assert not town.flow.blocked
    assert not town.is_told_blocked

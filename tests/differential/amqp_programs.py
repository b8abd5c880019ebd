"""Random programs of AMQP 0-9-1 operations. A seed gives the same program everywhere. Running them: amqp_runner.py.

Names are short: Q1 is a queue, X1 an exchange, G1 the first queue that the server named; the runner makes names of them
that no other program has. Most arguments are good, some are not.
"""

import random
from dataclasses import dataclass, field
from typing import Any, Final

QUEUES: Final = ("Q1", "Q2", "Q3")
EXCHANGES: Final = ("X1", "X2", "X3")
KEYS: Final = ("a", "b", "a.b", "a.b.c", "", "*.b", "a.#", "#")
TAGS: Final = ("t1", "t2", "t3")
CHANNELS: Final = ((1, 1), (1, 2), (2, 1))
"""Connection and channel; the first does most."""


@dataclass(frozen=True)
class Step:
    """One operation on one channel, with the fields of its method."""

    name: str
    place: tuple[int, int]
    fields: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        words = " ".join(f"{name}={value!r}" for name, value in self.fields.items())
        return f"{self.place[0]}/{self.place[1]} {self.name} {words}".rstrip()


CLASSIC: Final = "classic"
QUORUM: Final = "quorum"
STREAM: Final = "stream"


class Programs:
    """Makes the program of a seed, for queues of one type above all."""

    def __init__(self, seed: int, kind: str = CLASSIC) -> None:
        self._random = random.Random(f"amqp {seed}" if kind == CLASSIC else f"{kind} {seed}")
        self._kind = kind
        self._bodies = 0

    def program(self) -> list[Step]:
        """Some declarations, then anything."""
        steps = [self._queue(is_good=True) for _ in range(self._random.randint(1, 2))]
        if self._random.random() < 0.6:
            steps.append(self._exchange(is_good=True))
            steps.append(self._bind())
        if self._kind == STREAM:  # a stream has no consumer without a prefetch
            steps += [Step("basic.qos", place, {"prefetch_count": 50}) for place in CHANNELS]
        weights = {**_WEIGHTS, **_OTHER_WEIGHTS.get(self._kind, {})}
        for name in self._random.choices(list(weights), list(weights.values()), k=self._random.randint(4, 16)):
            steps.append(getattr(self, f"_{name}")())
        return steps

    def _maybe(self, chance: float) -> bool:
        return self._random.random() < chance

    def _place(self) -> tuple[int, int]:
        return self._random.choices(CHANNELS, (6, 2, 2))[0]

    def _name(self, names: tuple[str, ...]) -> str:
        if self._maybe(0.04):
            return self._random.choice(("", "Q9", "X9", "amq.gen-x", "amq.direct", "amq.topic", "amq.fanout"))
        return self._random.choices(names, range(len(names), 0, -1))[0]

    def _step(self, name: str, **fields: Any) -> Step:
        return Step(name, self._place(), fields)

    # -- topology ----------------------------------------------------------------------------------------------------

    def _queue(self, is_good: bool = False) -> Step:
        name = self._random.choice(QUEUES[:2]) if is_good else self._name(QUEUES)
        if not is_good and self._maybe(0.1):
            name = ""
        if not is_good and self._maybe(0.15):
            return self._step("queue.declare", queue=name, passive=True)
        is_other = self._kind != CLASSIC and (is_good or self._maybe(0.8))
        often = 0.02 if is_other else 0.15
        flags = {
            "durable": self._maybe(0.98 if is_other else 0.3),
            "exclusive": self._maybe(0 if is_good and is_other else often),
            "auto_delete": self._maybe(0 if is_good and is_other else often),
        }
        if is_good and is_other:
            flags["durable"] = True
        if not is_good:
            flags["nowait"] = self._maybe(0.03)
        arguments = self._queue_arguments(is_good, self._kind if is_other else CLASSIC)
        return self._step("queue.declare", queue=name, **flags, arguments=arguments)

    def _queue_arguments(self, is_good: bool, kind: str) -> dict[str, object]:
        found: dict[str, object] = {} if kind == CLASSIC else {"x-queue-type": kind}
        known = _OTHER_ARGUMENTS.get(kind, _QUEUE_ARGUMENTS)
        for _ in range(self._random.choices((0, 1, 2), (5, 4, 1))[0]):
            name, good, bad = self._random.choice([each for each in known if each[1]] if is_good else known)
            found[name] = self._random.choice(good if good and (is_good or self._maybe(0.8)) else bad)
        if "x-dead-letter-exchange" in found and self._maybe(0.5):
            found["x-dead-letter-routing-key"] = self._random.choice(("Q1", "Q2", "a"))
        return found

    def _exchange(self, is_good: bool = False) -> Step:
        name = self._random.choice(EXCHANGES[:2]) if is_good else self._name(EXCHANGES)
        if not is_good and self._maybe(0.15):
            return self._step("exchange.declare", exchange=name, exchange_type="", passive=True)
        kind = self._random.choice(("direct", "fanout", "topic", "headers"))
        if not is_good and self._maybe(0.05):
            kind = self._random.choice(("x-bogus", "", "Direct"))
        arguments: dict[str, object] = {}
        if self._maybe(0.15):
            arguments["alternate-exchange"] = self._random.choice(("X1", "X2", "", "amq.fanout"))
            if not is_good and self._maybe(0.2):
                arguments["alternate-exchange"] = self._random.choice((1, True, ["X1"]))
        return self._step(
            "exchange.declare",
            exchange=name,
            exchange_type=kind,
            durable=self._maybe(0.3),
            auto_delete=self._maybe(0.15),
            internal=self._maybe(0.08),
            arguments=arguments,
        )

    def _exchange_delete(self) -> Step:
        return self._step("exchange.delete", exchange=self._name(EXCHANGES), if_unused=self._maybe(0.4))

    def _bind(self) -> Step:
        return self._step("queue.bind", **self._binding("queue", QUEUES))

    def _unbind(self) -> Step:
        return self._step("queue.unbind", **self._binding("queue", QUEUES))

    def _exchange_bind(self) -> Step:
        fields = self._binding("destination", EXCHANGES)
        fields["source"] = fields.pop("exchange")
        return self._step("exchange.bind", **fields)

    def _exchange_unbind(self) -> Step:
        fields = self._binding("destination", EXCHANGES)
        fields["source"] = fields.pop("exchange")
        return self._step("exchange.unbind", **fields)

    def _binding(self, to: str, names: tuple[str, ...]) -> dict[str, Any]:
        arguments: dict[str, object] = {}
        if self._maybe(0.25):
            arguments = {"x-match": self._random.choice(("all", "any", "any", "all-with-x", "any-with-x"))}
            arguments[self._random.choice(("h", "i", "x-h"))] = self._random.choice((1, "1", True, None))
            if self._maybe(0.1):
                arguments["x-match"] = self._random.choice(("some", 1, "", "ALL"))
        source = self._name(EXCHANGES)
        if self._maybe(0.2):
            source = self._random.choice(("amq.direct", "amq.topic", "amq.fanout", "amq.headers", "amq.match"))
        return {
            to: self._name(names),
            "exchange": source,
            "routing_key": self._random.choice(KEYS),
            "arguments": arguments,
        }

    def _purge(self) -> Step:
        return self._step("queue.purge", queue=self._name(QUEUES))

    def _delete(self) -> Step:
        return self._step(
            "queue.delete", queue=self._name(QUEUES), if_unused=self._maybe(0.3), if_empty=self._maybe(0.3)
        )

    # -- messages ----------------------------------------------------------------------------------------------------

    def _publish(self) -> Step:
        self._bodies += 1
        exchange, key = "", self._random.choice((*QUEUES, "Q1", "Q1"))
        if self._maybe(0.4):
            exchange = self._name(EXCHANGES)
            key = self._random.choice(KEYS)
        properties: dict[str, Any] = {}
        if self._maybe(0.3):
            name, good, bad = self._random.choice(_PROPERTIES)
            properties[name] = self._random.choice(good if self._maybe(0.85) else bad)
        if self._maybe(0.25):
            properties["headers"] = self._headers()
        body = f"m{self._bodies}" if self._maybe(0.97) else self._random.choice(("", "m" * 200_000))
        return self._step(
            "basic.publish",
            exchange=exchange,
            routing_key=key,
            mandatory=self._maybe(0.25),
            immediate=self._maybe(0.01),
            properties=properties,
            body=body,
        )

    def _headers(self) -> dict[str, object]:
        found: dict[str, object] = {}
        for _ in range(self._random.randint(1, 2)):
            name = self._random.choice(("h", "i", "x-h"))
            found[name] = self._random.choice((1, "1", True, None, 1.5, ["a"], {"a": 1}))
        if self._maybe(0.25):
            copies: object = [self._random.choice((*QUEUES, *KEYS)) for _ in range(2)]
            if self._maybe(0.15):
                copies = self._random.choice(("Q1", 1, [1]))
            found[self._random.choice(("CC", "BCC"))] = copies
        return found

    def _get(self) -> Step:
        return self._step("basic.get", queue=self._name(QUEUES), no_ack=self._maybe(0.4))

    def _read(self) -> Step:
        """Consume a stream from somewhere."""
        positions: tuple[object, ...] = ("first", "next", 0, 1, 2, 100, "1h", "0s", "soon", -1, True, 1.5, ["first"])
        weights = (6, 4, 2, 2, 2, 1, 2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2)
        return self._step(
            "basic.consume",
            queue=self._name(QUEUES),
            consumer_tag=self._random.choice(TAGS),
            no_ack=self._maybe(0.05),
            exclusive=self._maybe(0.05),
            arguments={"x-stream-offset": self._random.choices(positions, weights)[0]},
        )

    def _consume(self) -> Step:
        arguments: dict[str, object] = {}
        if self._maybe(0.15):
            arguments["x-priority"] = self._random.choice((1, 5, -1, 0))
            if self._maybe(0.1):
                arguments["x-priority"] = self._random.choice(("1", True))
        return self._step(
            "basic.consume",
            queue=self._name(QUEUES),
            consumer_tag=self._random.choice((*TAGS, "")),
            no_ack=self._maybe(0.35),
            no_local=self._maybe(0.05),
            exclusive=self._maybe(0.12),
            arguments=arguments,
        )

    def _cancel(self) -> Step:
        return self._step("basic.cancel", consumer_tag=self._random.choice(TAGS))

    def _qos(self) -> Step:
        size = 1 if self._maybe(0.02) else 0
        count = self._random.choice((0, 1, 1, 2, 3))
        return self._step(
            "basic.qos", prefetch_size=size, prefetch_count=count, global_=self._maybe(self._often_global)
        )

    @property
    def _often_global(self) -> float:
        return 0.25 if self._kind == CLASSIC else 0.05

    def _tag(self) -> object:
        """The place of a delivery among the unsettled ones, or a tag as it is."""
        if self._maybe(0.06):
            return self._random.choice((99, 0, 1))
        return ("nth", self._random.choice((0, 0, 0, 1, 2, -1)))

    def _ack(self) -> Step:
        return self._step("basic.ack", delivery_tag=self._tag(), multiple=self._maybe(0.25))

    def _nack(self) -> Step:
        return self._step("basic.nack", delivery_tag=self._tag(), multiple=self._maybe(0.25), requeue=self._maybe(0.6))

    def _reject(self) -> Step:
        return self._step("basic.reject", delivery_tag=self._tag(), requeue=self._maybe(0.6))

    def _recover(self) -> Step:
        return self._step("basic.recover", requeue=self._maybe(0.95))

    # -- channels ----------------------------------------------------------------------------------------------------

    def _mode(self) -> Step:
        return self._step(self._random.choice(("tx.select", "tx.select", "confirm.select")))

    def _commit(self) -> Step:
        return self._step(self._random.choices(("tx.commit", "tx.rollback"), (2, 1))[0])

    def _flow(self) -> Step:
        return self._step("channel.flow", active=self._maybe(0.7))

    def _close(self) -> Step:
        return self._step(self._random.choices(("channel.close", "connection.close"), (3, 1))[0])


_WEIGHTS: Final = {
    "queue": 6,
    "exchange": 4,
    "exchange_delete": 2,
    "bind": 7,
    "unbind": 2,
    "exchange_bind": 2,
    "exchange_unbind": 1,
    "purge": 2,
    "delete": 2,
    "publish": 26,
    "get": 8,
    "consume": 10,
    "cancel": 3,
    "qos": 4,
    "ack": 9,
    "nack": 5,
    "reject": 4,
    "recover": 2,
    "mode": 2,
    "commit": 3,
    "flow": 1,
    "close": 2,
}

_OTHER_WEIGHTS: Final[dict[str, dict[str, float]]] = {
    QUORUM: {"nack": 8, "reject": 6, "recover": 0},
    STREAM: {"read": 12, "consume": 1, "get": 0.5, "purge": 0.5, "recover": 0.5, "nack": 3, "reject": 2},
}

_TEXT: Final = (1, True, 1.5)
_QUEUE_ARGUMENTS: Final[tuple[tuple[str, tuple[object, ...], tuple[object, ...]], ...]] = (
    ("x-message-ttl", (0, 60_000), (-1, "1", 1 << 33, True, 1.5)),
    ("x-expires", (60_000, 1_000_000), (0, -1, "1", 1 << 33, True)),
    ("x-max-length", (0, 1, 2, 3), (-1, "1", 1.5, True)),
    ("x-max-length-bytes", (0, 4, 6), (-1, "1")),
    ("x-max-priority", (0, 1, 5, 255), (-1, 256, "1", True)),
    ("x-overflow", ("drop-head", "reject-publish", "reject-publish-dlx"), ("drop", 1)),
    ("x-dead-letter-exchange", ("", "X1", "X2", "amq.fanout"), _TEXT),
    ("x-dead-letter-routing-key", ("Q1",), _TEXT),
    ("x-single-active-consumer", (True, False), ("true", 1)),
    ("x-queue-mode", ("lazy", "default"), ("bogus", 1)),
    ("x-queue-type", ("classic", "classic"), ("bogus", 1)),
    ("x-delivery-limit", (), (3, -1, "3")),
    ("x-max-age", (), ("1h", 1)),
    ("x-consumer-timeout", (60_000,), (0, -1, "1", True)),
    ("x-queue-version", (1, 2), (3, "1")),
    ("x-unknown", (1, "a"), (True, None)),
)
_OTHER_ARGUMENTS: Final[dict[str, tuple[tuple[str, tuple[object, ...], tuple[object, ...]], ...]]] = {
    QUORUM: (
        ("x-message-ttl", (0, 60_000), (-1, "1", 1 << 33, True)),
        ("x-expires", (60_000,), (0, -1, "1")),
        ("x-max-length", (1, 2, 3), (-1, "1", True)),
        ("x-max-length-bytes", (4, 6), (-1, "1")),
        ("x-overflow", ("drop-head", "reject-publish"), ("reject-publish-dlx", "drop", 1)),
        ("x-dead-letter-exchange", ("", "X1", "amq.fanout"), _TEXT),
        ("x-delivery-limit", (1, 2, 3), (-1, "3", True)),
        ("x-single-active-consumer", (True, False), ("true", 1)),
        ("x-quorum-initial-group-size", (1, 3), (0, -1, "1")),
        ("x-max-in-memory-length", (1,), (-1, "1")),
        ("x-max-priority", (), (1,)),
        ("x-queue-mode", (), ("lazy", "default")),
        ("x-max-age", (), ("1h",)),
    ),
    STREAM: (
        ("x-max-length-bytes", (1_000_000,), (-1, "1")),
        ("x-max-age", ("1h", "7D"), ("1x", 1, "", "0h")),
        ("x-stream-max-segment-size-bytes", (1_000_000,), (-1, "1", True)),
        ("x-initial-cluster-size", (1,), (0, -1, "1")),
        ("x-queue-leader-locator", ("client-local",), ("nowhere", 1)),
        ("x-message-ttl", (), (60_000,)),
        ("x-max-priority", (), (1,)),
        ("x-dead-letter-exchange", (), ("",)),
        ("x-single-active-consumer", (), (True,)),
        ("x-delivery-limit", (), (3,)),
        ("x-expires", (), (60_000,)),
    ),
}

_PROPERTIES: Final[tuple[tuple[str, tuple[object, ...], tuple[object, ...]], ...]] = (
    ("expiration", ("0", "60000"), ("-1", "abc", "4294967296", "1.5")),
    ("priority", (0, 1, 4, 9), (255,)),
    ("delivery_mode", (1, 2), (3,)),
    ("user_id", ("guest",), ("nobody",)),
    ("correlation_id", ("c",), ("c" * 255,)),
    ("content_type", ("text/plain",), ("\u00e9",)),
    ("message_id", ("i",), ("i",)),
    ("timestamp_s", (1, 1_700_000_000), (0,)),
    ("reply_to", ("Q1",), ("amq.rabbitmq.reply-to",)),
    ("app_id", ("app",), ("app",)),
)

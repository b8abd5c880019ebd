"""Loads, steps and scenarios as values. The list is in catalog.py."""

from dataclasses import dataclass
from typing import Final, Literal

from bench.compare.shape import Shape
from headrace.errors import HeadraceError

Mode = Literal["publish", "drain", "flow"]
Family = Literal["amqp", "amqp10", "mqtt", "mqtt5", "nats", "spark"]
Client = Literal["", "pika", "aio-pika", "celery", "perftest"]

PREFIX: Final = "bench"
"""The prefix of every queue, exchange, stream and topic of a measurement."""
FRAMES_AT_ONCE: Final = 64
MAX_KEYS: Final = 4096
_PATTERNS: Final = 10
_TOPICS: Final = 8


class Unsupported(HeadraceError):
    """The broker cannot do what the scenario asks for, and said so."""


class Wrong(HeadraceError):
    """Messages came back changed, or not at all."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address and login of one protocol of a broker."""

    host: str
    port: int
    user: str = ""
    password: str = ""
    vhost: str = "/"
    queue_address: str = "/queues/{}"
    """The form in which an AMQP 1.0 client names a queue."""


@dataclass(frozen=True, slots=True)
class Load:
    """Settings of publishers and consumers, in the words of one protocol."""

    family: Family
    size: int = 100
    shape: Shape = ""
    client: Client = ""
    """A library that publishes and consumes; "" for the generator's own bytes."""
    publishers: int = 1
    consumers: int = 1
    queues: int = 1
    is_stream: bool = False
    exchange: Literal["", "fanout", "topic"] = ""
    bindings: int = 0
    keys: int = MAX_KEYS
    """Number of routing keys that are used in turn, where there are bindings."""
    qos: int = 1
    rate: int = 0
    """Messages a second of all publishers together; 0 for as fast as they go."""
    at_once: int = FRAMES_AT_ONCE
    in_row: int = 1
    """Number of messages to one queue before the next is its turn, where there are several queues."""
    window: int = 1024
    ahead: int = 4096
    """Number of messages that publishers may be ahead of the consumers."""
    prefetch: int = 1000
    ack_every: int = 100
    idle: int = 0
    """Connections that are open beside those that work."""
    naps: bool = True
    """True if the generator sleeps a little after each turn, to deal with many messages at a time."""

    @property
    def fans_out(self) -> bool:
        """True if each consumer gets every message."""
        return self.family == "mqtt" or self.is_stream or self.exchange == "fanout"

    @property
    def lanes(self) -> int:
        """Number of sequences of messages, each in its own order, that one publisher makes: one for each queue."""
        return 1 if self.exchange else self.queues

    @property
    def is_exclusive(self) -> bool:
        """True if a consumer gets all messages of the lanes that it gets any of."""
        return self.fans_out or self.family == "mqtt5" or self.consumers <= self.queues

    def queue_names(self) -> list[str]:
        """Names of the same length, so that messages to different queues have the same size."""
        return [f"{PREFIX}.{number:05}" for number in range(self.queues)]

    def routing_keys(self) -> list[str]:
        """Keys of published messages: the same however many bindings there are."""
        return [_key(number) for number in range(self.keys)] if self.bindings else []

    def routes(self) -> int:
        """Number of queues, keys or topics that the messages of one lane go to in turn."""
        if self.family == "mqtt5":
            return _TOPICS
        return self.keys if self.bindings else 1

    def binding_keys(self) -> list[str]:
        """Keys of bindings: patterns that all of these keys fit, and then one key after the other."""
        patterns = [f"{PREFIX}.{digit}.*" for digit in range(_PATTERNS)]
        return patterns[: self.bindings] + [_key(number) for number in range(self.bindings - _PATTERNS)]

    def queues_of(self, consumer: int) -> list[str]:
        """Queues of one consumer; they are shared out, or shared where there are fewer than consumers."""
        names = self.queue_names()
        return names[consumer :: self.consumers] or [names[consumer % len(names)]]


@dataclass(frozen=True, slots=True)
class Step:
    """A part of a scenario that is measured by itself."""

    name: str
    title: str
    mode: Mode
    messages: int = 0
    """Number of messages to publish; 0 for as many as there is time for."""
    is_row: bool = True
    is_paced: bool = False
    """True if consumers take no more than this step has published, so that the backlog stays as long."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """The same question to every broker, each asked in a protocol that it speaks: the first of `loads` that it does."""

    name: str
    loads: tuple[Load, ...]
    steps: tuple[Step, ...]
    is_main: bool = False
    """True if it belongs to the first table, which is run by default."""
    is_fresh: bool = False
    """True if the broker is started anew for it, because its memory is part of the answer."""
    axis: str = ""
    point: int = 0

    def load_for(self, spoken: "frozenset[Family] | dict[Family, Endpoint]") -> Load | None:
        return next((load for load in self.loads if load.family in spoken), None)

    def rows(self) -> list[Step]:
        return [step for step in self.steps if step.is_row]


@dataclass(frozen=True, slots=True)
class Job:
    """Orders of the generator's processes."""

    load: Load
    step: Step
    endpoint: Endpoint
    seconds: float
    firsts: tuple[int, ...] = ()
    """For each publisher the first sequence number of its lanes; all 0 when it is empty."""
    taken: tuple[int, ...] = ()
    """For each publisher how many messages of its lanes were consumed before."""
    counters: str = ""
    stall_seconds: float = 30.0
    limit_seconds: float = 300.0

    @property
    def is_timed(self) -> bool:
        """True if the time from publish to delivery says something: not where messages wait to be drained."""
        return self.step.mode == "flow" and not self.step.is_paced


def _key(number: int) -> str:
    return f"{PREFIX}.{number % _PATTERNS}.{number:06}"

"""What a queue is declared to be: its type, limits, retries, dead letters, retention. Values; queue.py acts on them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.config.groups import meant
from headrace.core.arguments import frozen, table_from_json, table_to_json
from headrace.errors import PreconditionFailed

CLASSIC: Final = "classic"
QUORUM: Final = "quorum"
STREAM: Final = "stream"
EPHEMERAL: Final = "ephemeral"
KINDS: Final = (CLASSIC, QUORUM, STREAM, EPHEMERAL)

DROP_HEAD: Final = "drop-head"
REJECT_PUBLISH: Final = "reject-publish"
REJECT_PUBLISH_DLX: Final = "reject-publish-dlx"
OVERFLOWS: Final = (DROP_HEAD, REJECT_PUBLISH, REJECT_PUBLISH_DLX)

FSYNC: Final = "fsync"
BUFFERED: Final = "buffered"
SYNC: Final = "sync"
ASYNC: Final = "async"
DURABILITIES: Final = (BUFFERED, FSYNC)

MAX_NAME_BYTES: Final = 255
DEFAULT_MAX_MESSAGE_BYTES: Final = 10 << 20
DEFAULT_LEASE_MS: Final = 30_000
DEFAULT_CONSUMER_TIMEOUT_MS: Final = 30 * 60_000
EPHEMERAL_EXPIRES_MS: Final = 5 * 60_000
QUORUM_DELIVERY_LIMIT: Final = 20

COMPARED: Final = (
    "x-consumer-timeout",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-delivery-limit",
    "x-expires",
    "x-filter",
    "x-max-age",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-message-ttl",
    "x-overflow",
    "x-single-active-consumer",
    "x-source",
    "x-source-from",
)
"""The arguments that make a queue what it is: only in these may a second declaration not differ from the first."""


@dataclass(frozen=True)
class Retry:
    """How often a message is tried again, and how long it waits before each time."""

    max_retries: int = 10
    initial_backoff_ms: int = 5_000
    max_backoff_ms: int = 300_000
    multiplier: float = 2.0


@dataclass(frozen=True)
class Retention:
    """What a stream may drop. 0 means no bound."""

    max_age_ms: int = 0
    max_bytes: int = 0
    max_messages: int = 0
    keep_until_archived: bool = False
    """Whether everything stays that the group ARCHIVE has not reported as archived, whatever the bounds say."""


@dataclass(frozen=True)
class QueueDefinition:
    """One queue as declared. None or 0 means that there is no such limit, unless said otherwise."""

    name: str
    kind: str = CLASSIC
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    expires_ms: int = 0
    """Unused for this long, the queue is deleted."""
    topics: tuple[str, ...] = ()
    capture: bool = False
    """Whether plain topics, not only `$queue/` ones, feed the queue through `topics`."""
    reserved: bool = False
    filter: str = ""
    """A filter expression that messages must satisfy to enter the queue."""
    source: str = ""
    """A stream from which the queue gets what satisfies its filter, besides what is published to it."""
    source_from: str = ""
    """Where it begins there: see parse_position; at the beginning if nothing is said."""
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: str = DROP_HEAD
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    message_ttl_ms: int | None = None
    """0 means that a message that cannot be delivered at once is gone."""
    max_priority: int = 0
    single_active: bool = False
    lease_ms: int = DEFAULT_LEASE_MS
    delivery_limit: int | None = None
    retry: Retry | None = None
    """None: what is handed back is ready again at once."""
    dead_letter_exchange: str | None = None
    dead_letter_key: str | None = None
    dead_letter_queue: str = ""
    """Where dead letters go when there is no exchange for them; "" when they are dropped."""
    retention: Retention = field(default_factory=Retention)
    primary_group: str = ""
    history_ms: int = 0
    """How long it is kept who claimed a message, when, and how it ended; 0 for not at all."""
    ack_durability: str = FSYNC
    """Whether a publisher is told before (`buffered`) or after (`fsync`) its message would survive a power loss."""
    description: str = ""
    """What it is for, in its owner's words."""
    replication: dict[str, object] = field(default_factory=dict)
    """As it was configured; what counts of it is told by `is_synced` and `ack_timeout_ms`."""
    arguments: dict[str, object] = field(default_factory=dict)

    @property
    def is_stream(self) -> bool:
        return self.kind == STREAM

    @property
    def is_stored(self) -> bool:
        """Whether the queue and its messages survive a restart."""
        return self.durable and not self.exclusive and self.kind != EPHEMERAL

    @property
    def is_synced(self) -> bool:
        """Whether publishers hear of a message only when it is stored for good, not when it is on its way."""
        return self.ack_durability != BUFFERED and self._replication_mode != ASYNC

    @property
    def ack_timeout_ms(self) -> int:
        """After so long publishers are told that a message was not stored; 0 for when storage gives up."""
        timeout_ms = self.replication.get("ack_timeout_ms")
        return timeout_ms if self._replication_mode == SYNC and isinstance(timeout_ms, int) else 0

    @property
    def replication_group(self) -> str:
        """The replication group that it was said to be in; "" where none was named."""
        group = str(self.replication.get("group", "")) if self.replication.get("enabled") else ""
        return meant(group) if group else ""

    @property
    def _replication_mode(self) -> str:
        return str(self.replication.get("mode", SYNC)) if self.replication.get("enabled") else ""

    @property
    def has_consumer_timeout(self) -> bool:
        """Whether the lease is RabbitMQ's consumer timeout, which ends the channel of a consumer that is too slow."""
        return "x-consumer-timeout" in self.arguments or self.lease_ms == DEFAULT_CONSUMER_TIMEOUT_MS

    @property
    def has_dead_letters(self) -> bool:
        """Whether messages that are given up go anywhere."""
        return self.dead_letter_exchange is not None or bool(self.dead_letter_queue)

    @property
    def lifetime_ms(self) -> int:
        """Unused for this long, the queue goes away; 0 for never."""
        return self.expires_ms or (EPHEMERAL_EXPIRES_MS if self.kind == EPHEMERAL else 0)

    def check_equivalent(self, declared: "QueueDefinition") -> None:
        """Accept a declaration that says what this queue is. Raises PreconditionFailed when it differs."""
        pairs: list[tuple[str, object, object]] = [
            ("durable", declared.durable, self.durable),
            ("exclusive", declared.exclusive, self.exclusive),
            ("auto_delete", declared.auto_delete, self.auto_delete),
            ("x-queue-type", declared.kind, self.kind),
        ]
        pairs += [(name, declared.arguments.get(name), self.arguments.get(name)) for name in COMPARED]
        for name, received, current in pairs:
            if frozen(received) != frozen(current):
                raise PreconditionFailed(
                    f"inequivalent arg '{name}' for queue '{self.name}': "
                    f"received {_shown(received)} but current is {_shown(current)}"
                )

    def to_json(self) -> dict[str, object]:
        """The definition as JSON can hold it."""
        values = _members(self)
        values["topics"] = list(self.topics)
        values["retry"] = None if self.retry is None else _members(self.retry)
        values["retention"] = _members(self.retention)
        values["replication"] = table_to_json(self.replication)
        values["arguments"] = table_to_json(self.arguments)
        return values

    @staticmethod
    def from_json(values: Mapping[str, object]) -> "QueueDefinition":
        """The definition that `to_json` wrote; members that are not known are ignored."""
        known = {name: value for name, value in values.items() if name in QueueDefinition.__dataclass_fields__}
        topics, retry, retention = known.get("topics"), known.get("retry"), known.get("retention")
        known["topics"] = tuple(topics) if isinstance(topics, list) else ()
        known["retry"] = Retry(**_known(Retry, retry)) if isinstance(retry, dict) else None
        known["retention"] = Retention(**_known(Retention, retention)) if isinstance(retention, dict) else Retention()
        known["replication"] = table_from_json(known.get("replication", {}))
        known["arguments"] = table_from_json(known.get("arguments", {}))
        return QueueDefinition(**known)  # type: ignore[arg-type]


def _members(value: QueueDefinition | Retry | Retention) -> dict[str, object]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def _known(kind: type[Retry] | type[Retention], values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in kind.__dataclass_fields__}


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return f"'{str(value).lower()}'" if isinstance(value, bool) else f"the value {value!r}"

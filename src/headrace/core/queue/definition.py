"""The definition of a queue: type, limits, retries, dead letters, retention, start of reading. Values only."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast, final

from headrace.config.kinds import Choice, Duration, Flag, Kind, Number, Text, Unfit
from headrace.config.replication import meant
from headrace.config.table import Key, Table, read_arguments
from headrace.core.routing.address import QUEUE_PREFIX
from headrace.errors import BadExpression, PreconditionFailed, Refused
from headrace.selector import parse
from headrace.wire.properties import frozen, table_from_json, table_to_json
from headrace.wire.types import shown_argument

RESUME: Final = "resume"
FIRST: Final = "first"
LAST: Final = "last"
NEXT: Final = "next"
OFFSET: Final = "offset"
TIMESTAMP: Final = "timestamp"

_LATEST_US: Final = (1 << 63) - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_AGE: Final = re.compile(r"([0-9]{1,9})([YMDhms])")
_UNIT_SECONDS: Final = {"Y": 365 * 86_400, "M": 30 * 86_400, "D": 86_400, "h": 3600, "m": 60, "s": 1}


def parse_position(value: object, now_us: int = -1) -> tuple[str, int]:
    """Return the position that `x-stream-offset` names: (resume|first|last|next, 0), (offset, n) or (timestamp, us).

    An age (`5m`) counts back from `now_us`; without that it is refused. Raises Refused for any other form.
    """
    if value is None or value == "":
        return RESUME, 0
    if isinstance(value, bool):
        raise _bad_position(value)
    if isinstance(value, int):
        return _offset(value, value)
    if isinstance(value, datetime):
        since = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return TIMESTAMP, (since - _EPOCH) // timedelta(microseconds=1)
    if not isinstance(value, str):
        raise _bad_position(value)
    if value in ("first", "earliest"):
        return FIRST, 0
    if value == LAST:
        return LAST, 0
    if value in ("next", "latest"):
        return NEXT, 0
    if now_us >= 0 and (age := _AGE.fullmatch(value)) and int(age[1]):
        return TIMESTAMP, max(0, now_us - int(age[1]) * _UNIT_SECONDS[age[2]] * 1_000_000)
    form, equals, number = value.partition("=")
    digits = number if equals else form
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 19) or (
        equals and form not in (OFFSET, TIMESTAMP)
    ):
        raise _bad_position(value)
    if form == TIMESTAMP:
        time = int(digits)
        return TIMESTAMP, min(time * 1000 if time > 10**12 else time * 1_000_000, _LATEST_US)
    return _offset(int(digits), value)


def position_text(value: object) -> str:
    """Return a position as a string to be stored; "" for none. Raises Refused."""
    kind, number = parse_position(value)
    if kind == TIMESTAMP:
        return f"{TIMESTAMP}={number // 1000}" if isinstance(value, datetime) else str(value)
    return {RESUME: "", FIRST: "earliest", LAST: LAST, NEXT: "latest"}.get(kind, str(number))


def _offset(offset: int, value: object) -> tuple[str, int]:
    if not 0 <= offset < 1 << 63:
        raise _bad_position(value)
    return OFFSET, offset


def _bad_position(value: object) -> Refused:
    return Refused(
        f"stream offset {value!r} is none of: first, last, next, a number, offset=<number>, timestamp=<unix time>, "
        f"an age such as 5m"
    )


@final
class Position(Kind):
    """A position in a stream; `read` returns it as `position_text` does."""

    noun = "earliest, latest, an offset or timestamp=TIME"

    def read(self, value: object) -> object:
        try:
            return position_text(value)
        except Refused as error:
            raise Unfit(f"must be {self.noun}") from error

    def schema(self) -> dict[str, object]:
        return {"type": ["string", "integer"]}

    def show(self, value: object) -> str:
        return str(value) or '""'


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

HISTORY_PREFIX: Final = "$history/"
INNER_PREFIXES: Final = ("$session/", "$share/")
"""Prefixes of the broker's own queues: see pubsub.py."""
MAX_NAME_BYTES: Final = 255
DEFAULT_MAX_MESSAGE_BYTES: Final = 10 << 20
DEFAULT_LEASE_MS: Final = 30_000
DEFAULT_CONSUMER_TIMEOUT_MS: Final = 30 * 60_000
EPHEMERAL_EXPIRES_MS: Final = 5 * 60_000
QUORUM_DELIVERY_LIMIT: Final = 20

_WORK_ARGUMENTS: Final = (
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-overflow",
    "x-queue-mode",
    "x-queue-version",
    "x-queue-master-locator",
    "x-single-active-consumer",
)
ARGUMENTS: Final = {
    CLASSIC: _WORK_ARGUMENTS,
    QUORUM: (
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-dead-letter-strategy",
        "x-expires",
        "x-max-length",
        "x-max-length-bytes",
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
        "x-overflow",
        "x-single-active-consumer",
        "x-quorum-initial-group-size",
        "x-delivery-limit",
        "x-message-ttl",
    ),
    STREAM: (
        "x-max-length",
        "x-max-length-bytes",
        "x-max-age",
        "x-stream-max-segment-size-bytes",
        "x-initial-cluster-size",
    ),
}
"""RabbitMQ's arguments of each type of queue, in the order in which it compares them; `x-queue-type` comes first.

`x-max-length` of streams is ours.
"""
_OWN_ARGUMENTS: Final = ("x-consumer-timeout", "x-filter", "x-source", "x-source-from")
"""Arguments of all types of queues, without those of RabbitMQ."""
_IDLE: Final = ("x-queue-mode", "x-queue-version", "x-queue-master-locator")
COMPARED: Final = (
    *[name for name in _WORK_ARGUMENTS if name not in _IDLE],
    *_OWN_ARGUMENTS,
    "x-delivery-limit",
    "x-max-age",
)
"""The arguments that have a meaning here."""


@dataclass(frozen=True)
class Retry:
    """Number of retries of a failed message, and the delays before them."""

    max_retries: int = 10
    initial_backoff_ms: int = 5_000
    max_backoff_ms: int = 300_000
    multiplier: float = 2.0


@dataclass(frozen=True)
class Retention:
    """Bounds on the messages that a stream keeps, and on the settled ones that a work queue keeps. 0 = no bound."""

    max_age_ms: int = 0
    max_bytes: int = 0
    max_messages: int = 0
    keep_until_archived: bool = False
    """True if messages that the group ARCHIVE has not reported as archived stay, whatever the bounds."""

    @property
    def has_bounds(self) -> bool:
        return self.max_age_ms > 0 or self.max_bytes > 0 or self.max_messages > 0


@dataclass(frozen=True)
class QueueDefinition:
    """One queue as declared. None or 0 = no limit, unless said otherwise."""

    name: str
    kind: str = CLASSIC
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    expires_ms: int = 0
    """The queue is deleted after this long without use."""
    topics: tuple[str, ...] = ()
    capture: bool = False
    """True if plain topics, not only `$queue/` ones, feed the queue through `topics`."""
    reserved: bool = False
    filter: str = ""
    """A filter expression that messages must satisfy to enter the queue."""
    source: str = ""
    """A stream that fills the queue with messages that satisfy its filter, besides publishes to it."""
    source_from: str = ""
    """Position to start at in the source, see parse_position; "" for the beginning."""
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: str = DROP_HEAD
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    message_ttl_ms: int | None = None
    """With 0 a message that cannot be delivered at once is dropped."""
    max_priority: int = 0
    single_active: bool = False
    lease_ms: int = DEFAULT_LEASE_MS
    delivery_limit: int | None = None
    retry: Retry | None = None
    """None: a failed message is ready again at once."""
    dead_letter_exchange: str | None = None
    dead_letter_key: str | None = None
    dead_letter_queue: str = ""
    """The queue of dead letters when there is no exchange for them; "" drops them."""
    retention: Retention = field(default_factory=Retention)
    primary_group: str = ""
    history_ms: int = 0
    """Lifetime of the records of claims and ends of messages; 0 for no records."""
    ack_durability: str = FSYNC
    """The state in which a publish is confirmed: written (`buffered`) or durable (`fsync`)."""
    description: str = ""
    """The purpose of the queue, in its owner's words."""
    replication: dict[str, object] = field(default_factory=dict)
    """The replication settings as configured; `is_synced` and `ack_timeout_ms` follow from them."""
    arguments: dict[str, object] = field(default_factory=dict)

    @property
    def is_stream(self) -> bool:
        return self.kind == STREAM

    @property
    def is_stored(self) -> bool:
        """True if the queue and its messages survive a restart."""
        return self.durable and not self.exclusive and self.kind != EPHEMERAL

    @property
    def is_synced(self) -> bool:
        """True if publishers are confirmed only when a message is durable."""
        return self.ack_durability != BUFFERED and self._replication_mode != ASYNC

    @property
    def ack_timeout_ms(self) -> int:
        """Time after which publishers hear that a message is not stored; 0 for when storage gives up."""
        timeout_ms = self.replication.get("ack_timeout_ms")
        return timeout_ms if self._replication_mode == SYNC and isinstance(timeout_ms, int) else 0

    @property
    def replication_group(self) -> str:
        """The replication group that was named for it; "" for none."""
        group = str(self.replication.get("group", "")) if self.replication.get("enabled") else ""
        return meant(group) if group else ""

    @property
    def _replication_mode(self) -> str:
        return str(self.replication.get("mode", SYNC)) if self.replication.get("enabled") else ""

    @property
    def has_consumer_timeout(self) -> bool:
        """True if the lease is RabbitMQ's consumer timeout, which closes the channel of a slow consumer."""
        return "x-consumer-timeout" in self.arguments or self.lease_ms == DEFAULT_CONSUMER_TIMEOUT_MS

    @property
    def warnings(self) -> list[str]:
        """Warnings about settings that are probably a mistake."""
        idle = [repr(pattern) for pattern in self.topics if not (self.capture or pattern.startswith(QUEUE_PREFIX))]
        if not idle:
            return []
        return [
            f"queue {self.name!r} gets nothing by {', '.join(idle)}: without capture only topics that begin with "
            f"{QUEUE_PREFIX} lead to queues; add `capture: true` (--capture) to have what is published to plain topics"
        ]

    @property
    def has_dead_letters(self) -> bool:
        """True if messages that are given up are kept."""
        return self.dead_letter_exchange is not None or bool(self.dead_letter_queue)

    @property
    def lifetime_ms(self) -> int:
        """Time without use after which the queue is deleted; 0 for never."""
        return self.expires_ms or (EPHEMERAL_EXPIRES_MS if self.kind == EPHEMERAL else 0)

    def check_equivalent(self, declared: "QueueDefinition", host: str = "/") -> None:
        """Compare another declaration with this one. Raises PreconditionFailed when it differs."""
        pairs: list[tuple[str, object, object]] = [
            ("durable", declared.durable, self.durable),
            ("exclusive", declared.exclusive, self.exclusive),
            ("auto_delete", declared.auto_delete, self.auto_delete),
        ]
        for name, received, current in pairs:
            if received != current:
                raise self._differs(name, host, _shown(received), _shown(current))
        if declared.kind != self.kind:
            self._compare("x-queue-type", declared._type_argument, self._type_argument, host)
        for name in (*ARGUMENTS.get(self.kind, _WORK_ARGUMENTS), *_OWN_ARGUMENTS):
            self._compare(name, declared.arguments.get(name), self.arguments.get(name), host)

    @property
    def _type_argument(self) -> object:
        return self.arguments.get("x-queue-type", None if self.kind == CLASSIC else self.kind)

    def _compare(self, name: str, given: object, known: object, host: str) -> None:
        if frozen(given) != frozen(known):
            shown = _shown if given is not None and known is not None else shown_argument
            raise self._differs(name, host, shown(given), shown(known))

    def _differs(self, name: str, host: str, received: str, current: str) -> PreconditionFailed:
        return PreconditionFailed(
            f"inequivalent arg '{name}' for queue '{self.name}' in vhost '{host}': "
            f"received {received} but current is {current}"
        )

    @staticmethod
    def repeated(
        name: str, durable: bool, exclusive: bool, auto_delete: bool, arguments: Mapping[str, object] | None
    ) -> "QueueDefinition":
        """Return the declaration of a queue that exists, for `check_equivalent`: nothing is read from its arguments."""
        given = dict(arguments or {})
        kind = given.get("x-queue-type", CLASSIC)
        return QueueDefinition(
            name,
            kind if isinstance(kind, str) else "",
            durable=durable and kind != EPHEMERAL,
            exclusive=exclusive,
            auto_delete=auto_delete,
            arguments=given,
        )

    def to_json(self) -> dict[str, object]:
        """Return the definition as JSON values."""
        values = _members(self)
        values["topics"] = list(self.topics)
        values["retry"] = None if self.retry is None else _members(self.retry)
        values["retention"] = _members(self.retention)
        values["replication"] = table_to_json(self.replication)
        values["arguments"] = table_to_json(self.arguments)
        return values

    @staticmethod
    def from_json(values: Mapping[str, object]) -> "QueueDefinition":
        """Return the definition that `to_json` wrote; unknown members are ignored."""
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
    return f"'{str(value).lower() if isinstance(value, bool) else value}'"


_MAX_MS: Final = (1 << 32) - 1
_TEXT: Final = Text("expected a string")
_ARGUMENTS: Final = {
    "kind": Key("x-queue-type", Choice(*KINDS), CLASSIC, "Type of the queue."),
    "expires_ms": Key(
        "x-expires", Number(1, _MAX_MS), 0, "Milliseconds without use after which the queue is deleted; 0 for never."
    ),
    "max_length": Key("x-max-length", Number(), None, "Messages that may wait, or that a stream keeps."),
    "max_length_bytes": Key("x-max-length-bytes", Number(), None, "Bytes that may wait, or that a stream keeps."),
    "overflow": Key("x-overflow", Choice(*OVERFLOWS), DROP_HEAD, "Reaction of a full queue to a new message."),
    "message_ttl_ms": Key("x-message-ttl", Number(0, _MAX_MS), None, "Milliseconds for which a message may wait."),
    "max_priority": Key("x-max-priority", Number(0, 255), 0, "Highest priority; 0 for order of arrival."),
    "single_active": Key(
        "x-single-active-consumer", Flag(), False, "True if one consumer at a time gets all messages."
    ),
    "lease_ms": Key(
        "x-consumer-timeout",
        Number(1),
        DEFAULT_CONSUMER_TIMEOUT_MS,
        "Milliseconds for which a consumer may hold a message.",
    ),
    "delivery_limit": Key(
        "x-delivery-limit", Number(-1), None, "Redeliveries before a message is a dead letter; -1 for any number."
    ),
    "dead_letter_exchange": Key(
        "x-dead-letter-exchange", _TEXT, None, "Exchange for dead letters; without it they are dropped."
    ),
    "dead_letter_key": Key(
        "x-dead-letter-routing-key", _TEXT, None, "Routing key of dead letters; by default their own."
    ),
    "filter": Key("x-filter", _TEXT, "", "Expression that messages must satisfy to enter."),
    "source": Key("x-source", _TEXT, "", "Stream that feeds it with old and new messages that satisfy the filter."),
    "source_from": Key(
        "x-source-from", Position(), "", "Start in the source: earliest, latest, an offset, timestamp=TIME."
    ),
}
"""The argument that each field is read from."""
_CHECKED: Final = Table(
    Key("x-queue-mode", Choice("default", "lazy"), None, ""),
    Key("x-queue-version", Number(1, 2), None, ""),
)
"""Arguments of RabbitMQ without a meaning here."""
_ARGUMENT_TABLE: Final = Table(*_ARGUMENTS.values())
_STREAM_TABLE: Final = Table(Key("x-max-age", Duration(), 0, "Greatest age of a message in a stream; 0 for any."))
"""Arguments that only streams have."""


def unread_arguments(arguments: Mapping[str, object]) -> list[str]:
    """Return the arguments of a declaration that change nothing here, in order."""
    read = {*_ARGUMENT_TABLE.keys, *_STREAM_TABLE.keys}
    return sorted([name for name in arguments if name.startswith("x-") and name not in read])


def declared(
    name: str,
    durable: bool = False,
    exclusive: bool = False,
    auto_delete: bool = False,
    arguments: Mapping[str, object] | None = None,
    host: str = "",
) -> QueueDefinition:
    """Return the definition of a queue declared with RabbitMQ's `x-` arguments; errors name the virtual host, if given.

    Raises PreconditionFailed.
    """
    given = dict(arguments or {})
    of = f" for queue '{name}'{_within(host)}"
    foreign = _foreign(given)
    own = {name: value for name, value in given.items() if name not in foreign}
    read_arguments(_CHECKED, own, of)
    read = read_arguments(_ARGUMENT_TABLE, own, of)
    fields: dict[str, Any] = {each: read[key.name] for each, key in _ARGUMENTS.items()}
    kind: str = fields["kind"]
    fields["delivery_limit"] = _limit(fields["delivery_limit"], kind)
    definition = QueueDefinition(
        name,
        durable=durable and kind != EPHEMERAL,
        exclusive=exclusive,
        auto_delete=auto_delete,
        max_message_bytes=128 << 20,
        arguments=given,
        **fields,
    )
    if definition.filter:
        try:
            parse(definition.filter)
        except BadExpression as error:
            raise _invalid("x-filter", of, str(error)) from error
    if definition.source_from and not definition.source:
        raise _invalid("x-source-from", of, "'x-source' is missing")
    if definition.dead_letter_key is not None and definition.dead_letter_exchange is None:
        raise _invalid("x-dead-letter-routing-key", of, "'x-dead-letter-exchange' is missing")
    if foreign:
        raise PreconditionFailed(f"invalid arg '{foreign[0]}'{of} of queue type rabbit_{kind}_queue")
    if kind == QUORUM:
        _check_shared(definition, of)
    return _stream(definition, of) if kind == STREAM else definition


_OF_ANY: Final = frozenset([name for names in ARGUMENTS.values() for name in names])


def _foreign(given: Mapping[str, object]) -> list[str]:
    """Return the arguments that mean something for other types of queues only: RabbitMQ refuses them, too."""
    kind = given.get("x-queue-type", CLASSIC)
    known = ARGUMENTS.get(kind) if isinstance(kind, str) else None
    return [name for name in given if known is not None and name in _OF_ANY and name not in known]


def _invalid(argument: str, of: str, why: str) -> PreconditionFailed:
    return PreconditionFailed(f"invalid arg '{argument}'{of}: {why}")


def _within(host: str) -> str:
    return f" in vhost '{host}'" if host else ""


def _limit(limit: int | None, kind: str) -> int | None:
    """Return how often a message may be delivered again. -1 = unlimited."""
    if limit is None:
        return QUORUM_DELIVERY_LIMIT if kind == QUORUM else None
    return None if limit < 0 else limit


def _stream(definition: QueueDefinition, of: str) -> QueueDefinition:
    _check_shared(definition, of)
    max_age_ms = cast("int", read_arguments(_STREAM_TABLE, definition.arguments, of)["x-max-age"])
    retention = Retention(max_age_ms, definition.max_length_bytes or 0, definition.max_length or 0)
    return replace(definition, retention=retention, max_length=None, max_length_bytes=None)


def _check_shared(definition: QueueDefinition, of: str) -> None:
    """Raise PreconditionFailed for a quorum queue or a stream that is transient or for one connection."""
    for name, is_wrong in (
        ("auto-delete", definition.auto_delete),
        ("exclusive-owner", definition.exclusive),
        ("non-durable", not definition.durable),
    ):
        if is_wrong:
            raise PreconditionFailed(f"invalid property '{name}'{of}")

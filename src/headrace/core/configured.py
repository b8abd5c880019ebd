"""A queue as the configuration file describes it, with the names FluxMQ uses. What it comes to is a QueueDefinition.

Defaults are the same: a lease of 30 s, 10 retries with backoff, dead letters to `$dlq/<queue>`, messages that live
168 h, 100,000 of them at most. A full queue refuses what is published (`reject-publish`): the publisher is told, and
nothing that was confirmed is lost; `overflow: drop-head` must be asked for.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, final

from headrace.config.groups import MAIN, GroupName
from headrace.config.kinds import (
    Choice,
    Duration,
    Factor,
    Flag,
    Kind,
    Name,
    Number,
    Size,
    Text,
    Texts,
    Unfit,
    shown,
)
from headrace.config.table import Fault, Key, Table, Values
from headrace.core.address import dead_letter_queue
from headrace.core.definition import (
    ASYNC,
    CLASSIC,
    DEFAULT_LEASE_MS,
    DEFAULT_MAX_MESSAGE_BYTES,
    DURABILITIES,
    EPHEMERAL,
    FSYNC,
    KINDS,
    MAX_NAME_BYTES,
    OVERFLOWS,
    QUORUM,
    QUORUM_DELIVERY_LIMIT,
    REJECT_PUBLISH,
    STREAM,
    SYNC,
    QueueDefinition,
    Retention,
    Retry,
)
from headrace.core.position import position_text
from headrace.core.topics import check_filter
from headrace.core.topology import DEFAULT_HOST
from headrace.errors import Refused
from headrace.selector import parse

DEFAULT_MAX_DEPTH: Final = 100_000
DEFAULT_TTL_MS: Final = 168 * 3_600_000
_MAX: Final = 1 << 53
_RETRY: Final = Retry()

_RETENTION: Final = Table(
    Key("max_age", Duration(), 0, "How old a message of a stream gets; 0 for any age."),
    Key("max_length_bytes", Size(), 0, "How many bytes a stream keeps; 0 for all."),
    Key("max_length_messages", Number(), 0, "How many messages a stream keeps; 0 for all."),
    Key(
        "keep_until_archived",
        Flag(),
        False,
        "Whether a stream keeps what `pipeline archive` has not archived yet.",
    ),
)
_LIMITS: Final = Table(
    Key("max_message_size", Size(), DEFAULT_MAX_MESSAGE_BYTES, "The largest payload; 0 for any."),
    Key(
        "max_depth",
        Number(),
        None,
        f"How many messages may wait; {DEFAULT_MAX_DEPTH} unless it is a stream, 0 for any.",
    ),
    Key("max_depth_bytes", Size(), 0, "How many bytes may wait; 0 for any."),
    Key("message_ttl", Duration(), None, "How long a message may wait; 168h unless it is a stream, 0 for ever."),
)
_RETRIES: Final = Table(
    Key("max_retries", Number(), None, f"How often a message that failed is tried again; {_RETRY.max_retries}, quorum "
        f"queues {QUORUM_DELIVERY_LIMIT}."),
    Key("initial_backoff", Duration(), _RETRY.initial_backoff_ms, "How long it waits before the first time."),
    Key("max_backoff", Duration(), _RETRY.max_backoff_ms, "How long it waits at most."),
    Key("multiplier", Factor(), _RETRY.multiplier, "By how much it waits longer each time."),
)  # fmt: skip
_DEAD_LETTERS: Final = Table(
    Key("enabled", Flag(), None, "Whether messages that are given up are kept; true for classic and quorum queues."),
    Key("topic", Text(), "", "The queue they go to; `$dlq/` and the queue's name if none is given."),
)
_REPLICATION: Final = Table(
    Key("enabled", Flag(), False, "Whether what follows counts."),
    Key("group", GroupName(), "", f"The replication group whose broker has it, see `cluster.group`; `{MAIN}`, also "
        "called `default`, where none is named."),
    Key("mode", Choice(SYNC, ASYNC), SYNC, "When publishers are told: once a message is stored (sync), or once it is "
        "on its way (async)."),
    Key("ack_timeout", Duration(), 5_000, "After so long publishers hear that a message is not stored; 0 for never."),
    Key("replication_factor", Number(1), 3, "Kept: how many copies there are is the store's business."),
    Key("min_in_sync_replicas", Number(1), 2, "Kept, likewise."),
)  # fmt: skip


@final
class Position(Kind):
    """A place in a stream."""

    noun = "earliest, latest, an offset or timestamp=TIME"

    def read(self, value: object) -> object:
        if isinstance(value, int | str):
            with suppress(Refused):
                return position_text(value)
        raise Unfit(f"must be {self.noun}")

    def schema(self) -> dict[str, object]:
        return {"type": ["string", "integer"]}

    def show(self, value: object) -> str:
        return str(value) or '""'

    def plain(self, value: object) -> object:
        return value


QUEUE: Final = Table(
    Key("name", Name(MAX_NAME_BYTES), None, "What the queue is called, for every protocol."),
    Key("type", Choice(*KINDS), CLASSIC, "What kind of queue it is."),
    Key("description", Text(), "", "What the queue is for, in words."),
    Key("topics", Texts(), (), "Patterns of topics that lead to it; `$queue/NAME/#` always does."),
    Key("capture", Flag(), False, "Whether plain MQTT topics, too, feed it through its patterns."),
    Key("reserved", Flag(), False, "Whether it gets what no other queue matches, and nothing else."),
    Key("filter", Text(), "", "An expression that messages must satisfy to enter."),
    Key("source", Text(), "", "A stream from which it gets what satisfies the filter: what is there, and what comes."),
    Key("source_from", Position(), "", "Where it begins there: earliest, latest, an offset, timestamp=TIME; earliest "
        "if nothing is said."),
    Key("primary_group", Text(), "", "The work group whose progress readers of a stream are told."),
    Key("ack_durability", Choice(*DURABILITIES), FSYNC, "When publishers are told: once a message would survive a "
        "power loss (fsync), or before (buffered)."),
    Key("visibility_timeout", Duration(), DEFAULT_LEASE_MS, "How long a consumer may hold a message."),
    Key("expires", Duration(), 0, "Unused for so long, the queue is deleted; 0 for never."),
    Key("max_priority", Number(0, 255), 0, "The highest priority that counts; 0 for order of arrival."),
    Key("single_active_consumer", Flag(), False, "Whether one consumer at a time gets everything."),
    Key("history", Duration(), 0, "How long it is kept, in the stream `$history/NAME`, who claimed a message and "
        "how it ended."),
    Key("overflow", Choice(*OVERFLOWS), REJECT_PUBLISH, "What a full queue does."),
    Key("limits", _LIMITS, None, ""),
    Key("retention", _RETENTION, None, ""),
    Key("retry", _RETRIES, None, ""),
    Key("dlq", _DEAD_LETTERS, None, ""),
    Key("replication", _REPLICATION, None, ""),
    help="Queues that are there when the broker serves: made, or changed to be as they are described here.",
    required=("name",),
)  # fmt: skip
"""What may be said of a queue."""
FILE_QUEUE: Final = Table(
    Key("vhost", Name(MAX_NAME_BYTES), DEFAULT_HOST, "The virtual host it is in; it is made where there is none."),
    *QUEUE.keys.values(),
    help=QUEUE.help,
    required=QUEUE.required,
)
"""The same in a file, where nothing else says in which virtual host."""


def configured(values: Mapping[str, object]) -> QueueDefinition:
    """The definition that an entry of `queues` in the configuration stands for. Raises Fault, naming the key."""
    where = f"queue {shown(values['name'])}" if "name" in values else "queues[]"
    read: dict[str, Any] = QUEUE.read(values, where)
    name, kind = read["name"], read["type"]
    for topic in read["topics"]:
        try:
            check_filter(topic)
        except Refused as error:
            raise Fault(("topics",), where, f"'topics' cannot be used: {error}") from error
    if read["filter"]:
        try:
            parse(read["filter"])
        except Refused as error:
            raise Fault(("filter",), where, f"'filter' cannot be read: {error}") from error
    if read["source_from"] and not read["source"]:
        raise Fault(("source_from",), where, "'source_from' says where to begin in 'source', which is missing")
    group = read["replication"]["group"]
    if group and not read["replication"]["enabled"]:
        what = f"'replication.group' names {group!r}, and counts only with 'replication.enabled: true'"
        raise Fault(("replication", "group"), where, f"{what}; say both, or neither")
    return QueueDefinition(
        name,
        kind,
        durable=kind != EPHEMERAL,
        topics=tuple(read["topics"]),
        reserved=read["reserved"],
        capture=read["capture"],
        filter=read["filter"],
        source=read["source"],
        source_from=read["source_from"],
        primary_group=read["primary_group"],
        ack_durability=read["ack_durability"],
        expires_ms=read["expires"],
        lease_ms=read["visibility_timeout"] or DEFAULT_LEASE_MS,
        max_priority=read["max_priority"],
        single_active=read["single_active_consumer"],
        history_ms=read["history"],
        description=read["description"],
        overflow=read["overflow"],
        dead_letter_queue=_dead_letter_queue(name, read["dlq"], kind),
        replication=_replication(read["replication"]) if values.get("replication") else {},
        **_limits(read["limits"], read["retention"], kind),
        **_retry(read["retry"], kind),
    )


def _limits(limits: dict[str, Any], retention: dict[str, Any], kind: str) -> dict[str, Any]:
    """Limits and retention. A stream is bounded by retention alone, so what is said of the one counts for the other;
    a time to live ends for its readers at once, and on the disk as retention goes."""
    is_stream = kind == STREAM
    depth = _or(limits["max_depth"], 0 if is_stream else DEFAULT_MAX_DEPTH)
    ttl_ms = _or(limits["message_ttl"], 0 if is_stream else DEFAULT_TTL_MS)
    max_bytes = limits["max_depth_bytes"]
    age_ms, size, count = retention["max_age"], retention["max_length_bytes"], retention["max_length_messages"]
    is_kept = retention["keep_until_archived"]
    values: dict[str, Any] = {
        "max_message_bytes": limits["max_message_size"] or _MAX,
        "message_ttl_ms": ttl_ms or None,
    }
    if is_stream:
        values["retention"] = Retention(age_ms or ttl_ms, size or max_bytes, count or depth, is_kept)
    else:
        values["retention"] = Retention(age_ms, size, count, is_kept)
        values["max_length"] = depth or None
        values["max_length_bytes"] = max_bytes or None
    return values


def _retry(values: dict[str, Any], kind: str) -> dict[str, Any]:
    if kind in (STREAM, EPHEMERAL):
        return {}
    tries = _or(values["max_retries"], QUORUM_DELIVERY_LIMIT if kind == QUORUM else _RETRY.max_retries)
    return {"retry": Retry(tries, values["initial_backoff"], values["max_backoff"], values["multiplier"])}


def _dead_letter_queue(name: str, values: Values, kind: str) -> str:
    """Streams and ephemeral queues track no failures, so they have dead letters only where that is asked for."""
    enabled = values["enabled"]
    if enabled is None:
        enabled = kind not in (STREAM, EPHEMERAL)
    return (str(values["topic"]) or dead_letter_queue(name)) if enabled else ""


def _replication(values: dict[str, Any]) -> dict[str, object]:
    """As it is kept."""
    return {f"{name}_ms" if name == "ack_timeout" else name: value for name, value in values.items()}


def _or(value: int | None, default: int) -> int:
    return default if value is None else value

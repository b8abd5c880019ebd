"""Queues of the configuration file, with FluxMQ's names: read, compared, created or changed. None is deleted.

Defaults are FluxMQ's: a lease of 30 s, 10 retries with backoff, dead letters to `$dlq/<queue>`, messages that live
168 h, 100,000 of them at most. A full queue refuses publishers (`reject-publish`), so no confirmed message is lost;
`overflow: drop-head` is opt-in.

All entries are checked before any of them changes a queue.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, final

from headrace.config.kinds import Choice, Duration, Factor, Flag, Name, Number, Size, Text, Texts, shown
from headrace.config.replication import MAIN, GroupName, meant
from headrace.config.table import Fault, Key, Table, Values
from headrace.core.broker import Broker
from headrace.core.feeds.assigner import check_source, sources_first
from headrace.core.queue.definition import (
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
    Position,
    QueueDefinition,
    Retention,
    Retry,
)
from headrace.core.routing.address import dead_letter_queue
from headrace.core.routing.topology import DEFAULT_HOST
from headrace.errors import Corrupt, PreconditionFailed, Refused
from headrace.names import check_filter
from headrace.selector import parse

DEFAULT_MAX_DEPTH: Final = 100_000
DEFAULT_TTL_MS: Final = 168 * 3_600_000
_MAX: Final = 1 << 53
_RETRY: Final = Retry()

_RETENTION: Final = Table(
    Key(
        "max_age",
        Duration(),
        0,
        "Greatest age of a message in a stream; 0 for any. Other stored queues keep settled messages for later groups "
        "and for Spark within this bound and the next two.",
    ),
    Key("max_length_bytes", Size(), 0, "Bytes that a stream keeps; 0 for all."),
    Key("max_length_messages", Number(), 0, "Messages that a stream keeps; 0 for all."),
    Key(
        "keep_until_archived",
        Flag(),
        False,
        "True if a stream keeps messages until `pipeline archive` has archived them.",
    ),
)
_LIMITS: Final = Table(
    Key("max_message_size", Size(), DEFAULT_MAX_MESSAGE_BYTES, "Largest payload; 0 for any."),
    Key(
        "max_depth",
        Number(),
        None,
        f"Messages that may wait; {DEFAULT_MAX_DEPTH} unless it is a stream, 0 for any number.",
    ),
    Key("max_depth_bytes", Size(), 0, "Bytes that may wait; 0 for any number."),
    Key("message_ttl", Duration(), None, "Time for which a message may wait; 168h unless it is a stream, 0 for ever."),
)
_RETRIES: Final = Table(
    Key("max_retries", Number(), None, f"Retries of a failed message; {_RETRY.max_retries}, quorum queues "
        f"{QUORUM_DELIVERY_LIMIT}."),
    Key("initial_backoff", Duration(), _RETRY.initial_backoff_ms, "Wait before the first retry."),
    Key("max_backoff", Duration(), _RETRY.max_backoff_ms, "Longest wait."),
    Key("multiplier", Factor(), _RETRY.multiplier, "Growth of the wait with each retry."),
)  # fmt: skip
_DEAD_LETTERS: Final = Table(
    Key("enabled", Flag(), None, "True if failed messages become dead letters; true for classic and quorum queues."),
    Key("topic", Text(), "", "Queue for dead letters; by default `$dlq/` and the queue's name."),
)
_REPLICATION: Final = Table(
    Key("enabled", Flag(), False, "True if the other keys of this table count."),
    Key("group", GroupName(), "", f"Replication group that serves the queue, see `cluster.group`; by default `{MAIN}`, "
        "also called `default`."),
    Key("mode", Choice(SYNC, ASYNC), SYNC, "Publishers are confirmed once a message is stored (sync), or once it is "
        "on its way (async)."),
    Key("ack_timeout", Duration(), 5_000, "Time after which publishers of an unstored message hear so; 0 for never."),
    Key("replication_factor", Number(1), 3, "Accepted without effect: the object store makes the copies."),
    Key("min_in_sync_replicas", Number(1), 2, "Accepted without effect."),
)  # fmt: skip


QUEUE: Final = Table(
    Key("name", Name(MAX_NAME_BYTES), None, "Name of the queue, for every protocol."),
    Key("type", Choice(*KINDS), CLASSIC, "Type of the queue."),
    Key("description", Text(), "", "Purpose of the queue, in words."),
    Key("topics", Texts(), (), "Patterns of addresses (`$queue/...`) that lead to it, with `capture` also of "
        "plain topics; `$queue/NAME/#` always does."),
    Key("capture", Flag(), False, "True if its patterns match plain topics, too: without it, `sensors/#` gets "
        "nothing."),
    Key("reserved", Flag(), False, "True if it gets only messages that no other queue matches."),
    Key("filter", Text(), "", "Expression that messages must satisfy to enter."),
    Key("source", Text(), "", "Stream that feeds it with old and new messages that satisfy the filter."),
    Key("source_from", Position(), "", "Start in the source: earliest, latest, an offset, timestamp=TIME; by default "
        "earliest."),
    Key("primary_group", Text(), "", "Work group whose progress readers of a stream are told."),
    Key("ack_durability", Choice(*DURABILITIES), FSYNC, "Publishers are confirmed once a message would survive a "
        "power loss (fsync), or before (buffered)."),
    Key("visibility_timeout", Duration(), DEFAULT_LEASE_MS, "Time for which a consumer may hold a message."),
    Key("expires", Duration(), 0, "Time after which an unused queue is deleted; 0 for never."),
    Key("max_priority", Number(0, 255), 0, "Highest priority; 0 for order of arrival."),
    Key("single_active_consumer", Flag(), False, "True if one consumer at a time gets all messages."),
    Key("history", Duration(), 0, "Time for which the stream `$history/NAME` keeps who claimed a message and "
        "how it ended."),
    Key("overflow", Choice(*OVERFLOWS), REJECT_PUBLISH, "Reaction of a full queue to a new message."),
    Key("limits", _LIMITS, None, ""),
    Key("retention", _RETENTION, None, ""),
    Key("retry", _RETRIES, None, ""),
    Key("dlq", _DEAD_LETTERS, None, ""),
    Key("replication", _REPLICATION, None, ""),
    help="Queues that the broker creates, or changes, at a start and at a reload.",
    required=("name",),
)  # fmt: skip
"""Keys of a queue."""
FILE_QUEUE: Final = Table(
    Key("vhost", Name(MAX_NAME_BYTES), DEFAULT_HOST, "Virtual host of the queue; created if missing."),
    *QUEUE.keys.values(),
    help=QUEUE.help,
    required=QUEUE.required,
)
"""Keys of a queue in a file, which also names the virtual host."""


_SAME: Final = ("reserved", "capture", "filter", "source", "source_from", "primary_group", "ack_durability")
"""Keys that are members of the definition under the same name."""


def configured(values: Mapping[str, object]) -> QueueDefinition:
    """Return the definition of an entry of `queues`. Raises Fault, naming the key."""
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
        expires_ms=read["expires"],
        lease_ms=read["visibility_timeout"] or DEFAULT_LEASE_MS,
        max_priority=read["max_priority"],
        single_active=read["single_active_consumer"],
        history_ms=read["history"],
        description=read["description"],
        overflow=read["overflow"],
        dead_letter_queue=_dead_letter_queue(name, read["dlq"], kind),
        replication=_replication(read["replication"]) if values.get("replication") else {},
        **{member: read[member] for member in _SAME},
        **_limits(read["limits"], read["retention"], kind),
        **_retry(read["retry"], kind),
    )


def _limits(limits: dict[str, Any], retention: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return limits and retention. A stream has retention alone, so its limits become retention.

    Readers of a stream stop seeing a message when its time to live ends; retention removes it from the disk later.
    """
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
    """Streams and ephemeral queues track no failures, so they have dead letters only on request."""
    enabled = values["enabled"]
    if enabled is None:
        enabled = kind not in (STREAM, EPHEMERAL)
    return (str(values["topic"]) or dead_letter_queue(name)) if enabled else ""


def _replication(values: dict[str, Any]) -> dict[str, object]:
    """Return the table in its stored form."""
    return {f"{name}_ms" if name == "ack_timeout" else name: value for name, value in values.items()}


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


_AT_START_ONLY: Final = {"max_priority": "max_priority", "single_active": "single_active_consumer"}


@final
@dataclass(frozen=True)
class Wanted:
    """A queue of the configuration: number of its entry, virtual host, definition."""

    at: int
    host: str
    definition: QueueDefinition

    @property
    def group(self) -> str:
        """Return the replication group that serves the queue."""
        return meant(self.definition.replication_group)


def wanted_queues(entries: Sequence[Mapping[str, object]]) -> list[Wanted]:
    """Read the entries of `queues`. Raises Fault, with the path from the top of the file."""
    found: dict[tuple[str, str, str], Wanted] = {}
    for at, entry in enumerate(entries):
        host = str(entry.get("vhost") or DEFAULT_HOST)
        try:
            definition = configured({name: value for name, value in entry.items() if name != "vhost"})
        except Fault as fault:
            raise fault.within(("queues", at)) from fault
        wanted = Wanted(at, host, definition)
        place = (wanted.group, host, definition.name)
        if place in found:
            raise Fault(("queues", at, "name"), "", f"the queue {definition.name!r} is there twice")
        found[place] = wanted
    return list(found.values())


@final
class Plan:
    """Changes to the queues of one virtual host that make them as configured."""

    def __init__(self, broker: Broker, wanted: Sequence[Wanted], may_drop: bool, is_start: bool) -> None:
        self.broker = broker
        self._entries = wanted
        self._may_drop = may_drop
        self._is_start = is_start
        self.created: list[QueueDefinition] = []
        self.altered: list[tuple[QueueDefinition, list[str]]] = []
        """Definitions, each with the names of its changed members."""
        self.refused: list[Fault] = []
        """Faults of queues that a client changed between both parts of the plan: they stay as they are."""
        self._missing: list[Wanted] = []
        self._differing: list[Wanted] = []
        self._wanted = {each.definition.name: each.definition for each in wanted}

    def look(self) -> Iterator[None]:
        """Find the changes, one queue in each step.

        Raises Fault for the first queue that cannot change without losing messages. At a start no client uses the
        queues yet, so more can change.
        """
        for each in self._entries:
            definition, changes = self._compared(each)
            if changes is None:
                self.created.append(definition)
                self._missing.append(each)
            elif changes:
                self.altered.append((definition, changes))
                self._differing.append(each)
            yield

    def carry_out(self) -> Iterator[None]:
        """Create and alter the queues, one in each step; the current batch stores it."""
        missing = self._missing
        for at in sources_first([(each.definition.name, each.definition.source) for each in missing]):
            self._apply(missing[at])
            yield
        for each in self._differing:
            self._apply(each)
            yield

    def _apply(self, each: Wanted) -> None:
        """Create or alter a queue as it is now: clients may have changed it between two steps."""
        try:
            definition, changes = self._compared(each)
        except Fault as fault:
            self.refused.append(fault)
            return
        if changes is None:
            self.broker.declare(definition)
        elif changes:
            self.broker.administration.alter(definition, self._is_start)

    def _compared(self, each: Wanted) -> tuple[QueueDefinition, list[str] | None]:
        """Return the definition that a queue gets and its changed members, None without a queue. Raises Fault."""
        definition = each.definition
        queue = self.broker.topology.queues.get(definition.name)
        if queue is None:
            self._check_source(each.at, definition)
            return definition, None
        present = queue.declared
        definition = replace(definition, arguments=present.arguments)  # so clients' declarations still match
        changes = _changes(present, definition)
        if not changes or queue.refusal is not None:
            return definition, []
        self._check(each.at, present, definition, changes)
        if "source" in changes:
            self._check_source(each.at, definition)
        return definition, changes

    def _check_source(self, at: int, definition: QueueDefinition) -> None:
        try:
            check_source(definition, self._find)
        except Refused as error:
            raise Fault(("queues", at, "source"), f"queue {definition.name!r}", str(error)) from error

    def _find(self, name: str) -> QueueDefinition | None:
        queue = self.broker.topology.queues.get(name)
        return self._wanted.get(name) or (queue.declared if queue is not None else None)

    def _check(self, at: int, present: QueueDefinition, wanted: QueueDefinition, changes: list[str]) -> None:
        name = present.name
        if present.kind != wanted.kind or present.is_stored != wanted.is_stored:
            raise Fault(
                ("queues", at, "type"),
                f"queue {name!r}",
                f"it is {_called(present)} and cannot become {_called(wanted)} without losing its messages; "
                f"give the new queue another name, or delete this one first: headrace queues delete {name}",
            )
        for member, key in _AT_START_ONLY.items():
            if member in changes and not self._is_start:
                raise Fault(("queues", at, key), f"queue {name!r}", f"{key!r} changes with a restart only")
        if self._may_drop:
            return
        try:
            loss = self.broker.administration.loss(wanted)
        except Corrupt:
            return  # a damaged queue refuses everything, so it loses nothing
        if loss:
            raise Fault(
                ("queues", at),
                f"queue {name!r}",
                f"its new limits would drop {loss:,} of its stored messages; raise the limits, consume the messages "
                f"first, or let them go with `shrink: drop` in queue_manager (HEADRACE_QUEUE_MANAGER_SHRINK=drop)",
            )


def update(broker: Broker, host: str, definition: QueueDefinition) -> None:
    """Create or change one queue. Raises PreconditionFailed if it would lose messages."""
    plan = Plan(broker, [Wanted(0, host, definition)], may_drop=False, is_start=False)
    try:
        for _ in chain(plan.look(), plan.carry_out()):
            pass
    except Fault as fault:
        raise PreconditionFailed(str(fault)) from fault


def differences(present: QueueDefinition, declared: QueueDefinition) -> list[str]:
    """Return the members in which a declaration differs from the queue; members left at their default do not count."""
    plain = configured({"name": declared.name, "type": declared.kind})
    said = _changes(plain, declared)
    return [member for member in _changes(present, declared) if member in said]


def _changes(present: QueueDefinition, wanted: QueueDefinition) -> list[str]:
    members = QueueDefinition.__dataclass_fields__
    return [member for member in members if getattr(present, member) != getattr(wanted, member)]


def _called(definition: QueueDefinition) -> str:
    return f"a {definition.kind} queue" if definition.is_stored else f"a {definition.kind} queue that is not stored"

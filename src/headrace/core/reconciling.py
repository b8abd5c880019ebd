"""Queues of the configuration made so: created, or changed to be as they are described. Nothing is ever deleted here.

All of it is checked before any of it happens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from headrace.config.groups import meant
from headrace.config.table import Fault
from headrace.core.broker import Broker
from headrace.core.configured import configured
from headrace.core.definition import QueueDefinition
from headrace.core.sources import check_source, sources_first
from headrace.core.topology import DEFAULT_HOST
from headrace.errors import Corrupt, PreconditionFailed, Refused

_AT_START_ONLY: Final = {"max_priority": "max_priority", "single_active": "single_active_consumer"}


@final
@dataclass(frozen=True)
class Wanted:
    """A queue of the configuration: which entry it is, its virtual host, and what it is to be."""

    at: int
    host: str
    definition: QueueDefinition

    @property
    def group(self) -> str:
        """The replication group whose broker is to have it."""
        return meant(self.definition.replication_group)


def wanted_queues(entries: Sequence[Mapping[str, object]]) -> list[Wanted]:
    """What the entries of `queues` come to. Raises Fault, with the path from the top of the file."""
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
    """What has to happen in one virtual host so that its queues are as they should be."""

    def __init__(self, broker: Broker, wanted: Sequence[Wanted], may_drop: bool, is_start: bool) -> None:
        """Raises Fault for the first queue that cannot become what is wanted without losing messages.

        At a start nobody uses the queues yet, so that more can change.
        """
        self._broker = broker
        self._is_start = is_start
        self.created: list[QueueDefinition] = []
        self.altered: list[tuple[QueueDefinition, list[str]]] = []
        """Each with the names of what changes."""
        self._wanted = {each.definition.name: each.definition for each in wanted}
        for each in wanted:
            definition = each.definition
            queue = broker.topology.queues.get(definition.name)
            if queue is None:
                self._check_source(each.at, definition)
                self.created.append(definition)
                continue
            definition = replace(definition, arguments=queue.definition.arguments)  # so clients' declarations still fit
            changes = _changes(queue.definition, definition)
            if changes and queue.refusal is None:
                self._check(each.at, queue.definition, definition, changes, may_drop)
                if "source" in changes:
                    self._check_source(each.at, definition)
                self.altered.append((definition, changes))

    def carry_out(self) -> None:
        """Make it so; it is stored with the turn."""
        for at in sources_first([(definition.name, definition.source) for definition in self.created]):
            self._broker.declare(self.created[at])
        for definition, _ in self.altered:
            self._broker.administration.alter(definition, self._is_start)

    def _check_source(self, at: int, definition: QueueDefinition) -> None:
        try:
            check_source(definition, self._find)
        except Refused as error:
            raise Fault(("queues", at, "source"), f"queue {definition.name!r}", str(error)) from error

    def _find(self, name: str) -> QueueDefinition | None:
        queue = self._broker.topology.queues.get(name)
        return self._wanted.get(name) or (queue.definition if queue is not None else None)

    def _check(
        self, at: int, present: QueueDefinition, wanted: QueueDefinition, changes: list[str], may_drop: bool
    ) -> None:
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
        if may_drop:
            return
        try:
            loss = self._broker.administration.loss(wanted)
        except Corrupt:
            return  # a damaged queue is refused to everybody, and loses nothing
        if loss:
            raise Fault(
                ("queues", at),
                f"queue {name!r}",
                f"its new limits would drop {loss:,} of its stored messages; raise the limits, consume the messages "
                f"first, or let them go with `shrink: drop` in queue_manager (HEADRACE_QUEUE_MANAGER_SHRINK=drop)",
            )


def update(broker: Broker, host: str, definition: QueueDefinition) -> None:
    """Have one queue be as described, made or changed. Raises PreconditionFailed when it would lose messages."""
    try:
        Plan(broker, [Wanted(0, host, definition)], may_drop=False, is_start=False).carry_out()
    except Fault as fault:
        raise PreconditionFailed(str(fault)) from fault


def differences(present: QueueDefinition, declared: QueueDefinition) -> list[str]:
    """What a declaration by keys wants otherwise than it is; what it does not say may be as it is."""
    plain = configured({"name": declared.name, "type": declared.kind})
    said = _changes(plain, declared)
    return [member for member in _changes(present, declared) if member in said]


def _changes(present: QueueDefinition, wanted: QueueDefinition) -> list[str]:
    members = QueueDefinition.__dataclass_fields__
    return [member for member in members if getattr(present, member) != getattr(wanted, member)]


def _called(definition: QueueDefinition) -> str:
    return f"a {definition.kind} queue" if definition.is_stored else f"a {definition.kind} queue that is not stored"

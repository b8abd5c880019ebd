"""Queues over HTTP, with their groups and their history. Messages are in messages.py, moves in dead_letters.py."""

from dataclasses import dataclass
from itertools import islice
from typing import Final

from starlette.responses import Response

from headrace.admin.api.operation import COUNT, FromOffset, Operation, Paged, page_of, ref, table
from headrace.admin.messages import time_to_json
from headrace.admin.pages import BadRequest, Call, after, answer, listed
from headrace.admin.resources import declare_queue as declare
from headrace.admin.resources import delete_queue as delete
from headrace.admin.resources import find_queue, hosts, readable_queue
from headrace.admin.resources import purge_queue as purge
from headrace.admin.sampler import (
    QUEUE_COUNTERS,
    QUEUE_GAUGES,
    Sampler,
    Series,
    look_for_schedule,
    oldest_age_ms,
    queue_values,
)
from headrace.admin.slices import ordered, sliced
from headrace.config.kinds import Flag, Text, Unchecked
from headrace.config.table import described, option, read_model, table_of
from headrace.core.access.permissions import CONFIGURE, QUEUE
from headrace.core.broker import Broker
from headrace.core.feeds.feed import FedQueue
from headrace.core.queue.configured import QUEUE as QUEUE_TABLE
from headrace.core.queue.configured import configured, differences
from headrace.core.queue.definition import QueueDefinition, declared
from headrace.core.queue.group import Group, PendingEntry
from headrace.core.queue.queue import Queue
from headrace.core.routing.address import dead_letter_origin
from headrace.errors import NotFound, PreconditionFailed
from headrace.storage.group_state import MODE_NAMES
from headrace.wire.properties import table_from_json, table_to_json

MAX_RANGES: Final = 200
"""Ranges of settled offsets that a group shows."""
_MICROSECONDS: Final = "_us"

# -- queues ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QueueList(Paged):
    """Query of queues: of one virtual host, with a part of their name."""

    vhost: str = option("", Text())
    search: str = option("", Text())


@dataclass(frozen=True)
class Update:
    """Query of a declaration."""

    update: bool = option(False, Flag(), "True to change the queue if it differs.")


@dataclass(frozen=True)
class Deletion:
    """Query of a deletion: its conditions."""

    if_unused: bool = option(False, Flag())
    if_empty: bool = option(False, Flag())


@dataclass(frozen=True)
class Arguments:
    """Body of a declaration with RabbitMQ's arguments."""

    type: str = option("", Text())
    durable: bool = option(True, Flag())
    auto_delete: bool = option(False, Flag())
    arguments: object = option(
        None,
        Unchecked(type="object"),
        "RabbitMQ's `x-` arguments. Without them, the keys of the configuration file.",
    )


def queue_to_json(host: str, queue: Queue, sampler: Sampler) -> dict[str, object]:
    """Return a row of the list of queues."""
    definition = queue.definition
    series = sampler.queue(host, queue.name)
    log = queue.log
    return {
        "vhost": host,
        "name": queue.name,
        "type": definition.kind,
        "durable": definition.durable,
        "exclusive": definition.exclusive,
        "auto_delete": definition.auto_delete,
        "arguments": table_to_json(definition.arguments),
        "state": "running" if queue.refusal is None else "damaged",
        "groups": len(queue.groups),
        "consumers": queue.consumers,
        "first_offset": queue.first_offset,
        "next_offset": log.next_offset,
        "bytes": log.size_bytes,
        "waiting": queue.messages,
        "messages": queue.total,
        "counters": queue_values(queue),
        "rates": dict(series.rates) if series is not None else dict.fromkeys(QUEUE_COUNTERS, 0.0),
        "is_dead_letter_queue": bool(dead_letter_origin(queue.name)) or queue.has_letters,
    }


def _details(host: str, broker: Broker, queue: Queue, sampler: Sampler, now_us: int) -> dict[str, object]:
    look_for_schedule(queue, now_us)
    series = sampler.watch(host, queue.name)
    governed = broker.parameters.policies.of_queue(queue.declared)
    return {
        **queue_to_json(host, queue, sampler),
        "reason": str(queue.refusal) if queue.refusal is not None else "",
        "warnings": queue.declared.warnings,
        "definition": queue.declared.to_json(),
        "policy": governed.policy,
        "operator_policy": governed.operator,
        "policy_settings": governed.settings,
        "source": _source_to_json(broker.administration.fed_queue(queue)),
        "oldest_age_ms": oldest_age_ms(queue, now_us),
        "bindings": len(broker.topology.exchanges.bindings_to(queue.name)),
        "history": (series or Series(QUEUE_COUNTERS, QUEUE_GAUGES)).history(),
    }


def _source_to_json(fed: FedQueue | None) -> dict[str, object] | None:
    """Return the progress of a queue in its source; None for a queue without one."""
    if fed is None:
        return None
    return {
        "queue": fed.queue.definition.source,
        "state": fed.state,
        "offset": fed.position,
        "lag": fed.lag,
        "missed": fed.missed,
        "oversized": fed.oversized,
    }


async def list_queues(call: Call) -> Response:
    """List the queues of one virtual host, or of all that the visitor sees, by host and name."""
    query = call.query(QueueList)
    search, limit = query.search.lower(), query.limit
    last_host, _, last = query.after.partition("\n")
    found: list[tuple[str, Queue]] = []
    for host, broker in hosts(call, query.vhost):
        if host < last_host:
            continue
        queues = broker.topology.queues
        names = [
            name
            async for name in sliced(list(queues), 1000)
            if search in name.lower() and not (host == last_host and name <= last)
        ]
        chosen = (await ordered(names))[: limit + 1 - len(found)]
        found += [(host, queues[name]) for name in chosen if name in queues]
        if len(found) > limit:
            break
    shown = found[:limit]
    following = f"{shown[-1][0]}\n{shown[-1][1].name}" if len(found) > limit else None
    return await listed(shown, following, lambda pair: queue_to_json(pair[0], pair[1], call.site.sampler))


async def show_queue(call: Call) -> Response:
    host, broker, queue = find_queue(call, "queue")
    return answer(_details(host, broker, queue, call.site.sampler, call.site.clock.now_us()))


async def declare_queue(call: Call) -> Response:
    """Declare a queue by RabbitMQ's arguments, or by the keys of the configuration file, which may also change it."""
    name, is_update = call.path("queue"), call.query(Update).update
    call.rights(call.path("vhost"))
    definition = _definition(name, await call.json(), is_update)
    is_new = await declare(call, definition, is_update)
    host, _, queue = find_queue(call, "queue")
    if not is_update:
        _check_same(queue, definition)
    shown = {**queue_to_json(host, queue, call.site.sampler), "warnings": queue.declared.warnings}
    return answer(shown, 201 if is_new else 200)


def _check_same(queue: Queue, asked: QueueDefinition) -> None:
    """Raises PreconditionFailed if the queue existed with another definition."""
    if asked.arguments or queue.declared is asked:
        return  # declaring compares arguments
    others = differences(queue.declared, asked)
    if others:
        raise PreconditionFailed(
            f"queue '{queue.name}' is there and differs in {', '.join(others)}; "
            "with ?update=true in the address it is changed"
        )


def _definition(name: str, body: dict[str, object], is_update: bool) -> QueueDefinition:
    if is_update or not body.keys() & {"arguments", "durable", "auto_delete"}:
        return configured({**body, "name": name})
    given = read_model(Arguments, body, "the body")
    arguments = table_from_json(given.arguments or {})
    if given.type and arguments.setdefault("x-queue-type", given.type) != given.type:
        raise BadRequest("'type' and the argument 'x-queue-type' differ")
    return declared(name, given.durable, auto_delete=given.auto_delete, arguments=arguments)


async def delete_queue(call: Call) -> Response:
    return answer({"messages": await delete(call, "queue")})


async def purge_queue(call: Call) -> Response:
    return answer({"messages": await purge(call, "queue")})


# -- groups ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seek:
    """Body of a seek."""

    position: object = option(
        "", Unchecked(type=["string", "integer"]), "first, next, an offset, or timestamp=<unix time>"
    )


def _group_to_json(group: Group) -> dict[str, object]:
    state = group.state
    return {
        "queue": group.queue.name,
        "name": group.name,
        "mode": MODE_NAMES[state.mode],
        "filter": state.filter,
        "is_paused": group.is_paused,
        "cursor": state.cursor,
        "committed": state.committed,
        "settled": [list(part) for part in islice(state.settled, MAX_RANGES)] if state.settled_count else [],
        "lag": group.lag,
        "ready": group.ready - group.delayed,
        "delayed": group.delayed,
        "pending": group.unsettled,
        "consumers": len(group.consumers),
        "delivered": group.delivered,
        "redelivered": group.redelivered,
        "acknowledged": group.acknowledged,
    }


def _pending_to_json(entry: PendingEntry) -> dict[str, object]:
    return {
        "offset": entry.offset,
        "consumer": entry.consumer,
        "attempts": entry.attempts,
        "due": time_to_json(entry.due_us),
    }


async def list_groups(call: Call) -> Response:
    groups, query = find_queue(call, "queue")[2].groups, call.query(Paged)
    names, following = await after(groups, query.after, query.limit)
    return await listed(names, following, lambda name: _group_to_json(groups[name]) if name in groups else None)


async def show_group(call: Call) -> Response:
    return answer(_group_to_json(_group(call)))


async def list_pending(call: Call) -> Response:
    """List unsettled deliveries. A group has at most 100,000, so a page is cut from the whole list."""
    group, query = _group(call), call.query(FromOffset)
    entries = [entry async for entry in sliced(group.pending(), 1000) if entry.offset >= query.offset]
    following = entries[query.limit].offset if len(entries) > query.limit else None
    return await listed(entries[: query.limit], following, _pending_to_json)


async def seek_group(call: Call) -> Response:
    broker, group = _readable_group(call)
    position = (await call.read(Seek)).position
    if position == "":
        raise BadRequest("'position' is missing: first, next, a number, offset=<number> or timestamp=<unix time>")
    broker.groups.seek(group.queue.name, group.name, position)
    return await _changed(call, broker, group)


async def pause_group(call: Call) -> Response:
    broker, group = _readable_group(call)
    broker.groups.pause(group.queue.name, group.name)
    return await _changed(call, broker, group)


async def resume_group(call: Call) -> Response:
    broker, group = _readable_group(call)
    broker.groups.pause(group.queue.name, group.name, is_paused=False)
    return await _changed(call, broker, group)


async def delete_group(call: Call) -> Response:
    host, queue = call.path("vhost"), call.path("queue")
    call.rights(host).check(CONFIGURE, QUEUE, queue)
    group, broker = _group(call), call.broker(host)
    unfinished = broker.groups.delete(group.queue.name, group.name)
    await call.stored(broker)
    call.record(f"group {group.name!r} of queue {queue!r} forgotten, {unfinished:,} messages unfinished")
    return answer({"queue": queue, "group": group.name, "messages": unfinished})


def _group(call: Call) -> Group:
    queue = find_queue(call, "queue")[2]
    group = queue.groups.get(call.path("group"))
    if group is None:
        raise NotFound(f"queue '{queue.name}' has no group '{call.path('group')}'")
    return group


def _readable_group(call: Call) -> tuple[Broker, Group]:
    return readable_queue(call, "queue")[1], _group(call)


async def _changed(call: Call, broker: Broker, group: Group) -> Response:
    await call.stored(broker)
    return answer(_group_to_json(group))


# -- history ---------------------------------------------------------------------------------------------------------


async def list_history(call: Call) -> Response:
    """List how messages ended; the setting `history` of the queue says for how long that is kept."""
    _, broker, queue = readable_queue(call, "queue")
    query = call.query(FromOffset)
    found = broker.history(queue.name, query.offset, query.limit)
    following = found[-1][0] + 1 if len(found) == query.limit else None
    return await listed(found, following, lambda pair: {"at": pair[0], **_ended_to_json(pair[1])})


def _ended_to_json(entry: dict[str, object]) -> dict[str, object]:
    return {name.removesuffix(_MICROSECONDS): _ended_value(name, value) for name, value in entry.items()}


def _ended_value(name: str, value: object) -> object:
    """Return times in the form of the API, also those of attempts."""
    if isinstance(value, list):
        return [_ended_to_json(attempt) for attempt in value]
    return time_to_json(value) if name.endswith(_MICROSECONDS) and isinstance(value, int) else value


_PATH: Final = "/queues/{vhost}/{queue}"
_GROUPS: Final = _PATH + "/groups"
_GROUP: Final = _GROUPS + "/{group}"
_DROPPED: Final = table("messages:count")
_DECLARATION: Final = {
    "type": "object",
    "properties": {
        **{name: described(key) for name, key in QUEUE_TABLE.keys.items() if name != "name"},
        **{name: described(key) for name, key in table_of(Arguments).keys.items() if name != "type"},
    },
    "additionalProperties": True,
}

OPERATIONS: Final = (
    Operation("GET", "/queues", list_queues, "List queues", page_of("Queue"), QueueList),
    Operation("GET", _PATH, show_queue, "Everything about a queue", ref("QueueDetails")),
    Operation("PUT", _PATH, declare_queue, "Declare a queue", ref("DeclaredQueue"), Update, _DECLARATION),
    Operation("DELETE", _PATH, delete_queue, "Delete a queue", _DROPPED, Deletion),
    Operation("POST", _PATH + "/purge", purge_queue, "Drop all messages that wait", _DROPPED),
    Operation("GET", _GROUPS, list_groups, "List the groups of a queue", page_of("Group"), Paged),
    Operation("GET", _GROUP, show_group, "Progress of a group", ref("Group")),
    Operation("GET", _GROUP + "/pending", list_pending, "Unsettled deliveries", page_of("Pending"), FromOffset),
    Operation("POST", _GROUP + "/seek", seek_group, "Move a stream group to a position", ref("Group"), body=Seek),
    Operation("POST", _GROUP + "/pause", pause_group, "Deliver nothing until resumed", ref("Group")),
    Operation("POST", _GROUP + "/resume", resume_group, "Deliver again", ref("Group")),
    Operation(
        "DELETE",
        _GROUP,
        delete_group,
        "Forget a group without consumers",
        table("queue group messages", messages={**COUNT, "description": "Messages that it had not settled."}),
    ),
    Operation(
        "GET",
        _PATH + "/history",
        list_history,
        "How messages ended and who had claimed them",
        page_of("Ended"),
        FromOffset,
    ),
)

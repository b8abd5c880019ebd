"""Queues over HTTP: list, show, declare, delete, purge. Messages are in messages.py, groups in broker.py."""

from typing import Final

from starlette.responses import Response

from headrace.admin.api.moving import AT_ONCE, BYTES_AT_ONCE, moved_in_steps
from headrace.admin.api.operation import (
    COUNT,
    DEFAULT_LIMIT,
    FLAG,
    MAX_LIMIT,
    PAGED,
    TABLE,
    TEXT,
    Operation,
    page_of,
    ref,
    table,
)
from headrace.admin.pages import BadRequest, Call, Section, answer, listed
from headrace.admin.slices import ordered, sliced
from headrace.admin.views import queue_details, queue_to_json
from headrace.core.access.permissions import CONFIGURE, QUEUE, READ, WRITE
from headrace.core.properties import table_from_json
from headrace.core.queue.configured import configured, differences, update
from headrace.core.queue.dead_letters import Grave, Moved
from headrace.core.queue.definition import QueueDefinition, declared
from headrace.core.queue.queue import Queue
from headrace.errors import PreconditionFailed


async def list_queues(call: Call) -> Response:
    """The queues of one virtual host, or of all that the visitor sees, by host and name."""
    wanted, search = call.text("vhost"), call.text("search").lower()
    hosts = [wanted] if wanted else [name for name in call.site.hosts.names() if call.sees(name)]
    limit = call.number("limit", DEFAULT_LIMIT, 1, MAX_LIMIT)
    last_host, _, last = call.text("after").partition("\n")
    found: list[tuple[str, Queue]] = []
    for host in hosts:
        if host < last_host:
            continue
        queues = call.broker(host).topology.queues
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
    host = call.path("vhost")
    broker = call.broker(host)
    queue = broker.topology.queue(call.path("queue"))
    return answer(queue_details(host, broker, queue, call.site.sampler, call.site.clock.now_us()))


async def declare_queue(call: Call) -> Response:
    """By RabbitMQ's arguments, or by the keys of the configuration file, which may also change what is there."""
    host, name = call.path("vhost"), call.path("queue")
    rights = call.rights(host)
    is_update = call.flag("update")
    definition = _definition(name, await call.json(), is_update)
    rights.check_declare_queue(definition)
    broker = call.broker(host)
    is_new = name not in broker.topology.queues
    if is_update:
        update(broker, host, definition)
    else:
        _check_same(broker.declare(definition), definition)
    await call.kept(broker)
    queue = broker.topology.queue(name)
    shown = {**queue_to_json(host, queue, call.site.sampler), "warnings": queue.definition.warnings}
    return answer(shown, 201 if is_new else 200)


def _check_same(queue: Queue, asked: QueueDefinition) -> None:
    """Raises PreconditionFailed when the queue was there and is not what was asked for."""
    if asked.arguments or queue.definition is asked:
        return  # arguments are compared when it is declared
    others = differences(queue.definition, asked)
    if others:
        raise PreconditionFailed(
            f"queue '{queue.name}' is there and differs in {', '.join(others)}; "
            "with ?update=true in the address it is changed"
        )


def _definition(name: str, body: dict[str, object], is_update: bool) -> QueueDefinition:
    if is_update or not body.keys() & {"arguments", "durable", "auto_delete"}:
        return configured({**body, "name": name})
    section = Section("the body", body)
    arguments = table_from_json(body.get("arguments") or {})
    section.get("arguments")
    kind = section.text("type", "")
    if kind and arguments.setdefault("x-queue-type", kind) != kind:
        raise BadRequest("'type' and the argument 'x-queue-type' differ")
    durable, auto_delete = section.flag("durable", True), section.flag("auto_delete", False)
    section.check_all_read()
    return declared(name, durable, auto_delete=auto_delete, arguments=arguments)


async def delete_queue(call: Call) -> Response:
    host, name = call.path("vhost"), call.path("queue")
    call.rights(host).check(CONFIGURE, QUEUE, name)
    broker = call.broker(host)
    if_unused, if_empty = call.condition("if_unused"), call.condition("if_empty")
    count = broker.delete(name, if_unused, if_empty, broker.topology.queue(name).owner)
    await call.kept(broker)
    call.record(f"queue {name!r} of virtual host {host!r} deleted with {count:,} messages")
    return answer({"messages": count})


async def purge_queue(call: Call) -> Response:
    host, name = call.path("vhost"), call.path("queue")
    call.rights(host).check(READ, QUEUE, name)
    broker = call.broker(host)
    count = broker.purge(name, broker.topology.queue(name).owner)
    await call.kept(broker)
    call.record(f"queue {name!r} of virtual host {host!r} purged of {count:,} messages")
    return answer({"messages": count})


async def move_messages(call: Call) -> Response:
    """Send what waits to another queue, as it is."""
    host, name = call.path("vhost"), call.path("queue")
    rights = call.rights(host)
    rights.check(READ, QUEUE, name)
    body = await call.section()
    target = body.text("to", "")
    limit, start = body.number("limit", MAX_MOVED, 1, MAX_MOVED), body.number("offset", 0)
    body.check_all_read()
    rights.check(WRITE, QUEUE, target)
    broker = call.broker(host)
    grave = Grave(broker.topology.queue(name), is_whole=True)
    stop = grave.queue.log.next_offset

    def step(most: int, at: int) -> Moved:
        return broker.dead_letters.hand_on(grave, target, most, at, stop, BYTES_AT_ONCE, AT_ONCE)

    count = (await moved_in_steps(call, broker, step, limit, start)).messages
    call.record(f"{count:,} messages of queue {name!r} of virtual host {host!r} moved to queue {target!r}")
    return answer({"messages": count})


MAX_MOVED: Final = 10_000
_MOVED: Final = table(("messages",), messages=COUNT)
_PATH: Final = "/queues/{vhost}/{queue}"
_DECLARATION: Final = {
    **table(
        type={"type": "string", "enum": ["classic", "quorum", "stream", "ephemeral"]},
        durable=FLAG,
        auto_delete=FLAG,
        arguments={
            **TABLE,
            "description": "RabbitMQ's `x-` arguments. Without them, the keys of the configuration file.",
        },
        topics={
            "type": "array",
            "items": TEXT,
            "description": "Patterns of addresses (`$queue/...`); of plain topics only with `capture`.",
        },
        capture={**FLAG, "description": "Whether the patterns match plain topics, too."},
        filter={**TEXT, "description": "An expression that messages must satisfy to enter."},
        source={**TEXT, "description": "A stream from which it gets all that satisfies the filter."},
        source_from={
            "type": ["string", "integer"],
            "description": "Where it begins there: earliest, latest, an offset, timestamp=TIME.",
        },
        limits=TABLE,
        retry=TABLE,
        retention=TABLE,
        dlq=TABLE,
    ),
    "additionalProperties": True,
}

OPERATIONS: Final = (
    Operation(
        "GET", "/queues", list_queues, "List queues", {"vhost": TEXT, "search": TEXT, **PAGED}, answer=page_of("Queue")
    ),
    Operation("GET", _PATH, show_queue, "Everything about a queue", answer=ref("QueueDetails")),
    Operation(
        "PUT", _PATH, declare_queue, "Declare a queue", {"update": FLAG}, body=_DECLARATION, answer=ref("DeclaredQueue")
    ),
    Operation("DELETE", _PATH, delete_queue, "Delete a queue", {"if_unused": FLAG, "if_empty": FLAG}, answer=_MOVED),
    Operation("POST", _PATH + "/purge", purge_queue, "Drop all messages that wait", answer=_MOVED),
    Operation(
        "POST",
        _PATH + "/move",
        move_messages,
        "Move waiting messages to another queue",
        body=table(("to",), to=TEXT, limit={"type": "integer", "minimum": 1, "maximum": MAX_MOVED}, offset=COUNT),
        answer=_MOVED,
    ),
)

"""Dead letters over HTTP: which queues have some, what they are, back to where they died, elsewhere, or away."""

import asyncio
from typing import Final

from starlette.responses import Response

from headrace.admin.api.messages import MAX_SHOWN_BYTES, SHOWING, shown
from headrace.admin.api.moving import AT_ONCE, BYTES_AT_ONCE, moved_in_steps
from headrace.admin.api.operation import (
    COUNT,
    DEFAULT_LIMIT,
    FLAG,
    MAX_LIMIT,
    MAX_OFFSET,
    OFFSET,
    PAGED,
    TEXT,
    Operation,
    Schema,
    page_of,
    ref,
    table,
)
from headrace.admin.api.queues import MAX_MOVED
from headrace.admin.pages import Call, after, answer, listed
from headrace.admin.slices import sliced
from headrace.core.access.permissions import QUEUE, READ, WRITE
from headrace.core.broker import Broker
from headrace.core.queue.dead_letters import LOOKS, Grave, Moved
from headrace.core.queue.dispatch import Found


async def list_graves(call: Call) -> Response:
    """The queues that hold dead letters, or are there for them, and how many messages wait in each."""
    host = call.path("vhost")
    broker = call.broker(host)
    queues, letters = broker.topology.queues, broker.dead_letters
    names = set[str]()
    async for queue in sliced(list(queues.values())):
        if letters.holds_letters(queue):
            names.add(queue.name)
        names.add(queue.definition.dead_letter_queue)
    limit = call.number("limit", DEFAULT_LIMIT, 1, MAX_LIMIT)
    page, following = await after(names & queues.keys(), call.text("after"), limit)

    def shown_grave(name: str) -> dict[str, object] | None:
        return _grave_to_json(host, broker, Grave(queues[name])) if name in queues else None

    return await listed(page, following, shown_grave)


async def show_grave(call: Call) -> Response:
    """Where the dead letters of a queue are; the queue is "" when there are none."""
    broker, grave = _grave(call)
    return answer(_grave_to_json(call.path("vhost"), broker, grave))


async def list_letters(call: Call) -> Response:
    broker, grave = _grave(call)
    limit, start = call.number("limit", DEFAULT_LIMIT, 1, MAX_LIMIT), call.number("offset", 0, 0, MAX_OFFSET)
    if grave is None:
        return await shown(call, broker, [], None)
    found: list[Found] = []
    following: int | None = start
    looks, size = LOOKS, 0
    while following is not None and looks > 0 and len(found) < limit and size < MAX_SHOWN_BYTES:
        most = min(limit - len(found), AT_ONCE)
        part, following = broker.dead_letters.browse(grave, following, most, MAX_SHOWN_BYTES - size, AT_ONCE)
        looks -= AT_ONCE
        size += sum([len(message.payload) + len(message.properties) for _, message in part])
        found += part
        await asyncio.sleep(0)
    return await shown(call, broker, found, following)


async def redrive(call: Call) -> Response:
    """Back to the queues they died in; those stay whose queue the visitor may not write to."""
    broker, grave = _grave(call)
    body = await call.section()
    limit, start = body.number("limit", MAX_MOVED, 1, MAX_MOVED), body.number("offset", 0)
    stop = body.number("until", MAX_OFFSET)
    body.check_all_read()
    if grave is None:
        return _moved("", Moved(0, None))
    rights = call.rights(call.path("vhost"))
    stop = min(stop, grave.queue.log.next_offset)

    def step(most: int, at: int) -> Moved:
        may = rights.may
        return broker.dead_letters.send_back(
            grave, most, at, stop, lambda name: may(WRITE, name), BYTES_AT_ONCE, AT_ONCE
        )

    done = await moved_in_steps(call, broker, step, limit, start)
    return _moved(grave.queue.name, done)


async def move(call: Call) -> Response:
    """To another queue, as they are."""
    broker, grave = _grave(call)
    body = await call.section()
    target = body.text("to", "")
    limit, start = body.number("limit", MAX_MOVED, 1, MAX_MOVED), body.number("offset", 0)
    body.check_all_read()
    call.rights(call.path("vhost")).check(WRITE, QUEUE, target)
    broker.topology.queue(target)
    if grave is None:
        return _moved("", Moved(0, None))
    stop = grave.queue.log.next_offset

    def step(most: int, at: int) -> Moved:
        return broker.dead_letters.hand_on(grave, target, most, at, stop, BYTES_AT_ONCE, AT_ONCE)

    done = await moved_in_steps(call, broker, step, limit, start)
    call.record(f"{done.messages:,} dead letters of queue {grave.queue.name!r} moved to queue {target!r}")
    return _moved(grave.queue.name, done)


async def purge(call: Call) -> Response:
    broker, grave = _grave(call)
    body = await call.section()
    start = body.number("offset", 0)
    body.check_all_read()
    if grave is None:
        return _moved("", Moved(0, None))
    stop = grave.queue.log.next_offset

    def step(_: int, at: int) -> Moved:
        return broker.dead_letters.drop(grave, at, stop, AT_ONCE)

    done = await moved_in_steps(call, broker, step, MAX_OFFSET, start)
    call.record(f"{done.messages:,} dead letters of queue {grave.queue.name!r} dropped")
    return _moved(grave.queue.name, done)


def _grave(call: Call) -> tuple[Broker, Grave | None]:
    """The broker, and where the dead letters are of the queue that the address names; None when it has none."""
    host, name = call.path("vhost"), call.path("queue")
    rights, broker = call.rights(host), call.broker(host)
    grave = broker.dead_letters.grave_of(name, call.flag("exact"))
    rights.check(READ, QUEUE, name if grave is None else grave.queue.name)
    if grave is not None and grave.queue.refusal is not None:
        raise grave.queue.refusal
    return broker, grave


def _grave_to_json(host: str, broker: Broker, grave: Grave | None) -> dict[str, object]:
    if grave is None:
        return {"vhost": host, "queue": "", "origin": "", "messages": 0, "has_others": False}
    return {
        "vhost": host,
        "queue": grave.queue.name,
        "origin": grave.origin or broker.dead_letters.origin_in(grave.queue),
        "messages": grave.queue.messages,
        "has_others": not grave.is_whole,
    }


def _moved(queue: str, done: Moved) -> Response:
    return answer({"queue": queue, "messages": done.messages, "next": done.next})


_LETTERS: Final = "/queues/{vhost}/{queue}/dead-letters"
_MOVED: Final = table(
    ("queue", "messages", "next"),
    queue={**TEXT, "description": "The queue that held them; empty when there is none."},
    messages=COUNT,
    next={"type": ["integer", "null"], "description": "Give this as `offset` to go on; null at the end."},
)
_EXACT: Final[dict[str, Schema]] = {
    "exact": {**FLAG, "description": "The queue named holds them itself, whatever died in it."}
}
_LIMIT: Final = {"type": "integer", "minimum": 1, "maximum": MAX_MOVED, "default": MAX_MOVED}

OPERATIONS: Final = (
    Operation(
        "GET", "/dead-letters/{vhost}", list_graves, "Queues of dead letters", PAGED, answer=page_of("DeadLetterQueue")
    ),
    Operation(
        "GET",
        "/dead-letters/{vhost}/{queue}",
        show_grave,
        "Where the dead letters of a queue are",
        _EXACT,
        answer=ref("DeadLetterQueue"),
    ),
    Operation(
        "GET",
        _LETTERS,
        list_letters,
        "The dead letters of a queue, without taking them",
        {"offset": OFFSET, **_EXACT, **SHOWING},
        answer=page_of("Message"),
    ),
    Operation(
        "POST",
        _LETTERS + "/redrive",
        redrive,
        "Send dead letters back to where they died",
        _EXACT,
        body=table(limit=_LIMIT, offset=COUNT, until={**COUNT, "description": "Only offsets below this one."}),
        answer=_MOVED,
    ),
    Operation(
        "POST",
        _LETTERS + "/move",
        move,
        "Move dead letters to another queue",
        _EXACT,
        body=table(("to",), to=TEXT, limit=_LIMIT, offset=COUNT),
        answer=_MOVED,
    ),
    Operation(
        "POST",
        _LETTERS + "/purge",
        purge,
        "Drop the dead letters of a queue",
        _EXACT,
        body=table(offset=COUNT),
        answer=_MOVED,
    ),
)

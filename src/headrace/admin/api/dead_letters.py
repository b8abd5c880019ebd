"""Dead letters over HTTP: which queues have some, what they are, back to where they died, elsewhere, or away."""

from typing import Final

from starlette.responses import Response

from headrace.admin.answers import after, answer, listed
from headrace.admin.api.messages import MAX_SHOWN_BYTES, SHOWING, shown
from headrace.admin.api.operation import (
    COUNT,
    DEFAULT_LIMIT,
    MAX_LIMIT,
    MAX_OFFSET,
    OFFSET,
    PAGED,
    TEXT,
    Operation,
    page_of,
    table,
)
from headrace.admin.api.queues import MAX_MOVED
from headrace.admin.pages import Call
from headrace.core.address import dead_letter_origin
from headrace.core.broker import Broker
from headrace.core.rights import QUEUE, READ, WRITE


async def list_graves(call: Call) -> Response:
    """The queues that dead letters go to without an exchange, and how many wait in each."""
    host = call.path("vhost")
    broker = call.broker(host)
    queues = broker.topology.queues
    names = {name for name in queues if dead_letter_origin(name)}
    names |= {name for queue in queues.values() if (name := queue.definition.dead_letter_queue) in queues}
    limit = call.number("limit", DEFAULT_LIMIT, 1, MAX_LIMIT)
    page, following = after(names, call.text("after"), limit)
    return listed(
        page,
        following,
        lambda name: {
            "vhost": host,
            "queue": name,
            "origin": dead_letter_origin(name),
            "messages": queues[name].messages,
        },
    )


async def list_letters(call: Call) -> Response:
    broker, grave = _grave(call)
    limit = call.number("limit", DEFAULT_LIMIT, 1, MAX_LIMIT)
    found = broker.topology.queue(grave).browse(call.number("offset", 0, 0, MAX_OFFSET), limit, MAX_SHOWN_BYTES)
    return shown(call, broker, found)


async def redrive(call: Call) -> Response:
    """Back to the queues they died in, in one commit."""
    broker, _ = _grave(call, WRITE)
    limit, start = await _bounds(call)
    return await _moved(call, broker, broker.dead_letters.redrive(call.path("queue"), limit, start))


async def move(call: Call) -> Response:
    """To another queue, as they are, in one commit."""
    broker, grave = _grave(call)
    body = await call.section()
    target = body.text("to", "")
    limit, start = body.number("limit", MAX_MOVED, 1, MAX_MOVED), body.number("offset", 0)
    body.check_all_read()
    call.rights(call.path("vhost")).check(WRITE, QUEUE, target)
    return await _moved(call, broker, broker.dead_letters.transfer(grave, target, limit, start))


async def purge(call: Call) -> Response:
    broker, _ = _grave(call)
    return await _moved(call, broker, broker.dead_letters.purge(call.path("queue")))


def _grave(call: Call, *needed: str) -> tuple[Broker, str]:
    """The broker, and the queue that holds the dead letters of the one that the address names."""
    host, name = call.path("vhost"), call.path("queue")
    rights = call.rights(host)
    for right in needed:
        rights.check(right, QUEUE, name)
    broker = call.broker(host)
    grave = broker.dead_letters.grave_of(name)
    rights.check(READ, QUEUE, grave.name)
    if grave.refusal is not None:
        raise grave.refusal
    return broker, grave.name


async def _bounds(call: Call) -> tuple[int, int]:
    body = await call.section()
    limit, start = body.number("limit", MAX_MOVED, 1, MAX_MOVED), body.number("offset", 0)
    body.check_all_read()
    return limit, start


async def _moved(call: Call, broker: Broker, count: int) -> Response:
    await call.stored(broker)
    return answer({"messages": count})


_LETTERS: Final = "/queues/{vhost}/{queue}/dead-letters"
_MOVED: Final = table(("messages",), messages=COUNT)
_LIMIT: Final = {"type": "integer", "minimum": 1, "maximum": MAX_MOVED, "default": MAX_MOVED}

OPERATIONS: Final = (
    Operation(
        "GET", "/dead-letters/{vhost}", list_graves, "Queues of dead letters", PAGED, answer=page_of("DeadLetterQueue")
    ),
    Operation(
        "GET",
        _LETTERS,
        list_letters,
        "The dead letters of a queue, without taking them",
        {"offset": OFFSET, **SHOWING},
        answer=page_of("Message"),
    ),
    Operation(
        "POST",
        _LETTERS + "/redrive",
        redrive,
        "Send dead letters back to where they died",
        body=table(limit=_LIMIT, offset=COUNT),
        answer=_MOVED,
    ),
    Operation(
        "POST",
        _LETTERS + "/move",
        move,
        "Move dead letters to another queue",
        body=table(("to",), to=TEXT, limit=_LIMIT, offset=COUNT),
        answer=_MOVED,
    ),
    Operation("POST", _LETTERS + "/purge", purge, "Drop the dead letters of a queue", answer=_MOVED),
)

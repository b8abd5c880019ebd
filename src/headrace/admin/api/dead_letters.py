"""Dead letters over HTTP: list them, redrive, move or drop them. Moves of other messages are here, too.

Thousands of messages go in steps; each step is a commit that is durable before the next.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from headrace.admin.api.messages import Shown, show_messages
from headrace.admin.api.operation import MAX_OFFSET, TEXT, Operation, Paged, page_of, ref, table
from headrace.admin.pages import Call, after, answer, listed
from headrace.admin.resources import readable_queue
from headrace.admin.slices import sliced
from headrace.config.kinds import Flag, Number, Text
from headrace.config.table import option, required
from headrace.core.access.permissions import QUEUE, READ, WRITE
from headrace.core.broker import Broker
from headrace.core.queue.dead_letters import LOOKS, REDRIVE_BYTES, Grave, Moved
from headrace.core.queue.dispatch import Found
from headrace.errors import Refused

MAX_MOVED: Final = 10_000
AT_ONCE: Final = 250
"""Messages of one step: each takes up to 0.03 ms, and other work runs between steps."""
BYTES_AT_ONCE: Final = 4 << 20

Step = Callable[[int, int], Moved]
"""Moves up to a number of messages from an offset on."""


@dataclass(frozen=True)
class Exact:
    """Query of dead letters."""

    exact: bool = option(False, Flag(), "True if the queue named holds them itself, whatever died in it.")


@dataclass(frozen=True)
class Letters(Shown, Exact):
    """Query of a list of dead letters."""


@dataclass(frozen=True)
class Purge:
    """Body of a purge."""

    offset: int = option(0, Number())
    until: int = option(MAX_OFFSET, Number(0, MAX_OFFSET), "Only offsets below this one.")


@dataclass(frozen=True)
class Redrive(Purge):
    """Body of a redrive."""

    limit: int = option(MAX_MOVED, Number(1, MAX_MOVED))


@dataclass(frozen=True, kw_only=True)
class Move(Redrive):
    """Body of a move."""

    to: str = required(Text(), "Name of the other queue.")


async def list_graves(call: Call) -> Response:
    """List the queues for dead letters, with the number of waiting messages."""
    host = call.path("vhost")
    broker, query = call.broker(host), call.query(Paged)
    queues, letters = broker.topology.queues, broker.dead_letters
    names = set[str]()
    async for queue in sliced(list(queues.values())):
        if letters.holds_letters(queue):
            names.add(queue.name)
        names.add(queue.definition.dead_letter_queue)
    page, following = await after(names & queues.keys(), query.after, query.limit)

    def shown_grave(name: str) -> dict[str, object] | None:
        return _grave_to_json(host, broker, Grave(queues[name])) if name in queues else None

    return await listed(page, following, shown_grave)


async def show_grave(call: Call) -> Response:
    """Show the queue with the dead letters of a queue; "" if there is none."""
    broker, grave = _grave(call)
    return answer(_grave_to_json(call.path("vhost"), broker, grave))


async def list_letters(call: Call) -> Response:
    broker, grave = _grave(call)
    query = call.query(Letters)
    if grave is None:
        return answer({"items": [], "next": None})
    broker.dead_letters.browse(grave, query.offset, 1, 1, 1)  # raises Corrupt before the answer begins
    looks = LOOKS

    def read(at: int, most: int, max_bytes: int) -> tuple[list[Found], int | None]:
        nonlocal looks
        if looks <= 0:
            return [], at
        looks -= most
        return broker.dead_letters.browse(grave, at, most, max_bytes, most)

    return show_messages(query, query.offset, read)


async def redrive(call: Call) -> Response:
    """Send dead letters back to the queues they died in, as far as the visitor may write there."""
    broker, grave = _grave(call)
    body = await call.read(Redrive)
    if grave is None:
        return _moved("", Moved(0, None), 0)
    rights = call.rights(call.path("vhost"))
    stop = min(body.until, grave.queue.log.next_offset)

    def step(most: int, at: int) -> Moved:
        may = rights.may
        return broker.dead_letters.send_back(
            grave, most, at, stop, lambda name: may(WRITE, name), BYTES_AT_ONCE, AT_ONCE
        )

    return _moved(grave.queue.name, await _in_steps(call, broker, step, body.limit, body.offset), stop)


async def move(call: Call) -> Response:
    """Move dead letters to another queue."""
    broker, grave = _grave(call)
    body = await _read_move(call)
    broker.topology.queue(body.to)
    if grave is None:
        return _moved("", Moved(0, None), 0)
    stop = min(body.until, grave.queue.log.next_offset)
    done = await _hand_on(call, broker, grave, body, stop)
    call.record(f"{done.messages:,} dead letters of queue {grave.queue.name!r} moved to queue {body.to!r}")
    return _moved(grave.queue.name, done, stop)


async def move_messages(call: Call) -> Response:
    """Move waiting messages to another queue."""
    host, broker, queue = readable_queue(call, "queue")
    body = await _read_move(call)
    stop = min(body.until, queue.log.next_offset)
    count = (await _hand_on(call, broker, Grave(queue, is_whole=True), body, stop)).messages
    call.record(f"{count:,} messages of queue {queue.name!r} of virtual host {host!r} moved to queue {body.to!r}")
    return answer({"messages": count})


async def purge(call: Call) -> Response:
    """Drop dead letters."""
    broker, grave = _grave(call)
    body = await call.read(Purge)
    if grave is None:
        return _moved("", Moved(0, None), 0)
    stop = min(body.until, grave.queue.log.next_offset)

    def step(_: int, at: int) -> Moved:
        return broker.dead_letters.drop(grave, at, stop, AT_ONCE)

    done = await _in_steps(call, broker, step, MAX_OFFSET, body.offset)
    call.record(f"{done.messages:,} dead letters of queue {grave.queue.name!r} dropped")
    return _moved(grave.queue.name, done, stop)


def _grave(call: Call) -> tuple[Broker, Grave | None]:
    """Return the broker, and the dead letters of the queue that the address names; None if it has none."""
    host, name = call.path("vhost"), call.path("queue")
    rights, broker = call.rights(host), call.broker(host)
    grave = broker.dead_letters.grave_of(name, call.query(Exact).exact)
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


def _moved(queue: str, done: Moved, stop: int) -> Response:
    return answer({"queue": queue, "messages": done.messages, "next": done.next, "until": stop})


async def _read_move(call: Call) -> Move:
    body = await call.read(Move)
    call.rights(call.path("vhost")).check(WRITE, QUEUE, body.to)
    return body


async def _hand_on(call: Call, broker: Broker, grave: Grave, body: Move, stop: int) -> Moved:
    def step(most: int, at: int) -> Moved:
        return broker.dead_letters.hand_on(grave, body.to, most, at, stop, BYTES_AT_ONCE, AT_ONCE)

    return await _in_steps(call, broker, step, body.limit, body.offset)


async def _in_steps(call: Call, broker: Broker, step: Step, limit: int, start: int) -> Moved:
    """Move messages in durable steps; return their number, and the offset to go on from.

    Raises the error of a step; if messages went before it, the error says how many. They stay where they went.
    """
    whole = Moved(0, start)
    while whole.next is not None and whole.messages < limit and whole.looks < LOOKS:
        try:
            done = step(min(limit - whole.messages, AT_ONCE), whole.next)
        except Refused as error:
            if whole.messages:
                raise type(error)(f"{error}; {whole.messages:,} messages went before and stay there") from error
            raise
        whole.messages += done.messages
        whole.size_bytes += done.size_bytes
        whole.looks += done.looks
        whole.next = done.next
        if done.messages:
            await call.stored(broker)
        else:
            await asyncio.sleep(0)
        if whole.size_bytes >= REDRIVE_BYTES:
            break
    return whole


_QUEUE: Final = "/queues/{vhost}/{queue}"
_LETTERS: Final = _QUEUE + "/dead-letters"
_GRAVE: Final = "/dead-letters/{vhost}/{queue}"
_COUNTED: Final = table("messages:count")
_MOVED: Final = table(
    "queue messages:count next until:count",
    queue={**TEXT, "description": "Queue that held them; empty if there is none."},
    next={"type": ["integer", "null"], "description": "`offset` to go on from; null at the end."},
    until={"type": "integer", "description": "`until` to go on with: the end of the queue when it began."},
)

OPERATIONS: Final = (
    Operation("POST", _QUEUE + "/move", move_messages, "Move waiting messages to another queue", _COUNTED, body=Move),
    Operation("GET", "/dead-letters/{vhost}", list_graves, "Queues of dead letters", page_of("DeadLetterQueue"), Paged),
    Operation("GET", _GRAVE, show_grave, "Where the dead letters of a queue are", ref("DeadLetterQueue"), Exact),
    Operation(
        "GET", _LETTERS, list_letters, "The dead letters of a queue, without taking them", page_of("Message"), Letters
    ),
    Operation(
        "POST", _LETTERS + "/redrive", redrive, "Send dead letters back to where they died", _MOVED, Exact, Redrive
    ),
    Operation("POST", _LETTERS + "/move", move, "Move dead letters to another queue", _MOVED, Exact, Move),
    Operation("POST", _LETTERS + "/purge", purge, "Drop the dead letters of a queue", _MOVED, Exact, Purge),
)

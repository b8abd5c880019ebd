"""Messages over HTTP: browse, publish, consume. Dead letters are in dead_letters.py."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from starlette.responses import Response

from headrace.admin.api.operation import MAX_LIMIT, FromOffset, Operation, array_of, page_of, ref, table
from headrace.admin.messages import BASE64, MAX_SHOWN_BYTES, Publication, Taker, client_of, message_to_json
from headrace.admin.messages import publish as publish_message
from headrace.admin.pages import BadRequest, Call, answer, encode, streamed
from headrace.admin.resources import readable_queue
from headrace.admin.slices import AT_ONCE
from headrace.config.kinds import Choice, Number, Text, Unchecked
from headrace.config.table import option
from headrace.core.client import ConsumeRequest
from headrace.core.queue.dispatch import Found
from headrace.core.queue.group import ACK, REJECT, RELEASE
from headrace.core.queue.queue import Queue

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
DEFAULT_SHOWN_BYTES: Final = 64 << 10
_SLICE_BYTES: Final = 1 << 20
Read = Callable[[int, int, int], tuple[list[Found], int | None]]
"""Reads messages from an offset on, bounded by number and bytes; also tells where to go on, None at the end."""
MAX_WAIT_MS: Final = 30_000
_OUTCOMES: Final = {"ack": ACK, "requeue": RELEASE, "reject": REJECT}
_AUTO: Final = "auto"


@dataclass(frozen=True)
class Shown(FromOffset):
    """Query of a list of messages: the form of payloads, and the most bytes of one."""

    encoding: str = option(_AUTO, Choice(_AUTO, BASE64))
    max_bytes: int = option(DEFAULT_SHOWN_BYTES, Number(0, MAX_SHOWN_BYTES))


@dataclass(frozen=True)
class Browse(Shown):
    """Query of messages from an offset or a time on."""

    time: str = option("", Text(), "Time of the first message, such as 2026-01-31T12:00:00Z.")


@dataclass(frozen=True)
class Consume:
    """Body of a request for messages."""

    limit: int = option(1, Number(1, MAX_LIMIT))
    group: str = option("", Text())
    then: str = option("ack", Choice(*_OUTCOMES))
    wait_ms: int = option(0, Number(0, MAX_WAIT_MS))
    position: object = option(None, Unchecked(type=["string", "integer", "null"]))
    encoding: str = option(_AUTO, Choice(_AUTO, BASE64))
    max_bytes: int = option(MAX_SHOWN_BYTES, Number(0, MAX_SHOWN_BYTES))


async def browse(call: Call) -> Response:
    """Show messages from an offset or a time on; the queue stays as it is."""
    query = call.query(Browse)
    _, _, queue = readable_queue(call, "queue")
    if queue.refusal is not None:
        raise queue.refusal
    start = _start(query, queue)
    queue.browse(start, 1)  # raises Corrupt before the answer begins
    is_empty = True

    def read(at: int, most: int, max_bytes: int) -> tuple[list[Found], int | None]:
        nonlocal is_empty
        found = queue.browse(at, most, max_bytes)
        is_empty = is_empty and not found
        return found, found[-1][0] + 1 if found else None if is_empty else at

    return show_messages(query, start, read)


def show_messages(query: Shown, start: int, read: Read) -> Response:
    """Answer with a page of messages, and the offset of the next page."""
    return streamed(_page(query, start, read))


async def _page(query: Shown, start: int, read: Read) -> AsyncIterator[bytes]:
    """Yield a page in slices, so that a slow reader holds one slice."""
    as_base64 = query.encoding == BASE64
    left, room = query.limit, MAX_SHOWN_BYTES
    following: int | None = start
    separator = b""
    yield b'{"items":['
    while following is not None and left and room > 0:
        before = following
        found, following = read(before, min(left, AT_ONCE), min(room, _SLICE_BYTES))
        if found:
            texts = [encode(message_to_json(offset, message, as_base64, query.max_bytes)) for offset, message in found]
            yield separator + ",".join(texts).encode("ascii")
            separator = b","
            left -= len(found)
            room -= sum([len(message.payload) + len(message.properties) for _, message in found])
        elif following == before:
            break
        await asyncio.sleep(0)
    yield b'],"next":' + encode(following).encode("ascii") + b"}"


def _start(query: Browse, queue: Queue) -> int:
    if not query.time:
        return query.offset
    try:
        time = datetime.fromisoformat(query.time)
    except ValueError as error:
        raise BadRequest(f"'time' takes a time like 2026-01-31T12:00:00Z, not {query.time[:40]!r}") from error
    time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return queue.log.find((time - _EPOCH) // timedelta(microseconds=1))


async def publish(call: Call) -> Response:
    """Publish a message; answer once it is durable in every queue that took it."""
    host = call.path("vhost")
    call.broker(host)
    return answer({"queues": await publish_message(call, host, await call.read(Publication))})


async def consume(call: Call) -> Response:
    """Take messages for a group and settle them; answer once that is durable."""
    host = call.path("vhost")
    client = client_of(call, call.broker(host), call.rights(host))
    name = call.path("queue")
    client.check_read(name, False)
    body = await call.read(Consume)
    request = ConsumeRequest(name, group=body.group)
    request.position = body.position
    taker = Taker(client, request, f"http-{call.visitor.name}", body.limit)
    deliveries = await taker.take(body.wait_ms, _OUTCOMES[body.then])
    as_base64 = body.encoding == BASE64
    items = [
        {
            **message_to_json(delivery.offset, delivery.message, as_base64, body.max_bytes),
            "redelivered": delivery.redelivered,
            "attempts": delivery.attempts,
        }
        for delivery in deliveries
    ]
    return answer({"items": items})


_QUEUE: Final = "/queues/{vhost}/{queue}"
OPERATIONS: Final = (
    Operation("GET", _QUEUE + "/messages", browse, "Look at messages without taking them", page_of("Message"), Browse),
    Operation(
        "POST",
        _QUEUE + "/consume",
        consume,
        "Take messages",
        table("items", items=array_of(ref("Message"))),
        body=Consume,
    ),
    Operation("POST", "/publish/{vhost}", publish, "Publish a message", table("queues:count"), body=Publication),
)

"""Messages over HTTP: look at them without taking them, publish, take a few."""

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from typing import Final, final

from starlette.responses import Response

from headrace.admin.api.operation import (
    COUNT,
    DEFAULT_LIMIT,
    LIMIT,
    MAX_LIMIT,
    MAX_OFFSET,
    OFFSET,
    TABLE,
    TEXT,
    Operation,
    page_of,
    table,
)
from headrace.admin.messages import Draft, draft, message_to_json
from headrace.admin.pages import BadRequest, Call, answer, done, listed
from headrace.core.access.permissions import QUEUE, READ
from headrace.core.broker import Broker
from headrace.core.queue.dispatch import Consumer, Delivery
from headrace.core.queue.group import ACK, REJECT, RELEASE
from headrace.core.queue.queue import Queue
from headrace.core.queue.stream import StreamGroup
from headrace.core.routing.topics import check_topic
from headrace.errors import HeadraceError
from headrace.model import Message
from headrace.storage.api import Done

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
DEFAULT_SHOWN_BYTES: Final = 64 << 10
MAX_SHOWN_BYTES: Final = 16 << 20
MAX_WAIT_MS: Final = 30_000
_OUTCOMES: Final = {"ack": ACK, "requeue": RELEASE, "reject": REJECT}


async def browse(call: Call) -> Response:
    """Messages from an offset or a time on; nobody notices that they were looked at."""
    host, name = call.path("vhost"), call.path("queue")
    call.rights(host).check(READ, QUEUE, name)
    broker = call.broker(host)
    queue = broker.topology.queue(name)
    if queue.refusal is not None:
        raise queue.refusal
    limit = call.number("limit", DEFAULT_LIMIT, 1, MAX_LIMIT)
    found = queue.browse(_start(call, queue), limit, MAX_SHOWN_BYTES)
    return await shown(call, broker, found, found[-1][0] + 1 if found else None)


async def shown(call: Call, broker: Broker, found: list[tuple[int, Message]], following: int | None) -> Response:
    """A part of a list of messages, and where the next part begins."""
    as_base64 = _is_base64(call.text("encoding", "auto"))
    max_bytes = call.number("max_bytes", DEFAULT_SHOWN_BYTES, 0, MAX_SHOWN_BYTES)
    return await listed(
        found, following, lambda pair: message_to_json(broker.codecs, pair[0], pair[1], as_base64, max_bytes)
    )


def _start(call: Call, queue: Queue) -> int:
    text = call.text("time")
    if not text:
        return call.number("offset", 0, 0, MAX_OFFSET)
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadRequest(f"'time' takes a time like 2026-01-31T12:00:00Z, not {text[:40]!r}") from error
    time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return queue.log.find((time - _EPOCH) // timedelta(microseconds=1))


def _is_base64(text: str) -> bool:
    if text not in ("auto", "base64"):
        raise BadRequest(f"'encoding' takes auto or base64, not {text[:40]!r}")
    return text == "base64"


async def publish(call: Call) -> Response:
    """Returns once the message would survive a crash in every queue that took it."""
    host = call.path("vhost")
    codecs = call.broker(host).codecs
    found = draft(await call.section(), codecs, call.visitor.name, call.site.clock.now_us())
    return answer({"queues": await send(call, host, found)})


async def send(call: Call, host: str, found: Draft) -> int:
    """Publish a message; returns how many queues took it. Raises what they refuse it with."""
    rights, broker = call.rights(host), call.broker(host)
    source = found.message.source
    if found.is_topic:
        check_topic(source.topic)
        rights.check_topic_publish(source.topic, source.client_id)
    else:
        rights.check_publish(source.exchange, source.topic, source.client_id)
    call.meter(1, len(found.message.payload))
    taken = 0

    def start(confirm: Done) -> None:
        nonlocal taken
        if found.is_topic:
            taken = broker.publish_topic(found.message, confirm)
        else:
            taken = broker.publish(found.message, confirm, found.headers)

    await done(start)
    return taken


async def consume(call: Call) -> Response:
    """Take messages for a group; that they are acknowledged, put back or rejected is stored before the answer."""
    host, name = call.path("vhost"), call.path("queue")
    call.rights(host).check(READ, QUEUE, name)
    broker = call.broker(host)
    body = await call.section()
    limit = body.number("limit", 1, 1, MAX_LIMIT)
    group, outcome = body.text("group", ""), body.choice("then", tuple(_OUTCOMES), "ack")
    wait_ms = body.number("wait_ms", 0, most=MAX_WAIT_MS)
    max_bytes = body.number("max_bytes", MAX_SHOWN_BYTES, most=MAX_SHOWN_BYTES)
    as_base64 = _is_base64(body.text("encoding", "auto"))
    position = body.get("position")
    body.check_all_read()
    taker = Taker(broker, f"http-{call.visitor.name}", limit)
    deliveries = await taker.take(name, group, position, wait_ms, _OUTCOMES[outcome])
    items = [
        {
            **message_to_json(broker.codecs, delivery.offset, delivery.message, as_base64, max_bytes),
            "redelivered": delivery.redelivered,
            "attempts": delivery.attempts,
        }
        for delivery in deliveries
    ]
    return answer({"items": items})


@final
class Taker:
    """A consumer for the length of one request."""

    def __init__(self, broker: Broker, name: str, limit: int) -> None:
        self._broker = broker
        self._limit = limit
        self._got: list[Delivery] = []
        self._bytes = 0
        self._is_enough = asyncio.Event()
        self._consumer = Consumer(name, self._deliver, min(limit, _AT_ONCE))
        self._consumer.allowance = limit
        self._consumer.cancelled = self._is_enough.set

    async def take(self, queue: str, group: str, position: object, wait_ms: int, outcome: int) -> list[Delivery]:
        """Up to so many messages, as they come until the time is over; settled, once that would survive a crash.

        Raises what consuming raises, and what storing raises: then all of them are back in line.
        """
        members = self._broker.consume(queue, self._consumer, group, position=position)
        try:
            with contextlib.suppress(TimeoutError):
                # Deliveries come with the next turns of the loop; a group that is behind on disk may need some time.
                async with asyncio.timeout(max(wait_ms, _LEAST_WAIT_MS) / 1000):
                    await self._is_enough.wait()
            self._broker.allow(self._consumer, 0)
            await settle_all(self._broker, self._got, outcome)
        finally:
            self._broker.cancel(self._consumer)
        if members.queue.is_gone and not self._got:
            raise members.queue.end
        if isinstance(members, StreamGroup):  # its progress is staged when the consumer leaves
            with contextlib.suppress(HeadraceError):  # it is stored later; until then a crash has these read again
                await done(self._broker.when_safe)
        return self._got

    def _deliver(self, deliveries: list[Delivery]) -> None:
        self._got += deliveries
        self._bytes += sum([len(delivery.message.payload) for delivery in deliveries])
        if len(self._got) >= self._limit or self._bytes >= MAX_SHOWN_BYTES:
            self._broker.allow(self._consumer, 0)
            self._is_enough.set()
        elif len(self._got) >= self._consumer.limit:
            self._broker.set_credit(self._consumer, len(self._got) + _AT_ONCE)


async def settle_all(broker: Broker, deliveries: list[Delivery], outcome: int) -> None:
    """Settle these as one, and return when that would survive a crash; others' are left to those who have them now.

    Raises what storing raises: then their consumer holds them as before.
    """
    held = [each for each in deliveries if not each.group.queue.is_gone and each.consumer.holds(each.offset)]
    if held:
        await done(lambda tell: _settle(broker, held, outcome, tell))


def _settle(broker: Broker, deliveries: list[Delivery], outcome: int, tell: Done) -> None:
    broker.transaction([], [(delivery, outcome) for delivery in deliveries], tell)


_AT_ONCE: Final = 16
_LEAST_WAIT_MS: Final = 50
_MESSAGES: Final = "/queues/{vhost}/{queue}/messages"
_ENCODING: Final = {"type": "string", "enum": ["auto", "base64"], "default": "auto"}
_SHOWN: Final = {"type": "integer", "minimum": 0, "maximum": MAX_SHOWN_BYTES, "default": DEFAULT_SHOWN_BYTES}
SHOWING: Final = {"limit": LIMIT, "encoding": _ENCODING, "max_bytes": _SHOWN}
_TIME: Final = {"type": "string", "format": "date-time"}

OPERATIONS: Final = (
    Operation(
        "GET",
        _MESSAGES,
        browse,
        "Look at messages without taking them",
        {"offset": OFFSET, "time": _TIME, **SHOWING},
        answer=page_of("Message"),
    ),
    Operation(
        "POST",
        "/queues/{vhost}/{queue}/consume",
        consume,
        "Take messages",
        body=table(
            limit=LIMIT,
            group=TEXT,
            then={"type": "string", "enum": list(_OUTCOMES), "default": "ack"},
            wait_ms={"type": "integer", "minimum": 0, "maximum": MAX_WAIT_MS, "default": 0},
            position={"type": ["string", "integer", "null"]},
            encoding=_ENCODING,
            max_bytes=_SHOWN,
        ),
        answer=table(("items",), items={"type": "array", "items": {"$ref": "#/components/schemas/Message"}}),
    ),
    Operation(
        "POST",
        "/publish/{vhost}",
        publish,
        "Publish a message",
        body=table(
            topic={**TEXT, "description": "A plain topic or an address, $queue/<name>/<key>"},
            exchange=TEXT,
            routing_key=TEXT,
            payload=TEXT,
            payload_encoding={"type": "string", "enum": ["text", "base64"], "default": "text"},
            properties={**TABLE, "description": "content_type, message_id, priority, headers, ..."},
            expires_in_ms=COUNT,
            deliver_in_ms=COUNT,
        ),
        answer=table(("queues",), queues=COUNT),
    ),
)

"""Queues in bulk over HTTP, as Arrow streams: for Spark, pandas, Polars and DuckDB. The rules are core's.

GET    /bulk/queues?name=orders                          which queues there are, from where to where
GET    /bulk/messages?queue=orders&from=0&to=1000        messages, as an Arrow stream
GET    /bulk/offset?queue=orders&timestamp=...           the first message of a time
PUT    /bulk/progress?queue=orders&group=g&offset=10     how far a reader has come
PUT    /bulk/transactions/{id}/parts/{part}?queue=orders messages to write, as an Arrow stream
PUT    /bulk/transactions/{id}/parts/{part}?queues=queue the same, for the queues that a column names
POST   /bulk/transactions/{id}/commit                    all parts named become visible at once, and only once
DELETE /bulk/transactions/{id}                           forget them
"""

import asyncio
import re
from collections.abc import AsyncIterator
from fnmatch import fnmatchcase
from typing import Final, final

from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute

from headrace.admin.bulk_arrow import BY_COLUMN, ArrowCodec, Stream, columns_named
from headrace.admin.pages import Call, Pages
from headrace.admin.problems import BadRequest
from headrace.admin.site import ANYBODY
from headrace.core.broker import Broker
from headrace.core.bulk import TO_EXCHANGE, TO_QUEUE, TO_TOPIC, Bulk
from headrace.core.ledger import ONCE
from headrace.core.queue import Queue
from headrace.core.rights import EXCHANGE, QUEUE, READ, WRITE, Rights
from headrace.core.topology import DEFAULT_HOST, scoped
from headrace.errors import AccessRefused, HeadraceError, NotFound, Refused, TooLarge, Truncated
from headrace.net.outcome import outcome
from headrace.storage.api import MAX_NAME_BYTES

MAX_PART_BYTES: Final = 32 << 20
MAX_TRANSACTION_BYTES: Final = 256 << 20
"""One commit is one record: all of it passes through memory at once."""
_AT_ONCE: Final = 4
_READ_ROWS: Final = 16_384
_NAME: Final = re.compile(r"[A-Za-z0-9._:-]{1,200}")
ARROW: Final = "application/vnd.apache.arrow.stream"


def routes(pages: Pages) -> list[BaseRoute]:
    room = _Room(pages)
    return [
        pages.route("/bulk/queues", room.queues, tag=ANYBODY),
        pages.route("/bulk/messages", room.messages, tag=ANYBODY),
        pages.route("/bulk/offset", room.offset, tag=ANYBODY),
        pages.route("/bulk/progress", room.progress, "PUT", ANYBODY),
        pages.route("/bulk/transactions/{id}/parts/{part}", room.put_part, "PUT", ANYBODY),
        pages.route("/bulk/transactions/{id}/commit", room.commit, "POST", ANYBODY),
        pages.route("/bulk/transactions/{id}", room.abort, "DELETE", ANYBODY),
    ]


@final
class _Room:
    """The pages, and how many of them may work at once."""

    def __init__(self, pages: Pages) -> None:
        self._arrow = ArrowCodec(pages.site)
        self._writers = asyncio.Semaphore(_AT_ONCE)
        self._commits: dict[str, asyncio.Future[dict[str, object]]] = {}

    # -- reading -----------------------------------------------------------------------------------------------------

    async def queues(self, call: Call) -> Response:
        """The queues of these names and patterns that the visitor may read; all of them without any."""
        broker, rights, _ = _place(call)
        patterns = call.request.query_params.getlist("name")
        found: dict[str, dict[str, object]] = {}
        for name, queue in sorted(broker.topology.queues.items()):
            wanted = not patterns or any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)
            if wanted and rights.may(READ, name):
                found[name] = _bounds(queue)
        return JSONResponse({"queues": found})

    async def messages(self, call: Call) -> Response:
        """Messages from `from` up to but not including `to`, in blocks as they are stored."""
        broker, rights, host = _place(call)
        queue = _queue(call, broker, rights)
        first, following = queue.first_offset, queue.safe_offset
        start = _number(call, "from", first)
        stop = min(_number(call, "to", following), following)
        if start < first and start < stop:
            raise Truncated(f"offset {start} of queue {queue.name!r} is gone: it begins at {first}")
        names = columns_named(call.request.query_params.get("columns", ""))
        batches = self._arrow.stream(broker, queue.name, names)
        return StreamingResponse(_body(queue, batches, start, stop), media_type=ARROW, headers={"x-queue-host": host})

    async def offset(self, call: Call) -> Response:
        """The offset of the first message with at least this time in microseconds, or the one behind the last."""
        broker, rights, _ = _place(call)
        queue = _queue(call, broker, rights)
        return JSONResponse({"offset": min(queue.log.find(_number(call, "timestamp", 0)), queue.safe_offset)})

    async def progress(self, call: Call) -> Response:
        """Everything below the offset is done, says a reader that has its own progress elsewhere."""
        broker, rights, _ = _place(call)
        queue = _queue(call, broker, rights)
        group = call.request.query_params.get("group", "")
        if not group or len(group.encode()) > MAX_NAME_BYTES:
            raise BadRequest(f"group must have 1 to {MAX_NAME_BYTES} bytes")
        broker.report(queue.name, group, _number(call, "offset", -1))
        return JSONResponse({"status": "ok"})

    # -- writing -----------------------------------------------------------------------------------------------------

    async def put_part(self, call: Call) -> Response:
        """Keep a part until it is committed; the same part again replaces it."""
        broker, rights, host = _place(call)
        kind, name = _target(call)
        _check_write(broker, rights, kind, name)
        async with self._writers:  # those who wait are not read from: their client's socket fills up
            body = await call.body(MAX_PART_BYTES)
            encode = self._arrow.part_writer(
                host, _name(call, "id"), _name(call, "part"), kind, name, call.visitor.name
            )
            rows, size, topics = await asyncio.to_thread(encode, body)
        if kind not in (TO_QUEUE, BY_COLUMN):
            for topic in topics:
                _check_topic(rights, kind, name, topic)
        return JSONResponse({"rows": rows, "bytes": size})

    async def commit(self, call: Call) -> Response:
        """Make the parts visible, all at once; a transaction that was committed before is left as it is."""
        broker, rights, host = _place(call)
        said = await call.json()
        parts = said.get("parts") if isinstance(said, dict) else None
        if not isinstance(said, dict) or not isinstance(parts, list):
            raise BadRequest('the body must be an object with "parts", a list of names')
        sequence = said.get("sequence", ONCE)
        if isinstance(sequence, bool) or not isinstance(sequence, int) or not ONCE <= sequence < 1 << 62:
            raise BadRequest('"sequence" must be a whole number from 0 on')
        transaction = _name(call, "id")
        key = scoped(host, transaction)
        running = self._commits.get(key)
        if running is not None:  # the answer to the first request was lost: both get it
            return JSONResponse(await asyncio.shield(running))
        task = asyncio.ensure_future(self._commit(broker, rights, host, transaction, sequence, parts))
        self._commits[key] = task
        task.add_done_callback(lambda _: self._commits.pop(key, None))
        return JSONResponse(await asyncio.shield(task))

    async def _commit(
        self, broker: Broker, rights: Rights, host: str, transaction: str, sequence: int, parts: list[object]
    ) -> dict[str, object]:
        rows = broker.ledger.rows_of(transaction, sequence)
        if rows >= 0:
            await asyncio.to_thread(self._arrow.forget, host, transaction)
            return {"status": "committed before", "rows": rows}
        async with self._writers:
            bulk = broker.bulk()
            try:
                await self._fill(bulk, broker, rights, host, transaction, parts)
                await outcome(lambda confirm: bulk.commit(transaction, sequence, confirm))
            except HeadraceError:
                bulk.undo()
                raise
        await asyncio.to_thread(self._arrow.forget, host, transaction)
        return {"status": "committed", "rows": bulk.rows, "unrouted": bulk.unrouted}

    async def _fill(
        self, bulk: Bulk, broker: Broker, rights: Rights, host: str, transaction: str, parts: list[object]
    ) -> None:
        size = 0
        for part in parts:
            if not isinstance(part, str) or not _NAME.fullmatch(part):
                raise BadRequest(f"{part!r} is not the name of a part")
            blocks = await asyncio.to_thread(self._arrow.part, host, transaction, part)
            for kind, name in {(kind, name): None for kind, name, _ in blocks}:
                _check_write(broker, rights, kind, name)
            size += sum(each.payload_bytes for _, _, each in blocks)
            if size > MAX_TRANSACTION_BYTES:
                raise TooLarge(
                    f"transaction {transaction!r} has more than {MAX_TRANSACTION_BYTES >> 20} MiB of payloads, the "
                    f"most that is stored at once; write less at a time (with Spark: maxBytesPerTrigger when streaming)"
                )
            for kind, name, rows in blocks:
                bulk.add(kind, name, rows)
                await asyncio.sleep(0)  # others have their turn between blocks

    async def abort(self, call: Call) -> Response:
        """Forget what was written and not committed; what was committed stays."""
        _, _, host = _place(call)
        transaction = _name(call, "id")
        running = self._commits.get(scoped(host, transaction))
        if running is not None:
            await asyncio.wait([running])
        await asyncio.to_thread(self._arrow.forget, host, transaction)
        return JSONResponse({"status": "ok"})


async def _body(queue: Queue, codec: Stream, start: int, stop: int) -> AsyncIterator[bytes]:
    yield codec.head()
    while start < stop:
        if queue.deleted:
            raise Refused(f"queue {queue.name!r} was deleted while it was read")
        until = min(stop, start + _READ_ROWS)
        for batch in queue.log.record_batches(start, until):
            yield codec.encode(batch)
            await asyncio.sleep(0)
        start = until
    yield codec.end()


def _bounds(queue: Queue) -> dict[str, object]:
    return {
        "type": queue.definition.kind,
        "first": queue.first_offset,
        "next": queue.safe_offset,
        "bytes": queue.log.size_bytes,
        "groups": {name: group.state.committed for name, group in queue.groups.items()},
    }


def _place(call: Call) -> tuple[Broker, Rights, str]:
    """The virtual host that is asked for. Raises NotFound, AccessRefused when the visitor may not enter it."""
    host = call.request.query_params.get("vhost", DEFAULT_HOST)
    broker = call.site.hosts.find(host)
    if broker is None:
        raise NotFound(f"no vhost '{host}'")
    rights = call.site.access.rights(call.visitor.name, host)
    if rights is None:
        raise AccessRefused(f"access to vhost '{host}' refused for user '{call.visitor.name}'")
    return broker, rights, host


def _queue(call: Call, broker: Broker, rights: Rights) -> Queue:
    name = call.request.query_params.get("queue", "")
    if not name:
        raise BadRequest("queue is missing")
    rights.check(READ, QUEUE, name)
    queue = broker.queue(name)
    if queue.refusal is not None:
        raise queue.refusal
    return queue


def _number(call: Call, name: str, absent: int) -> int:
    text = call.request.query_params.get(name, "")
    if not text and absent >= 0:
        return absent
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) < 1 << 63):
        raise BadRequest(f"{name} is {text!r}; it must be a whole number from 0 on")
    return int(text)


def _name(call: Call, which: str) -> str:
    name = call.path(which)
    if not _NAME.fullmatch(name):
        raise BadRequest(f"{which} is {name[:64]!r}; it must have 1 to 200 letters, digits, '.', '_', ':' or '-'")
    return name


def _target(call: Call) -> tuple[str, str]:
    given = [(kind, call.request.query_params[kind]) for kind in _KINDS if kind in call.request.query_params]
    if len(given) != 1:
        raise BadRequest("say where the messages go, once: queue=, exchange=, topic=, or queues= and the column")
    return given[0]


def _check_write(broker: Broker, rights: Rights, kind: str, name: str) -> None:
    if kind == TO_QUEUE:
        rights.check(WRITE, QUEUE, name)
        broker.queue(name)
    elif kind == TO_EXCHANGE:
        rights.check(WRITE, EXCHANGE, name)
        broker.topology.exchanges.check_publish(name)


def _check_topic(rights: Rights, kind: str, name: str, topic: str) -> None:
    if kind == TO_TOPIC:
        rights.check_topic_publish(topic)
    else:
        rights.check_publish(name, topic)


_KINDS: Final = (TO_QUEUE, TO_EXCHANGE, TO_TOPIC, BY_COLUMN)

"""Queues read in bulk over HTTP, as Arrow streams: for Spark, pandas, Polars and DuckDB. Writing is in publishing.py.

GET    /bulk/queues?name=orders                          which queues there are, from where to where
GET    /bulk/messages?queue=orders&from=0&to=1000        messages, as an Arrow stream
GET    /bulk/offset?queue=orders&timestamp=...           the first message of a time
PUT    /bulk/progress?queue=orders&group=g&offset=10     how far a reader has come
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from fnmatch import fnmatchcase
from typing import Final, final

from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute
from starlette.types import Send

from headrace.admin.bulk_arrow import ArrowCodec, Stream, columns_named
from headrace.admin.bulk_call import number_of, place_of, queue_of
from headrace.admin.pages import BadRequest, Call, Pages
from headrace.admin.site import ANYBODY
from headrace.core.access.permissions import READ
from headrace.core.queue.queue import Queue
from headrace.errors import HeadraceError, Refused, Truncated
from headrace.storage.api import MAX_NAME_BYTES

ARROW: Final = "application/vnd.apache.arrow.stream"
_READ_ROWS: Final = 16_384

_log: Final = logging.getLogger("headrace.admin")


def routes(pages: Pages) -> list[BaseRoute]:
    room = _Room(pages)
    return [
        pages.route("/bulk/queues", room.queues, tag=ANYBODY),
        pages.route("/bulk/messages", room.messages, tag=ANYBODY),
        pages.route("/bulk/offset", room.offset, tag=ANYBODY),
        pages.route("/bulk/progress", room.progress, "PUT", ANYBODY),
    ]


@final
class _Room:
    """The pages."""

    def __init__(self, pages: Pages) -> None:
        self._arrow = ArrowCodec(pages.site)

    async def queues(self, call: Call) -> Response:
        """The queues of these names and patterns that the visitor may read; all of them without any."""
        broker, rights, _ = place_of(call)
        patterns = call.request.query_params.getlist("name")
        found: dict[str, dict[str, object]] = {}
        for name, queue in sorted(broker.topology.queues.items()):
            wanted = not patterns or any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)
            if wanted and rights.may(READ, name):
                found[name] = _bounds(queue)
        return JSONResponse({"queues": found})

    async def messages(self, call: Call) -> Response:
        """Messages from `from` up to but not including `to`, in blocks as they are stored."""
        broker, rights, host = place_of(call)
        queue = queue_of(call, broker, rights)
        first, following = queue.first_offset, queue.safe_offset
        start = number_of(call, "from", first)
        stop = min(number_of(call, "to", following), following)
        if start < first and start < stop:
            raise Truncated(f"offset {start} of queue {queue.name!r} is gone: it begins at {first}")
        names = columns_named(call.request.query_params.get("columns", ""))
        batches = self._arrow.stream(broker, queue.name, names)
        is_open = "from" not in call.request.query_params
        return _Rows(_body(queue, batches, start, stop, is_open), media_type=ARROW, headers={"x-queue-host": host})

    async def offset(self, call: Call) -> Response:
        """The offset of the first message with at least this time in microseconds, or the one behind the last."""
        broker, rights, _ = place_of(call)
        queue = queue_of(call, broker, rights)
        return JSONResponse({"offset": min(queue.log.find(number_of(call, "timestamp", 0)), queue.safe_offset)})

    async def progress(self, call: Call) -> Response:
        """Everything below the offset is done, says a reader that keeps its own progress; stored by the answer."""
        broker, rights, _ = place_of(call)
        queue = queue_of(call, broker, rights)
        group = call.request.query_params.get("group", "")
        if not group or len(group.encode()) > MAX_NAME_BYTES:
            raise BadRequest(f"group must have 1 to {MAX_NAME_BYTES} bytes")
        broker.groups.report(queue.name, group, number_of(call, "offset", -1))
        await call.stored(broker)
        return JSONResponse({"status": "ok"})


@final
class _Rows(StreamingResponse):
    """An answer that breaks off, for the client to see, where the rows cannot be had any more."""

    async def stream_response(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for chunk in self.body_iterator:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except HeadraceError as error:
            _log.warning("an answer breaks off: %s", error)
            return  # without an end: the connection is closed
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _body(queue: Queue, codec: Stream, start: int, stop: int, is_open: bool) -> AsyncIterator[bytes]:
    """The rows from `start` on; when `is_open`, from wherever the queue begins by then."""
    yield codec.head()
    while start < stop:
        if queue.deleted:
            raise Refused(f"queue {queue.name!r} was deleted while it was read")
        until = min(stop, start + _READ_ROWS)
        try:
            for batch in queue.log.record_batches(start, until):
                yield codec.encode(batch)
                start += batch.num_rows
                await asyncio.sleep(0)
        except Truncated:
            if not is_open:
                raise
            start = queue.first_offset
    yield codec.end()


def _bounds(queue: Queue) -> dict[str, object]:
    return {
        "type": queue.definition.kind,
        "first": queue.first_offset,
        "next": queue.safe_offset,
        "bytes": queue.log.size_bytes,
        "groups": {name: group.state.committed for name, group in queue.groups.items()},
    }

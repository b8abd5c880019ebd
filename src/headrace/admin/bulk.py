"""Bulk reads and writes over HTTP, as Arrow streams: for Spark, pandas, Polars and DuckDB. Claims: bulk_claims.py.

GET    /bulk/queues?name=orders                          queues with their first and next offset
GET    /bulk/messages?queue=orders&from=0&to=1000        messages, as an Arrow stream
GET    /bulk/extents?queue=orders&from=0&to=1000         how many bytes its messages have, part by part
GET    /bulk/offset?queue=orders&timestamp=...           offset of the first message of a time
PUT    /bulk/progress?queue=orders&group=g&offset=10     progress of a reader
PUT    /bulk/transactions/{id}/parts/{part}?queue=orders messages to write, as an Arrow stream
PUT    /bulk/transactions/{id}/parts/{part}?queues=queue the same, for the queues that a column names
PUT    /bulk/transactions/{id}/parts/{part}?copy=events  offsets of messages to copy, and their new queues;
                                                         log=7 refuses them at the commit if they are of another log
POST   /bulk/transactions/{id}/commit                    make all named parts visible at once, and only once
DELETE /bulk/transactions/{id}                           forget the parts
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Final, cast, final

from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from headrace.admin.bulk_arrow import (
    BY_COLUMN,
    COPY,
    ArrowCodec,
    Copies,
    Part,
    Stream,
    check_log,
    columns_named,
    log_id,
)
from headrace.admin.messages import client_of
from headrace.admin.pages import BadRequest, Call, Pages, Parts
from headrace.admin.site import ANYBODY
from headrace.config.kinds import Number, Text, Texts, Unchecked, Unfit
from headrace.config.table import option, read_model, required
from headrace.core.access.permissions import EXCHANGE, QUEUE, READ, WRITE, Rights
from headrace.core.broker import Broker
from headrace.core.ledger import ONCE, Advance
from headrace.core.publishing import TO_EXCHANGE, TO_QUEUE, TO_TOPIC, Bulk
from headrace.core.queue.queue import Queue
from headrace.core.routing.topology import DEFAULT_HOST, scoped
from headrace.errors import HeadraceError, PreconditionFailed, Refused, TooLarge, Truncated
from headrace.net.connection import outcome
from headrace.storage.api import MAX_NAME_BYTES

if TYPE_CHECKING:
    from headrace.storage.local.staging import EncodedRows

ARROW: Final = "application/vnd.apache.arrow.stream"
NAME: Final = re.compile(r"[A-Za-z0-9._:-]{1,200}")
MAX_PART_BYTES: Final = 32 << 20
MAX_TRANSACTION_BYTES: Final = 256 << 20
"""Most bytes that are stored at once, as one record in memory; more are stored one portion after the other."""
_ANSWER_SECONDS: Final = 20.0
"""Time after which a commit that is not done yet answers how far it is."""
_READ_ROWS: Final = 16_384
_SENT_BYTES: Final = 1 << 20
"""The most bytes of rows that are encoded at once, unless one row has more."""
_NO_LIMIT: Final = (1 << 63) - 1
_EXTENT_BYTES: Final = 1 << 20
"""Neighbouring messages are one extent up to this size."""
_MAX_EXTENTS: Final = 20_000
_STEPS_AT_ONCE: Final = 100
_WRITERS: Final = 4
_QUEUES_AT_ONCE: Final = 32
_OFFSET: Final = Number(0, (1 << 63) - 1, "it must be a whole number from 0 on")
_KINDS: Final = (TO_QUEUE, TO_EXCHANGE, TO_TOPIC, BY_COLUMN, COPY)

_log: Final = logging.getLogger("headrace.admin")


@dataclass(frozen=True)
class Commit:
    """Body of a commit."""

    parts: Sequence[str] = required(Texts())
    sequence: int = option(ONCE, Number(ONCE, (1 << 62) - 1))
    attempt: str = option("", Text())
    replace: object = option(None, Unchecked())


@dataclass(frozen=True)
class Replace:
    """Messages of a stream below an offset that the commit replaces."""

    queue: str = required(Text())
    before: int = required(Number())


def routes(pages: Pages) -> list[BaseRoute]:
    reading, writing = _Reading(pages), _Writing(pages)
    return [
        pages.route("/bulk/queues", reading.queues, tag=ANYBODY),
        pages.route("/bulk/messages", reading.messages, tag=ANYBODY),
        pages.route("/bulk/extents", reading.extents, tag=ANYBODY),
        pages.route("/bulk/offset", reading.offset, tag=ANYBODY),
        pages.route("/bulk/progress", reading.progress, "PUT", ANYBODY),
        pages.route("/bulk/transactions/{id}/parts/{part}", writing.put_part, "PUT", ANYBODY),
        pages.route("/bulk/transactions/{id}/commit", writing.commit, "POST", ANYBODY),
        pages.route("/bulk/transactions/{id}", writing.abort, "DELETE", ANYBODY),
    ]


# -- the address -----------------------------------------------------------------------------------------------------


def place_of(call: Call) -> tuple[Broker, Rights, str]:
    """Return broker, rights and name of the virtual host of the query. Raises NotFound, AccessRefused."""
    host = call.request.query_params.get("vhost", DEFAULT_HOST)
    return *call.enter(host), host


def queue_of(call: Call, broker: Broker, rights: Rights) -> Queue:
    name = call.request.query_params.get("queue", "")
    if not name:
        raise BadRequest("queue is missing")
    rights.check(READ, QUEUE, name)
    queue = broker.queue(name)
    if queue.refusal is not None:
        raise queue.refusal
    return queue


def number_of(call: Call, name: str, absent: int) -> int:
    text = call.request.query_params.get(name, "")
    if not text and absent >= 0:
        return absent
    try:
        return cast("int", _OFFSET.parse(text))
    except Unfit as error:
        raise BadRequest(f"{name} is {text!r}; {error}") from error


def name_of(call: Call, which: str) -> str:
    name = call.path(which)
    if not NAME.fullmatch(name):
        raise BadRequest(f"{which} is {name[:64]!r}; it must have 1 to 200 letters, digits, '.', '_', ':' or '-'")
    return name


# -- reading -----------------------------------------------------------------------------------------------------------


@final
class _Reading:
    """Pages for readers."""

    def __init__(self, pages: Pages) -> None:
        self._arrow = ArrowCodec(pages.site)

    async def queues(self, call: Call) -> Response:
        """Show the readable queues of these names and patterns; all of them without any."""
        broker, rights, _ = place_of(call)
        patterns = call.request.query_params.getlist("name")
        found: dict[str, dict[str, object]] = {}
        for name, queue in sorted(broker.topology.queues.items()):
            wanted = not patterns or any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)
            if wanted and rights.may(READ, name):
                found[name] = _bounds(queue)
        return JSONResponse({"queues": found})

    async def messages(self, call: Call) -> Response:
        """Send messages from `from` up to but not including `to`, in stored blocks."""
        broker, rights, host = place_of(call)
        queue = queue_of(call, broker, rights)
        start, stop = _range_of(call, queue)
        names = columns_named(call.request.query_params.get("columns", ""))
        batches = self._arrow.stream(queue.name, names)
        is_open = "from" not in call.request.query_params
        return Parts(_body(queue, batches, start, stop, is_open), media_type=ARROW, headers={"x-queue-host": host})

    async def extents(self, call: Call) -> Response:
        """Show neighbouring messages with their bytes, until `bytes` are reached; there may be more."""
        broker, rights, _ = place_of(call)
        queue = queue_of(call, broker, rights)
        start, stop = _range_of(call, queue)
        enough = number_of(call, "bytes", _NO_LIMIT)
        found: list[list[int]] = []
        size = 0
        for step, (at, until, extent_bytes) in enumerate(queue.log.extents(start, stop), 1):
            if found and found[-1][2] + extent_bytes <= _EXTENT_BYTES:
                found[-1][1:] = [until, found[-1][2] + extent_bytes]
            else:
                found.append([at, until, extent_bytes])
            size += extent_bytes
            if size > enough or len(found) == _MAX_EXTENTS:
                break
            if step % _STEPS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return JSONResponse({"extents": found})

    async def offset(self, call: Call) -> Response:
        """Show the first offset at or after a time in microseconds; the next offset if there is none."""
        broker, rights, _ = place_of(call)
        queue = queue_of(call, broker, rights)
        return JSONResponse({"offset": min(queue.log.find(number_of(call, "timestamp", 0)), queue.safe_offset)})

    async def progress(self, call: Call) -> Response:
        """Store that a reader with its own progress is done with all messages below the offset."""
        broker, rights, _ = place_of(call)
        queue = queue_of(call, broker, rights)
        group = call.request.query_params.get("group", "")
        if not group or len(group.encode()) > MAX_NAME_BYTES:
            raise BadRequest(f"group must have 1 to {MAX_NAME_BYTES} bytes")
        broker.groups.report(queue.name, group, number_of(call, "offset", -1))
        await call.stored(broker)
        return JSONResponse({"status": "ok"})


def _range_of(call: Call, queue: Queue) -> tuple[int, int]:
    """Return the offsets `from` and `to` of a call, within the queue. Raises Truncated when they are gone."""
    first, following = queue.first_offset, queue.safe_offset
    start = number_of(call, "from", first)
    stop = min(number_of(call, "to", following), following)
    if start < first and start < stop:
        raise Truncated(f"offset {start} of queue {queue.name!r} is gone: it begins at {first}")
    log = number_of(call, "log", _NO_LIMIT)
    if log != _NO_LIMIT:
        check_log(queue, log)
    return start, stop


async def _body(queue: Queue, codec: Stream, start: int, stop: int, is_open: bool) -> AsyncIterator[bytes]:
    """Yield the rows from `start` on; with `is_open`, skip rows that retention has dropped."""
    yield codec.head()
    while start < stop:
        if queue.deleted:
            raise Refused(f"queue {queue.name!r} was deleted while it was read")
        try:
            data, count = _encoded(queue, codec, start, min(stop, start + _READ_ROWS))
            yield data
            start += count
            await asyncio.sleep(0)
        except Truncated:
            if not is_open:
                raise
            start = queue.first_offset
    yield codec.end()


def _encoded(queue: Queue, codec: Stream, start: int, stop: int) -> tuple[bytes, int]:
    """Encode the first rows from `start` on, at least one; returns them and their number.

    Nothing else of the log stays in memory while a slow reader takes them: each of many held a whole block, or more.
    """
    from headrace.storage.local.arrow import cut_batch

    rows = next(cut_batch(next(queue.log.record_batches(start, stop)), _SENT_BYTES, _READ_ROWS))
    return codec.encode(rows), rows.num_rows


def _bounds(queue: Queue) -> dict[str, object]:
    return {
        "type": queue.definition.kind,
        "first": queue.first_offset,
        "next": queue.safe_offset,
        "bytes": queue.log.size_bytes,
        "log": log_id(queue),
        "groups": {name: group.state.committed for name, group in queue.groups.items()},
    }


# -- writing -----------------------------------------------------------------------------------------------------------


@final
class _Writing:
    """Pages for writers, and the bound on parallel work."""

    def __init__(self, pages: Pages) -> None:
        self._arrow = ArrowCodec(pages.site)
        self._writers = asyncio.Semaphore(_WRITERS)
        self._commits: dict[str, asyncio.Future[dict[str, object]]] = {}

    async def put_part(self, call: Call) -> Response:
        """Stage a part until its commit; a second part of the same name replaces it."""
        broker, rights, host = place_of(call)
        kind, name = _target(call)
        _check_rights(broker, rights, kind, name)
        log = number_of(call, "log", _NO_LIMIT) if kind == COPY else _NO_LIMIT
        async with self._writers:  # no body is read while it waits, so the client stops sending
            body = await call.body(MAX_PART_BYTES)
            encode = self._arrow.part_writer(
                host,
                name_of(call, "id"),
                name_of(call, "part"),
                (kind, name, "" if log == _NO_LIMIT else str(log)),
                call.visitor.name,
                call.text("attempt"),
            )
            rows, size, topics = await asyncio.to_thread(encode, body)
        _check_topics(rights, kind, name, topics)
        return JSONResponse({"rows": rows, "bytes": size})

    async def commit(self, call: Call) -> Response:
        """Make the parts visible at once; a second commit of a transaction changes nothing."""
        _, _, host = place_of(call)
        body = await call.read(Commit, is_lenient=True)
        transaction = name_of(call, "id")
        key = scoped(host, transaction)
        task = self._commits.get(key)
        if task is None:  # else the first answer was lost, or was that it is not done yet
            replace = _replacement(body, place_of(call)[1])
            task = self._commits[key] = asyncio.ensure_future(self._finish(call, transaction, body, replace))
            task.add_done_callback(lambda _: self._commits.pop(key, None))
        done, _ = await asyncio.wait([task], timeout=_ANSWER_SECONDS)
        return JSONResponse(task.result() if done else {"status": "committing"})

    async def _finish(self, call: Call, transaction: str, body: Commit, replace: Replace | None) -> dict[str, object]:
        _, _, host = place_of(call)
        answer = await self._commit(call, transaction, body, replace)
        await asyncio.to_thread(self._arrow.forget, host, transaction, body.attempt)
        return answer

    async def _commit(self, call: Call, transaction: str, body: Commit, replace: Replace | None) -> dict[str, object]:
        broker, rights, host = place_of(call)
        rows = broker.ledger.rows_of(transaction, body.sequence)
        if rows >= 0:
            return {"status": "committed before", "rows": rows}
        async with self._writers:
            advance, portions = await self._portions(broker, host, transaction, body, replace is not None)
            unrouted = 0
            for portion in portions:
                bulk = broker.bulk()
                try:
                    if replace is not None:
                        bulk.replace(replace.queue, replace.before)
                    largest_bytes = await self._fill(bulk, broker, rights, host, transaction, portion)
                    client = client_of(call, broker, rights)
                    client.charge(largest_bytes, bulk.rows)
                    client.check_rate(call.site.clock.monotonic_us(), bulk.rows)
                    before, advance.rows = advance.rows, advance.rows + bulk.rows
                    advance.parts += len(portion)
                    reached = None if portion is portions[-1] else advance
                    await outcome(partial(bulk.commit, transaction, body.sequence, before=before, advance=reached))
                except HeadraceError:
                    bulk.undo()
                    raise
                unrouted += bulk.unrouted
        return {"status": "committed", "rows": advance.rows, "unrouted": unrouted}

    async def _portions(
        self, broker: Broker, host: str, transaction: str, body: Commit, is_one: bool
    ) -> tuple[Advance, list[Sequence[str]]]:
        """Return how far a commit is, and the portions of parts that are left. Raises NotFound, PreconditionFailed."""
        advance = broker.ledger.advance(transaction)
        parts = body.parts
        if advance is not None:  # these rows, not those that were staged again for the same commit
            if advance.sequence != body.sequence:
                raise PreconditionFailed(
                    f"transaction {transaction!r} has a commit with the number {advance.sequence} that is stored in "
                    f"part; ask for that again first"
                )
            begun = await asyncio.to_thread(self._arrow.begun, host, transaction, body.sequence)
            parts = begun[advance.parts :]
        for part in parts:
            if not NAME.fullmatch(part):
                raise BadRequest(f"{part!r} is not the name of a part")
        if is_one:
            return Advance(body.sequence, 0, 0), [parts]
        portions = await asyncio.to_thread(self._arrow.plan, host, transaction, parts, MAX_TRANSACTION_BYTES)
        if advance is None and len(portions) > 1:
            await asyncio.to_thread(self._arrow.begin, host, transaction, body.sequence, parts)
        return advance or Advance(body.sequence, 0, 0), portions

    async def _fill(
        self, bulk: Bulk, broker: Broker, rights: Rights, host: str, transaction: str, parts: Sequence[str]
    ) -> int:
        """Add staged parts, if the user may still write them; return the size of the longest payload."""
        size = largest_bytes = 0
        by_row: list[Part] = []
        copies: dict[str, Copies] = {}
        numbers: dict[str, int] = {}
        for part in parts:
            staged = await asyncio.to_thread(self._arrow.part, host, transaction, part)
            if staged.kind == BY_COLUMN:
                by_row.append(staged)
            elif staged.kind == COPY:
                staged.copy_to(copies.setdefault(staged.name, Copies(numbers)))
            else:
                _check_rights(broker, rights, staged.kind, staged.name)
                topics = {source.topic for rows in staged.blocks for source in rows.sources()}
                _check_topics(rights, staged.kind, staged.name, topics)
            size += staged.payload_bytes
            if size > MAX_TRANSACTION_BYTES:
                raise TooLarge(
                    f"transaction {transaction!r} has more than {MAX_TRANSACTION_BYTES >> 20} MiB of payloads, the "
                    f"most that this commit stores at once; write less at a time (with Spark: maxBytesPerTrigger)"
                )
            for rows in staged.blocks if staged.kind != BY_COLUMN else []:
                bulk.add(staged.kind, staged.name, rows)
                largest_bytes = max(largest_bytes, rows.largest_bytes)
                await asyncio.sleep(0)  # other work runs between blocks
        if by_row:
            found = await asyncio.to_thread(self._arrow.merge, by_row)
            largest_bytes = max(largest_bytes, await _add_by_queue(bulk, broker, rights, found))
        for source, each in copies.items():
            _check_rights(broker, rights, COPY, source)
            size += await each.read(broker.queue(source), MAX_TRANSACTION_BYTES - size)
            found = await asyncio.to_thread(each.merge, self._arrow.now_us)
            largest_bytes = max(largest_bytes, await _add_by_queue(bulk, broker, rights, found))
        return largest_bytes

    async def abort(self, call: Call) -> Response:
        """Forget uncommitted parts; a commit stays."""
        broker, _, host = place_of(call)
        transaction = name_of(call, "id")
        running = self._commits.get(scoped(host, transaction))
        if running is not None:
            await asyncio.wait([running])
        if broker.ledger.advance(transaction) is None:  # the rest of a commit that has begun is still to be stored
            await asyncio.to_thread(self._arrow.forget, host, transaction, call.text("attempt"))
        return JSONResponse({"status": "ok"})


async def _add_by_queue(bulk: Bulk, broker: Broker, rights: Rights, found: "Sequence[tuple[str, EncodedRows]]") -> int:
    """Add the rows of each queue, if the user may write to it; return the size of the longest payload."""
    for number, (queue, rows) in enumerate(found):
        _check_rights(broker, rights, TO_QUEUE, queue)
        bulk.add(TO_QUEUE, queue, rows)
        if number % _QUEUES_AT_ONCE == 0:
            await asyncio.sleep(0)
    return max([rows.largest_bytes for _, rows in found], default=0)


def _replacement(body: Commit, rights: Rights) -> Replace | None:
    """Raises Fault, AccessRefused."""
    if body.replace is None:
        return None
    found = read_model(Replace, body.replace, "replace")
    rights.check(WRITE, QUEUE, found.queue)
    rights.check(READ, QUEUE, found.queue)
    return found


def _target(call: Call) -> tuple[str, str]:
    given = [(kind, call.request.query_params[kind]) for kind in _KINDS if kind in call.request.query_params]
    if len(given) != 1:
        raise BadRequest(
            "say where the messages go, once: queue=, exchange=, topic=, queues= and the column, "
            "or copy= and the queue that has them"
        )
    return given[0]


def _check_rights(broker: Broker, rights: Rights, kind: str, name: str) -> None:
    if kind == TO_QUEUE:
        rights.check(WRITE, QUEUE, name)
        broker.queue(name)
    elif kind == COPY:
        rights.check(READ, QUEUE, name)
        broker.queue(name)
    elif kind == TO_EXCHANGE:
        rights.check(WRITE, EXCHANGE, name)
        broker.topology.exchanges.check_publish(name)


def _check_topics(rights: Rights, kind: str, name: str, topics: Iterable[str]) -> None:
    """Check topics of rows for exchanges and topics; rows for named queues may have any."""
    for topic in topics if kind in (TO_TOPIC, TO_EXCHANGE) else ():
        if kind == TO_TOPIC:
            rights.check_topic_publish(topic)
        else:
            rights.check_publish(name, topic)

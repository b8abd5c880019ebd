"""Writing in bulk over HTTP: Arrow streams are staged, then committed at once. Reading is in bulk_reading.py.

PUT    /bulk/transactions/{id}/parts/{part}?queue=orders messages to write, as an Arrow stream
PUT    /bulk/transactions/{id}/parts/{part}?queues=queue the same, for the queues that a column names
PUT    /bulk/transactions/{id}/parts/{part}?copy=events  offsets of messages to copy, and the queues they go to
POST   /bulk/transactions/{id}/commit                    all parts named become visible at once, and only once
DELETE /bulk/transactions/{id}                           forget them
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, final

from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from headrace.admin import bulk_claims, bulk_reading
from headrace.admin.bulk_arrow import BY_COLUMN, COPY, ArrowCodec, Copies, Part
from headrace.admin.bulk_call import NAME, name_of, place_of
from headrace.admin.pages import BadRequest, Call, Pages
from headrace.admin.site import ANYBODY
from headrace.core.access.permissions import EXCHANGE, QUEUE, READ, WRITE, Rights
from headrace.core.broker import Broker
from headrace.core.ledger import ONCE
from headrace.core.publishing import TO_EXCHANGE, TO_QUEUE, TO_TOPIC, Bulk
from headrace.core.routing.topology import scoped
from headrace.errors import HeadraceError, TooLarge
from headrace.net.connection import outcome

if TYPE_CHECKING:
    from headrace.storage.local.staging import EncodedRows

MAX_PART_BYTES: Final = 32 << 20
MAX_TRANSACTION_BYTES: Final = 256 << 20
"""One commit is one record: all of it passes through memory at once."""
_AT_ONCE: Final = 4
_QUEUES_AT_ONCE: Final = 32


def routes(pages: Pages) -> list[BaseRoute]:
    room = _Room(pages)
    return [
        *bulk_reading.routes(pages),
        *bulk_claims.routes(pages),
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

    # -- writing -----------------------------------------------------------------------------------------------------

    async def put_part(self, call: Call) -> Response:
        """Keep a part until it is committed; the same part again replaces it."""
        broker, rights, host = place_of(call)
        kind, name = _target(call)
        _check_rights(broker, rights, kind, name)
        async with self._writers:  # those who wait are not read from: their client's socket fills up
            body = await call.body(MAX_PART_BYTES)
            encode = self._arrow.part_writer(
                host, name_of(call, "id"), name_of(call, "part"), kind, name, call.visitor.name, call.text("attempt")
            )
            rows, size, topics = await asyncio.to_thread(encode, body)
        _check_topics(rights, kind, name, topics)
        return JSONResponse({"rows": rows, "bytes": size})

    async def commit(self, call: Call) -> Response:
        """Make the parts visible, all at once; a transaction that was committed before is left as it is."""
        _, _, host = place_of(call)
        said = await call.json()
        parts = said.get("parts") if isinstance(said, dict) else None
        if not isinstance(said, dict) or not isinstance(parts, list):
            raise BadRequest('the body must be an object with "parts", a list of names')
        sequence = said.get("sequence", ONCE)
        if isinstance(sequence, bool) or not isinstance(sequence, int) or not ONCE <= sequence < 1 << 62:
            raise BadRequest('"sequence" must be a whole number from 0 on')
        attempt = said.get("attempt", "")
        if not isinstance(attempt, str):
            raise BadRequest('"attempt" must be a text')
        transaction = name_of(call, "id")
        key = scoped(host, transaction)
        running = self._commits.get(key)
        if running is not None:  # the answer to the first request was lost: both get it
            return JSONResponse(await asyncio.shield(running))
        replace = _replace_of(said, place_of(call)[1])
        task = asyncio.ensure_future(self._finish(call, transaction, sequence, parts, attempt, replace))
        self._commits[key] = task
        task.add_done_callback(lambda _: self._commits.pop(key, None))
        return JSONResponse(await asyncio.shield(task))

    async def _finish(
        self,
        call: Call,
        transaction: str,
        sequence: int,
        parts: list[object],
        attempt: str,
        replace: "tuple[str, int] | None",
    ) -> dict[str, object]:
        _, _, host = place_of(call)
        answer = await self._commit(call, transaction, sequence, parts, replace)
        await asyncio.to_thread(self._arrow.forget, host, transaction, attempt)
        return answer

    async def _commit(
        self, call: Call, transaction: str, sequence: int, parts: list[object], replace: "tuple[str, int] | None"
    ) -> dict[str, object]:
        broker, rights, host = place_of(call)
        rows = broker.ledger.rows_of(transaction, sequence)
        if rows >= 0:
            return {"status": "committed before", "rows": rows}
        async with self._writers:
            bulk = broker.bulk()
            try:
                if replace is not None:
                    bulk.replace(*replace)
                largest_bytes = await self._fill(bulk, broker, rights, host, transaction, parts)
                call.meter(bulk.rows, largest_bytes)
                await outcome(lambda confirm: bulk.commit(transaction, sequence, confirm))
            except HeadraceError:
                bulk.undo()
                raise
        return {"status": "committed", "rows": bulk.rows, "unrouted": bulk.unrouted}

    async def _fill(
        self, bulk: Bulk, broker: Broker, rights: Rights, host: str, transaction: str, parts: list[object]
    ) -> int:
        """Add what was staged, if the user may still write it; returns the size of the longest payload."""
        size = largest_bytes = 0
        by_row: list[Part] = []
        copies: dict[str, Copies] = {}
        numbers: dict[str, int] = {}
        for part in parts:
            if not isinstance(part, str) or not NAME.fullmatch(part):
                raise BadRequest(f"{part!r} is not the name of a part")
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
                    f"most that is stored at once; write less at a time (with Spark: maxBytesPerTrigger when streaming)"
                )
            for rows in staged.blocks if staged.kind != BY_COLUMN else []:
                bulk.add(staged.kind, staged.name, rows)
                largest_bytes = max(largest_bytes, rows.largest_bytes)
                await asyncio.sleep(0)  # others have their turn between blocks
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
        """Forget what was written and not committed; what was committed stays."""
        _, _, host = place_of(call)
        transaction = name_of(call, "id")
        running = self._commits.get(scoped(host, transaction))
        if running is not None:
            await asyncio.wait([running])
        await asyncio.to_thread(self._arrow.forget, host, transaction, call.text("attempt"))
        return JSONResponse({"status": "ok"})


async def _add_by_queue(bulk: Bulk, broker: Broker, rights: Rights, found: "Sequence[tuple[str, EncodedRows]]") -> int:
    """Add what each queue gets, if the user may write to it; returns the size of the longest payload."""
    for number, (queue, rows) in enumerate(found):
        _check_rights(broker, rights, TO_QUEUE, queue)
        bulk.add(TO_QUEUE, queue, rows)
        if number % _QUEUES_AT_ONCE == 0:
            await asyncio.sleep(0)
    return max([rows.largest_bytes for _, rows in found], default=0)


def _replace_of(said: dict[str, object], rights: Rights) -> tuple[str, int] | None:
    """Which stream's messages below which offset give way. Raises BadRequest, AccessRefused."""
    given = said.get("replace")
    if given is None:
        return None
    name, before = (given.get("queue"), given.get("before")) if isinstance(given, dict) else (None, None)
    if not isinstance(name, str) or type(before) is not int or before < 0:
        raise BadRequest('"replace" must be an object with "queue", a name, and "before", an offset')
    rights.check(WRITE, QUEUE, name)
    rights.check(READ, QUEUE, name)
    return name, before


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
    """Queues that are named are written to as they are, whatever the topics."""
    for topic in topics if kind in (TO_TOPIC, TO_EXCHANGE) else ():
        if kind == TO_TOPIC:
            rights.check_topic_publish(topic)
        else:
            rights.check_publish(name, topic)


_KINDS: Final = (TO_QUEUE, TO_EXCHANGE, TO_TOPIC, BY_COLUMN, COPY)

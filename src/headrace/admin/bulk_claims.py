"""Bulk claims over HTTP, for readers that settle later and all at once, such as Spark. Core has the rules.

POST /bulk/claims/{name}/take     claim waiting messages, for one lease
POST /bulk/claims/{name}/hold     renew the claim, or claim the messages again
POST /bulk/claims/{name}/finish   acknowledge messages that the claim holds
POST /bulk/claims/{name}/release  put all messages of the claim back in line

Bodies are JSON with "queue" and "group", and "ranges" of offsets: [[from, to], ...], `to` not included.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeVar, final

from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from headrace.admin.bulk import name_of, place_of
from headrace.admin.pages import BadRequest, Call, Pages
from headrace.admin.site import ANYBODY
from headrace.config.kinds import Kind, Number, Text, Unfit
from headrace.config.table import option, read_model, required
from headrace.core.access.permissions import QUEUE, READ
from headrace.core.broker import Broker
from headrace.core.queue.claims import AT_ONCE, Range, merged
from headrace.core.queue.group import MAX_PENDING
from headrace.storage.api import MAX_NAME_BYTES

MAX_CLAIM_BYTES: Final = 64 << 20
"""Bytes after which a call claims no more: claimed messages are in memory until they are settled."""
_LAST: Final = (1 << 62) - 1
_LEAST_LEASE_MS: Final = 1000
_LONGEST_LEASE_MS: Final = 24 * 3600 * 1000
_LEASE_MS: Final = 60_000


def routes(pages: Pages) -> list[BaseRoute]:
    return [
        pages.route("/bulk/claims/{name}/take", _take, "POST", ANYBODY),
        pages.route("/bulk/claims/{name}/hold", _hold, "POST", ANYBODY),
        pages.route("/bulk/claims/{name}/finish", _finish, "POST", ANYBODY),
        pages.route("/bulk/claims/{name}/release", _release, "POST", ANYBODY),
    ]


@final
class _Ranges(Kind):
    """Ranges of offsets that do not overlap; `read` returns them in order."""

    noun = "list of pairs"

    def read(self, value: object) -> object:
        found = [_range(each) for each in value] if isinstance(value, list) else [None]
        ranges = sorted([each for each in found if each is not None])
        if len(ranges) < len(found) or any([ranges[at][1] > ranges[at + 1][0] for at in range(len(ranges) - 1)]):
            raise Unfit("must be a list of pairs [from, to] of offsets that do not overlap")
        if sum([stop - start for start, stop in ranges]) > MAX_PENDING:
            raise Unfit(f"may have {MAX_PENDING} offsets altogether")
        return ranges

    def schema(self) -> dict[str, object]:
        return {"type": "array"}


def _range(value: object) -> Range | None:
    if not (isinstance(value, list) and len(value) == 2):
        return None
    start, stop = value
    if type(start) is not int or type(stop) is not int or not 0 <= start < stop <= _LAST:
        return None
    return start, stop


_LEASE: Final = Number(_LEAST_LEASE_MS, _LONGEST_LEASE_MS)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Body that names the queue and the group of a claim."""

    queue: str = option("", Text())
    group: str = option("", Text())


@dataclass(frozen=True, kw_only=True)
class Take(Claim):
    """Body of `take`."""

    most: int = option(AT_ONCE, Number(1, MAX_PENDING))
    before: int = option(_LAST, Number(0, _LAST))
    lease_ms: int = option(_LEASE_MS, _LEASE)


@dataclass(frozen=True, kw_only=True)
class Finish(Claim):
    """Body of `finish`."""

    ranges: list[Range] = required(_Ranges())


@dataclass(frozen=True, kw_only=True)
class Hold(Finish):
    """Body of `hold`."""

    lease_ms: int = option(_LEASE_MS, _LEASE)


_Body = TypeVar("_Body", bound=Claim)


async def _take(call: Call) -> Response:
    """Claim waiting messages, the oldest first; there may be fewer than asked for."""
    broker, name, body = await _read(call, Take)
    offsets: list[int] = []
    size = 0
    while len(offsets) < body.most and size < MAX_CLAIM_BYTES:
        left = body.most - len(offsets)
        taken = broker.claims.take(body.queue, body.group, name, left, body.before, body.lease_ms)
        if not taken:
            break
        offsets += [delivery.offset for delivery in taken]
        size += sum([len(delivery.message.payload) for delivery in taken])
        await asyncio.sleep(0)
    return JSONResponse({"ranges": merged(offsets), "messages": len(offsets), "bytes": size})


async def _hold(call: Call) -> Response:
    """Renew a claim, and claim messages again that are back in line; answer with all that it holds."""
    broker, name, body = await _read(call, Hold)
    held: list[int] = []
    for some in _portions(body.ranges):
        held += broker.claims.hold(body.queue, body.group, name, some, body.lease_ms)
        await asyncio.sleep(0)
    return JSONResponse({"ranges": merged(held)})


async def _finish(call: Call) -> Response:
    """Acknowledge messages that the claim holds; answer with their number once that is durable."""
    broker, name, body = await _read(call, Finish)
    count = 0
    for some in _portions(body.ranges):
        count += broker.claims.finish(body.queue, body.group, name, some)
        await asyncio.sleep(0)
    await call.stored(broker)
    return JSONResponse({"messages": count})


async def _release(call: Call) -> Response:
    """Put all messages of the claim back in line; answer once that is durable."""
    broker, name, body = await _read(call, Claim)
    count = broker.claims.release(body.queue, body.group, name)
    await call.stored(broker)
    return JSONResponse({"messages": count})


async def _read(call: Call, model: type[_Body]) -> tuple[Broker, str, _Body]:
    """Return the broker, the name of the claim and the body. Raises Refused, NotFound, AccessRefused."""
    broker, rights, _ = place_of(call)
    name, given = name_of(call, "name"), await call.json()
    claim = read_model(Claim, given, "the body", is_lenient=True)
    if len(claim.group.encode()) > MAX_NAME_BYTES:
        raise BadRequest(f"'group' must have {MAX_NAME_BYTES} bytes at most")
    rights.check(READ, QUEUE, claim.queue)
    return broker, name, read_model(model, given, "the body")


def _portions(ranges: list[Range]) -> Iterator[list[Range]]:
    """Yield the same offsets in portions of one step."""
    portion: list[Range] = []
    room = AT_ONCE
    for start, stop in ranges:
        while start < stop:
            end = min(stop, start + room)
            portion.append((start, end))
            room -= end - start
            start = end
            if not room:
                yield portion
                portion, room = [], AT_ONCE
    if portion:
        yield portion

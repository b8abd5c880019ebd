"""Work claimed in bulk over HTTP, by readers that settle later and all at once, such as Spark. The rules are core's.

POST /bulk/claims/{name}/take     messages that wait become the claim's, until its lease is over
POST /bulk/claims/{name}/hold     they stay so, or are so again, for another lease
POST /bulk/claims/{name}/finish   they are done
POST /bulk/claims/{name}/release  all that the claim holds goes back in line

Bodies are JSON with "queue" and "group", and "ranges" of offsets: [[from, to], ...], `to` not included.
"""

import asyncio
from collections.abc import Iterator
from typing import Final, final

from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from headrace.admin.bulk_call import name_of, place_of
from headrace.admin.pages import BadRequest, Call, Pages, Section
from headrace.admin.site import ANYBODY
from headrace.core.access.permissions import QUEUE, READ
from headrace.core.broker import Broker
from headrace.core.queue.claims import AT_ONCE, Range, merged
from headrace.core.queue.group import MAX_PENDING
from headrace.storage.api import MAX_NAME_BYTES

MAX_CLAIM_BYTES: Final = 64 << 20
"""What one call claims is in memory until it is settled: it ends with the message that goes beyond this."""
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
class _Order:
    """What a request is about."""

    def __init__(self, broker: Broker, name: str, body: Section) -> None:
        self.broker = broker
        self.claims = broker.claims
        self.name = name
        self.body = body
        self.queue = body.text("queue", "")
        self.group = body.text("group", "")
        if len(self.group.encode()) > MAX_NAME_BYTES:
            raise BadRequest(f"'group' must have {MAX_NAME_BYTES} bytes at most")

    @property
    def lease_ms(self) -> int:
        return self.body.number("lease_ms", _LEASE_MS, _LEAST_LEASE_MS, _LONGEST_LEASE_MS)

    def ranges(self) -> list[Range]:
        """The offsets it names, in order. Raises BadRequest."""
        given = self.body.get("ranges")
        found = [_range(each) for each in given] if isinstance(given, list) else [None]
        ranges = sorted([each for each in found if each is not None])
        if len(ranges) < len(found) or any([ranges[at][1] > ranges[at + 1][0] for at in range(len(ranges) - 1)]):
            raise BadRequest("'ranges' must be a list of pairs [from, to] of offsets that do not overlap")
        if sum([stop - start for start, stop in ranges]) > MAX_PENDING:
            raise BadRequest(f"'ranges' may have {MAX_PENDING} offsets altogether")
        return ranges


async def _take(call: Call) -> Response:
    """Claim messages that wait, the oldest first; fewer than asked for when there are no more."""
    order = await _order(call)
    most = order.body.number("most", AT_ONCE, 1, MAX_PENDING)
    before = order.body.number("before", _LAST, 0, _LAST)
    lease_ms = order.lease_ms
    order.body.check_all_read()
    offsets: list[int] = []
    size = 0
    while len(offsets) < most and size < MAX_CLAIM_BYTES:
        left = most - len(offsets)
        taken = order.claims.take(order.queue, order.group, order.name, left, before, lease_ms)
        if not taken:
            break
        offsets += [delivery.offset for delivery in taken]
        size += sum([len(delivery.message.payload) for delivery in taken])
        await asyncio.sleep(0)
    return JSONResponse({"ranges": merged(offsets), "messages": len(offsets), "bytes": size})


async def _hold(call: Call) -> Response:
    """Renew a claim; what is in line again is claimed again. Answers with what it holds now."""
    order = await _order(call)
    ranges, lease_ms = order.ranges(), order.lease_ms
    order.body.check_all_read()
    held: list[int] = []
    for some in _portions(ranges):
        held += order.claims.hold(order.queue, order.group, order.name, some, lease_ms)
        await asyncio.sleep(0)
    return JSONResponse({"ranges": merged(held)})


async def _finish(call: Call) -> Response:
    """Settle messages, for good when the answer comes; those that another consumer has are left to it."""
    order = await _order(call)
    ranges = order.ranges()
    order.body.check_all_read()
    count = 0
    for some in _portions(ranges):
        count += order.claims.finish(order.queue, order.group, order.name, some)
        await asyncio.sleep(0)
    await call.stored(order.broker)
    return JSONResponse({"messages": count})


async def _release(call: Call) -> Response:
    """Give everything back, for good when the answer comes."""
    order = await _order(call)
    order.body.check_all_read()
    count = order.claims.release(order.queue, order.group, order.name)
    await call.stored(order.broker)
    return JSONResponse({"messages": count})


async def _order(call: Call) -> _Order:
    broker, rights, _ = place_of(call)
    order = _Order(broker, name_of(call, "name"), await call.section())
    rights.check(READ, QUEUE, order.queue)
    return order


def _range(value: object) -> Range | None:
    if not (isinstance(value, list) and len(value) == 2):
        return None
    start, stop = value
    if type(start) is not int or type(stop) is not int or not 0 <= start < stop <= _LAST:
        return None
    return start, stop


def _portions(ranges: list[Range]) -> Iterator[list[Range]]:
    """The same offsets, as many as are seen to at once."""
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

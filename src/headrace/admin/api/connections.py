"""Connections, channels and consumers over HTTP: list them, end a connection."""

from itertools import islice
from operator import itemgetter
from typing import Final

from starlette.responses import Response

from headrace.admin.api.operation import DEFAULT_LIMIT, MAX_LIMIT, PAGED, TEXT, Operation, page_of, ref
from headrace.admin.pages import Call, answer, listed, nothing
from headrace.admin.site import ADMINISTRATOR
from headrace.admin.slices import ordered, sliced
from headrace.admin.views import (
    Connected,
    channel_name,
    channel_to_json,
    connected,
    connection_to_json,
    consumer_to_json,
    consuming,
)
from headrace.errors import AccessRefused, NotFound


async def visible(call: Call) -> list[Connected]:
    """The connections that the visitor may see: all, or those of virtual hosts that are open to the visitor."""
    return [found async for found in sliced(await connected(call.site.wires())) if call.sees(found.facts.host)]


async def find(call: Call, name: str) -> Connected:
    """Raises NotFound."""
    for connection in await visible(call):
        if connection.wire.name == name:
            return connection
    raise NotFound(f"no connection '{name}'")


async def end(call: Call, name: str) -> None:
    """End a connection: one's own, or anybody's for an administrator. Raises NotFound, AccessRefused."""
    connection = await find(call, name)
    if connection.facts.user != call.visitor.name and not call.visitor.may(ADMINISTRATOR):
        raise AccessRefused(f"the connection is another user's: ending it takes the tag '{ADMINISTRATOR}'")
    connection.wire.stop()


async def list_connections(call: Call) -> Response:
    limit, last = call.number("limit", DEFAULT_LIMIT, 1, MAX_LIMIT), call.text("after")
    found = [connection for connection in await visible(call) if connection.wire.name > last]
    following = found[limit - 1].wire.name if len(found) > limit else None
    now_us = call.site.clock.now_us()
    return await listed(found[:limit], following, lambda connection: connection_to_json(connection, now_us))


async def show_connection(call: Call) -> Response:
    return answer(connection_to_json(await find(call, call.path("connection")), call.site.clock.now_us()))


async def end_connection(call: Call) -> Response:
    await end(call, call.path("connection"))
    return nothing()


async def list_channels(call: Call) -> Response:
    limit, last = call.number("limit", DEFAULT_LIMIT, 1, MAX_LIMIT), call.text("after")
    pairs = [(found, channel) for found in await visible(call) for channel in found.facts.channels]
    named = [(name, pair) async for pair in sliced(pairs) if (name := channel_name(*pair)) > last]
    shown = await ordered(named, itemgetter(0))
    following = shown[limit - 1][0] if len(shown) > limit else None
    return await listed(shown[:limit], following, lambda each: channel_to_json(*each[1]))


async def list_consumers(call: Call) -> Response:
    """By queue, in one virtual host; `after` is how many to step over."""
    host = call.text("vhost", "/")
    limit, start = call.number("limit", DEFAULT_LIMIT, 1, MAX_LIMIT), call.number("after", 0, 0, 1 << 31)
    consumers = await consuming(call.broker(host), await visible(call))
    found = [each async for each in sliced(islice(consumers, start, start + limit + 1))]
    following = start + limit if len(found) > limit else None
    return await listed(found[:limit], following, lambda consumer: consumer_to_json(host, consumer))


_CONNECTION: Final = "/connections/{connection}"

OPERATIONS: Final = (
    Operation("GET", "/connections", list_connections, "List connections", PAGED, answer=page_of("Connection")),
    Operation("GET", _CONNECTION, show_connection, "One connection", answer=ref("Connection")),
    Operation("DELETE", _CONNECTION, end_connection, "End a connection", status=204),
    Operation("GET", "/channels", list_channels, "List channels", PAGED, answer=page_of("Channel")),
    Operation(
        "GET", "/consumers", list_consumers, "List consumers", {"vhost": TEXT, **PAGED}, answer=page_of("Consumer")
    ),
)

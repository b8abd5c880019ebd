"""Connections, channels and consumers over HTTP: list them, end a connection."""

from itertools import islice
from typing import Final

from starlette.responses import Response

from headrace.admin.answers import answer, listed, nothing
from headrace.admin.api.operation import DEFAULT_LIMIT, MAX_LIMIT, PAGED, TEXT, Operation, page_of, ref
from headrace.admin.pages import Call
from headrace.admin.site import ADMINISTRATOR
from headrace.admin.views import (
    Connected,
    channel_to_json,
    connected,
    connection_to_json,
    consumer_to_json,
    consuming,
)
from headrace.errors import AccessRefused, NotFound


def visible(call: Call) -> list[Connected]:
    """The connections that the visitor may see: all, or those of virtual hosts that are open to the visitor."""
    return [found for found in connected(call.site.wires()) if call.sees(found.facts.host)]


def find(call: Call, name: str) -> Connected:
    """Raises NotFound."""
    for connection in visible(call):
        if connection.wire.name == name:
            return connection
    raise NotFound(f"no connection '{name}'")


def end(call: Call, name: str) -> None:
    """End a connection: one's own, or anybody's for an administrator. Raises NotFound, AccessRefused."""
    connection = find(call, name)
    if connection.facts.user != call.visitor.name and not call.visitor.may(ADMINISTRATOR):
        raise AccessRefused(f"the connection is another user's: ending it takes the tag '{ADMINISTRATOR}'")
    connection.wire.stop()


async def list_connections(call: Call) -> Response:
    limit, last = call.number("limit", DEFAULT_LIMIT, 1, MAX_LIMIT), call.text("after")
    found = [connection for connection in visible(call) if connection.wire.name > last]
    following = found[limit - 1].wire.name if len(found) > limit else None
    now_us = call.site.clock.now_us()
    return listed(found[:limit], following, lambda connection: connection_to_json(connection, now_us))


async def show_connection(call: Call) -> Response:
    return answer(connection_to_json(find(call, call.path("connection")), call.site.clock.now_us()))


async def end_connection(call: Call) -> Response:
    end(call, call.path("connection"))
    return nothing()


async def list_channels(call: Call) -> Response:
    limit, last = call.number("limit", DEFAULT_LIMIT, 1, MAX_LIMIT), call.text("after")
    rows = [channel_to_json(found, channel) for found in visible(call) for channel in found.facts.channels]
    rows = sorted([row for row in rows if str(row["name"]) > last], key=lambda row: str(row["name"]))
    following = rows[limit - 1]["name"] if len(rows) > limit else None
    return answer({"items": rows[:limit], "next": following})


async def list_consumers(call: Call) -> Response:
    """By queue, in one virtual host; `after` is how many to step over."""
    host = call.text("vhost", "/")
    limit, start = call.number("limit", DEFAULT_LIMIT, 1, MAX_LIMIT), call.number("after", 0, 0, 1 << 31)
    found = list(islice(consuming(call.broker(host), visible(call)), start, start + limit + 1))
    following = start + limit if len(found) > limit else None
    return listed(found[:limit], following, lambda consumer: consumer_to_json(host, consumer))


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

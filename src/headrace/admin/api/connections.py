"""Clients over HTTP: connections, channels, consumers and MQTT sessions; ending a connection or a session."""

from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Final

from starlette.responses import Response

from headrace.admin.api.operation import DEFAULT_LIMIT, MAX_LIMIT, Operation, Paged, page_of, ref, table
from headrace.admin.messages import time_to_json
from headrace.admin.pages import Call, after, answer, listed, nothing
from headrace.admin.resources import (
    Connected,
    Consuming,
    channel_name,
    channels_of,
    consumers_in,
    find_connection,
    visible_connections,
)
from headrace.admin.resources import end_connection as end
from headrace.admin.site import ADMINISTRATOR
from headrace.admin.slices import ordered, sliced
from headrace.config.kinds import Flag, Number, Text
from headrace.config.table import option
from headrace.core.pubsub.session import Session
from headrace.core.routing.topology import DEFAULT_HOST
from headrace.errors import NotFound
from headrace.net.facts import ChannelFacts


@dataclass(frozen=True)
class ConsumerList:
    """Query of the consumers of a virtual host."""

    vhost: str = option(DEFAULT_HOST, Text())
    after: int = option(0, Number(0, 1 << 31), "Number of consumers to skip.")
    limit: int = option(DEFAULT_LIMIT, Number(1, MAX_LIMIT))


@dataclass(frozen=True)
class SessionList(Paged):
    """Query of the sessions of a virtual host."""

    vhost: str = option(DEFAULT_HOST, Text())
    connected: bool = option(False, Flag(), "True for sessions with a connection only.")


# -- connections -----------------------------------------------------------------------------------------------------


def _connection_to_json(connection: Connected, now_us: int) -> dict[str, object]:
    wire, facts = connection.wire, connection.facts
    return {
        "name": wire.name,
        "protocol": facts.protocol,
        "user": facts.user,
        "vhost": facts.host,
        "client_id": facts.client_id,
        "state": connection.state,
        "is_tls": wire.is_tls,
        "node": wire.node,
        "connected_at": time_to_json(connection.connected_at_us(now_us)),
        "channels": len(facts.channels),
        "consumers": sum(len(channel.consumers) for channel in facts.channels),
        "received_bytes": wire.received_bytes,
        "sent_bytes": wire.sent_bytes,
        "client_properties": connection.client_properties,
    }


def _channel_to_json(connection: Connected, channel: ChannelFacts) -> dict[str, object]:
    return {
        "name": channel_name(connection, channel),
        "connection": connection.wire.name,
        "number": channel.number,
        "vhost": connection.facts.host,
        "user": connection.facts.user,
        "prefetch": channel.prefetch,
        "unsettled": channel.unsettled,
        "consumers": len(channel.consumers),
        "confirms": channel.is_confirming,
        "transactional": channel.is_transactional,
    }


def _consumer_to_json(host: str, found: Consuming) -> dict[str, object]:
    return {
        "vhost": host,
        "queue": found.queue.name,
        "group": found.group.name,
        "name": found.consumer.name,
        "connection": found.connection.wire.name if found.connection is not None else "",
        "channel": found.channel.number if found.channel is not None else 0,
        "prefetch": found.prefetch,
        "priority": found.consumer.priority,
        "ack_required": not found.consumer.auto_ack,
        "unsettled": found.consumer.holding,
        "is_active": found.is_active,
    }


async def list_connections(call: Call) -> Response:
    query = call.query(Paged)
    found = [connection for connection in await visible_connections(call) if connection.wire.name > query.after]
    following = found[query.limit - 1].wire.name if len(found) > query.limit else None
    now_us = call.site.clock.now_us()
    return await listed(found[: query.limit], following, lambda connection: _connection_to_json(connection, now_us))


async def show_connection(call: Call) -> Response:
    connection = await find_connection(call, call.path("connection"))
    return answer(_connection_to_json(connection, call.site.clock.now_us()))


async def end_connection(call: Call) -> Response:
    await end(call, call.path("connection"))
    return nothing()


async def list_channels(call: Call) -> Response:
    query = call.query(Paged)
    pairs = channels_of(await visible_connections(call))
    named = [(name, pair) async for pair in sliced(pairs) if (name := channel_name(*pair)) > query.after]
    shown = await ordered(named, itemgetter(0))
    following = shown[query.limit - 1][0] if len(shown) > query.limit else None
    return await listed(shown[: query.limit], following, lambda each: _channel_to_json(*each[1]))


async def list_consumers(call: Call) -> Response:
    """List the consumers of one virtual host by queue; `after` is the number of consumers to skip."""
    query = call.query(ConsumerList)
    host, start, limit = query.vhost, query.after, query.limit
    consumers = await consumers_in(call.broker(host), await visible_connections(call))
    found = [each async for each in sliced(islice(consumers, start, start + limit + 1))]
    following = start + limit if len(found) > limit else None
    return await listed(found[:limit], following, lambda consumer: _consumer_to_json(host, consumer))


# -- MQTT sessions ---------------------------------------------------------------------------------------------------


def _session_to_json(host: str, session: Session) -> dict[str, object]:
    return {
        "vhost": host,
        "client_id": session.client_id,
        "is_connected": session.link is not None,
        "lifetime_seconds": session.lifetime_s,
        "left_at": time_to_json(session.left_us),
        "subscriptions": len(session.subscriptions),
        "waiting": session.queue.messages if session.queue is not None else 0,
        "has_will": session.will is not None,
    }


async def list_sessions(call: Call) -> Response:
    """List the sessions of one virtual host by client id."""
    query = call.query(SessionList)
    sessions = {
        session.client_id: session
        async for session in sliced(list(call.broker(query.vhost).sessions), 1000)
        if session.link is not None or not query.connected
    }
    page, following = await after(sessions, query.after, query.limit)
    return await listed(page, following, lambda name: _session_to_json(query.vhost, sessions[name]))


async def show_session(call: Call) -> Response:
    return answer(_session_to_json(call.path("vhost"), _session(call)))


async def list_subscriptions(call: Call) -> Response:
    subscriptions, query = _session(call).subscriptions, call.query(Paged)
    page, following = await after(list(subscriptions), query.after, query.limit)
    return await listed(
        page,
        following,
        lambda pattern: {
            "pattern": pattern,
            "qos": subscriptions[pattern].assurance,
            "group": subscriptions[pattern].group,
        },
    )


async def end_session(call: Call) -> Response:
    session = _session(call)
    broker = call.broker(call.path("vhost"))
    waiting = session.queue.messages if session.queue is not None else 0
    broker.sessions.end(session)
    await call.stored(broker)
    call.record(f"session of client {session.client_id!r} ended with {waiting:,} messages that waited for it")
    return answer({"client_id": session.client_id, "messages": waiting})


def _session(call: Call) -> Session:
    host, name = call.path("vhost"), call.path("client")
    session = call.broker(host).sessions.get(name)
    if session is None:
        raise NotFound(f"no session of a client '{name}' in vhost '{host}'")
    return session


_CONNECTION: Final = "/connections/{connection}"
_SESSION: Final = "/sessions/{vhost}/{client}"

OPERATIONS: Final = (
    Operation("GET", "/connections", list_connections, "List connections", page_of("Connection"), Paged),
    Operation("GET", _CONNECTION, show_connection, "One connection", ref("Connection")),
    Operation("DELETE", _CONNECTION, end_connection, "End a connection", status=204),
    Operation("GET", "/channels", list_channels, "List channels", page_of("Channel"), Paged),
    Operation("GET", "/consumers", list_consumers, "List consumers", page_of("Consumer"), ConsumerList),
    Operation("GET", "/sessions", list_sessions, "List MQTT sessions", page_of("Session"), SessionList),
    Operation("GET", _SESSION, show_session, "One MQTT session", ref("Session")),
    Operation(
        "GET",
        _SESSION + "/subscriptions",
        list_subscriptions,
        "Subscriptions of a session",
        page_of("Subscription"),
        Paged,
    ),
    Operation(
        "DELETE",
        _SESSION,
        end_session,
        "End a session with the messages that wait for it",
        table("client_id messages:count"),
        needs=ADMINISTRATOR,
    ),
)

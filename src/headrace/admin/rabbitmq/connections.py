"""Connections, channels and consumers as RabbitMQ shows them."""

from starlette.responses import Response

from headrace.admin.pages import Call, nothing
from headrace.admin.rabbitmq.queues import consumer_row
from headrace.admin.rabbitmq.shapes import Row, asked_hosts, details, named_host, node_name, row, rows
from headrace.admin.resources import (
    Connected,
    channel_name,
    channels_of,
    consumers_in,
    end_connection,
    find_connection,
    visible_connections,
)
from headrace.admin.slices import sliced
from headrace.errors import NotFound
from headrace.net.facts import ChannelFacts


def connection_row(connection: Connected, now_us: int) -> Row:
    wire, facts = connection.wire, connection.facts
    peer_host, _, peer_port = wire.peer.rpartition(":")
    host, _, port = wire.local.rpartition(":")
    return {
        "name": wire.name,
        "user_provided_name": facts.client_id,
        "user": facts.user,
        "vhost": facts.host,
        "protocol": facts.protocol,
        "type": "network",
        "node": node_name(),
        "state": connection.state,
        "ssl": wire.is_tls,
        "host": host,
        "port": _port(port),
        "peer_host": peer_host,
        "peer_port": _port(peer_port),
        "connected_at": connection.connected_at_us(now_us) // 1000,
        "channels": len(facts.channels),
        "channel_max": facts.channel_max,
        "frame_max": facts.frame_max,
        "timeout": facts.heartbeat_seconds,
        "auth_mechanism": "PLAIN",
        "client_properties": connection.client_properties,
        "recv_oct": wire.received_bytes,
        "recv_oct_details": details(0.0),
        "send_oct": wire.sent_bytes,
        "send_oct_details": details(0.0),
    }


def channel_row(connection: Connected, channel: ChannelFacts) -> Row:
    wire = connection.wire
    peer_host, _, peer_port = wire.peer.rpartition(":")
    return {
        "name": channel_name(connection, channel),
        "number": channel.number,
        "user": connection.facts.user,
        "vhost": connection.facts.host,
        "node": node_name(),
        "state": "running",
        "consumer_count": len(channel.consumers),
        "prefetch_count": channel.prefetch,
        "global_prefetch_count": 0,
        "messages_unacknowledged": channel.unsettled,
        "messages_unconfirmed": 0,
        "messages_uncommitted": 0,
        "acks_uncommitted": 0,
        "confirm": channel.is_confirming,
        "transactional": channel.is_transactional,
        "connection_details": {"name": wire.name, "peer_host": peer_host, "peer_port": _port(peer_port)},
    }


def _port(text: str) -> int:
    return int(text) if text.isdecimal() else 0


async def _of_host(call: Call) -> list[Connected]:
    host = named_host(call)
    if not host:
        return await visible_connections(call)
    call.broker(host)
    return [connection for connection in await visible_connections(call) if connection.facts.host == host]


async def list_connections(call: Call) -> Response:
    now_us = call.site.clock.now_us()
    return await rows(call, await _of_host(call), lambda connection: connection_row(connection, now_us))


async def show_connection(call: Call) -> Response:
    return row(call, connection_row(await find_connection(call, call.path("name")), call.site.clock.now_us()))


async def close_connection(call: Call) -> Response:
    await end_connection(call, call.path("name"))
    return nothing()


async def channels_of_connection(call: Call) -> Response:
    connection = await find_connection(call, call.path("name"))
    return await rows(call, connection.facts.channels, lambda channel: channel_row(connection, channel))


async def list_channels(call: Call) -> Response:
    return await rows(call, channels_of(await _of_host(call)), lambda pair: channel_row(*pair))


async def show_channel(call: Call) -> Response:
    name = call.path("name")
    for pair in channels_of(await visible_connections(call)):
        if channel_name(*pair) == name:
            return row(call, channel_row(*pair))
    raise NotFound(f"no channel '{name}'")


async def list_consumers(call: Call) -> Response:
    connections = await visible_connections(call)
    found = [
        (host, each)
        for host, broker in asked_hosts(call)
        async for each in sliced(await consumers_in(broker, connections))
    ]
    return await rows(call, found, lambda pair: consumer_row(*pair))

"""What a queue, a group, a consumer, a connection look like from outside: core's values as JSON. No pages."""

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import Final, final

from headrace.admin.messages import time_to_json
from headrace.admin.sampler import (
    QUEUE_COUNTERS,
    QUEUE_GAUGES,
    Sampler,
    Series,
    look_for_schedule,
    oldest_age_ms,
    queue_values,
)
from headrace.admin.slices import ordered, sliced
from headrace.core.broker import Broker
from headrace.core.feeds.feed import FedQueue
from headrace.core.properties import table_to_json
from headrace.core.queue.dispatch import UNLIMITED, Consumer
from headrace.core.queue.group import Group, PendingEntry
from headrace.core.queue.queue import Queue
from headrace.core.routing.address import dead_letter_origin
from headrace.errors import HeadraceError
from headrace.net.connection import Wire
from headrace.net.facts import ChannelFacts, ConnectionFacts
from headrace.storage.group_state import MODE_NAMES

MAX_RANGES: Final = 200
"""How many ranges of settled offsets a group shows."""
_NO_RATES: Final = {"published": 0.0, "delivered": 0.0, "redelivered": 0.0, "acknowledged": 0.0}


def queue_to_json(host: str, queue: Queue, sampler: Sampler) -> dict[str, object]:
    """A line of a list of queues."""
    definition = queue.definition
    series = sampler.queue(host, queue.name)
    log = queue.log
    return {
        "vhost": host,
        "name": queue.name,
        "type": definition.kind,
        "durable": definition.durable,
        "exclusive": definition.exclusive,
        "auto_delete": definition.auto_delete,
        "arguments": table_to_json(definition.arguments),
        "state": "running" if queue.refusal is None else "damaged",
        "groups": len(queue.groups),
        "consumers": queue.consumers,
        "first_offset": queue.first_offset,
        "next_offset": log.next_offset,
        "bytes": log.size_bytes,
        "waiting": queue.messages,
        "messages": queue.total,
        "counters": queue_values(queue),
        "rates": dict(series.rates) if series is not None else dict(_NO_RATES),
        "is_dead_letter_queue": bool(dead_letter_origin(queue.name)) or queue.has_letters,
    }


def queue_details(host: str, broker: Broker, queue: Queue, sampler: Sampler, now_us: int) -> dict[str, object]:
    """Everything about one queue."""
    look_for_schedule(queue, now_us)
    series = sampler.watch(host, queue.name)
    return {
        **queue_to_json(host, queue, sampler),
        "reason": str(queue.refusal) if queue.refusal is not None else "",
        "warnings": queue.definition.warnings,
        "definition": queue.definition.to_json(),
        "source": source_to_json(broker.administration.follower(queue)),
        "oldest_age_ms": oldest_age_ms(queue, now_us),
        "bindings": len(broker.topology.exchanges.bindings_to(queue.name)),
        "history": (series or Series(QUEUE_COUNTERS, QUEUE_GAUGES)).history(),
    }


def source_to_json(follower: FedQueue | None) -> dict[str, object] | None:
    """How far a queue is in the stream that it is filled from; None for one that is not."""
    if follower is None:
        return None
    return {
        "queue": follower.queue.definition.source,
        "state": follower.state,
        "offset": follower.position,
        "lag": follower.lag,
        "missed": follower.missed,
        "oversized": follower.oversized,
    }


def group_to_json(queue: Queue, group: Group) -> dict[str, object]:
    """How far a group is."""
    state = group.state
    return {
        "queue": queue.name,
        "name": group.name,
        "mode": MODE_NAMES[state.mode],
        "filter": state.filter,
        "is_paused": group.is_paused,
        "cursor": state.cursor,
        "committed": state.committed,
        "settled": [list(part) for part in islice(state.settled, MAX_RANGES)] if state.settled_count else [],
        "lag": group.lag,
        "ready": group.ready - group.delayed,
        "delayed": group.delayed,
        "pending": group.unsettled,
        "consumers": len(group.consumers),
        "delivered": group.delivered,
        "redelivered": group.redelivered,
        "acknowledged": group.acknowledged,
    }


def pending_to_json(entry: PendingEntry) -> dict[str, object]:
    return {
        "offset": entry.offset,
        "consumer": entry.consumer,
        "attempts": entry.attempts,
        "due": time_to_json(entry.due_us),
    }


@final
class Connected:
    """One connection with what it tells about itself."""

    __slots__ = ("facts", "wire")

    def __init__(self, wire: Wire, facts: ConnectionFacts) -> None:
        self.wire = wire
        self.facts = facts

    @property
    def state(self) -> str:
        return "blocked" if self.wire.is_blocked else "running"

    def connected_at_us(self, now_us: int) -> int:
        return now_us - round((asyncio.get_running_loop().time() - self.wire.opened_at) * 1_000_000)


async def connected(wires: list[Wire]) -> list[Connected]:
    """The connections of those who logged in, by name."""
    found = [Connected(wire, facts) async for wire in sliced(wires) if (facts := wire.facts()) is not None]
    return await ordered(found, lambda connection: connection.wire.name)


def connection_to_json(connection: Connected, now_us: int) -> dict[str, object]:
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
        "client_properties": texts(facts.client_properties),
    }


def channel_name(connection: Connected, channel: ChannelFacts) -> str:
    return f"{connection.wire.name} ({channel.number})"


def channel_to_json(connection: Connected, channel: ChannelFacts) -> dict[str, object]:
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


@final
class Consuming:
    """One consumer with where it is and whose it is."""

    __slots__ = ("channel", "connection", "consumer", "group", "queue")

    def __init__(
        self, queue: Queue, group: Group, consumer: Consumer, connection: Connected | None, channel: ChannelFacts | None
    ) -> None:
        self.queue = queue
        self.group = group
        self.consumer = consumer
        self.connection = connection
        self.channel = channel

    @property
    def prefetch(self) -> int:
        limit = self.consumer.limit
        return 0 if limit >= UNLIMITED else limit

    @property
    def is_active(self) -> bool:
        active = self.group.consumers.active
        return active is None or active is self.consumer


async def consuming(broker: Broker, connections: list[Connected]) -> Iterator[Consuming]:
    """All consumers of a virtual host, by queue."""
    queues = await ordered(list(broker.topology.queues.values()), lambda queue: queue.name)
    return await consumers_of(queues, connections)


async def consumers_of(queues: list[Queue], connections: list[Connected]) -> Iterator[Consuming]:
    """All consumers of some queues."""
    channels = [(connection, channel) for connection in connections for channel in connection.facts.channels]
    owners: dict[int, tuple[Connected, ChannelFacts]] = {}
    async for pair in sliced(channels):
        async for consumer in sliced(pair[1].consumers, 1000):
            owners[id(consumer)] = pair
    return _consumers_of(queues, owners)


def _consumers_of(queues: list[Queue], owners: dict[int, tuple[Connected, ChannelFacts]]) -> Iterator[Consuming]:
    for queue in queues:
        for group in list(queue.groups.values()):
            for consumer in group.consumers:
                connection, channel = owners.get(id(consumer), (None, None))
                yield Consuming(queue, group, consumer, connection, channel)


def consumer_to_json(host: str, found: Consuming) -> dict[str, object]:
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


def texts(table: "object") -> dict[str, object]:
    """What a client says about itself, as far as JSON can hold it."""
    try:
        return table_to_json(table) if isinstance(table, dict) else {}
    except HeadraceError:
        return {}

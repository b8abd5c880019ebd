"""The broker at a glance: totals, rates, how long commits take; who the visitor is."""

import os
import platform
from collections import Counter
from typing import Final

from starlette.responses import Response

from headrace.admin.api.connections import visible
from headrace.admin.api.operation import COUNT, TABLE, TEXT, Operation, table
from headrace.admin.metrics import memory_bytes
from headrace.admin.pages import Call, answer
from headrace.admin.sampler import HOST_COUNTERS, HOST_GAUGES, INTERVAL_SECONDS, Series


async def overview(call: Call) -> Response:
    """Everything in the virtual hosts that the visitor sees, or in one."""
    wanted = call.text("vhost")
    if wanted:
        call.broker(wanted)
    names = [wanted] if wanted else [name for name in call.site.hosts.names() if call.sees(name)]
    site = call.site
    brokers = [call.broker(name) for name in names]
    series = [found for name in names if (found := site.sampler.series.get(name)) is not None]
    connections = [connection for connection in await visible(call) if connection.facts.host in names]
    channels = [channel for connection in connections for channel in connection.facts.channels]
    return answer(
        {
            "product": "Headrace",
            "version": site.version,
            "python": platform.python_version(),
            "node": platform.node(),
            "pid": os.getpid(),
            "user": call.visitor.name,
            "tags": sorted(call.visitor.tags),
            "vhosts": names,
            "uptime_ms": (site.clock.now_us() - site.started_us) // 1000,
            "trouble": site.trouble(),
            "memory_bytes": memory_bytes(),
            "interval_ms": round(INTERVAL_SECONDS * 1000),
            "totals": {
                "queues": sum(len(broker.topology.queues) for broker in brokers),
                "exchanges": sum(len(broker.topology.exchanges.exchanges()) for broker in brokers),
                "connections": len(connections),
                "channels": len(channels),
                "consumers": sum(len(channel.consumers) for channel in channels),
                "published": sum(broker.statistics.stored for broker in brokers),
                "delivered": sum(broker.statistics.delivered for broker in brokers),
                "redelivered": sum(broker.statistics.redelivered for broker in brokers),
                "dead_lettered": sum(sum(broker.statistics.dead_letters.values()) for broker in brokers),
            },
            "connections_by_protocol": dict(Counter(connection.facts.protocol for connection in connections)),
            "rates": {name: round(sum(found.rates[name] for found in series), 2) for name in HOST_COUNTERS},
            "history": _summed(series),
        }
    )


def _summed(series: list[Series]) -> dict[str, list[float]]:
    """The samples of several virtual hosts together; of durations, the longest."""
    histories = [found.history() for found in series]
    length = max([len(history["ready"]) for history in histories], default=0)
    summed: dict[str, list[float]] = {}
    for name in (*HOST_COUNTERS, *HOST_GAUGES):
        rows = [[0.0] * (length - len(history[name])) + history[name] for history in histories]
        together = max if name.endswith("_us") else sum
        summed[name] = [round(together(column), 2) for column in zip(*rows, strict=True)]
    return summed


OPERATIONS: Final = (
    Operation(
        "GET",
        "/overview",
        overview,
        "The broker at a glance",
        {"vhost": TEXT},
        answer=table(
            ("version", "totals", "rates", "history"),
            version=TEXT,
            uptime_ms=COUNT,
            memory_bytes=COUNT,
            totals=TABLE,
            rates=TABLE,
            history=TABLE,
            connections_by_protocol=TABLE,
        ),
    ),
)

"""The broker as a whole: totals, rates and the visitor; its cluster; a reload of its configuration."""

import os
import platform
from collections import Counter
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from headrace.admin.api.operation import Operation, table
from headrace.admin.metrics import memory_bytes
from headrace.admin.pages import Call, answer
from headrace.admin.resources import channels_of, hosts, visible_connections
from headrace.admin.sampler import HOST_COUNTERS, HOST_GAUGES, INTERVAL_SECONDS, Series
from headrace.admin.site import ADMINISTRATOR, MONITORING
from headrace.config.kinds import Text
from headrace.config.table import option
from headrace.errors import Unavailable

ALONE: Final = "alone"


@dataclass(frozen=True)
class OfHost:
    """Query of one virtual host."""

    vhost: str = option("", Text())


async def overview(call: Call) -> Response:
    """Sum up all virtual hosts that the visitor sees, or one."""
    found = hosts(call, call.query(OfHost).vhost)
    names, brokers = [name for name, _ in found], [broker for _, broker in found]
    site = call.site
    series = [each for name in names if (each := site.sampler.series.get(name)) is not None]
    connections = [connection for connection in await visible_connections(call) if connection.facts.host in names]
    channels = channels_of(connections)
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
                "consumers": sum(len(channel.consumers) for _, channel in channels),
                "published": sum(broker.statistics.stored for broker in brokers),
                "delivered": sum(broker.statistics.delivered for broker in brokers),
                "redelivered": sum(broker.statistics.redelivered for broker in brokers),
                "dead_lettered": sum(sum(broker.statistics.dead_letters.values()) for broker in brokers),
            },
            "connections_by_protocol": dict(Counter(connection.facts.protocol for connection in connections)),
            "rates": {name: round(sum(each.rates[name] for each in series), 2) for name in HOST_COUNTERS},
            "history": _summed(series),
        }
    )


def _summed(series: list[Series]) -> dict[str, list[float]]:
    """Add up the samples of virtual hosts; of durations, take the longest."""
    histories = [found.history() for found in series]
    length = max([len(history["ready"]) for history in histories], default=0)
    summed: dict[str, list[float]] = {}
    for name in (*HOST_COUNTERS, *HOST_GAUGES):
        rows = [[0.0] * (length - len(history[name])) + history[name] for history in histories]
        together = max if name.endswith("_us") else sum
        summed[name] = [round(together(column), 2) for column in zip(*rows, strict=True)]
    return summed


async def cluster(call: Call) -> Response:
    """Show all nodes of all replication groups and their owners, or that the broker is alone."""
    status = call.site.cluster
    if status is None:
        return answer({"role": ALONE, "owner": "", "epoch": 0, "nodes": [], "takeovers": [], "groups": []})
    return answer(dict(await status.status()))


async def reload(call: Call) -> Response:
    """Apply the configuration anew; answer once queues are durable, with the settings that need a restart."""
    if call.site.reload is None:
        raise Unavailable("this broker has no configuration to read again")
    done = await call.site.reload()
    for name in call.site.hosts.names():
        broker = call.site.hosts.find(name)
        if broker is not None:
            await call.kept(broker)
    return answer(done)


OPERATIONS: Final = (
    Operation(
        "GET",
        "/overview",
        overview,
        "The broker at a glance",
        table(
            "version uptime_ms:count memory_bytes:count totals:table rates:table history:table"
            " connections_by_protocol:table"
        ),
        OfHost,
    ),
    Operation(
        "GET",
        "/cluster",
        cluster,
        "Nodes that share a store, and its owner",
        table(
            "node? role write_policy? group? owner epoch:count lease:table? nodes:tables takeovers:tables groups:tables"
        ),
        needs=MONITORING,
    ),
    Operation(
        "POST",
        "/reload",
        reload,
        "Read the configuration again",
        table("applied:texts created:texts altered:texts policies:texts needs_restart:texts"),
        needs=ADMINISTRATOR,
    ),
)

"""`/metrics` for Prometheus: what the broker counts, what is in its queues, what the process uses.

The number of series is bounded: only so many queues have series of their own, in order of their names, and only so many
groups of each. `?queues=` says how many, 0 for none; totals always count all.
"""

import asyncio
from collections import Counter
from typing import Final

from starlette.responses import Response
from starlette.routing import BaseRoute

from headrace.admin.api.connections import visible
from headrace.admin.exposition import CONTENT_TYPE, Exposition
from headrace.admin.pages import Call, Pages
from headrace.admin.process import cpu_seconds, file_limit, memory_bytes, open_files
from headrace.admin.sampler import queue_values
from headrace.admin.site import MONITORING, Standing
from headrace.core.broker import Broker
from headrace.core.follower import Follower
from headrace.core.queue import Queue

DEFAULT_QUEUES: Final = 1000
MAX_QUEUES: Final = 100_000
MAX_GROUPS: Final = 100
_AT_ONCE: Final = 500


def routes(pages: Pages) -> list[BaseRoute]:
    return [pages.route("/metrics", metrics, tag=MONITORING)]


async def metrics(call: Call) -> Response:
    page = Exposition()
    _process(call, page)
    _connections(call, page)
    room = call.number("queues", DEFAULT_QUEUES, 0, MAX_QUEUES)
    for host in call.site.hosts.names():
        broker = call.site.hosts.find(host)
        if broker is not None:
            _counters(page, host, broker)
            room -= await _queues(page, host, broker, room)
    return Response(page.encode(), media_type=CONTENT_TYPE)


def _process(call: Call, page: Exposition) -> None:
    site = call.site
    page.gauge("headrace_info", "The release that runs.").add(1, {"version": site.version})
    page.gauge("headrace_uptime_seconds", "For how long it has been running.").add(
        (site.clock.now_us() - site.started_us) / 1_000_000
    )
    page.gauge("headrace_ready", "Whether what is published can be stored.").add(0 if site.trouble() else 1)
    if site.standing is not None:
        standing_metrics(page, site.standing)
    page.gauge("process_resident_memory_bytes", "Memory in use.").add(memory_bytes())
    page.counter("process_cpu_seconds_total", "Processor time used.").add(cpu_seconds())
    page.gauge("process_open_fds", "Open files and sockets.").add(open_files())
    page.gauge("process_max_fds", "How many there may be.").add(file_limit())


def standing_metrics(page: Exposition, standing: Standing) -> None:
    """What a node is in its cluster."""
    group = {"group": standing.group}
    page.gauge("headrace_cluster_role", "What this node is.").add(1, {"role": standing.role, **group})
    page.gauge("headrace_cluster_epoch", "How often the group has changed hands.").add(standing.epoch, group)


def _connections(call: Call, page: Exposition) -> None:
    found = visible(call)
    family = page.gauge("headrace_connections", "Open connections.")
    for protocol, count in sorted(Counter(connection.facts.protocol for connection in found).items()):
        family.add(count, {"protocol": protocol})
    page.gauge("headrace_channels", "Open channels.").add(sum(len(connection.facts.channels) for connection in found))
    received = page.gauge("headrace_connections_received_bytes", "Bytes that came over connections that are open.")
    received.add(sum(connection.wire.received_bytes for connection in found))
    sent = page.gauge("headrace_connections_sent_bytes", "Bytes that went over connections that are open.")
    sent.add(sum(connection.wire.sent_bytes for connection in found))


def _counters(page: Exposition, host: str, broker: Broker) -> None:
    labels, statistics = {"vhost": host}, broker.statistics
    page.counter("headrace_published_total", "Messages that entered queues.").add(statistics.stored, labels)
    page.counter("headrace_delivered_total", "Messages handed to consumers.").add(statistics.delivered, labels)
    page.counter("headrace_redelivered_total", "Of these, not for the first time.").add(statistics.redelivered, labels)
    dead = page.counter("headrace_dead_letters_total", "Messages given up, by reason.")
    for reason, count in sorted(statistics.dead_letters.items()):
        dead.add(count, {**labels, "reason": reason})
    page.histogram("headrace_commit_seconds", "How long commits took to be safe.").add_histogram(
        statistics.commits, labels
    )
    page.gauge("headrace_publishers_blocked", "Whether publishers are held back.").add(int(broker.blocked), labels)
    sessions = page.gauge("headrace_sessions", "MQTT sessions, connected or not.")
    sessions.add(broker.sessions.connected, {**labels, "state": "connected"})
    sessions.add(len(broker.sessions) - broker.sessions.connected, {**labels, "state": "away"})
    page.gauge("headrace_exchanges", "Exchanges.").add(len(broker.topology.exchanges.exchanges()), labels)


async def _queues(page: Exposition, host: str, broker: Broker, room: int) -> int:
    """Totals of all queues, and series of as many as there is room for; returns how many those are."""
    labels = {"vhost": host}
    ready = unsettled = consumers = 0
    names = sorted(broker.topology.queues)
    for number, name in enumerate(names):
        queue = broker.topology.queues.get(name)
        if queue is None:
            continue
        ready += queue.messages
        unsettled += queue.unsettled
        consumers += queue.consumers
        if number < room:
            _queue(page, host, queue)
            _source(page, host, queue, broker.administration.follower(queue))
        if number % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
    page.gauge("headrace_queues", "Queues.").add(len(names), labels)
    page.gauge("headrace_queues_without_series", "Queues that only totals count.").add(
        max(0, len(names) - room), labels
    )
    page.gauge("headrace_messages_ready", "Messages that wait for consumers.").add(ready, labels)
    page.gauge("headrace_messages_unsettled", "Messages that consumers hold.").add(unsettled, labels)
    page.gauge("headrace_consumers", "Consumers.").add(consumers, labels)
    return min(room, len(names))


def _source(page: Exposition, host: str, queue: Queue, follower: Follower | None) -> None:
    """How far a queue is in the stream that it is filled from."""
    if follower is None:
        return
    labels = {"vhost": host, "queue": queue.name, "source": queue.definition.source}
    page.gauge("headrace_queue_source_offset", "How far a queue is in the stream that it is filled from.").add(
        follower.position, labels
    )
    page.gauge("headrace_queue_source_lag", "How far it is behind the end of that stream.").add(follower.lag, labels)
    page.counter(
        "headrace_queue_source_missed_total", "Messages that retention took before it had looked at them."
    ).add(follower.missed, labels)


def _queue(page: Exposition, host: str, queue: Queue) -> None:
    labels = {"vhost": host, "queue": queue.name}
    values = queue_values(queue)
    page.gauge("headrace_queue_ready", "Messages that wait in a queue.").add(values["ready"], labels)
    page.gauge("headrace_queue_unsettled", "Messages of a queue that consumers hold.").add(values["unsettled"], labels)
    page.gauge("headrace_queue_consumers", "Consumers of a queue.").add(queue.consumers, labels)
    page.gauge("headrace_queue_bytes", "What a queue holds, in stored bytes.").add(queue.log.size_bytes, labels)
    page.gauge("headrace_queue_damaged", "Whether a queue is refused because its files are damaged.").add(
        int(queue.refusal is not None), labels
    )
    page.counter("headrace_queue_published_total", "Messages that entered a queue.").add(values["published"], labels)
    for group in list(queue.groups.values())[:MAX_GROUPS]:
        of_group = {**labels, "group": group.name}
        lag = max(0, queue.log.next_offset - group.state.committed)
        page.gauge("headrace_group_lag", "How far a group is behind the end of its queue.").add(lag, of_group)
        page.gauge("headrace_group_pending", "Messages delivered in a group and not settled.").add(
            group.unsettled, of_group
        )
        page.gauge("headrace_group_paused", "Whether a group is paused.").add(int(group.is_paused), of_group)
        page.counter("headrace_group_delivered_total", "Messages delivered in a group.").add(group.delivered, of_group)
        page.counter("headrace_group_redelivered_total", "Of these, not for the first time.").add(
            group.redelivered, of_group
        )
        page.counter("headrace_group_acknowledged_total", "Messages acknowledged in a group.").add(
            group.acknowledged, of_group
        )

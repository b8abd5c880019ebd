"""`/metrics` for Prometheus: counters of the broker, depths of its queues, resources of the process.

The number of series is bounded: the first `?queues=` queues by name have their own series, with up to 100 groups each.
Totals count all queues.
"""

import asyncio
import os
import resource
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final, final

from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute

from headrace.admin.pages import Call, Pages
from headrace.admin.resources import visible_connections
from headrace.admin.sampler import queue_values
from headrace.admin.site import MONITORING, ClusterStatus
from headrace.admin.slices import ordered, sliced
from headrace.core.broker import Broker
from headrace.core.feeds.feed import FedQueue
from headrace.core.flow import Histogram
from headrace.core.queue.queue import Queue


def memory_bytes() -> int:
    """Return the memory in use; without /proc, the peak."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def open_files() -> int:
    """Return the number of open files and sockets; 0 without /proc."""
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    except OSError:
        return 0


def file_limit() -> int:
    """Return the limit of open files and sockets."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def cpu_seconds() -> float:
    """Return the processor time of the process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_LINES: Final = 1000
"""Samples of one part of the answer."""
_IN_LABEL: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_IN_HELP: Final = str.maketrans({"\\": "\\\\", "\n": "\\n"})

Labels = Mapping[str, str]


@final
class Family:
    """Samples of one name."""

    __slots__ = ("_lines", "_name")

    def __init__(self, name: str, lines: list[str]) -> None:
        self._name = name
        self._lines = lines

    def add(self, value: float, labels: Labels | None = None) -> None:
        self._lines.append(f"{self._name}{_braced(labels)} {_number(value)}\n")

    def add_histogram(self, histogram: Histogram, labels: Labels) -> None:
        """Add a histogram of durations, with cumulative buckets."""
        below = 0
        for bound_us, count in zip(histogram.bounds_us, histogram.counts, strict=False):
            below += count
            bounded = {**labels, "le": _number(bound_us / 1_000_000)}
            self._lines.append(f"{self._name}_bucket{_braced(bounded)} {below}\n")
        self._lines.append(f"{self._name}_bucket{_braced({**labels, 'le': '+Inf'})} {histogram.count}\n")
        self._lines.append(f"{self._name}_sum{_braced(labels)} {_number(histogram.sum_us / 1_000_000)}\n")
        self._lines.append(f"{self._name}_count{_braced(labels)} {histogram.count}\n")


@final
class Exposition:
    """A page of metrics."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def counter(self, name: str, about: str) -> Family:
        return self._family(name, "counter", about)

    def gauge(self, name: str, about: str) -> Family:
        return self._family(name, "gauge", about)

    def histogram(self, name: str, about: str) -> Family:
        return self._family(name, "histogram", about)

    def encode(self) -> bytes:
        return "".join(["".join(lines) for lines in self._families.values()]).encode(errors="replace")

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the page in parts, with other work in between."""
        for lines in self._families.values():
            for start in range(0, len(lines), _LINES):
                yield "".join(lines[start : start + _LINES]).encode(errors="replace")
                await asyncio.sleep(0)

    def _family(self, name: str, kind: str, about: str) -> Family:
        """Return the family of a name; its samples stay together."""
        lines = self._families.get(name)
        if lines is None:
            lines = [f"# HELP {name} {about.translate(_IN_HELP)}\n", f"# TYPE {name} {kind}\n"]
            self._families[name] = lines
        return Family(name, lines)


def _braced(labels: Labels | None) -> str:
    if not labels:
        return ""
    return "{" + ",".join([f'{name}="{value.translate(_IN_LABEL)}"' for name, value in labels.items()]) + "}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


DEFAULT_QUEUES: Final = 1000
MAX_QUEUES: Final = 100_000
MAX_GROUPS: Final = 100


def routes(pages: Pages) -> list[BaseRoute]:
    return [pages.route("/metrics", metrics, tag=MONITORING)]


async def metrics(call: Call) -> Response:
    page = Exposition()
    _process(call, page)
    await _connections(call, page)
    _pipelines(call, page)
    room = call.number("queues", DEFAULT_QUEUES, 0, MAX_QUEUES)
    for host in call.site.hosts.names():
        broker = call.site.hosts.find(host)
        if broker is not None:
            _counters(page, host, broker)
            room -= await _queues(page, host, broker, room)
    return StreamingResponse(page.parts(), media_type=CONTENT_TYPE)


def _process(call: Call, page: Exposition) -> None:
    site = call.site
    page.gauge("headrace_info", "The release that runs.").add(1, {"version": site.version})
    page.gauge("headrace_uptime_seconds", "For how long it has been running.").add(
        (site.clock.now_us() - site.started_us) / 1_000_000
    )
    page.gauge("headrace_ready", "Whether what is published can be stored.").add(0 if site.trouble() else 1)
    if site.cluster is not None:
        cluster_metrics(page, site.cluster)
    page.gauge("process_resident_memory_bytes", "Memory in use.").add(memory_bytes())
    page.counter("process_cpu_seconds_total", "Processor time used.").add(cpu_seconds())
    page.gauge("process_open_fds", "Open files and sockets.").add(open_files())
    page.gauge("process_max_fds", "How many there may be.").add(file_limit())
    page.counter("headrace_connections_refused_total", "Connections closed as they came: there were too many.").add(
        site.refused()
    )


def _pipelines(call: Call, page: Exposition) -> None:
    """Add the pipelines of jobs, at most a thousand."""
    now_us = call.site.clock.now_us()
    for pipeline in call.site.pipelines:
        report, labels = (
            pipeline.report,
            {"vhost": pipeline.host, "job": pipeline.job, "pipeline": pipeline.report.name},
        )
        page.gauge("headrace_pipeline_state", "What a pipeline does.").add(
            1, {**labels, "type": report.type, "state": pipeline.state(now_us)}
        )
        page.counter("headrace_pipeline_messages_total", "Messages that a pipeline read.").add(report.messages, labels)
        page.counter("headrace_pipeline_batches_total", "Batches of a pipeline.").add(report.batches, labels)
        page.counter("headrace_pipeline_restarts_total", "How often a pipeline failed and was started again.").add(
            report.restarts, labels
        )
        page.gauge("headrace_pipeline_reported_seconds", "For how long its job has been silent.").add(
            max(0, now_us - pipeline.reported_us) / 1_000_000, labels
        )
        if report.behind is not None:
            page.gauge("headrace_pipeline_lag", "Messages that wait for a pipeline.").add(report.behind, labels)


def cluster_metrics(page: Exposition, cluster: ClusterStatus) -> None:
    """Add the role of a node in its cluster."""
    group = {"group": cluster.group}
    page.gauge("headrace_cluster_role", "What this node is.").add(1, {"role": cluster.role, **group})
    page.gauge("headrace_cluster_epoch", "How often the group has changed hands.").add(cluster.epoch, group)


async def _connections(call: Call, page: Exposition) -> None:
    found = await visible_connections(call)
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
    """Add totals of all queues, and series of up to `room` queues; return the number of these."""
    labels = {"vhost": host}
    ready = delayed = unsettled = consumers = 0
    names = await ordered(list(broker.topology.queues))
    async for number, name in sliced(enumerate(names)):
        queue = broker.topology.queues.get(name)
        if queue is None:
            continue
        held_back = queue.delayed
        ready += 0 if queue.is_stream else queue.messages - held_back
        delayed += held_back
        unsettled += queue.unsettled
        consumers += queue.consumers
        if number < room:
            _queue(page, host, queue)
            _source(page, host, queue, broker.administration.fed_queue(queue))
    page.gauge("headrace_queues", "Queues.").add(len(names), labels)
    page.gauge("headrace_queues_without_series", "Queues that only totals count.").add(
        max(0, len(names) - room), labels
    )
    page.gauge("headrace_messages_ready", "Messages that wait for consumers, but for streams.").add(ready, labels)
    page.gauge("headrace_messages_delayed", "Messages that are not due yet: retried or published for later.").add(
        delayed, labels
    )
    page.gauge("headrace_messages_unsettled", "Messages that consumers hold.").add(unsettled, labels)
    page.gauge("headrace_consumers", "Consumers.").add(consumers, labels)
    return min(room, len(names))


def _source(page: Exposition, host: str, queue: Queue, fed: FedQueue | None) -> None:
    """Add the progress of a queue in its source."""
    if fed is None:
        return
    labels = {"vhost": host, "queue": queue.name, "source": queue.definition.source}
    page.gauge("headrace_queue_source_offset", "How far a queue is in the stream that it is filled from.").add(
        fed.position, labels
    )
    page.gauge("headrace_queue_source_lag", "How far it is behind the end of that stream.").add(fed.lag, labels)
    page.counter(
        "headrace_queue_source_missed_total", "Messages that retention took before it had looked at them."
    ).add(fed.missed, labels)


def _queue(page: Exposition, host: str, queue: Queue) -> None:
    labels = {"vhost": host, "queue": queue.name}
    values = queue_values(queue)
    page.gauge("headrace_queue_ready", "Messages that wait in a queue.").add(values["ready"], labels)
    page.gauge("headrace_queue_delayed", "Messages of a queue that are not due yet.").add(values["delayed"], labels)
    page.gauge("headrace_queue_unsettled", "Messages of a queue that consumers hold.").add(values["unsettled"], labels)
    page.gauge("headrace_queue_consumers", "Consumers of a queue.").add(queue.consumers, labels)
    page.gauge("headrace_queue_bytes", "What a queue holds, in stored bytes.").add(queue.log.size_bytes, labels)
    page.gauge("headrace_queue_damaged", "Whether a queue is refused because its files are damaged.").add(
        int(queue.refusal is not None), labels
    )
    page.counter("headrace_queue_published_total", "Messages that entered a queue.").add(values["published"], labels)
    for group in list(queue.groups.values())[:MAX_GROUPS]:
        of_group = {**labels, "group": group.name}
        page.gauge("headrace_group_lag", "Messages that a group has not finished.").add(group.lag, of_group)
        page.gauge("headrace_group_delayed", "Messages that are not due yet in a group.").add(group.delayed, of_group)
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

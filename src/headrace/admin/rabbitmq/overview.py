"""The broker as a whole, as RabbitMQ shows it: overview, nodes, health checks, and lists that stay empty."""

import os
import platform

from starlette.requests import Request
from starlette.responses import Response

from headrace.admin.messages import Taker, client_of
from headrace.admin.metrics import file_limit, memory_bytes, open_files
from headrace.admin.pages import Call, answer, done
from headrace.admin.rabbitmq.shapes import RABBITMQ_VERSION, Row, details, node_name, row, rows
from headrace.admin.resources import channels_of, hosts, visible_connections
from headrace.admin.slices import sliced
from headrace.core.access.permissions import CONFIGURE, QUEUE, WRITE
from headrace.core.client import ConsumeRequest
from headrace.core.queue.definition import declared
from headrace.core.queue.group import ACK
from headrace.core.routing.exchange import KINDS
from headrace.errors import NotFound
from headrace.model import Message, Source

_PROTOCOLS = {"amqp": "amqp", "http": "http", "mqtt": "mqtt"}
_ALIVENESS_QUEUE = "aliveness-test"


async def overview(call: Call) -> Response:
    site = call.site
    found = hosts(call)
    brokers = [broker for _, broker in found]
    series = [site.sampler.series[name] for name, _ in found if name in site.sampler.series]
    rates = {name: sum(each.rates[name] for each in series) for name in ("published", "delivered", "acknowledged")}
    queues = [queue for broker in brokers for queue in broker.topology.queues.values()]
    ready = delayed = unsettled = acknowledged = consumers = 0
    async for queue in sliced(queues):
        delayed += queue.delayed
        ready += queue.messages - queue.delayed
        unsettled += queue.unsettled
        consumers += queue.consumers
        acknowledged += sum([group.acknowledged for group in queue.groups.values()])
    connections = await visible_connections(call)
    return row(
        call,
        {
            "product_name": "Headrace",
            "product_version": site.version,
            "rabbitmq_version": RABBITMQ_VERSION,
            "management_version": RABBITMQ_VERSION,
            "erlang_version": f"Python {platform.python_version()}",
            "cluster_name": node_name(),
            "node": node_name(),
            "rates_mode": "basic",
            "exchange_types": [{"name": kind, "description": "", "enabled": True} for kind in sorted(KINDS)],
            "message_stats": {
                "publish": sum(broker.statistics.stored for broker in brokers),
                "publish_details": details(rates["published"]),
                "deliver_get": sum(broker.statistics.delivered for broker in brokers),
                "deliver_get_details": details(rates["delivered"]),
                "redeliver": sum(broker.statistics.redelivered for broker in brokers),
                "ack": acknowledged,
                "ack_details": details(rates["acknowledged"]),
            },
            "queue_totals": {
                "messages": ready + delayed + unsettled,
                "messages_ready": ready,
                "messages_delayed": delayed,
                "messages_unacknowledged": unsettled,
            },
            "object_totals": {
                "queues": len(queues),
                "exchanges": sum(len(broker.topology.exchanges.exchanges()) for broker in brokers),
                "connections": len(connections),
                "channels": len(channels_of(connections)),
                "consumers": consumers,
            },
            "listeners": [
                {"node": node_name(), "protocol": _PROTOCOLS.get(name, name), "ip_address": "", "port": port}
                for name, port in site.ports().items()
            ],
            "contexts": [
                {"node": node_name(), "description": "RabbitMQ Management", "path": "/", "port": str(port)}
                for name, port in site.ports().items()
                if name in ("http", "https")
            ],
        },
    )


def _node(call: Call) -> Row:
    site = call.site
    return {
        "name": node_name(),
        "type": "disc",
        "running": True,
        "os_pid": str(os.getpid()),
        "uptime": (site.clock.now_us() - site.started_us) // 1000,
        "processors": os.cpu_count() or 1,
        "mem_used": memory_bytes(),
        "mem_limit": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "mem_alarm": any(broker.blocked for broker in site.hosts.brokers()),
        "disk_free_alarm": any(broker.is_held_up for broker in site.hosts.brokers()),
        "fd_used": open_files(),
        "fd_total": file_limit(),
        "sockets_used": len(site.wires()),
        "sockets_total": file_limit(),
        "partitions": [],
        "applications": [],
    }


async def list_nodes(call: Call) -> Response:
    return await rows(call, [call], _node)


async def show_node(call: Call) -> Response:
    if call.path("name") != node_name():
        raise NotFound(f"no node '{call.path('name')}'")
    return row(call, _node(call))


async def cluster_name(call: Call) -> Response:
    return answer({"name": node_name()})


async def nothing_there(call: Call) -> Response:
    """Answer with an empty list: Headrace has no flags of features."""
    return answer([])


async def auth(request: Request) -> Response:
    """Tell everybody that visitors log in with a name and a password."""
    return answer({"enable_uaa": False, "oauth_enabled": False, "uaa_client_id": "", "uaa_location": ""})


async def extensions(call: Call) -> Response:
    return answer([{"javascript": "dispatcher.js"}])


# -- health


async def check(call: Call) -> Response:
    """Check that publishers are not blocked and that storage works."""
    return _verdict(_alarms(call))


async def check_port(call: Call) -> Response:
    wanted = call.path("port")
    ports = {str(port) for port in call.site.ports().values()}
    return _verdict("" if wanted in ports else f"nothing listens on port {wanted}")


async def check_protocol(call: Call) -> Response:
    wanted = call.path("protocol").lower()
    names = {_PROTOCOLS.get(name, name) for name in call.site.ports()}
    is_there = wanted in names or wanted.replace("amqp091", "amqp").replace("amqp10", "amqp") in names
    return _verdict("" if is_there else f"nothing listens for {wanted}")


def _alarms(call: Call) -> str:
    if any(broker.blocked for broker in call.site.hosts.brokers()):
        return "publishers are held back: more is published than can be stored, or kept in memory"
    return call.site.trouble()


def _verdict(trouble: str) -> Response:
    if trouble:
        return answer({"status": "failed", "reason": trouble}, 503)
    return answer({"status": "ok"})


async def aliveness(call: Call) -> Response:
    """Publish a message and get it back."""
    host = call.path("vhost")
    rights, broker = call.rights(host), call.broker(host)
    client = client_of(call, broker, rights)
    rights.check(CONFIGURE, QUEUE, _ALIVENESS_QUEUE)
    rights.check(WRITE, "exchange", "")
    client.check_read(_ALIVENESS_QUEUE, False)
    broker.declare(declared(_ALIVENESS_QUEUE))
    message = Message(Source(_ALIVENESS_QUEUE, protocol="http"), b"test_message", call.site.clock.now_us())
    await done(lambda tell: broker.publish(message, tell))
    taken = await Taker(client, ConsumeRequest(_ALIVENESS_QUEUE), "aliveness-test", 1).take(5000, ACK)
    return _verdict("" if taken else "a message that was published did not come back")

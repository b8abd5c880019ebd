"""Queues as RabbitMQ shows them: list, show, declare, delete, purge, get messages."""

from typing import Final

from starlette.responses import Response

from headrace.admin.api.connections import visible
from headrace.admin.api.messages import settle_all
from headrace.admin.messages import payload_to_json, properties_to_json, time_to_json
from headrace.admin.pages import BadRequest, Call, answer, nothing
from headrace.admin.rabbitmq.shapes import Row, details, flag, hosts, node_name, number, row, rows, text
from headrace.admin.sampler import oldest_age_ms, queue_values
from headrace.admin.views import Consuming, consumers_of
from headrace.core.access.permissions import CONFIGURE, QUEUE, READ
from headrace.core.broker import Broker
from headrace.core.properties import table_from_json, table_to_json
from headrace.core.queue.definition import declared
from headrace.core.queue.dispatch import Consumer, Delivery
from headrace.core.queue.group import ACK, REJECT, RELEASE
from headrace.core.queue.queue import Queue

MAX_COUNT: Final = 1000
MAX_BYTES: Final = 16 << 20
_MODES: Final = {
    "ack_requeue_true": RELEASE,
    "reject_requeue_true": RELEASE,
    "ack_requeue_false": ACK,
    "reject_requeue_false": REJECT,
}
_NAMES: Final = {"message_type": "type"}


def queue_row(call: Call, host: str, queue: Queue) -> Row:
    definition, values = queue.definition, queue_values(queue)
    series = call.site.sampler.queue(host, queue.name)
    rates = series.rates if series is not None else {}
    ready, delayed, unsettled = values["ready"], values["delayed"], values["unsettled"]
    return {
        "name": queue.name,
        "vhost": host,
        "type": "classic" if definition.kind == "ephemeral" else definition.kind,
        "durable": definition.durable,
        "auto_delete": definition.auto_delete,
        "exclusive": definition.exclusive,
        "arguments": table_to_json(definition.arguments),
        "node": node_name(),
        "state": "running" if queue.refusal is None else "crashed",
        "consumers": queue.consumers,
        "messages": ready + delayed + unsettled,
        "messages_details": details(0.0),
        "messages_ready": ready,
        "messages_ready_details": details(0.0),
        "messages_delayed": delayed,
        "messages_unacknowledged": unsettled,
        "messages_unacknowledged_details": details(0.0),
        "message_bytes": queue.log.size_bytes,
        "policy": None,
        "operator_policy": None,
        "effective_policy_definition": {},
        "message_stats": {
            "publish": values["published"],
            "publish_details": details(rates.get("published", 0.0)),
            "deliver_get": values["delivered"],
            "deliver_get_details": details(rates.get("delivered", 0.0)),
            "deliver": values["delivered"],
            "deliver_details": details(rates.get("delivered", 0.0)),
            "redeliver": values["redelivered"],
            "redeliver_details": details(rates.get("redelivered", 0.0)),
            "ack": values["acknowledged"],
            "ack_details": details(rates.get("acknowledged", 0.0)),
        },
    }


def consumer_row(host: str, found: Consuming) -> Row:
    connection, channel = found.connection, found.channel
    name = connection.wire.name if connection is not None else ""
    number_ = channel.number if channel is not None else 0
    return {
        "consumer_tag": found.consumer.name,
        "queue": {"name": found.queue.name, "vhost": host},
        "ack_required": not found.consumer.auto_ack,
        "active": found.is_active,
        "activity_status": "up" if found.is_active else "waiting",
        "exclusive": found.group.consumers.exclusive,
        "prefetch_count": found.prefetch,
        "arguments": {},
        "channel_details": {
            "name": f"{name} ({number_})",
            "number": number_,
            "connection_name": name,
            "node": node_name(),
            "user": connection.facts.user if connection is not None else "",
            "peer_host": connection.wire.peer.rpartition(":")[0] if connection is not None else "",
            "peer_port": int(connection.wire.peer.rpartition(":")[2] or 0) if connection is not None else 0,
        },
    }


async def list_queues(call: Call) -> Response:
    found = [(host, queue) for host, broker in hosts(call) for queue in broker.topology.queues.values()]
    return await rows(call, found, lambda pair: None if pair[1].deleted else queue_row(call, *pair))


async def show_queue(call: Call) -> Response:
    host, queue = _found(call)
    age_ms = oldest_age_ms(queue, call.site.clock.now_us())
    head = None if age_ms is None else call.site.clock.now_us() // 1_000_000 - age_ms // 1000
    connections = await visible(call) if queue.consumers else []
    consumers = [consumer_row(host, each) for each in await consumers_of([queue], connections)]
    shown = queue_row(call, host, queue)
    return row(call, {**shown, "head_message_timestamp": head, "consumer_details": consumers})


async def declare_queue(call: Call) -> Response:
    host, name = call.path("vhost"), call.path("name")
    rights = call.rights(host)
    body = await call.json()
    arguments = table_from_json(body.get("arguments") or {})
    durable, auto_delete = flag(body, "durable", True), flag(body, "auto_delete")
    definition = declared(name, durable, auto_delete=auto_delete, arguments=arguments)
    rights.check_declare_queue(definition)
    broker = call.broker(host)
    is_new = name not in broker.topology.queues
    broker.declare(definition)
    await call.kept(broker)
    return nothing(201 if is_new else 204)


async def delete_queue(call: Call) -> Response:
    host, queue = _found(call)
    call.rights(host).check(CONFIGURE, QUEUE, queue.name)
    broker = call.broker(host)
    count = broker.delete(queue.name, call.condition("if_unused"), call.condition("if_empty"), queue.owner)
    await call.kept(broker)
    call.record(f"queue {queue.name!r} of virtual host {host!r} deleted with {count:,} messages")
    return nothing()


async def purge_queue(call: Call) -> Response:
    host, queue = _found(call)
    call.rights(host).check(READ, QUEUE, queue.name)
    broker = call.broker(host)
    count = broker.purge(queue.name, queue.owner)
    await call.kept(broker)
    call.record(f"queue {queue.name!r} of virtual host {host!r} purged of {count:,} messages")
    return nothing()


async def get_messages(call: Call) -> Response:
    host, queue = _found(call)
    call.rights(host).check(READ, QUEUE, queue.name)
    body = await call.json()
    count = number(body, "count", 1, MAX_COUNT)
    mode = text(body, "ackmode", "ack_requeue_true")
    if "requeue" in body and "ackmode" not in body:  # as releases before 3.7 had it
        mode = "ack_requeue_true" if flag(body, "requeue") else "ack_requeue_false"
    if mode not in _MODES:
        raise BadRequest(f"'ackmode' must be one of {', '.join(_MODES)}, not {mode[:40]!r}")
    encoding, cut = text(body, "encoding", "auto"), number(body, "truncate", MAX_BYTES, 1 << 31)
    if encoding not in ("auto", "base64"):
        raise BadRequest(f"'encoding' must be auto or base64, not {encoding[:40]!r}")
    broker = call.broker(host)
    taken = await _take(broker, queue, f"http-{call.visitor.name}", count, _MODES[mode])
    return answer([_message_row(broker, queue, delivery, encoding == "base64", cut) for delivery in taken])


async def _take(broker: Broker, queue: Queue, name: str, count: int, outcome: int) -> list[Delivery]:
    """Up to so many messages, settled, once that would survive a crash. Raises what storing raises."""
    consumer = Consumer(name, _nobody, owner=queue.owner)
    taken: list[Delivery] = []
    size = 0
    try:
        while len(taken) < count and size < MAX_BYTES and (delivery := broker.get(queue.name, consumer)) is not None:
            taken.append(delivery)
            size += len(delivery.message.payload)
        await settle_all(broker, taken, outcome)
    finally:
        broker.cancel(consumer)
    return taken


def _nobody(deliveries: list[Delivery]) -> None:
    raise AssertionError("a consumer that only gets is not delivered to")


def _message_row(broker: Broker, queue: Queue, delivery: Delivery, as_base64: bool, cut: int) -> Row:
    message = delivery.message
    payload, encoding = payload_to_json(message.payload, as_base64, cut)
    said = properties_to_json(broker.codecs, message)
    properties = {_NAMES.get(name, name): value for name, value in said.items()}
    return {
        "payload_bytes": len(message.payload),
        "redelivered": delivery.redelivered,
        "exchange": message.source.exchange,
        "routing_key": message.source.topic,
        "message_count": queue.messages,
        "properties": properties,
        "payload": payload,
        "payload_encoding": "string" if encoding == "text" else encoding,
        "timestamp": time_to_json(message.timestamp_us),
    }


def _found(call: Call) -> tuple[str, Queue]:
    host = call.path("vhost")
    return host, call.broker(host).topology.queue(call.path("name"))

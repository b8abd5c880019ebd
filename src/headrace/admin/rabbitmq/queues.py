"""Queues as RabbitMQ shows them: list, show, declare, delete, purge, get messages."""

from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from headrace.admin.messages import (
    BASE64,
    MAX_SHOWN_BYTES,
    payload_to_json,
    properties_to_json,
    settle_all,
    time_to_json,
)
from headrace.admin.pages import Call, answer, nothing
from headrace.admin.rabbitmq.shapes import Row, asked_hosts, details, node_name, row, rows
from headrace.admin.resources import Consuming, consumers_of, find_queue, readable_queue, visible_connections
from headrace.admin.resources import declare_queue as declare
from headrace.admin.resources import delete_queue as delete
from headrace.admin.resources import purge_queue as purge
from headrace.admin.sampler import oldest_age_ms, queue_values
from headrace.config.kinds import Choice, Flag, Number, Unchecked
from headrace.config.table import option
from headrace.core.broker import Broker
from headrace.core.queue.definition import QueueDefinition, declared
from headrace.core.queue.dispatch import Consumer, Delivery
from headrace.core.queue.group import ACK, REJECT, RELEASE
from headrace.core.queue.queue import Queue
from headrace.wire.properties import table_from_json, table_to_json

MAX_COUNT: Final = 1000
_MODES: Final = {
    "ack_requeue_true": RELEASE,
    "reject_requeue_true": RELEASE,
    "ack_requeue_false": ACK,
    "reject_requeue_false": REJECT,
}
_NAMES: Final = {"message_type": "type"}


@dataclass(frozen=True, kw_only=True)
class QueueBody:
    """Body of a queue."""

    durable: bool = option(True, Flag())
    auto_delete: bool = option(False, Flag())
    arguments: object = option(None, Unchecked())

    def definition(self, name: str) -> QueueDefinition:
        """Make the definition of the queue. Raises PreconditionFailed."""
        arguments = table_from_json(self.arguments or {})
        return declared(name, self.durable, auto_delete=self.auto_delete, arguments=arguments)


@dataclass(frozen=True, kw_only=True)
class GetBody:
    """Body of a request for messages; releases before 3.7 have `requeue` instead of `ackmode`."""

    count: int = option(1, Number(0, MAX_COUNT))
    ackmode: str | None = option(None, Choice(*_MODES))
    requeue: bool = option(True, Flag())
    encoding: str = option("auto", Choice("auto", BASE64))
    truncate: int = option(MAX_SHOWN_BYTES, Number(0, 1 << 31))

    @property
    def outcome(self) -> int:
        return _MODES[self.ackmode or ("ack_requeue_true" if self.requeue else "ack_requeue_false")]


def queue_row(call: Call, host: str, broker: Broker, queue: Queue) -> Row:
    definition, values = queue.definition, queue_values(queue)
    governed = broker.parameters.policies.of_queue(queue.declared)
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
        "policy": governed.policy,
        "operator_policy": governed.operator,
        "effective_policy_definition": governed.settings,
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
    found = [(host, broker, queue) for host, broker in asked_hosts(call) for queue in broker.topology.queues.values()]
    return await rows(call, found, lambda each: None if each[2].deleted else queue_row(call, *each))


async def show_queue(call: Call) -> Response:
    host, broker, queue = find_queue(call, "name")
    age_ms = oldest_age_ms(queue, call.site.clock.now_us())
    head = None if age_ms is None else call.site.clock.now_us() // 1_000_000 - age_ms // 1000
    connections = await visible_connections(call) if queue.consumers else []
    consumers = [consumer_row(host, each) for each in await consumers_of([queue], connections)]
    shown = queue_row(call, host, broker, queue)
    return row(call, {**shown, "head_message_timestamp": head, "consumer_details": consumers})


async def declare_queue(call: Call) -> Response:
    body = await call.read(QueueBody, is_lenient=True)
    return nothing(201 if await declare(call, body.definition(call.path("name"))) else 204)


async def delete_queue(call: Call) -> Response:
    await delete(call, "name")
    return nothing()


async def purge_queue(call: Call) -> Response:
    await purge(call, "name")
    return nothing()


async def get_messages(call: Call) -> Response:
    _, broker, queue = readable_queue(call, "name")
    body = await call.read(GetBody, is_lenient=True)
    taken = await _take(broker, queue, f"http-{call.visitor.name}", body.count, body.outcome)
    as_base64 = body.encoding == BASE64
    return answer([_message_row(broker, queue, delivery, as_base64, body.truncate) for delivery in taken])


async def _take(broker: Broker, queue: Queue, name: str, count: int, outcome: int) -> list[Delivery]:
    """Take up to `count` messages and settle them; return once that is durable. Raises the error of storing."""
    consumer = Consumer(name, _nobody, owner=queue.owner)
    taken: list[Delivery] = []
    size = 0
    try:
        while (
            len(taken) < count and size < MAX_SHOWN_BYTES and (delivery := broker.get(queue.name, consumer)) is not None
        ):
            taken.append(delivery)
            size += len(delivery.message.payload)
        await settle_all(broker, taken, outcome)
    finally:
        broker.cancel(consumer)
    return taken


def _nobody(deliveries: list[Delivery]) -> None:
    raise AssertionError("a consumer that gets has no deliveries")


def _message_row(broker: Broker, queue: Queue, delivery: Delivery, as_base64: bool, cut: int) -> Row:
    message = delivery.message
    payload, encoding = payload_to_json(message.payload, as_base64, cut)
    found = properties_to_json(message)
    properties = {_NAMES.get(name, name): value for name, value in found.items()}
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

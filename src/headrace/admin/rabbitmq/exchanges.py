"""Exchanges and bindings as RabbitMQ shows them, and publishing through an exchange."""

import hashlib
import json
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from starlette.responses import Response

from headrace.admin.messages import Publication
from headrace.admin.messages import publish as publish_message
from headrace.admin.pages import BadRequest, Call, answer, nothing
from headrace.admin.rabbitmq.shapes import Row, asked_hosts, exchange_name, row, rows
from headrace.config.kinds import Choice, Flag, Secret, Text, Unchecked
from headrace.config.table import option, read_model, required
from headrace.core.access.permissions import CONFIGURE, EXCHANGE
from headrace.core.broker import Broker
from headrace.core.routing.exchange import KINDS, Binding, Exchange
from headrace.errors import NotFound
from headrace.wire.properties import table_from_json, table_to_json

_KINDS: Final = {"q": False, "e": True}


@dataclass(frozen=True, kw_only=True)
class ExchangeBody:
    """Body of an exchange."""

    type: str = option("direct", Choice(*KINDS))
    durable: bool = option(True, Flag())
    auto_delete: bool = option(False, Flag())
    internal: bool = option(False, Flag())
    arguments: object = option(None, Unchecked())

    def exchange(self, name: str) -> Exchange:
        """Make the exchange."""
        arguments = table_from_json(self.arguments or {})
        return Exchange(name, self.type, self.durable, self.auto_delete, self.internal, arguments)


@dataclass(frozen=True, kw_only=True)
class BindingBody:
    """Body of a binding."""

    routing_key: str = option("", Text())
    arguments: object = option(None, Unchecked())


@dataclass(frozen=True, kw_only=True)
class PublishBody:
    """Body of a message: its flags and times are among the properties."""

    routing_key: str = required(Text())
    payload: str = required(Secret())
    payload_encoding: str = required(Text())
    properties: object = option(None, Unchecked())


def exchange_row(host: str, broker: Broker, exchange: Exchange) -> Row:
    governed = broker.parameters.policies.of_exchange(exchange.name)
    return {
        **exchange.to_json(),
        "vhost": host,
        "policy": governed.policy,
        "operator_policy": governed.operator,
        "effective_policy_definition": governed.settings,
        "user_who_performed_action": "headrace",
    }


def binding_row(host: str, binding: Binding) -> Row:
    return {**binding.to_json(), "vhost": host, "properties_key": properties_key(binding)}


def properties_key(binding: Binding) -> str:
    """Return the key that distinguishes bindings between the same two ends."""
    key = quote(binding.key, safe="") if binding.key else "~"
    if not binding.arguments:
        return key
    content = json.dumps(table_to_json(binding.arguments), sort_keys=True).encode()
    return f"{'' if key == '~' else key}~{hashlib.sha256(content).hexdigest()[:22]}"


def implicit(queue: str) -> Binding:
    """Return the binding of a queue to the default exchange."""
    return Binding("", queue, queue)


# -- exchanges


async def list_exchanges(call: Call) -> Response:
    hosts = asked_hosts(call)
    found = [(host, broker, each) for host, broker in hosts for each in broker.topology.exchanges.exchanges()]
    return await rows(call, found, lambda each: exchange_row(*each))


async def show_exchange(call: Call) -> Response:
    host, broker = call.path("vhost"), call.broker(call.path("vhost"))
    return row(call, exchange_row(host, broker, broker.topology.exchanges.get(exchange_name(call.path("name")))))


async def declare_exchange(call: Call) -> Response:
    host, name = call.path("vhost"), call.path("name")
    rights = call.rights(host)
    exchange = (await call.read(ExchangeBody, is_lenient=True)).exchange(name)
    rights.check_declare_exchange(exchange)
    broker = call.broker(host)
    is_new = all(each.name != name for each in broker.topology.exchanges.exchanges())
    broker.declare_exchange(exchange)
    await call.kept(broker)
    return nothing(201 if is_new else 204)


async def delete_exchange(call: Call) -> Response:
    host, name = call.path("vhost"), call.path("name")
    call.rights(host).check(CONFIGURE, EXCHANGE, name)
    broker = call.broker(host)
    broker.delete_exchange(name, call.text("if-unused") == "true")
    await call.kept(broker)
    return nothing()


async def publish(call: Call) -> Response:
    host, name = call.path("vhost"), exchange_name(call.path("name"))
    call.broker(host)
    body = await call.read(PublishBody, is_lenient=True)
    given = body.properties or {}
    if not isinstance(given, dict):
        raise BadRequest("'properties' must be a table")
    properties = {("message_type" if key == "type" else key): value for key, value in given.items()}
    for unused in ("timestamp", "cluster_id"):
        properties.pop(unused, None)
    expiration = properties.get("expiration", "")
    is_time = isinstance(expiration, str) and expiration.isascii() and expiration.isdecimal() and len(expiration) < 14
    message = {
        "exchange": name,
        "routing_key": body.routing_key,
        "payload": body.payload,
        "payload_encoding": body.payload_encoding,
        "properties": properties,
        "expires_in_ms": int(expiration) if is_time else 0,
    }
    queues = await publish_message(call, host, read_model(Publication, message, "the body"))
    return answer({"routed": queues > 0})


# -- bindings


async def list_bindings(call: Call) -> Response:
    found: list[tuple[str, Binding | str]] = []
    for host, broker in asked_hosts(call):
        found += [(host, name) for name in broker.topology.queues]
        found += [(host, binding) for binding in broker.topology.exchanges.bindings()]
    return await rows(call, found, lambda pair: binding_row(pair[0], _explicit(pair[1])))


def _explicit(found: Binding | str) -> Binding:
    """Return the binding; the name of a queue stands for its binding to the default exchange."""
    return implicit(found) if isinstance(found, str) else found


async def bindings_of_queue(call: Call) -> Response:
    host, broker = call.path("vhost"), call.broker(call.path("vhost"))
    name = broker.topology.queue(call.path("name")).name
    found = [implicit(name), *broker.topology.exchanges.bindings_to(name)]
    return await rows(call, found, lambda binding: binding_row(host, binding))


async def bindings_from_exchange(call: Call) -> Response:
    host, broker = call.path("vhost"), call.broker(call.path("vhost"))
    name = exchange_name(call.path("name"))
    found: list[Binding | str] = list(broker.topology.exchanges.bindings_from(name))
    if not name:
        found = list(broker.topology.queues)
    return await rows(call, found, lambda each: binding_row(host, _explicit(each)))


async def bindings_to_exchange(call: Call) -> Response:
    host, broker = call.path("vhost"), call.broker(call.path("vhost"))
    name = broker.topology.exchanges.get(exchange_name(call.path("name"))).name
    found = broker.topology.exchanges.bindings_to(name, to_exchange=True)
    return await rows(call, found, lambda binding: binding_row(host, binding))


async def bindings_between(call: Call) -> Response:
    host, broker = call.path("vhost"), call.broker(call.path("vhost"))
    return await rows(call, _between(call, broker), lambda binding: binding_row(host, binding))


async def bind(call: Call) -> Response:
    host = call.path("vhost")
    body = await call.read(BindingBody, is_lenient=True)
    binding = Binding(
        exchange_name(call.path("source")),
        call.path("destination"),
        body.routing_key,
        table_from_json(body.arguments or {}),
        _to_exchange(call),
    )
    call.rights(host).check_bind(binding)
    broker = call.broker(host)
    broker.bind(binding)
    await call.kept(broker)
    response = nothing(201)
    response.headers["location"] = quote(properties_key(binding), safe="~%")
    return response


async def show_binding(call: Call) -> Response:
    return row(call, binding_row(call.path("vhost"), _binding(call)))


async def unbind(call: Call) -> Response:
    host = call.path("vhost")
    binding = _binding(call)
    call.rights(host).check_bind(binding)
    broker = call.broker(host)
    broker.unbind(binding)
    await call.kept(broker)
    return nothing()


def _to_exchange(call: Call) -> bool:
    kind = call.path("kind")
    if kind not in _KINDS:
        raise NotFound("a binding leads to a queue (q) or to an exchange (e)")
    return _KINDS[kind]


def _between(call: Call, broker: Broker) -> list[Binding]:
    source, destination, to_exchange = exchange_name(call.path("source")), call.path("destination"), _to_exchange(call)
    if not source and not to_exchange:
        return [implicit(broker.topology.queue(destination).name)]
    found = broker.topology.exchanges.bindings_to(destination, to_exchange)
    return [binding for binding in found if binding.source == source]


def _binding(call: Call) -> Binding:
    raw = call.request.path_params["properties"]
    for binding in _between(call, call.broker(call.path("vhost"))):
        if properties_key(binding) in (raw, call.path("properties")):
            return binding
    raise NotFound("there is no such binding")

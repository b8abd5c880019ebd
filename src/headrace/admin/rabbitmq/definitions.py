"""Everything but the messages, to be kept or brought elsewhere: definitions out and in, as RabbitMQ has them."""

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from starlette.responses import Response

from headrace.admin.answers import answer, nothing
from headrace.admin.api.users import permission_to_json, topic_permission_to_json
from headrace.admin.pages import Call, done
from headrace.admin.problems import BadRequest
from headrace.admin.rabbitmq.exchanges import binding_row
from headrace.admin.rabbitmq.shapes import RABBITMQ_VERSION, Row, flag, text
from headrace.admin.rabbitmq.users import tags_of
from headrace.core.arguments import table_from_json, table_to_json
from headrace.core.broker import Broker
from headrace.core.declared import declared
from headrace.core.definition import QueueDefinition
from headrace.core.exchange import KINDS, RESERVED_PREFIX, Binding, Exchange
from headrace.core.queue import Queue
from headrace.core.rights import Permission, TopicPermission
from headrace.core.sources import sources_first
from headrace.errors import HeadraceError, NotFound

_log: Final = logging.getLogger("headrace.admin")
_EXTENSION: Final = "headrace"
"""A member of queues that RabbitMQ ignores: what `x-` arguments cannot say."""
_MAYBE_NUMBERS: Final = ("max_length", "max_length_bytes", "message_ttl_ms", "delivery_limit")
_MAYBE_TEXTS: Final = ("dead_letter_exchange", "dead_letter_key")
_TABLES: Final = ("topics", "retry", "retention", "replication", "arguments")


# -- out


async def export(call: Call) -> Response:
    """All definitions, or those of one virtual host."""
    if "vhost" in call.request.path_params:
        host = call.path("vhost")
        return answer({"rabbit_version": RABBITMQ_VERSION, **_topology({host: call.broker(host)}, with_hosts=False)})
    access = call.site.access
    users = [
        {
            "name": user.name,
            "password_hash": user.password_hash,
            "hashing_algorithm": "argon2id",
            "tags": list(user.tags),
            "limits": user.limits.to_json(),
        }
        for user in access.users()
    ]
    brokers = {name: call.broker(name) for name in call.site.hosts.names()}
    return answer(
        {
            "rabbit_version": RABBITMQ_VERSION,
            "rabbitmq_version": RABBITMQ_VERSION,
            "product_name": "Headrace",
            "product_version": call.site.version,
            "users": users,
            "vhosts": [{"name": name} for name in brokers],
            "permissions": [permission_to_json(each) for each in access.permissions()],
            "topic_permissions": [topic_permission_to_json(each) for each in access.topic_permissions()],
            "parameters": [],
            "global_parameters": [],
            **_topology(brokers, with_hosts=True),
        }
    )


def _topology(brokers: Mapping[str, Broker], with_hosts: bool) -> Row:
    """The policies, queues, exchanges and bindings that are kept over a restart."""
    queues: list[Row] = []
    exchanges: list[Row] = []
    bindings: list[Row] = []
    for host, broker in brokers.items():
        where = {"vhost": host} if with_hosts else {}
        found = broker.topology.exchanges
        kept = {queue.name for queue in broker.topology.queues.values() if queue.definition.is_stored}
        queues += [{**_queue(queue), **where} for queue in broker.topology.queues.values() if queue.name in kept]
        exchanges += [{**_exchange(each), **where} for each in found.exchanges() if _is_kept(each)]
        for binding in found.bindings():
            if binding.to_exchange or binding.destination in kept:
                row = binding_row(host, binding)
                del row["vhost"], row["properties_key"]
                bindings.append({**row, **where})
    return {"policies": [], "queues": queues, "exchanges": exchanges, "bindings": bindings}


def _queue(queue: Queue) -> Row:
    definition = queue.definition
    row: Row = {
        "name": queue.name,
        "durable": definition.durable,
        "auto_delete": definition.auto_delete,
        "arguments": table_to_json(definition.arguments),
    }
    if definition != declared(queue.name, definition.durable, False, definition.auto_delete, definition.arguments):
        row[_EXTENSION] = definition.to_json()
    return row


def _is_kept(exchange: Exchange) -> bool:
    return exchange.durable and exchange.name != "" and not exchange.name.startswith(RESERVED_PREFIX)


def _exchange(exchange: Exchange) -> Row:
    return {
        "name": exchange.name,
        "type": exchange.kind,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": table_to_json(exchange.arguments),
    }


# -- in


async def bring_in(call: Call) -> Response:
    """Have everything that the definitions say; what is there already and differs stays as it is and is an error."""
    body = await call.json()
    only = call.path("vhost") if "vhost" in call.request.path_params else None
    if only is None:
        for entry in _entries(body, "vhosts"):
            name = text(entry, "name")
            await done(lambda tell, name=name: call.site.hosts.create(name, tell))  # type: ignore[misc]
        await _bring_users(call, body)
    touched: dict[str, Broker] = {}
    for kind, bring in (("queues", _bring_queue), ("exchanges", _bring_exchange), ("bindings", _bring_binding)):
        for entry in _sources_first(body) if kind == "queues" else _entries(body, kind):
            host = only if only is not None else text(entry, "vhost", "/")
            broker = touched.get(host)
            if broker is None:
                broker = touched[host] = call.broker(host)
            try:
                bring(broker, entry)
            except HeadraceError as error:
                raise BadRequest(f"{kind} {entry.get('name', entry.get('destination', ''))!r}: {error}") from error
    for broker in touched.values():
        await call.kept(broker)
    left_out = [f"'{entry.get('name')}'" for entry in _entries(body, "policies")]
    if left_out:
        _log.warning(
            "definitions were brought in without their policies %s: give queues what these set as arguments",
            ", ".join(left_out),
        )
    return nothing()


async def _bring_users(call: Call, body: Mapping[str, object]) -> None:
    access = call.site.access
    for entry in _entries(body, "users"):
        name, tags = text(entry, "name"), tags_of(entry)
        password_hash = text(entry, "password_hash", "")
        await done(lambda tell, n=name, h=password_hash, t=tags: access.put_user_hash(n, h, t, tell))  # type: ignore[misc]
    for entry in _entries(body, "permissions"):
        patterns = [text(entry, name) for name in ("configure", "write", "read")]
        granted = Permission(text(entry, "user"), text(entry, "vhost"), *patterns)
        await done(lambda tell, granted=granted: access.put_permission(granted, tell))  # type: ignore[misc]
    for entry in _entries(body, "topic_permissions"):
        bound = TopicPermission(
            text(entry, "user"),
            text(entry, "vhost"),
            text(entry, "exchange"),
            text(entry, "write"),
            text(entry, "read"),
        )
        await done(lambda tell, bound=bound: access.put_topic_permission(bound, tell))  # type: ignore[misc]


def _bring_queue(broker: Broker, entry: Mapping[str, object]) -> None:
    name, extended = text(entry, "name"), entry.get(_EXTENSION)
    if isinstance(extended, Mapping):
        definition = QueueDefinition.from_json({**_checked(extended), "name": name})
    else:
        arguments = table_from_json(entry.get("arguments") or {})
        definition = declared(name, flag(entry, "durable", True), False, flag(entry, "auto_delete"), arguments)
    broker.declare(definition)


def _checked(values: Mapping[str, object]) -> dict[str, object]:
    """Raises BadRequest where a member has not the type that a definition has there."""
    default = QueueDefinition("")
    known: dict[str, object] = {}
    for name, value in values.items():
        if name in _MAYBE_NUMBERS:
            is_right = value is None or (isinstance(value, int) and not isinstance(value, bool))
        elif name in _MAYBE_TEXTS:
            is_right = value is None or isinstance(value, str)
        elif name in _TABLES:
            is_right = value is None or isinstance(value, list | dict)
        else:
            is_right = hasattr(default, name) and type(value) is type(getattr(default, name))
        if not is_right:
            raise BadRequest(f"{name!r} cannot be {value!r}")
        known[name] = value
    return known


def _bring_exchange(broker: Broker, entry: Mapping[str, object]) -> None:
    kind = text(entry, "type")
    if kind not in KINDS:
        raise BadRequest(f"unknown exchange type '{kind[:40]}': there are {', '.join(KINDS)}")
    exchange = Exchange(
        text(entry, "name"),
        kind,
        flag(entry, "durable", True),
        flag(entry, "auto_delete"),
        flag(entry, "internal"),
        table_from_json(entry.get("arguments") or {}),
    )
    broker.declare_exchange(exchange)


def _bring_binding(broker: Broker, entry: Mapping[str, object]) -> None:
    binding = Binding.from_json(entry)
    if not binding.source:
        raise NotFound("the default exchange has no bindings of its own")
    broker.bind(binding)


def _sources_first(body: Mapping[str, object]) -> list[dict[str, object]]:
    """The queues, each behind the one that it is filled from, which is of the same virtual host."""
    entries = list(_entries(body, "queues"))
    hosts = [f"{entry.get('vhost')}\0" for entry in entries]
    named = [
        (f"{host}{entry.get('name')}", f"{host}{source}" if (source := _source_of(entry)) else "")
        for host, entry in zip(hosts, entries, strict=True)
    ]
    return [entries[at] for at in sources_first(named)]


def _source_of(entry: Mapping[str, object]) -> str:
    extended, arguments = entry.get(_EXTENSION), entry.get("arguments")
    if isinstance(extended, Mapping):
        return str(extended.get("source") or "")
    return str(arguments.get("x-source") or "") if isinstance(arguments, Mapping) else ""


def _entries(body: Mapping[str, object], name: str) -> Iterable[dict[str, object]]:
    value = body.get(name) or []
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise BadRequest(f"{name!r} must be a list of tables")
    return value

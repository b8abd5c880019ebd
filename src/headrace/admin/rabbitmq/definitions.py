"""Everything but the messages, to be kept or brought elsewhere: definitions out and in, as RabbitMQ has them."""

import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Final

from starlette.responses import Response

from headrace.admin.api.users import permission_to_json, topic_permission_to_json
from headrace.admin.pages import BadRequest, Call, array, done, encode, nothing, streamed
from headrace.admin.rabbitmq.exchanges import binding_row
from headrace.admin.rabbitmq.shapes import RABBITMQ_VERSION, Row, flag, text
from headrace.admin.rabbitmq.users import tags_of
from headrace.admin.slices import sliced
from headrace.core.access.permissions import Permission, TopicPermission
from headrace.core.broker import Broker
from headrace.core.feeds.assigner import sources_first
from headrace.core.properties import table_from_json, table_to_json
from headrace.core.queue.definition import QueueDefinition, declared
from headrace.core.queue.queue import Queue
from headrace.core.routing.exchange import KINDS, RESERVED_PREFIX, Binding, Exchange
from headrace.errors import HeadraceError, NotFound

_log: Final = logging.getLogger("headrace.admin")
_EXTENSION: Final = "headrace"
"""A member of queues that RabbitMQ ignores: what `x-` arguments cannot say."""
_MAYBE_NUMBERS: Final = ("max_length", "max_length_bytes", "message_ttl_ms", "delivery_limit")
_MAYBE_TEXTS: Final = ("dead_letter_exchange", "dead_letter_key")
_TABLES: Final = ("topics", "retry", "retention", "replication", "arguments")


_BROUGHT: Final = 20
"""How many are declared at once: each is looked at, routed to and stored."""
_STORED: Final = 200
"""After how many it waits until they are stored: what storage does for one commit is done at once."""

# -- out


async def export(call: Call) -> Response:
    """All definitions, or those of one virtual host."""
    if "vhost" in call.request.path_params:
        host = call.path("vhost")
        brokers = {host: call.broker(host)}
        return streamed(_members({"rabbit_version": RABBITMQ_VERSION}, brokers, with_hosts=False))
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
    values: Row = {
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
    }
    return streamed(_members(values, brokers, with_hosts=True))


async def _members(values: Row, brokers: Mapping[str, Broker], with_hosts: bool) -> AsyncIterator[bytes]:
    """The document, piece by piece: these values, then the queues, exchanges and bindings that outlive a restart."""
    yield encode({**values, "policies": []})[:-1].encode("ascii")

    def shown(host: str, row: Row) -> Row:
        return {**row, "vhost": host} if with_hosts else row

    queues = [(host, queue) for host, broker in brokers.items() for queue in broker.topology.queues.values()]
    kept = {(host, queue.name) async for host, queue in sliced(queues, 1000) if queue.definition.is_stored}
    yield b',"queues":'
    async for part in array(
        queues, lambda pair: shown(pair[0], _queue(pair[1])) if (pair[0], pair[1].name) in kept else None
    ):
        yield part
    exchanges = [(host, each) for host, broker in brokers.items() for each in broker.topology.exchanges.exchanges()]
    yield b',"exchanges":'
    async for part in array(exchanges, lambda pair: shown(pair[0], _exchange(pair[1])) if _is_kept(pair[1]) else None):
        yield part
    bindings = [(host, each) for host, broker in brokers.items() for each in broker.topology.exchanges.bindings()]
    yield b',"bindings":'
    async for part in array(
        bindings,
        lambda pair: (
            shown(pair[0], _binding(*pair)) if pair[1].to_exchange or (pair[0], pair[1].destination) in kept else None
        ),
    ):
        yield part
    yield b"}"


def _binding(host: str, binding: Binding) -> Row:
    row = binding_row(host, binding)
    del row["vhost"], row["properties_key"]
    return row


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
    brought = 0
    for kind, bring in (("queues", _bring_queue), ("exchanges", _bring_exchange), ("bindings", _bring_binding)):
        entries = await _sources_first(body) if kind == "queues" else _entries(body, kind)
        async for entry in sliced(entries, _BROUGHT):
            host = only if only is not None else text(entry, "vhost", "/")
            broker = touched[host] = call.broker(host)
            try:
                bring(broker, entry)
            except HeadraceError as error:
                raise BadRequest(f"{kind} {entry.get('name', entry.get('destination', ''))!r}: {error}") from error
            brought += 1
            if brought % _STORED == 0:
                await call.kept(broker)
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


async def _sources_first(body: Mapping[str, object]) -> list[dict[str, object]]:
    """The queues, each behind the one that it is filled from, which is of the same virtual host."""
    entries = list(_entries(body, "queues"))
    sources: list[tuple[str, str]] = []
    are_filled = False
    async for entry in sliced(entries, 1000):
        host, source = f"{entry.get('vhost')}\0", _source_of(entry)
        sources.append((f"{host}{entry.get('name')}", f"{host}{source}" if source else ""))
        are_filled = are_filled or bool(source)
    return [entries[at] for at in sources_first(sources)] if are_filled else entries


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

"""Export and import of definitions in RabbitMQ's form: everything but the messages."""

import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Final

from starlette.responses import Response

from headrace.admin.pages import BadRequest, Call, array, done, encode, nothing, streamed
from headrace.admin.rabbitmq.exchanges import ExchangeBody
from headrace.admin.rabbitmq.queues import QueueBody
from headrace.admin.rabbitmq.shapes import RABBITMQ_VERSION, Row, named_host
from headrace.admin.rabbitmq.users import Patterns, TopicPatterns, tags_of
from headrace.admin.resources import permission_to_json, topic_permission_to_json
from headrace.admin.slices import sliced
from headrace.config.kinds import Flag, Kind, Number, Object, Secret, Text, Texts, Unchecked
from headrace.config.table import Key, Model, Table, option, read_model, required
from headrace.core.access.permissions import Permission, TopicPermission
from headrace.core.broker import Broker
from headrace.core.feeds.assigner import sources_first
from headrace.core.queue.definition import QueueDefinition, declared
from headrace.core.queue.queue import Queue
from headrace.core.routing.exchange import RESERVED_PREFIX, Binding, Exchange
from headrace.errors import HeadraceError, NotFound
from headrace.wire.properties import table_to_json

_log: Final = logging.getLogger("headrace.admin")
_EXTENSION: Final = "headrace"
"""Member of queues for settings that no `x-` argument has; RabbitMQ ignores it."""
_MAYBE_NUMBERS: Final = ("max_length", "max_length_bytes", "message_ttl_ms", "delivery_limit")
_MAYBE_TEXTS: Final = ("dead_letter_exchange", "dead_letter_key")
_DECLARED: Final = 20
"""Declarations between two turns of other work."""
_STORED: Final = 200
"""Declarations of one commit: storage writes a commit in one go."""


@dataclass(frozen=True, kw_only=True)
class _Named:
    name: str = required(Text())


@dataclass(frozen=True, kw_only=True)
class _User(_Named):
    tags: object = option("", Unchecked())
    password_hash: str = option("", Secret())


@dataclass(frozen=True, kw_only=True)
class _Permission(Patterns):
    user: str = required(Text())
    vhost: str = required(Text())


@dataclass(frozen=True, kw_only=True)
class _TopicPermission(TopicPatterns):
    user: str = required(Text())
    vhost: str = required(Text())


@dataclass(frozen=True, kw_only=True)
class _Queue(_Named, QueueBody):
    headrace: object = option(None, Unchecked())


@dataclass(frozen=True, kw_only=True)
class _Exchange(_Named, ExchangeBody):
    pass


# -- export


async def export(call: Call) -> Response:
    """Answer with all definitions, or those of one virtual host."""
    host = named_host(call)
    if host:
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
    """Yield the document in parts: these values, then all stored queues, exchanges and bindings."""
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
    async for part in array(exchanges, lambda pair: shown(pair[0], pair[1].to_json()) if _is_kept(pair[1]) else None):
        yield part
    bindings = [(host, each) for host, broker in brokers.items() for each in broker.topology.exchanges.bindings()]
    yield b',"bindings":'
    async for part in array(
        bindings,
        lambda pair: (
            shown(pair[0], _binding(pair[1])) if pair[1].to_exchange or (pair[0], pair[1].destination) in kept else None
        ),
    ):
        yield part
    yield b"}"


def _binding(binding: Binding) -> Row:
    return binding.to_json()


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


# -- import


async def import_definitions(call: Call) -> Response:
    """Declare all definitions of the body. Raises BadRequest if one exists and differs."""
    body = await call.json()
    only = named_host(call)
    if not only:
        for host in _read(_Named, body, "vhosts"):
            await done(lambda tell, name=host.name: call.site.hosts.create(name, tell))  # type: ignore[misc]
        await _import_users(call, body)
    touched: dict[str, Broker] = {}
    count = 0
    for kind, declare in (("queues", _declare_queue), ("exchanges", _declare_exchange), ("bindings", _bind)):
        entries = await _sources_first(body) if kind == "queues" else _entries(body, kind)
        async for entry in sliced(entries, _DECLARED):
            name = only or str(entry.get("vhost", "/"))
            broker = touched[name] = call.broker(name)
            try:
                declare(broker, entry)
            except HeadraceError as error:
                raise BadRequest(f"{kind} {entry.get('name', entry.get('destination', ''))!r}: {error}") from error
            count += 1
            if count % _STORED == 0:
                await call.kept(broker)
    for broker in touched.values():
        await call.kept(broker)
    left_out = [f"'{entry.get('name')}'" for entry in _entries(body, "policies")]
    if left_out:
        _log.warning(
            "definitions were imported without their policies %s: give queues these settings as arguments",
            ", ".join(left_out),
        )
    return nothing()


async def _import_users(call: Call, body: Mapping[str, object]) -> None:
    access = call.site.access
    for user in _read(_User, body, "users"):
        tags = tags_of(user.tags)
        await done(lambda tell, u=user, t=tags: access.put_user_hash(u.name, u.password_hash, t, tell))  # type: ignore[misc]
    for given in _read(_Permission, body, "permissions"):
        granted = Permission(given.user, given.vhost, given.configure, given.write, given.read)
        await done(lambda tell, granted=granted: access.put_permission(granted, tell))  # type: ignore[misc]
    for each in _read(_TopicPermission, body, "topic_permissions"):
        bound = TopicPermission(each.user, each.vhost, each.exchange, each.write, each.read)
        await done(lambda tell, bound=bound: access.put_topic_permission(bound, tell))  # type: ignore[misc]


def _declare_queue(broker: Broker, entry: Mapping[str, object]) -> None:
    given = read_model(_Queue, entry, is_lenient=True)
    if not isinstance(given.headrace, Mapping):
        broker.declare(given.definition(given.name))
        return
    members = {name: value for name, value in _DEFINITION.read(given.headrace).items() if value is not None}
    broker.declare(QueueDefinition.from_json({**members, "name": given.name}))


def _kind(name: str, default: object) -> Kind:
    """Return the kind of a member of a definition; core reads its tables."""
    if isinstance(default, bool):
        return Flag()
    if name in _MAYBE_NUMBERS or isinstance(default, int):
        return Number()
    if name in _MAYBE_TEXTS or isinstance(default, str) or name == "name":
        return Text()
    return Texts() if name == "topics" else Object()


_DEFINITION: Final = Table(
    *[Key(part.name, _kind(part.name, part.default), None, "") for part in fields(QueueDefinition)]
)


def _declare_exchange(broker: Broker, entry: Mapping[str, object]) -> None:
    given = read_model(_Exchange, entry, is_lenient=True)
    broker.declare_exchange(given.exchange(given.name))


def _bind(broker: Broker, entry: Mapping[str, object]) -> None:
    binding = Binding.from_json(entry)
    if not binding.source:
        raise NotFound("the default exchange has no bindings of its own")
    broker.bind(binding)


async def _sources_first(body: Mapping[str, object]) -> list[dict[str, object]]:
    """Return the queues, each after its source in the same virtual host."""
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


def _read(model: type[Model], body: Mapping[str, object], name: str) -> list[Model]:
    """Read a list of the body. Raises BadRequest, Fault."""
    return [read_model(model, entry, name, is_lenient=True) for entry in _entries(body, name)]

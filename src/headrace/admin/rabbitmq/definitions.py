"""Export and import of definitions in RabbitMQ's form: everything but the messages.

An import answers 204 if everything counts, else 200 with a list of what changes nothing here, and why.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Final, final

from starlette.responses import Response

from headrace.admin.pages import BadRequest, Call, answer, array, done, encode, nothing, streamed
from headrace.admin.rabbitmq.exchanges import ExchangeBody
from headrace.admin.rabbitmq.policies import OPERATOR_POLICY, VHOST_LIMITS, parameters_of, set_parameter
from headrace.admin.rabbitmq.queues import QueueBody
from headrace.admin.rabbitmq.shapes import RABBITMQ_VERSION, Row, named_host
from headrace.admin.rabbitmq.users import Patterns, TopicPatterns, tags_of
from headrace.admin.resources import permission_to_json, policy_to_json, put_policy, topic_permission_to_json
from headrace.admin.slices import sliced
from headrace.config.kinds import Flag, Kind, Number, Object, Secret, Text, Texts, Unchecked
from headrace.config.table import Key, Model, Table, option, read_model, required
from headrace.core.access.permissions import Permission, TopicPermission
from headrace.core.access.users import Limits, is_known_hash
from headrace.core.broker import Broker
from headrace.core.feeds.assigner import sources_first
from headrace.core.policies import IDLE, SETTINGS, Policy
from headrace.core.queue.definition import QueueDefinition, declared, unread_arguments
from headrace.core.queue.queue import Queue
from headrace.core.routing.exchange import RESERVED_PREFIX, Binding, Exchange
from headrace.errors import HeadraceError, NotFound
from headrace.wire.properties import table_to_json

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
    limits: object = option(None, Unchecked())


@dataclass(frozen=True, kw_only=True)
class _Host(_Named):
    default_queue_type: str | None = option(None, Text())


@dataclass(frozen=True, kw_only=True)
class _Parameter(_Named):
    value: object = option(None, Unchecked())
    vhost: str = option("/", Text())
    component: str = option("", Text())


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
        "global_parameters": [
            {"name": name, "value": value} for name, value in call.site.hosts.global_parameters().items()
        ],
    }
    return streamed(_members(values, brokers, with_hosts=True))


async def _members(values: Row, brokers: Mapping[str, Broker], with_hosts: bool) -> AsyncIterator[bytes]:
    """Yield the document in parts: these values, then all stored queues, exchanges and bindings."""

    def shown(host: str, row: Row) -> Row:
        if with_hosts:
            return {**row, "vhost": host}
        return {name: value for name, value in row.items() if name != "vhost"}

    policies = [
        shown(host, policy_to_json(host, each))
        for host, broker in brokers.items()
        for each in broker.parameters.policies.all(False)
    ]
    parameters = [shown(host, each) for host, broker in brokers.items() for each in parameters_of(host, broker)]
    yield encode({**values, "policies": policies, "parameters": parameters})[:-1].encode("ascii")
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
    definition = queue.declared
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
    idle = _Idle()
    if not only:
        for host in _read(_Host, body, "vhosts"):
            await done(lambda tell, name=host.name: call.site.hosts.create(name, tell))  # type: ignore[misc]
            if host.default_queue_type not in (None, "", "undefined", "classic"):
                idle.add("vhost", host.name, host.name, "default_queue_type", "Queues without a type are classic ones.")
        await _import_users(call, body, idle)
        await _import_global_parameters(call, body, idle)
    await _import_parameters(call, body, only, idle)
    await _import_policies(call, body, only, idle)
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
            if kind == "queues":
                idle.add_arguments(name, entry)
            count += 1
            if count % _STORED == 0:
                await call.kept(broker)
    for broker in touched.values():
        await call.kept(broker)
    return answer({"without_effect": idle.found}) if idle.found else nothing()


@final
class _Idle:
    """Parts of an import that change nothing here."""

    def __init__(self) -> None:
        self.found: list[Row] = []

    def add(self, kind: str, host: str, name: str, setting: str, why: str) -> None:
        """Note a setting, or the whole thing without one."""
        self.found.append({"kind": kind, "vhost": host, "name": name, "setting": setting, "reason": why})

    def add_arguments(self, host: str, queue: Mapping[str, object]) -> None:
        """Note the arguments of a queue that nothing reads."""
        arguments = queue.get("arguments")
        for name in unread_arguments(arguments) if isinstance(arguments, Mapping) else ():
            why = IDLE.get(name.removeprefix("x-"), "This argument is unknown here.")
            self.add("queue", host, str(queue.get("name")), name, why)


async def _import_global_parameters(call: Call, body: Mapping[str, object], idle: _Idle) -> None:
    hosts = call.site.hosts
    for each in _read(_Parameter, body, "global_parameters"):
        await done(lambda tell, e=each: hosts.put_global_parameter(e.name, e.value, tell))  # type: ignore[misc]
        idle.add("global_parameter", "", each.name, "", "It is kept and shown, and nothing here reads it.")


async def _import_parameters(call: Call, body: Mapping[str, object], only: str, idle: _Idle) -> None:
    for each in _read(_Parameter, body, "parameters"):
        host, value = only or each.vhost, each.value
        if each.component == OPERATOR_POLICY:
            await _import_policy(call, host, each.name, value, True, idle)
        elif each.component == VHOST_LIMITS:
            await set_parameter(call, host, each.component, each.name, value)
        else:
            idle.add(each.component, host, each.name, "", f"There is no component {each.component!r} here.")


async def _import_policies(call: Call, body: Mapping[str, object], only: str, idle: _Idle) -> None:
    for entry in _entries(body, "policies"):
        host = only or str(entry.get("vhost", "/"))
        await _import_policy(call, host, str(entry.get("name", "")), entry, False, idle)


async def _import_policy(call: Call, host: str, name: str, values: object, is_operator: bool, idle: _Idle) -> None:
    """Create a policy with the settings that are known here, and note the others. Raises BadRequest."""
    kind = OPERATOR_POLICY if is_operator else "policy"
    try:
        policy = Policy.from_json(name, values, is_operator)
        known = {setting: value for setting, value in policy.definition.items() if setting in SETTINGS.keys}
        for setting in policy.definition:
            if setting in IDLE or setting not in known:
                idle.add(kind, host, name, setting, IDLE.get(setting, "This setting is unknown here."))
        if known:
            await put_policy(call, host, replace(policy, definition=known))
        else:
            idle.add(kind, host, name, "", "It has no settings that are known here, and was left out.")
    except HeadraceError as error:
        raise BadRequest(f"{kind} {name!r}: {error}") from error


async def _import_users(call: Call, body: Mapping[str, object], idle: _Idle) -> None:
    access = call.site.access
    for user in _read(_User, body, "users"):
        tags = tags_of(user.tags)
        if user.password_hash and not is_known_hash(user.password_hash):
            idle.add("user", "", user.name, "password_hash", "Its kind is unknown: set a password.")
        await done(lambda tell, u=user, t=tags: access.put_user_hash(u.name, u.password_hash, t, tell))  # type: ignore[misc]
        await _import_limits(call, user, idle)
    for given in _read(_Permission, body, "permissions"):
        granted = Permission(given.user, given.vhost, given.configure, given.write, given.read)
        await done(lambda tell, granted=granted: access.put_permission(granted, tell))  # type: ignore[misc]
    for each in _read(_TopicPermission, body, "topic_permissions"):
        bound = TopicPermission(each.user, each.vhost, each.exchange, each.write, each.read)
        await done(lambda tell, bound=bound: access.put_topic_permission(bound, tell))  # type: ignore[misc]


async def _import_limits(call: Call, user: _User, idle: _Idle) -> None:
    if not isinstance(user.limits, Mapping) or not user.limits:  # without limits, older releases have a list
        return
    for name in user.limits.keys() - Limits.names():
        idle.add("user", "", user.name, str(name), "Users have no such limit here.")
    limits = Limits.from_json({name: value for name, value in user.limits.items() if name in Limits.names()})
    await done(lambda tell: call.site.access.set_limits(user.name, limits, tell))


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

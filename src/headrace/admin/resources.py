"""Resources of the broker for the pages of both APIs: lookup, rights, deletion, and JSON that both show alike.

The forms that differ are in api/ and rabbitmq/; messages are in messages.py.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import final

from headrace.admin.pages import Call, done
from headrace.admin.site import ADMINISTRATOR
from headrace.admin.slices import ordered, sliced
from headrace.core.access.permissions import CONFIGURE, QUEUE, READ, Permission, TopicPermission
from headrace.core.access.users import User, check_name
from headrace.core.broker import Broker
from headrace.core.policies import Policy
from headrace.core.queue.configured import update
from headrace.core.queue.definition import QueueDefinition
from headrace.core.queue.dispatch import UNLIMITED, Consumer
from headrace.core.queue.group import Group
from headrace.core.queue.queue import Queue
from headrace.errors import AccessRefused, HeadraceError, NotFound, Refused
from headrace.net.connection import Wire
from headrace.net.facts import ChannelFacts, ConnectionFacts
from headrace.wire.properties import table_to_json

# -- virtual hosts ---------------------------------------------------------------------------------------------------


def hosts(call: Call, wanted: str = "") -> list[tuple[str, Broker]]:
    """Return one virtual host, or all that the visitor sees. Raises NotFound, AccessRefused."""
    names = [wanted] if wanted else [name for name in call.site.hosts.names() if call.sees(name)]
    return [(name, call.broker(name)) for name in names]


async def delete_host(call: Call, name: str) -> dict[str, object]:
    """Delete a virtual host; return the numbers of its queues and messages. Raises NotFound, Refused."""
    broker = call.site.hosts.find(name)
    queues = list(broker.topology.queues.values()) if broker is not None else []
    messages = 0
    async for queue in sliced(queues):
        messages += queue.total
    await done(lambda tell: call.site.hosts.delete(name, tell))
    call.record(f"virtual host {name!r} removed with {len(queues):,} queues and {messages:,} messages")
    return {"vhost": name, "queues": len(queues), "messages": messages}


# -- users and permissions -------------------------------------------------------------------------------------------


def user_to_json(user: User) -> dict[str, object]:
    """Return a user without secrets."""
    return {"name": user.name, "tags": list(user.tags), "limits": user.limits.to_json()}


def permission_to_json(permission: Permission) -> dict[str, object]:
    return {
        "user": permission.user,
        "vhost": permission.host,
        "configure": permission.configure,
        "write": permission.write,
        "read": permission.read,
    }


def topic_permission_to_json(permission: TopicPermission) -> dict[str, object]:
    return {
        "user": permission.user,
        "vhost": permission.host,
        "exchange": permission.exchange,
        "write": permission.write,
        "read": permission.read,
    }


async def delete_user(call: Call, name: str) -> None:
    """Raises NotFound, and Refused for the visitor's own account."""
    if name == call.visitor.name:
        raise Refused("users do not remove themselves; another administrator can")
    await done(lambda tell: call.site.access.delete_user(name, tell))


async def delete_permission(call: Call) -> None:
    """Delete the permission that the address names. Raises NotFound."""
    await done(lambda tell: call.site.access.delete_permission(call.path("user"), call.path("vhost"), tell))


# -- policies and limits ---------------------------------------------------------------------------------------------


def policy_to_json(host: str, policy: Policy) -> dict[str, object]:
    return {"vhost": host, "name": policy.name, **policy.to_json()}


def find_policy(call: Call, host: str, name: str, is_operator: bool) -> Policy:
    """Raises NotFound, AccessRefused."""
    found = call.broker(host).parameters.policies.find(name, is_operator)
    if found is None:
        raise NotFound(f"no {'operator policy' if is_operator else 'policy'} '{name}' in vhost '{host}'")
    return found


async def put_policy(call: Call, host: str, policy: Policy) -> bool:
    """Create or replace a policy durably, once it counts; return True if it is new. Raises AccessRefused, Refused."""
    call.rights(host)
    check_name("policy", policy.name)
    broker = call.broker(host)
    is_new = broker.parameters.policies.find(policy.name, policy.is_operator) is None
    await applied(lambda told: broker.administration.put_policy(policy, told))
    await call.kept(broker)
    return is_new


async def delete_policy(call: Call, host: str, name: str, is_operator: bool) -> None:
    """Delete a policy durably, once it counts no more. Raises AccessRefused, NotFound."""
    call.rights(host)
    broker = call.broker(host)
    await applied(lambda told: broker.administration.delete_policy(name, is_operator, told))
    await call.kept(broker)
    call.record(f"{'operator policy' if is_operator else 'policy'} {name!r} of virtual host {host!r} deleted")


async def applied(start: Callable[[Callable[[], None]], None]) -> None:
    """Start an operation and wait for its call, which cannot fail."""
    await done(lambda tell: start(lambda: tell(None)))


async def put_host_limits(call: Call, host: str, limits: Mapping[str, int]) -> None:
    """Set limits of a virtual host durably; a negative one lifts a limit. Raises NotFound."""
    broker = call.broker(host)
    broker.administration.put_limits(limits)
    await call.kept(broker)


# -- queues ----------------------------------------------------------------------------------------------------------


def find_queue(call: Call, name: str) -> tuple[str, Broker, Queue]:
    """Return virtual host, broker and queue; `name` is the parameter of the route. Raises NotFound, AccessRefused."""
    host = call.path("vhost")
    broker = call.broker(host)
    return host, broker, broker.topology.queue(call.path(name))


def readable_queue(call: Call, name: str) -> tuple[str, Broker, Queue]:
    """Return a queue, like `find_queue`, that the visitor may read from. Raises AccessRefused as well."""
    call.rights(call.path("vhost")).check(READ, QUEUE, call.path(name))
    return find_queue(call, name)


async def declare_queue(call: Call, definition: QueueDefinition, is_update: bool = False) -> bool:
    """Declare or change a queue durably; return True if it is new. Raises AccessRefused, PreconditionFailed."""
    host = call.path("vhost")
    call.rights(host).check_declare_queue(definition)
    broker = call.broker(host)
    is_new = definition.name not in broker.topology.queues
    if is_update:
        update(broker, host, definition)
    else:
        broker.declare(definition)
    await call.kept(broker)
    return is_new


async def delete_queue(call: Call, name: str) -> int:
    """Delete a queue durably; return the number of its messages. Raises AccessRefused, NotFound, PreconditionFailed."""
    call.rights(call.path("vhost")).check(CONFIGURE, QUEUE, call.path(name))
    host, broker, queue = find_queue(call, name)
    count = broker.delete(queue.name, call.condition("if_unused"), call.condition("if_empty"), queue.owner)
    await call.kept(broker)
    call.record(f"queue {queue.name!r} of virtual host {host!r} deleted with {count:,} messages")
    return count


async def purge_queue(call: Call, name: str) -> int:
    """Drop the waiting messages of a queue durably; return their number. Raises AccessRefused, NotFound."""
    host, broker, queue = readable_queue(call, name)
    count = broker.purge(queue.name, queue.owner)
    await call.kept(broker)
    call.record(f"queue {queue.name!r} of virtual host {host!r} purged of {count:,} messages")
    return count


# -- connections, channels and consumers -----------------------------------------------------------------------------


@final
class Connected:
    """A connection with its facts."""

    __slots__ = ("facts", "wire")

    def __init__(self, wire: Wire, facts: ConnectionFacts) -> None:
        self.wire = wire
        self.facts = facts

    @property
    def state(self) -> str:
        return "blocked" if self.wire.is_blocked else "running"

    @property
    def client_properties(self) -> dict[str, object]:
        """Return the client's description of itself, as far as JSON can hold it."""
        table = self.facts.client_properties
        try:
            return table_to_json(table) if isinstance(table, dict) else {}
        except HeadraceError:
            return {}

    def connected_at_us(self, now_us: int) -> int:
        return now_us - round((asyncio.get_running_loop().time() - self.wire.opened_at) * 1_000_000)


async def visible_connections(call: Call) -> list[Connected]:
    """Return the logged-in connections to virtual hosts that the visitor sees, by name."""
    wires = call.site.wires()
    found = [Connected(wire, facts) async for wire in sliced(wires) if (facts := wire.facts()) is not None]
    by_name = await ordered(found, lambda connection: connection.wire.name)
    return [connection async for connection in sliced(by_name) if call.sees(connection.facts.host)]


async def find_connection(call: Call, name: str) -> Connected:
    """Raises NotFound."""
    for connection in await visible_connections(call):
        if connection.wire.name == name:
            return connection
    raise NotFound(f"no connection '{name}'")


async def end_connection(call: Call, name: str) -> None:
    """End a connection of the visitor; an administrator may end any. Raises NotFound, AccessRefused."""
    connection = await find_connection(call, name)
    if connection.facts.user != call.visitor.name and not call.visitor.may(ADMINISTRATOR):
        raise AccessRefused(f"the connection is another user's: ending it takes the tag '{ADMINISTRATOR}'")
    connection.wire.stop()


def channels_of(connections: list[Connected]) -> list[tuple[Connected, ChannelFacts]]:
    return [(connection, channel) for connection in connections for channel in connection.facts.channels]


def channel_name(connection: Connected, channel: ChannelFacts) -> str:
    return f"{connection.wire.name} ({channel.number})"


@final
class Consuming:
    """A consumer with its queue, group, connection and channel."""

    __slots__ = ("channel", "connection", "consumer", "group", "queue")

    def __init__(
        self, queue: Queue, group: Group, consumer: Consumer, connection: Connected | None, channel: ChannelFacts | None
    ) -> None:
        self.queue = queue
        self.group = group
        self.consumer = consumer
        self.connection = connection
        self.channel = channel

    @property
    def prefetch(self) -> int:
        limit = self.consumer.limit
        return 0 if limit >= UNLIMITED else limit

    @property
    def is_active(self) -> bool:
        active = self.group.consumers.active
        return active is None or active is self.consumer


async def consumers_in(broker: Broker, connections: list[Connected]) -> Iterator[Consuming]:
    """Return all consumers of a virtual host, by queue."""
    queues = await ordered(list(broker.topology.queues.values()), lambda queue: queue.name)
    return await consumers_of(queues, connections)


async def consumers_of(queues: list[Queue], connections: list[Connected]) -> Iterator[Consuming]:
    """Return all consumers of some queues."""
    owners: dict[int, tuple[Connected, ChannelFacts]] = {}
    async for pair in sliced(channels_of(connections)):
        async for consumer in sliced(pair[1].consumers, 1000):
            owners[id(consumer)] = pair
    return _consumers_of(queues, owners)


def _consumers_of(queues: list[Queue], owners: dict[int, tuple[Connected, ChannelFacts]]) -> Iterator[Consuming]:
    for queue in queues:
        for group in list(queue.groups.values()):
            for consumer in group.consumers:
                connection, channel = owners.get(id(consumer), (None, None))
                yield Consuming(queue, group, consumer, connection, channel)

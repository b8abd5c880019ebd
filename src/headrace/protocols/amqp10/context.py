"""One connection as its sessions see it: its client, and the queues that sources and targets mean. No frames.

core/client.py decides the group, mode and position of a reader, and whether the user may. This module makes the queues
that sources and targets need.

A subscription that outlives its link, or that several links share, is a queue named after the container and the link,
so that the next attach finds it. Its selector is the queue's filter: unwanted messages never enter the queue.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from headrace.core.access import permissions
from headrace.core.access.logins import Account
from headrace.core.access.permissions import READ
from headrace.core.client import Client, ConsumePlan, ConsumeRequest
from headrace.core.queue.definition import QueueDefinition
from headrace.core.queue.queue import Queue
from headrace.core.routing.address import group_of_client
from headrace.core.routing.exchange import Binding
from headrace.core.routing.topics import key_of_filter
from headrace.errors import AccessRefused, NotFound, PreconditionFailed, ProtocolError
from headrace.model import AMQP10
from headrace.protocols.amqp10 import frames
from headrace.protocols.amqp10.addresses import ADDRESS, EXCHANGE, QUEUE, TOPIC, Node, has_no_local, queue_path
from headrace.protocols.amqp10.performatives import NEVER, UNSETTLED_STATE, Open, Source
from headrace.protocols.amqp10.server import Host, Server

if TYPE_CHECKING:
    from headrace.net.connection import Wire

PROTOCOL: Final = "amqp10"
NODE: Final = "headrace"
"""Our name where clients of RabbitMQ ask for a node of a cluster."""
SOLE_CONNECTION: Final = "sole-connection-for-container"
_LEAST_IDLE_MS: Final = 200
_TOPIC_EXCHANGE: Final = "amq.topic"
_SHARED: Final = "shared"
_GLOBAL: Final = "global"
_GENERATED: Final = re.compile(r"[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")
"""A generated container id, which no later connection has."""


@final
class Reading:
    """The queue and group that a receiver reads, and what goes with its link."""

    __slots__ = ("deletes_queue", "not_from", "plan", "stays")

    def __init__(self, plan: ConsumePlan) -> None:
        self.plan = plan
        self.not_from = ""
        """The container whose own messages are not for this link; "" for none."""
        self.deletes_queue = False
        """True if the queue was made for this link alone and goes with it."""
        self.stays = False
        """True if that queue stays until the link is closed, not only detached."""


@final
class ConnectionContext:
    """An open connection, seen from its sessions."""

    __slots__ = (
        "broker",
        "client",
        "container_id",
        "frame_max",
        "held_bytes",
        "host",
        "is_held",
        "now_us",
        "open_row",
        "wire",
    )

    def __init__(self, wire: "Wire", host: Host, client: Client, frame_max: int) -> None:
        self.wire = wire
        self.host = host
        self.broker = host.broker
        self.client = client
        self.container_id = client.client_id
        self.frame_max = frame_max
        """Largest frame that the peer takes."""
        self.now_us = 0
        self.held_bytes = 0
        """Memory of messages that are incomplete, uncommitted or not settled by their sender."""
        self.is_held = False
        """True while the peer does not keep up with our output."""
        self.open_row: Callable[[], None] | None = None
        """Publishes messages of one link that wait for their neighbours; None if none wait."""

    def flush_row(self) -> None:
        """Publish the messages that wait for their neighbours: something else is about to happen."""
        publish, self.open_row = self.open_row, None
        if publish is not None:
            publish()

    # -- targets -----------------------------------------------------------------------------------------------------

    def check_target(self, node: Node, capabilities: list[str]) -> None:
        """Check that messages can be sent to a target. The capability `queue` declares a missing queue.

        Raises NotFound, AccessRefused.
        """
        if node.kind == QUEUE and node.name not in self.broker.topology.queues:
            if "queue" not in capabilities:
                raise NotFound(f"no queue '{node.name}' in vhost '{self.host.name}'")
            self.client.declare(QueueDefinition(node.name))
        elif node.kind == EXCHANGE:
            self.broker.topology.exchanges.check_publish(node.name)

    def declare_own(self, selector: str = "") -> Queue:
        """Declare a queue for this connection alone, which goes with it. Raises AccessRefused."""
        return self.client.declare(QueueDefinition("", durable=False, exclusive=True, filter=selector))

    # -- sources -----------------------------------------------------------------------------------------------------

    def resolve(self, link: str, source: Source, node: Node, request: ConsumeRequest) -> Reading:
        """Find or make the queue that a source means, with its group. Raises HeadraceError kinds.

        A stream's reader that names no group has its container's. A reader with a position, or with a generated
        container id, leaves no group behind.
        """
        request.own_group = group_of_client(self.container_id) or "default"
        request.forgets_own_group = request.position is not None or _GENERATED.fullmatch(self.container_id) is not None
        if node.kind in (TOPIC, EXCHANGE):
            return self._bound(link, source, node, request)
        if node.kind == QUEUE and node.name not in self.broker.topology.queues and "queue" in source.capabilities:
            self.check_read(node)
            self.client.declare(QueueDefinition(node.name))
        return Reading(self.client.resolve(request))

    def own_reading(self) -> Reading:
        """Make a queue for one link alone, which reads it. Raises AccessRefused."""
        queue = self.declare_own()
        reading = Reading(self.client.plan_of(ConsumeRequest(queue.name), queue))
        reading.deletes_queue = True
        return reading

    def check_read(self, node: Node) -> None:
        """Raises AccessRefused unless the user may read from there."""
        rights = self.client.rights
        if node.kind in (ADDRESS, QUEUE):
            self.client.check_read(node.name, node.kind == ADDRESS)
        elif node.kind == TOPIC:
            rights.check_topic_subscribe(node.name, self.container_id)
        elif node.kind == EXCHANGE:
            rights.check(READ, permissions.EXCHANGE, node.name)
            rights.check_topic(READ, node.name, node.key or "", self.container_id)

    # -- subscriptions -----------------------------------------------------------------------------------------------

    def _bound(self, link: str, source: Source, node: Node, request: ConsumeRequest) -> Reading:
        """Make the queue of a link that reads a topic or an exchange. Raises AccessRefused, NotFound."""
        self.check_read(node)
        selector = request.selector.text if request.selector is not None else ""
        request.selector = None  # the queue's filter does its work
        exchange, key = (node.name, node.key or "")
        if node.kind == TOPIC:
            exchange, key = _TOPIC_EXCHANGE, key_of_filter(node.name)
        is_shared = _SHARED in source.capabilities
        if source.lasts or is_shared:
            definition = QueueDefinition(
                self._subscription_name(link, source.capabilities),
                durable=source.durable > 0,
                auto_delete=not source.lasts,
                expires_ms=0 if source.expiry_policy == NEVER else source.timeout * 1000,
                filter=selector,
            )
            queue = self._kept_queue(definition, exchange, key)
        else:
            queue = self.declare_own(selector)
            self.broker.bind(Binding(exchange, queue.name, key), self.client.owner)
        reading = Reading(self.client.plan_of(request, queue))
        reading.deletes_queue = source.lasts or not is_shared
        reading.stays = source.lasts
        reading.not_from = self.container_id if has_no_local(source) else ""
        return reading

    def _kept_queue(self, definition: QueueDefinition, exchange: str, key: str) -> Queue:
        """Return the queue of a subscription as it was left; a new one if the topic or selector changed, as JMS asks.

        Raises PreconditionFailed if links share it that want something else.
        """
        broker = self.broker
        self.client.rights.check_declare_queue(definition)
        self.client.rights.check(READ, permissions.QUEUE, definition.name)
        found = broker.topology.queues.get(definition.name)
        if found is not None:
            bindings = [(one.source, one.key) for one in broker.topology.exchanges.bindings_to(definition.name)]
            if found.definition.filter != definition.filter or bindings != [(exchange, key)]:
                if found.consumers:
                    raise PreconditionFailed(
                        f"the subscription {definition.name!r} is in use with another topic or selector"
                    )
                broker.delete(definition.name, owner=self.client.owner)
        queue = broker.declare(definition)
        broker.bind(Binding(exchange, queue.name, key), self.client.owner)
        return queue

    def find_subscription(self, link: str) -> tuple[Reading, Source]:
        """Return the durable subscription of a receiver that attaches without a source.

        JMS looks a subscription up so, and ends it by closing the link. Raises NotFound, AccessRefused.
        """
        here = self.subscriptions(link)
        if not here:
            raise NotFound(f"no subscription '{link[:128]}' of the container '{self.container_id[:128]}'")
        queue = self.broker.queue(here[0], self.client.owner)
        self.client.rights.check(permissions.CONFIGURE, permissions.QUEUE, queue.name)
        reading = Reading(self.client.plan_of(ConsumeRequest(queue.name), queue))
        reading.deletes_queue = reading.stays = True
        source = Source(queue_path(queue.name))
        source.durable = UNSETTLED_STATE
        source.expiry_policy = NEVER
        return reading, source

    def subscriptions(self, link: str) -> list[str]:
        """Return the queues of the subscriptions that the name of a link may mean: its own, or shared ones."""
        kinds: list[list[str]] = [[], [_SHARED], [_SHARED, _GLOBAL]]
        named = [self._subscription_name(link, capabilities) for capabilities in kinds]
        return [name for name in named if name in self.broker.topology.queues]

    def _subscription_name(self, link: str, capabilities: list[str]) -> str:
        """Return the queue of a subscription.

        Links that share one are named `<subscription>|<anything>`, as Qpid JMS does. Containers share global ones.
        """
        container = "" if _GLOBAL in capabilities else self.container_id
        name = link.partition("|")[0] if _SHARED in capabilities else link
        return f"{container}:{name}"[:200]


def enter(server: Server, wire: "Wire", account: Account, opening: Open) -> ConnectionContext:
    """Let a client into its virtual host, without being counted as a connection yet. Raises ProtocolError."""
    if opening.max_frame_size < frames.MIN_FRAME_SIZE:
        raise ProtocolError(frames.FRAME_SIZE_TOO_SMALL, f"frames of {opening.max_frame_size} bytes are too small")
    if 0 < opening.idle_timeout < _LEAST_IDLE_MS:
        what = f"an idle timeout of {opening.idle_timeout} ms is below {_LEAST_IDLE_MS}"
        raise ProtocolError(frames.NOT_ALLOWED, what)
    hostname = opening.hostname or ""
    name = hostname.removeprefix("vhost:") if hostname.startswith("vhost:") else "/"
    host = server.find_host(name)
    if host is None:
        raise ProtocolError(frames.NOT_FOUND, f"there is no virtual host '{name[:64]}'")
    try:
        rights = server.access.enter(account, name)
    except AccessRefused as error:
        raise ProtocolError(frames.UNAUTHORIZED, str(error)) from error
    client = Client(host.broker, account, rights, opening.container_id, PROTOCOL, AMQP10)
    return ConnectionContext(wire, host, client, min(opening.max_frame_size, frames.MAX_FRAME_SIZE))

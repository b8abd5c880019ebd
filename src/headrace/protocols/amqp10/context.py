"""One connection as its sessions see it: account, rights, limits, and the queues that addresses mean to core.

All questions of a link to core about names and rights are here: which queue, group, mode and position a source means,
and whether a target may be sent to. Messages and frames are not.

A subscription that outlives its link, or that several links share, is a queue named after the container and the link,
so that the next attach finds it. Its selector is the queue's filter: unwanted messages never enter the queue.
"""

import re
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from headrace.core.access import permissions
from headrace.core.access.logins import Account
from headrace.core.access.permissions import READ, Rights
from headrace.core.broker import Broker
from headrace.core.queue.definition import QueueDefinition
from headrace.core.queue.group import STREAM_MODE, mode_to_join
from headrace.core.queue.queue import DEFAULT_GROUP, Queue
from headrace.core.routing.address import effective_group, group_of_client, parse_address
from headrace.core.routing.exchange import Binding
from headrace.core.routing.topics import key_of_filter
from headrace.errors import AccessRefused, NotFound, PreconditionFailed, ProtocolError
from headrace.protocols.amqp10 import frames
from headrace.protocols.amqp10.addresses import ADDRESS, EXCHANGE, QUEUE, TOPIC, Node, Wanted, parse_node, queue_path
from headrace.protocols.amqp10.performatives import NEVER, UNSETTLED_STATE, Open, Source
from headrace.protocols.amqp10.server import Host, Server

if TYPE_CHECKING:
    from headrace.net.connection import Wire

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

    __slots__ = (
        "deletes_queue",
        "forgets_group",
        "group",
        "is_of_stream",
        "key_filter",
        "mode",
        "not_from",
        "queue",
        "stays",
    )

    def __init__(self, queue: str, key_filter: str = "") -> None:
        self.queue = queue
        self.key_filter = key_filter
        self.group = DEFAULT_GROUP
        self.mode = 0
        self.is_of_stream = False
        """True if the queue is a stream. A group may still work through it as through a work queue."""
        self.not_from = ""
        """The container whose own messages are not for this link; "" for none."""
        self.forgets_group = False
        """True if the group was made for this link alone and goes with it."""
        self.deletes_queue = False
        """True if the queue was made for this link alone and goes with it."""
        self.stays = False
        """True if that queue stays until the link is closed, not only detached."""

    @property
    def is_stream(self) -> bool:
        return self.mode == STREAM_MODE


@final
class ConnectionContext:
    """The account, rights, limits and virtual host of one connection."""

    __slots__ = (
        "account",
        "container_id",
        "frame_max",
        "has_published",
        "held_bytes",
        "host",
        "is_held",
        "now_us",
        "owner",
        "published",
        "rights",
        "wire",
    )

    def __init__(
        self, wire: "Wire", owner: object, host: Host, account: Account, rights: Rights, container_id: str
    ) -> None:
        self.wire = wire
        self.owner = owner
        self.host = host
        self.account = account
        self.rights = rights
        self.container_id = container_id
        self.frame_max = frames.MIN_FRAME_SIZE
        """Largest frame that the peer takes."""
        self.now_us = 0
        self.has_published = False
        self.published = 0
        """Messages since the account was last charged; counted for users with limits only."""
        self.held_bytes = 0
        """Memory of messages that are incomplete, uncommitted or not settled by their sender."""
        self.is_held = False
        """True while the peer does not keep up with our output."""

    @property
    def broker(self) -> Broker:
        return self.host.broker

    # -- coming and going --------------------------------------------------------------------------------------------

    def watch(
        self,
        on_flow: Callable[[bool], None],
        on_dissolved: Callable[[], None],
        on_removed: Callable[[str], None],
        on_rights: Callable[[], None],
    ) -> None:
        """Call these when publishers must wait, the virtual host or the user goes away, or rights change."""
        self.broker.on_flow[self.owner] = on_flow
        self.broker.on_dissolved[self.owner] = on_dissolved
        self.account.on_removed[self.owner] = on_removed
        self.rights.watchers[self.owner] = on_rights

    def leave(self) -> None:
        """Give up all that core holds for this connection."""
        self.broker.on_flow.pop(self.owner, None)
        self.broker.on_dissolved.pop(self.owner, None)
        self.account.on_removed.pop(self.owner, None)
        self.rights.watchers.pop(self.owner, None)
        self.account.disconnect()
        self.host.containers.leave(self.container_id)
        self.broker.release_owner(self.owner)

    def charge(self, now_us: int) -> None:
        """Charge the account for published messages. A user above its limit is not read from for a while."""
        messages, self.published = self.published, 0
        pause_us = self.account.spend(messages, now_us)
        if pause_us:
            self.wire.pause_for(pause_us / 1_000_000)

    # -- targets -----------------------------------------------------------------------------------------------------

    def check_target(self, node: Node, capabilities: list[str]) -> None:
        """Check that messages can be sent to a target. The capability `queue` declares a missing queue.

        Raises NotFound, AccessRefused.
        """
        if node.kind == QUEUE and node.name not in self.broker.topology.queues:
            if "queue" not in capabilities:
                raise NotFound(f"no queue '{node.name}' in vhost '{self.host.name}'")
            self._declare(QueueDefinition(node.name))
        elif node.kind == EXCHANGE:
            self.broker.topology.exchanges.check_publish(node.name)

    def declare_own(self, selector: str = "") -> Queue:
        """Declare a queue for this connection alone, which goes with it. Raises AccessRefused."""
        return self._declare(QueueDefinition("", durable=False, exclusive=True, filter=selector))

    def _declare(self, definition: QueueDefinition) -> Queue:
        self.rights.check_declare_queue(definition)
        return self.broker.declare(definition, self.owner)

    # -- sources -----------------------------------------------------------------------------------------------------

    def resolve(self, link: str, source: Source, node: Node, wanted: Wanted) -> Reading:
        """Find or make the queue that a source means, with its group. Raises HeadraceError kinds."""
        reading = self._queue_of(link, source, node, wanted)
        queue = self.broker.queue(reading.queue, self.owner)
        reading.is_of_stream = queue.definition.is_stream
        reading.mode = mode_to_join(queue, wanted.group, wanted.mode)
        if wanted.group:
            reading.group = wanted.group
        elif reading.is_stream:
            self._choose_group(reading, queue, wanted)
        return reading

    def _queue_of(self, link: str, source: Source, node: Node, wanted: Wanted) -> Reading:
        self.check_read(node)
        if node.kind == ADDRESS:
            address = parse_address(node.name)
            self.broker.addressed(address.queue, self.owner)
            return Reading(address.queue, address.key)
        if node.kind in (TOPIC, EXCHANGE):
            return self._bound(link, source, node, wanted)
        if node.name not in self.broker.topology.queues and "queue" in source.capabilities:
            self._declare(QueueDefinition(node.name))
        return Reading(node.name)

    def check_read(self, node: Node) -> None:
        """Raises AccessRefused unless the user may read from there."""
        if node.kind in (ADDRESS, TOPIC):
            self.rights.check_topic_subscribe(node.name, self.container_id)
        elif node.kind == EXCHANGE:
            self.rights.check(READ, permissions.EXCHANGE, node.name)
            self.rights.check_topic(READ, node.name, node.key or "", self.container_id)
        elif node.kind == QUEUE:
            self.rights.check(READ, permissions.QUEUE, node.name)

    def refusal_of(self, source: Source | None) -> AccessRefused | None:
        """Return the reason why the user may no longer read a source; None if it may."""
        if source is None or source.dynamic:
            return None
        try:
            self.check_read(parse_node(source.address, source.capabilities))
        except AccessRefused as error:
            return error
        return None

    def _choose_group(self, reading: Reading, queue: Queue, wanted: Wanted) -> None:
        """Choose the group of a stream's reader that names none: its container's, or a new one if that is in use.

        A reader with a position, or with a generated container id, leaves no group behind.
        """
        name = group_of_client(self.container_id) or "default"
        reading.group = name
        reading.forgets_group = wanted.position is not None or _GENERATED.fullmatch(self.container_id) is not None
        taken = queue.groups.get(effective_group(name, reading.key_filter))
        if taken is not None and len(taken.consumers):
            reading.forgets_group = True
            reading.group = f"{name}-{secrets.token_urlsafe(9)}"

    # -- subscriptions -----------------------------------------------------------------------------------------------

    def _bound(self, link: str, source: Source, node: Node, wanted: Wanted) -> Reading:
        """Make the queue of a link that reads a topic or an exchange. Raises AccessRefused, NotFound."""
        selector = wanted.selector.text if wanted.selector is not None else ""
        wanted.selector = None  # the queue's filter does its work
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
            self.broker.bind(Binding(exchange, queue.name, key), self.owner)
        reading = Reading(queue.name)
        reading.deletes_queue = source.lasts or not is_shared
        reading.stays = source.lasts
        reading.not_from = self.container_id if wanted.no_local else ""
        return reading

    def _kept_queue(self, definition: QueueDefinition, exchange: str, key: str) -> Queue:
        """Return the queue of a subscription as it was left; a new one if the topic or selector changed, as JMS asks.

        Raises PreconditionFailed if links share it that want something else.
        """
        broker = self.broker
        self.rights.check_declare_queue(definition)
        self.rights.check(READ, permissions.QUEUE, definition.name)
        found = broker.topology.queues.get(definition.name)
        if found is not None:
            bindings = [(one.source, one.key) for one in broker.topology.exchanges.bindings_to(definition.name)]
            if found.definition.filter != definition.filter or bindings != [(exchange, key)]:
                if found.consumers:
                    raise PreconditionFailed(
                        f"the subscription {definition.name!r} is in use with another topic or selector"
                    )
                broker.delete(definition.name, owner=self.owner)
        queue = broker.declare(definition)
        broker.bind(Binding(exchange, queue.name, key), self.owner)
        return queue

    def find_subscription(self, link: str) -> tuple[Reading, Source]:
        """Return the durable subscription of a receiver that attaches without a source.

        JMS looks a subscription up so, and ends it by closing the link. Raises NotFound, AccessRefused.
        """
        here = self.subscriptions(link)
        if not here:
            raise NotFound(f"no subscription '{link[:128]}' of the container '{self.container_id[:128]}'")
        queue = self.broker.queue(here[0], self.owner)
        self.rights.check(permissions.CONFIGURE, permissions.QUEUE, queue.name)
        reading = Reading(queue.name)
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


def enter(server: Server, wire: "Wire", owner: object, account: Account, opening: Open) -> ConnectionContext:
    """Let a client into its virtual host. Raises ProtocolError if it may not enter."""
    if opening.max_frame_size < frames.MIN_FRAME_SIZE:
        raise ProtocolError(frames.FRAME_SIZE_TOO_SMALL, f"frames of {opening.max_frame_size} bytes are too small")
    if 0 < opening.idle_timeout < _LEAST_IDLE_MS:
        error = f"an idle timeout of {opening.idle_timeout} ms is below {_LEAST_IDLE_MS}"
        raise ProtocolError(frames.NOT_ALLOWED, error)
    hostname = opening.hostname or ""
    name = hostname.removeprefix("vhost:") if hostname.startswith("vhost:") else "/"
    host = server.find_host(name)
    if host is None:
        raise ProtocolError(frames.NOT_FOUND, f"there is no virtual host '{name[:64]}'")
    granted = server.access.rights(account, name)
    if granted is None:
        raise ProtocolError(frames.UNAUTHORIZED, f"user '{account.name}' may not enter vhost '{name[:64]}'")
    if not account.connect():
        limit = account.user.limits.max_connections
        raise ProtocolError(frames.RESOURCE_LIMIT, f"user '{account.name}' has the {limit} connections it may have")
    try:
        host.containers.enter(opening.container_id, SOLE_CONNECTION in opening.desired)
    except ProtocolError:
        account.disconnect()
        raise
    context = ConnectionContext(wire, owner, host, account, granted, opening.container_id)
    context.frame_max = min(opening.max_frame_size, frames.MAX_FRAME_SIZE)
    return context

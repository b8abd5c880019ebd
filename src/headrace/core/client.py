"""One connection as the broker sees it: account, rights, flow, rate, exclusive queues. No wire, no packets.

Protocols translate what a client says into a `ConsumeRequest` or a call of `publish_topic`. This module decides what
that means: which queue, group, mode and position, and whether the user may. Routing is in publishing.py.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, final

from headrace.config.kinds import MAX_NUMBER, Kind, Number, Switch, Text, Unfit
from headrace.config.table import Key, Table, read_arguments
from headrace.core.access.logins import Account
from headrace.core.access.permissions import PLAIN_TOPICS, QUEUE, READ, Permission, Rights
from headrace.core.access.users import User
from headrace.core.batch import Confirm
from headrace.core.broker import Broker
from headrace.core.parameters import MAX_CONNECTIONS
from headrace.core.pubsub.session import AT_LEAST_ONCE, Session
from headrace.core.queue.definition import QueueDefinition, parse_position
from headrace.core.queue.dispatch import Consumer, Credit, Deliver, Delivery, Recipient
from headrace.core.queue.filter_values import ValueFilter
from headrace.core.queue.group import STREAM_MODE, Group, mode_joined, mode_to_join
from headrace.core.queue.queue import DEFAULT_GROUP, Queue
from headrace.core.routing.address import MAX_CACHED_KEY, Address, effective_group, is_address, parse_address
from headrace.errors import AccessRefused, NotFound, PreconditionFailed, Refused
from headrace.model import NATIVE, Message, Source
from headrace.names import check_topic, quoted
from headrace.selector import Selector

_MAX_ROUTES: Final = 256


@final
class ConsumeRequest:
    """A client's wish to read a queue, in its own words. Fields that it does not mention keep their defaults."""

    def __init__(self, name: str, is_address: bool = False, group: str = "") -> None:
        self.name = name
        """A queue, or an address with the queue and a key filter."""
        self.is_address = is_address
        self.key_filter = ""
        """The filter that comes besides a queue's name; an address has its own."""
        self.group = group
        self.own_group = ""
        """The group of a stream's reader that names none; "" for the group named after the consumer."""
        self.forgets_own_group = False
        """True if that group must not outlive the consumer."""
        self.mode = ""
        """`work` or `stream`; "" for the mode that the queue's type suggests."""
        self.is_return = False
        """True for a member that comes back: it keeps the mode of its group."""
        self.position: object = None
        """Start position in a stream, in any form that `parse_position` reads; None to resume."""
        self.auto_commit = True
        """True if a stream's progress is stored by itself, False if the client commits it."""
        self.credit = 0
        """The number of unsettled messages that the consumer may hold; 0 for no limit."""
        self.auto_ack = False
        """True if messages are settled as they are delivered."""
        self.priority = 0
        self.selector: Selector | None = None
        self.filter_values: frozenset[str] = frozenset()
        """The filter values that a reader of a stream wants; none for all messages."""
        self.admits_others = False
        """True if it wants messages without a filter value, too."""
        self.exclusive = False

    def read(self, table: Table, arguments: Mapping[str, object], of: str = "") -> None:
        """Read the arguments of a `request_table`; errors say whose they are. Raises PreconditionFailed."""
        values: dict[str, Any] = read_arguments(table, arguments, of)
        self.group, self.mode, self.position, self.auto_commit, self.priority = values.values()


@final
class _Start(Kind):
    """A position in a stream; `read` leaves its form as it is."""

    noun = "position"

    def read(self, value: object) -> object:
        try:
            parse_position(value, 0)
        except Refused as error:
            raise Unfit(
                "must be first, last, next, a number, offset=<number>, timestamp=<unix time> or an age such as 5m"
            ) from error
        return value


def request_table(group: str, mode: str, position: str, auto_commit: str, priority: str) -> Table:
    """Return the table of the arguments of a consumer, by the names that a protocol gives them."""
    text = Text("must be a string")
    return Table(
        Key(group, text, "", ""),
        Key(mode, text, "", ""),
        Key(position, _Start(), None, ""),
        Key(auto_commit, Switch(), True, ""),
        Key(priority, Number(-MAX_NUMBER, expected="must be a whole number"), 0, ""),
    )


@final
class ConsumePlan:
    """The queue, group, mode and position that a request means."""

    __slots__ = ("forgets_group", "group", "is_addressed", "is_stream", "key_filter", "mode", "queue", "request")

    def __init__(self, request: ConsumeRequest, queue: Queue, key_filter: str, mode: int) -> None:
        self.request = request
        self.queue = queue
        self.key_filter = key_filter
        self.mode = mode
        self.is_stream = mode == STREAM_MODE
        self.is_addressed = request.is_address or request.group != ""
        """True if deliveries say which queue, group and offset they are from."""
        self.group = request.group
        self.forgets_group = False
        """True if the group is made for this consumer alone and is deleted with it."""


@final
class _Route:
    """A topic that was published to: its source, and the name that must be writable."""

    __slots__ = ("name", "source")

    def __init__(self, source: Source, name: str) -> None:
        self.source = source
        self.name = name


@final
class Client:
    """A user in one virtual host, with or without a connection. It owns the connection's exclusive queues."""

    def __init__(
        self, broker: Broker, account: Account, rights: Rights, client_id: str, protocol: str, encoding: int
    ) -> None:
        self.broker = broker
        self.account = account
        self.rights = rights
        self.client_id = client_id
        self._protocol = protocol
        self._encoding = encoding
        self.is_connected = False
        self.refusal = ""
        """The reason why it could not connect."""
        self.is_publisher = False
        """True from the first publish on: publishers wait while the broker has too much in hand."""
        self.published = 0
        """Messages since the last call of `meter`, counted for users with limits only."""
        self._is_blocked = False
        self._on_flow: Callable[[bool], None] | None = None
        self._routes: dict[str, _Route] = {}

    # -- connection --------------------------------------------------------------------------------------------------

    def connect(
        self,
        on_flow: Callable[[bool], None],
        on_ended: Callable[[str], None],
        on_rights: Callable[[], None] | None = None,
    ) -> bool:
        """Count as one of the user's connections until `leave`; False if there may be no more, see `refusal`.

        `on_flow` pauses and resumes a publisher. `on_ended` gives the reason why the connection must end: the user or
        the virtual host is deleted, a token expired, or its exclusive queues fill the memory. `on_rights` runs after
        the user's rights changed.
        """
        most = self.broker.parameters.limits.get(MAX_CONNECTIONS)
        if most is not None and len(self.broker.on_ended) >= most:
            host, name = self.broker.topology.host, self.account.name
            self.refusal = f"access to vhost '{host}' refused for user '{name}': connection limit ({most}) is reached"
            return False
        if not self.account.connect():
            most = self.account.user.limits.max_connections
            self.refusal = (
                f"connection refused for user '{self.account.name}': user connection limit ({most}) is reached"
            )
            return False
        self.is_connected = True
        self._on_flow = on_flow
        self.broker.on_ended[self] = on_ended
        self.account.on_removed[self] = on_ended
        if on_rights is not None:
            self.rights.watchers[self] = on_rights
        return True

    def leave(self) -> None:
        """End the connection: release its exclusive queues and every callback. A second call does nothing."""
        if not self.is_connected:
            return
        self.is_connected = False
        self.broker.on_flow.pop(self, None)
        self._on_flow = None
        self.broker.on_ended.pop(self, None)
        self.account.on_removed.pop(self, None)
        self.rights.watchers.pop(self, None)
        self.account.disconnect()
        self.broker.release_owner(self)

    def renew(self, account: Account, rights: Rights, channels: int) -> None:
        """Go on with another login of the same user, which has so many channels open."""
        former = self.account
        former.hand_over(account, channels)
        account.on_removed[self] = former.on_removed.pop(self)
        watcher = self.rights.watchers.pop(self, None)
        if watcher is not None:
            rights.watchers[self] = watcher
        self.account, self.rights = account, rights

    @property
    def owner(self) -> object:
        """The owner of exclusive queues: the client while it is connected, None for one without a connection."""
        return self if self.is_connected else None

    # -- flow and rate -----------------------------------------------------------------------------------------------

    def begin_publishing(self) -> None:
        """Wait from now on while publishers must. The first message does so, and a stream's first publisher."""
        if self.is_publisher:
            return
        self.is_publisher = True
        if self._on_flow is not None:
            self.broker.on_flow[self] = self._flow_changed
            if self.broker.blocked:
                self._flow_changed(True)

    def _flow_changed(self, is_blocked: bool) -> None:
        if is_blocked != self._is_blocked and self._on_flow is not None:
            self._is_blocked = is_blocked
            self._on_flow(is_blocked)

    def meter(self, monotonic_us: int) -> int:
        """Charge the user for the messages since the last call; returns for how many microseconds to read nothing."""
        messages, self.published = self.published, 0
        return self.account.spend(messages, monotonic_us)

    def check_rate(self, monotonic_us: int, messages: int = 1) -> None:
        """Charge the user for messages of a sender that cannot be slowed down. Raises Unavailable."""
        self.broker.check_memory()
        if self.account.is_metered:
            self.account.check_rate(messages, monotonic_us)

    def charge(self, largest_bytes: int, messages: int = 1) -> None:
        """Count messages for the next call of `meter`. Raises TooLarge if the user may not send one so large."""
        if not self.is_publisher:
            self.begin_publishing()
        if self.account.is_metered:
            self.published += messages
            self.account.check_size(largest_bytes)

    # -- declaring ---------------------------------------------------------------------------------------------------

    def declare(self, definition: QueueDefinition) -> Queue:
        """Declare a queue that the user may configure. Raises AccessRefused, and what `Queues.declare` raises."""
        self.rights.check_declare_queue(definition)
        return self.broker.declare(definition, self.owner)

    # -- publishing --------------------------------------------------------------------------------------------------

    def check_publish(self, exchange: str, key: str, largest_bytes: int, messages: int = 1) -> None:
        """Decide whether messages may be published: flow, the user's size and rate, rights.

        Protocols skip it for exchanges in `Rights.free` while the user has no limits. Raises TooLarge, AccessRefused,
        and Refused for a bad address.
        """
        self.charge(largest_bytes, messages)
        if exchange not in self.rights.free or (not exchange and is_address(key)):
            self.rights.check_publish(exchange, key, self.client_id)

    def check_publish_topic(self, topic: str, largest_bytes: int) -> None:
        """Decide the same for a message to a plain topic or an address that the protocol has parsed."""
        self.charge(largest_bytes)
        self.rights.check_topic_publish(topic, self.client_id)

    def check_user_id(self, claimed: str) -> None:
        """Check the user that a message names, if any: impersonators may name others. Raises PreconditionFailed."""
        user = self.account.user
        if claimed and claimed != user.name and not user.is_impersonator:
            raise PreconditionFailed(
                f"user_id property set to '{claimed[:128]}' but authenticated user was '{user.name}'"
            )

    # -- publishing to topics ----------------------------------------------------------------------------------------

    def publish_topic(
        self,
        topic: str,
        payload: bytes,
        now_us: int,
        properties: bytes = b"",
        expiry_seconds: int | None = None,
        assurance: int = AT_LEAST_ONCE,
        retain: bool = False,
        confirm: Confirm | None = None,
        session: Session | None = None,
    ) -> int:
        """Send a message to all queues and subscribers of its topic; returns how many they are.

        Raises Refused for an invalid topic, AccessRefused for one that is reserved or that the user may not write to,
        TooLarge. Protocols handle settlements by topic before they call this.
        """
        route = self._routes.get(topic)
        if not self.is_publisher or self.account.is_metered:
            self.charge(len(payload))
        if route is None or route.name not in self.rights.free:
            route = self.check_topic(topic)
        expires_us = 0 if expiry_seconds is None else max(1, now_us + expiry_seconds * 1_000_000)
        message = Message(route.source, payload, now_us, properties, 0, expires_us)
        return self.broker.publish_topic(message, confirm, assurance, retain, session)

    def check_topic(self, topic: str) -> _Route:
        """Raises what `publish_topic` raises for the topic: for a message that is published later."""
        route = self._routes.get(topic) or self._route(topic)
        self.rights.check_topic_publish(topic, self.client_id)
        return route

    def _route(self, topic: str) -> _Route:
        check_topic(topic)
        name = PLAIN_TOPICS
        if is_address(topic):
            name = parse_address(topic).queue
        elif topic.startswith("$"):  # MQTT 5 [4.7.2]
            raise AccessRefused(
                f"topic {quoted(topic)} is the server's: of those that begin with '$', $queue/<name> is for publishing"
            )
        route = _Route(Source(topic, "", self.client_id, self._protocol, self._encoding), name)
        if len(self._routes) >= _MAX_ROUTES:
            self._routes.clear()
        if len(topic) <= MAX_CACHED_KEY:
            self._routes[topic] = route
        return route

    # -- consuming ---------------------------------------------------------------------------------------------------

    def check_read(self, name: str, is_address: bool) -> Address:
        """The queue and the key filter of a name or an address. Raises AccessRefused if the user may not read it."""
        if is_address:
            self.rights.check_topic_subscribe(name, self.client_id)
            return parse_address(name)
        self.rights.check(READ, QUEUE, name)
        return Address(name)

    def stream(self, what: str, name: str) -> Queue:
        """Return the stream of that name, which the user is to configure, write or read.

        Raises AccessRefused, NotFound for queues of other types too, and Corrupt.
        """
        self.rights.check(what, QUEUE, name)
        queue = self.broker.queue(name, self.owner)
        if not queue.is_stream:
            raise NotFound(
                f"no stream '{name}' in vhost '{self.broker.topology.host}': it is a {queue.definition.kind}"
            )
        if queue.refusal is not None:
            raise queue.refusal
        return queue

    def may_read(self, plan: ConsumePlan) -> bool:
        """True unless the user has lost the right to read what it consumes."""
        try:
            self.check_read(plan.request.name, plan.request.is_address)
        except Refused:
            return False
        return True

    def resolve(self, request: ConsumeRequest) -> ConsumePlan:
        """Decide what a request means, and make the queue of an address that has none.

        Raises AccessRefused, NotFound, ResourceLocked, and Refused for a mode that the queue does not have.
        """
        address = self.check_read(request.name, request.is_address)
        key_filter = address.key or request.key_filter
        if request.is_address:
            queue = self.broker.addressed(address.queue, self.owner)
        else:
            queue = self.broker.queue(address.queue, self.owner)
        return self.plan_of(request, queue, key_filter)

    def plan_of(self, request: ConsumeRequest, queue: Queue, key_filter: str = "") -> ConsumePlan:
        """Decide what a request means for a queue that the user may read. Raises Refused for a mode without sense."""
        asked = mode_joined(queue, request.group, key_filter) if request.is_return else request.mode
        plan = ConsumePlan(request, queue, key_filter, mode_to_join(queue, request.group, asked))
        if not plan.group and not plan.is_stream:
            plan.group = DEFAULT_GROUP
        elif not plan.group and request.own_group:
            self._own_group(plan)
        return plan

    def _own_group(self, plan: ConsumePlan) -> None:
        """Give a stream's reader its own group, with another name while somebody reads in that group."""
        name = plan.request.own_group
        taken = plan.queue.groups.get(effective_group(name, plan.key_filter))
        is_taken = taken is not None and len(taken.consumers) > 0
        plan.forgets_group = is_taken or plan.request.forgets_own_group
        plan.group = f"{name}-{secrets.token_urlsafe(9)}" if is_taken else name

    def consumer(
        self, plan: ConsumePlan, name: str, recipient: Recipient | Deliver, shared: Credit | None = None
    ) -> Consumer:
        """Make the consumer of a plan. It gets nothing before `consume` lets it join its group."""
        request = plan.request
        consumer = Consumer(name, recipient, request.credit, request.auto_ack, request.priority, shared, self.owner)
        consumer.selector = request.selector
        if request.filter_values and plan.is_stream:
            consumer.values = ValueFilter(request.filter_values, request.admits_others)
        return consumer

    def consume(self, plan: ConsumePlan, consumer: Consumer) -> Group:
        """Make a consumer a member of the group. Raises what `Broker.consume` raises."""
        request = plan.request
        return self.broker.consume(
            plan.queue.name,
            consumer,
            plan.group,
            plan.key_filter,
            plan.mode,
            request.position,
            request.auto_commit,
            request.exclusive,
        )

    def cancel(self, plan: ConsumePlan, consumer: Consumer, keep: bool = False) -> None:
        """End a consumer as `Broker.cancel` does, and its group if that was made for it alone."""
        broker, group = self.broker, consumer.group
        broker.cancel(consumer, keep)
        if plan.forgets_group and group is not None and not group.queue.is_gone and not len(group.consumers):
            broker.cancel(consumer)
            broker.groups.delete(plan.queue.name, group.name)

    def end_each(self, ended: Iterable[tuple[ConsumePlan | None, Consumer]]) -> Iterator[None]:
        """Give back the messages of consumers and cancel them, in short steps. One without a plan joined by itself."""
        for plan, consumer in ended:
            yield from self.broker.give_back(consumer)
            if plan is None:
                self.broker.cancel(consumer)
            else:
                self.cancel(plan, consumer)
            yield


@final
class Settling:
    """Settlements of so many deliveries that each takes several turns."""

    __slots__ = ("_broker", "_left")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._left: list[Iterator[None]] = []

    def start(self, deliveries: list[Delivery], outcome: int) -> None:
        """Begin to settle deliveries, and go on by one step with those that began before."""
        left = [*self._left, self._broker.settle_all(deliveries, outcome)]
        self._left = [steps for steps in left if next(steps, self) is None]

    def rest(self) -> Iterator[None]:
        """The steps that are left."""
        for steps in self._left:
            yield from steps


def insider(broker: Broker, name: str) -> Client:
    """The client of a program that has the broker inside: it may do everything."""
    rights = Rights(name, broker.topology.host)
    rights.grant(Permission(name, broker.topology.host, ".*", ".*", ".*"), {})
    return Client(broker, Account(User(name)), rights, "", name, NATIVE)

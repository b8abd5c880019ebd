"""Publishing on a channel: basic.publish to the core's publish, confirms, returns and direct replies."""

from collections.abc import Sequence
from typing import Final, final

from mypy_extensions import i64
from pamqp import commands

from headrace.core.access.permissions import WRITE
from headrace.core.batch import ConfirmAll
from headrace.core.queue.queue import Queue
from headrace.core.routing.address import COMMIT, is_address, parse_address
from headrace.core.transaction import Publish as Staging
from headrace.errors import HeadraceError, PreconditionFailed, ProtocolError, Refused
from headrace.model import AMQP091, Message, Source
from headrace.protocols.amqp091.codec import Publish, Route, Target, encode_ack, encode_content
from headrace.protocols.amqp091.frames import NO_ROUTE, NOT_IMPLEMENTED
from headrace.protocols.amqp091.methods import encode_method
from headrace.protocols.amqp091.server import ConnectionContext
from headrace.protocols.answers import Answers
from headrace.wire.amqp091 import HAS_REPLY_TO, HAS_USER_ID, decode_properties, encode_properties
from headrace.wire.amqp091_scan import HAS_COPIES, expiration_of, priority_of
from headrace.wire.properties import Properties

PROTOCOL: Final = "amqp091"
REPLY_TO: Final = "amq.rabbitmq.reply-to"
REPLY_PREFIX: Final = REPLY_TO + "."
_EXPIRATION_DIGITS: Final = 15
_NO_KEYS: Final[Sequence[str]] = ()
_SPECIAL: Final = HAS_COPIES | HAS_REPLY_TO | HAS_USER_ID
"""Properties that decide more than a priority and an expiry."""
_STAGED_BYTES: Final = 512
"""Memory of a staged message besides its payload and properties."""

Staged = tuple[Staging, Route]


@final
class _QueueTarget(Target):
    """The one queue that a route leads to."""

    __slots__ = ("queue",)

    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    @property
    def is_gone(self) -> bool:
        return self.queue.deleted


@final
class Publisher:
    """The publishing side of a channel."""

    def __init__(self, context: ConnectionContext, channel: int, answers: Answers) -> None:
        self._context = context
        self._client = context.client
        self._channel = channel
        self._answers = answers
        self.reply_key = ""
        """The key of direct replies to requests of this channel; "" until it consumes them."""
        self.is_confirming = False
        self.is_ahead = False
        """True if a publish may not have reached its queues yet."""
        self.is_closed = False
        """True after the channel ended: later confirms are dropped."""
        self.staged: list[Staged] | None = None
        """The publishes of the open transaction; None outside transactions."""
        self._staged_bytes = 0
        self._confirmed_to = 0
        """The last publish that core confirmed or refused."""
        self._told_to = 0
        """The last one that the client knows of."""
        self._nacked: list[int] = []
        self._tell: ConfirmAll = self._confirmed
        """Always the same object, so that core confirms a row of publishes in one call."""

    def publish(self, event: Publish) -> None:
        """Publish one message or a row. Raises Refused to end the channel, ProtocolError to end the connection."""
        routes = event.routes
        if routes is None:
            self._publish_row(event, event.route, 0, len(event.bodies))
            return
        start = 0
        for at, route in enumerate(routes):
            if not _is_known(route):
                self._publish_keys(event, routes, start, at)
                self._publish_row(event, route, at, at + 1)
                start = at + 1
        self._publish_keys(event, routes, start, len(routes))

    def _publish_row(self, event: Publish, route: Route, start: int, stop: int) -> None:
        """Publish the messages `start` up to but not including `stop`: all have this route."""
        client = self._client
        self.is_ahead = True
        source = route.source
        if source is None or route.is_address or route.exchange not in client.rights.free:
            client.check_publish(route.exchange, route.key, 0, 0)  # each message is charged for by itself
        if source is None:
            source = self._source(route)
        is_special = self._is_special(event)
        if is_special or route.source is None or self.staged is not None or client.account.is_metered:
            for at in range(start, stop):
                self._publish_one(route, event.properties[at], event.bodies[at], source, is_special)
            return
        queue = _queue_of(route)
        if queue is None:
            queue = client.broker.straight_to(route.exchange, route.key)
            route.target = None if queue is None else _QueueTarget(queue)
        messages: list[Message] = []
        try:
            self._add_messages(messages, event, source, None, start, stop)
        finally:
            if messages:  # an invalid one does not take those before it along
                self._hand_over(route, messages, None, _NO_KEYS, queue)

    def _publish_keys(self, event: Publish, routes: list[Route], start: int, stop: int) -> None:
        """Publish the messages `start` up to but not including `stop`: all have known routes."""
        client = self._client
        is_by_itself = self.staged is not None or client.account.is_metered or self._is_special(event)
        if stop - start < 2 or is_by_itself or event.route.exchange not in client.rights.free:
            for at in range(start, stop):
                self._publish_row(event, routes[at], at, at + 1)
            return
        self.is_ahead = True
        messages: list[Message] = []
        try:
            self._add_messages(messages, event, None, routes, start, stop)
        finally:
            if messages:
                self._hand_over_keys(routes[start : start + len(messages)], messages)

    def _is_special(self, event: Publish) -> bool:
        """True if the properties decide more than a priority and an expiry."""
        exchange = event.route.exchange
        return bool(event.looks & _SPECIAL) or (exchange != "" and self._client.broker.routes_each(exchange))

    def _add_messages(
        self,
        messages: list[Message],
        event: Publish,
        source: Source | None,
        routes: list[Route] | None,
        start: int,
        stop: int,
    ) -> None:
        """Add some messages of the event, with this source or those of their routes. Raises PreconditionFailed."""
        now_us = self._context.now_us
        priority = expires_us = 0
        at: i64
        for at in range(i64(start), i64(stop)):
            if routes is not None:
                source = routes[at].source
            assert source is not None
            properties = event.properties[at]
            if event.looks:
                priority, expires_us = priority_of(properties), self._expires_us(properties)
            messages.append(Message(source, event.bodies[at], now_us, properties, priority, expires_us))

    def _hand_over_keys(self, routes: list[Route], messages: list[Message]) -> None:
        """Give messages with these routes to core, and return those that no queue takes."""
        confirm = self._tell if self.is_confirming else None
        for at in self._client.broker.publish_each(messages, [_queue_of(route) for route in routes], confirm):
            if routes[at].mandatory:
                self.send_return(routes[at], messages[at])

    def _hand_over(
        self,
        route: Route,
        messages: list[Message],
        headers: dict[str, object] | None,
        extra_keys: Sequence[str],
        queue: Queue | None = None,
    ) -> None:
        """Give messages to core, and return them to the client if no queue takes what must reach one."""
        confirm = self._tell if self.is_confirming else None
        if not self._client.broker.publish_all(messages, confirm, headers, extra_keys, queue) and route.mandatory:
            for message in messages:
                self.send_return(route, message)

    def _publish_one(self, route: Route, properties: bytes, body: bytes, source: Source, is_special: bool) -> None:
        """Publish a message by itself: its properties decide, or a transaction, a limit of the user, or no queue."""
        client, context = self._client, self._context
        is_read = is_special or route.source is None or self.staged is not None
        given = decode_properties(properties) if is_read else Properties()
        client.check_user_id(given.user_id)
        if given.reply_to == REPLY_TO:
            properties = self._with_reply_key(properties)
        extra_keys: Sequence[str] = _NO_KEYS
        headers = given.headers or None
        if headers and ("CC" in headers or "BCC" in headers):
            extra_keys, properties = _copies(headers, properties)
            for key in extra_keys:
                client.rights.check_topic(WRITE, route.exchange, key, client.client_id)
        expires_us = self._expires_us(properties)
        message = Message(source, body, context.now_us, properties, priority_of(properties), expires_us)
        client.charge(len(body))
        if route.source is None and self._went_aside(route, given, message):
            return
        if self.staged is not None:
            client.broker.topology.exchanges.check_publish(route.exchange)
            self.staged.append((Staging(message, headers, extra_keys), route))
            size_bytes = len(body) + len(properties) + _STAGED_BYTES
            self._staged_bytes += size_bytes
            context.staged_bytes += size_bytes
            return
        self._hand_over(route, [message], headers, extra_keys)

    def begin(self) -> None:
        """Begin a transaction. The messages of the last one are with the broker, or forgotten."""
        self.staged = []
        self._context.staged_bytes -= self._staged_bytes
        self._staged_bytes = 0

    def close(self) -> None:
        """End with the channel: forget all that is not committed."""
        self.is_closed = True
        self._tell = _nothing
        if self.staged is not None:
            self.begin()

    def _source(self, route: Route) -> Source:
        """The source of messages with this route. The route keeps it unless each message needs a look by itself."""
        if route.immediate:
            raise ProtocolError(NOT_IMPLEMENTED, "immediate=true")
        source = Source(route.key, route.exchange, self._client.client_id, PROTOCOL, AMQP091)
        route.is_address = not route.exchange and is_address(route.key)
        is_aside = not route.exchange and route.key.startswith(REPLY_PREFIX)
        if not (is_aside or (route.is_address and parse_address(route.key).verb)):
            route.source = source
        return source

    def _expires_us(self, properties: bytes) -> int:
        """The expiry of a message with these properties; 0 for never. Raises PreconditionFailed."""
        text = expiration_of(properties)
        if not text:
            return 0
        if not (text.isdigit() and len(text) <= _EXPIRATION_DIGITS):
            raise PreconditionFailed(
                f"invalid expiration '{text.decode(errors='replace')}': "
                f"it must be milliseconds, with up to {_EXPIRATION_DIGITS} digits"
            )
        return self._context.now_us + int(text) * 1000

    # -- replies and settlements ---------------------------------------------------------------------------------------

    def _went_aside(self, route: Route, given: Properties, message: Message) -> bool:
        """True if the message was a direct reply or a settlement: no queue gets it."""
        host = self._context.host
        if route.key.startswith(REPLY_PREFIX):
            reply = host.replies.get(route.key)
            if reply is not None:
                reply(message)
            elif route.mandatory:
                self.send_return(route, message)
        elif not self._was_verb(route.key, given):
            return False
        if self.is_confirming:
            host.broker.when_safe(self._confirmed_one)
        return True

    def _was_verb(self, key: str, given: Properties) -> bool:
        address = parse_address(key)
        if not address.verb:
            return False
        if address.verb != COMMIT:
            raise Refused(f"'{key}' is for clients without acknowledgements: use basic.ack, basic.nack or basic.reject")
        group, offset = given.headers.get("x-group-id"), given.headers.get("x-offset")
        if isinstance(offset, str) and offset.isascii() and offset.isdecimal():
            offset = int(offset)
        if not isinstance(group, str) or not isinstance(offset, int):
            raise Refused(f"'{key}' needs the headers x-group-id (a string) and x-offset (a number)")
        self._client.broker.groups.commit(address.queue, group, offset)
        return True

    def _with_reply_key(self, properties: bytes) -> bytes:
        if not self.reply_key:
            raise PreconditionFailed("fast reply consumer does not exist")
        changed = decode_properties(properties)
        changed.reply_to = self.reply_key
        return encode_properties(changed)

    # -- returns and confirms ------------------------------------------------------------------------------------------

    def send_return(self, route: Route, message: Message) -> None:
        fields = {
            "reply_code": NO_ROUTE,
            "reply_text": "NO_ROUTE",
            "exchange": route.exchange,
            "routing_key": route.key,
        }
        answers, frame_max = self._answers, self._context.frame_max
        answers.send(encode_method(self._channel, commands.Basic.Return, fields))
        answers.send(encode_content(self._channel, message.properties, message.payload, frame_max))

    def _confirmed_one(self, error: HeadraceError | None) -> None:
        self._confirmed(1, error)

    def _confirmed(self, count: int, error: HeadraceError | None) -> None:
        """Note that the next `count` publishes are durable, or refused. Core tells in the order of the publishes."""
        if self._confirmed_to == self._told_to:
            self._context.wire.before_flush(self._send_confirms)
        self._confirmed_to += count
        if error is not None:
            self._nacked += range(self._confirmed_to - count + 1, self._confirmed_to + 1)

    def _send_confirms(self) -> None:
        """Send basic.ack and basic.nack, in as few frames as possible."""
        if self.is_closed:
            return
        nacked, self._nacked = self._nacked, []
        for number in nacked:
            self._answers.send(encode_method(self._channel, commands.Basic.Nack, {"delivery_tag": number}))
        acked = self._confirmed_to - self._told_to - len(nacked)
        last = self._confirmed_to
        while nacked and nacked[-1] == last:
            nacked.pop()
            last -= 1
        if acked:
            self._answers.send(encode_ack(self._channel, last, acked > 1))
        self._told_to = self._confirmed_to


def _nothing(count: int, error: HeadraceError | None) -> None:
    return


def _is_known(route: Route) -> bool:
    """True if the source of a route is known and, on the default exchange, its queue."""
    if route.exchange or route.source is None:
        return route.source is not None
    return _queue_of(route) is not None


def _queue_of(route: Route) -> Queue | None:
    """The queue that a key on the default exchange led to, unless it is gone."""
    target = route.target
    return target.queue if isinstance(target, _QueueTarget) and not target.queue.deleted else None


def _copies(headers: dict[str, object], properties: bytes) -> tuple[list[str], bytes]:
    """The routing keys of CC and BCC, and the properties without BCC."""
    keys: list[str] = []
    for name in ("CC", "BCC"):
        value = headers.get(name, [])
        if not isinstance(value, list):
            raise PreconditionFailed(f"unsupported type in header '{name}': it must be an array of strings")
        keys += [key for key in value if isinstance(key, str)]
    if "BCC" in headers:
        changed = decode_properties(properties)
        del changed.headers["BCC"]
        properties = encode_properties(changed)
    return keys, properties

"""Publishing on a channel: basic.publish to the core's publish, confirms, returns and direct replies."""

from collections.abc import Sequence
from typing import Final, final

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
        context, client = self._context, self._client
        self.is_ahead = True
        route = event.route
        source = route.source
        if source is None or route.exchange not in client.rights.free:
            client.check_publish(route.exchange, route.key, 0, 0)  # each message is charged for by itself
        if source is None:
            source = self._source(route)
        is_special = bool(event.looks & _SPECIAL) or (
            route.exchange != "" and client.broker.reads_headers(route.exchange)
        )
        if is_special or route.source is None or self.staged is not None or client.account.is_metered:
            for at, properties in enumerate(event.properties):
                self._publish_one(route, properties, event.bodies[at], source, is_special)
            return
        now_us = context.now_us
        messages: list[Message] = []
        if event.looks:
            for at, properties in enumerate(event.properties):
                priority, expires_us = priority_of(properties), self._expires_us(properties)
                messages.append(Message(source, event.bodies[at], now_us, properties, priority, expires_us))
        else:
            for at, properties in enumerate(event.properties):
                messages.append(Message(source, event.bodies[at], now_us, properties))
        target = route.target
        if not isinstance(target, _QueueTarget) or target.queue.deleted:
            queue = client.broker.straight_to(route.exchange, route.key)
            route.target = target = None if queue is None else _QueueTarget(queue)
        self._hand_over(route, messages, None, _NO_KEYS, None if target is None else target.queue)

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
        if self.staged is not None:
            self.begin()

    def _source(self, route: Route) -> Source:
        """The source of messages with this route. The route keeps it unless each message needs a look by itself."""
        if route.immediate:
            raise ProtocolError(NOT_IMPLEMENTED, "immediate=true")
        source = Source(route.key, route.exchange, self._client.client_id, PROTOCOL, AMQP091)
        if route.exchange or not (route.key.startswith(REPLY_PREFIX) or is_address(route.key)):
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

"""basic.publish to the core's publish, with confirms, returns and direct replies. One per channel."""

from functools import partial
from typing import Final, final

from pamqp import commands

from headrace.core.address import COMMIT, is_address, parse_address
from headrace.core.properties import Properties
from headrace.errors import HeadraceError, PreconditionFailed, ProtocolError, Refused
from headrace.model import AMQP091, Message, Source
from headrace.protocols.amqp091.codec import Publish, Route, encode_ack, encode_content
from headrace.protocols.amqp091.frames import NO_ROUTE, NOT_IMPLEMENTED
from headrace.protocols.amqp091.link import Link
from headrace.protocols.amqp091.properties import PRIORITY, decode_properties, encode_properties

PROTOCOL: Final = "amqp091"
REPLY_TO: Final = "amq.rabbitmq.reply-to"
REPLY_PREFIX: Final = REPLY_TO + "."
_MAX_EXPIRATION_MS: Final = (1 << 32) - 1

Staged = tuple[Message, dict[str, object] | None]


@final
class Publisher:
    """The publishing side of a channel."""

    def __init__(self, link: Link, channel: int) -> None:
        self._link = link
        self._channel = channel
        self.reply_key = ""
        """Where direct replies to what is published here go, once the channel consumes them."""
        self.is_confirming = False
        self.staged: list[Staged] | None = None
        """What a transaction has published so far; None outside transactions."""
        self._published = 0
        self._confirmed_to = 0
        """Everything up to here is confirmed."""
        self._confirmed_above: set[int] = set()
        self._acked: list[int] = []
        self._nacked: list[int] = []

    def publish(self, event: Publish) -> None:
        """Raises Refused for the channel's sake, ProtocolError for the connection's."""
        link = self._link
        link.has_published = True
        route = event.route
        said = event.said
        source = route.source
        properties = event.properties
        if source is None:
            source = self._source(route)
        if said.user_id and said.user_id != link.user:
            raise PreconditionFailed(
                f"user_id property set to '{said.user_id}' but authenticated user was '{link.user}'"
            )
        if said.reply_to == REPLY_TO:
            properties = self._with_reply_key(properties)
        extra_keys: list[str] = []
        headers = said.headers
        if headers and ("CC" in headers or "BCC" in headers):
            extra_keys, properties = _copies(headers, properties)
        priority = said.extra.get(PRIORITY, 0) if said.extra else 0
        message = Message(
            source,
            event.body,
            link.now_us,
            properties,
            priority if isinstance(priority, int) else 0,
            self._expires_us(said) if said.expiration else 0,
        )
        if route.source is None and self._went_aside(route, said, message):
            return
        if self.staged is not None:
            self.staged.append((message, headers or None))
            return
        confirm = partial(self._confirmed, self._next()) if self.is_confirming else None
        taken = link.host.broker.publish(message, confirm, headers or None, extra_keys)
        if not taken and route.mandatory:
            self._return(route, message, headers, extra_keys)

    def _source(self, route: Route) -> Source:
        """The source of what goes this way; kept with the way unless each message must be looked at."""
        if route.immediate:
            raise ProtocolError(NOT_IMPLEMENTED, "immediate=true")
        source = Source(route.key, route.exchange, self._link.client_id, PROTOCOL, AMQP091)
        if route.exchange or not (route.key.startswith(REPLY_PREFIX) or is_address(route.key)):
            route.source = source
        return source

    def _next(self) -> int:
        self._published += 1
        return self._published

    def _expires_us(self, said: Properties) -> int:
        text = said.expiration
        if not (text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) <= _MAX_EXPIRATION_MS):
            raise PreconditionFailed(
                f"invalid expiration '{text}': it must be milliseconds, up to {_MAX_EXPIRATION_MS}"
            )
        return self._link.now_us + int(text) * 1000

    # -- ways aside --------------------------------------------------------------------------------------------------

    def _went_aside(self, route: Route, said: Properties, message: Message) -> bool:
        """Whether the message was a direct reply or a settlement, which no queue gets."""
        host = self._link.host
        if route.key.startswith(REPLY_PREFIX):
            reply = host.replies.get(route.key)
            if reply is not None:
                reply(message)
            elif route.mandatory:
                self._send_return(route, message)
        elif not self._was_verb(route.key, said):
            return False
        if self.is_confirming:
            host.broker.when_safe(partial(self._confirmed, self._next()))
        return True

    def _was_verb(self, key: str, said: Properties) -> bool:
        address = parse_address(key)
        if not address.verb:
            return False
        if address.verb != COMMIT:
            raise Refused(f"'{key}' is for clients without acknowledgements: use basic.ack, basic.nack or basic.reject")
        group, offset = said.headers.get("x-group-id"), said.headers.get("x-offset")
        if isinstance(offset, str) and offset.isascii() and offset.isdecimal():
            offset = int(offset)
        if not isinstance(group, str) or not isinstance(offset, int):
            raise Refused(f"'{key}' needs the headers x-group-id (a string) and x-offset (a number)")
        self._link.broker.commit_offset(address.queue, group, offset)
        return True

    def _with_reply_key(self, properties: bytes) -> bytes:
        if not self.reply_key:
            raise PreconditionFailed("fast reply consumer does not exist")
        said = decode_properties(properties)
        said.reply_to = self.reply_key
        return encode_properties(said)

    # -- what comes back ---------------------------------------------------------------------------------------------

    def _return(self, route: Route, message: Message, headers: dict[str, object], extra_keys: list[str]) -> None:
        if not self._link.broker.topology.of_exchange(route.exchange, route.key, headers or None, extra_keys):
            self._send_return(route, message)

    def _send_return(self, route: Route, message: Message) -> None:
        link = self._link
        link.send(
            self._channel,
            commands.Basic.Return,
            {
                "reply_code": NO_ROUTE,
                "reply_text": "NO_ROUTE",
                "exchange": route.exchange,
                "routing_key": route.key,
            },
        )
        link.wire.send(encode_content(self._channel, message.properties, message.payload, link.frame_max))

    def _confirmed(self, number: int, error: HeadraceError | None) -> None:
        if not self._acked and not self._nacked:
            self._link.wire.before_flush(self._send_confirms)
        (self._acked if error is None else self._nacked).append(number)

    def _send_confirms(self) -> None:
        """Say what is safe, with as few frames as can be."""
        acked, self._acked = self._acked, []
        nacked, self._nacked = self._nacked, []
        out: list[bytes] = []
        for number in nacked:
            self._link.send(self._channel, commands.Basic.Nack, {"delivery_tag": number, "requeue": False})
        above = self._confirmed_above
        above.update(nacked)
        acked.sort()
        reached = self._confirmed_to
        last = 0
        count = 0
        for number in acked:
            while reached + 1 in above:
                reached += 1
                above.discard(reached)
            if number == reached + 1:
                reached = last = number
                count += 1
            else:
                above.add(number)
                out.append(encode_ack(self._channel, number, False))
        while reached + 1 in above:
            reached += 1
            above.discard(reached)
        self._confirmed_to = reached
        if last:
            out.insert(0, encode_ack(self._channel, last, count > 1))
        if out:
            self._link.wire.send(b"".join(out))


def _copies(headers: dict[str, object], properties: bytes) -> tuple[list[str], bytes]:
    """The further routing keys of CC and BCC; consumers do not see BCC."""
    keys: list[str] = []
    for name in ("CC", "BCC"):
        value = headers.get(name, [])
        if not isinstance(value, list) or not all(isinstance(key, str) for key in value):
            raise PreconditionFailed(f"unsupported type in header '{name}': it must be an array of strings")
        keys += value
    if "BCC" in headers:
        said = decode_properties(properties)
        del said.headers["BCC"]
        properties = encode_properties(said)
    return keys, properties

"""CoAP publishing: datagrams in, answers out once the message is durable. Rights and topics are core/client.py's.

Nothing is kept per client. A request that comes twice is answered twice and published once, if it is among the last few
thousand. Clients repeat requests without an answer, so requests beyond a limit are ignored.
"""

from collections.abc import Callable
from typing import Final, final

from headrace.clock import Clock
from headrace.core.access.access import Access
from headrace.core.access.logins import Account, Login
from headrace.core.client import Client
from headrace.core.hosts import Hosts
from headrace.core.routing.topology import DEFAULT_HOST
from headrace.errors import AccessRefused, HeadraceError, NotFound, ProtocolError, Refused, TooLarge
from headrace.model import NATIVE
from headrace.net.datagrams import DatagramHandler, DatagramListener, Peer
from headrace.protocols.coap.blocks import Blocks
from headrace.protocols.coap.codec import (
    BAD_REQUEST,
    CHANGED,
    CONTINUE,
    ENTITY_TOO_LARGE,
    FORBIDDEN,
    MALFORMED,
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    POST,
    PUT,
    SERVICE_UNAVAILABLE,
    UNAUTHORIZED,
    Block,
    Request,
    decode_request,
    encode_answer,
    encode_reset,
)
from headrace.wire.properties import Properties, encode_native

PROTOCOL: Final = "coap"
_PREFIX: Final = ("mqtt", "publish")
_MAX_REMEMBERED: Final = 4096
_REMEMBERED_US: Final = 247_000_000  # RFC 7252, 4.8.2: EXCHANGE_LIFETIME
_HEADER_BYTES: Final = 4
_MAX_OPEN: Final = 1024
_SWITCHES: Final = {"1": True, "true": True, "0": False, "false": False}

_CODES: Final[tuple[tuple[type[HeadraceError], int], ...]] = (
    (AccessRefused, FORBIDDEN),
    (NotFound, NOT_FOUND),
    (TooLarge, ENTITY_TOO_LARGE),
    (Refused, BAD_REQUEST),
    (HeadraceError, SERVICE_UNAVAILABLE),
)


@final
class _Exchange:
    """A request and its answer, if it has one."""

    __slots__ = ("answer", "head", "peer", "since_us")

    def __init__(self, peer: Peer, head: bytes, since_us: int) -> None:
        self.peer = peer
        self.head = head
        self.since_us = since_us
        self.answer = b""


@final
class _Query:
    """The query of a request."""

    __slots__ = ("client_id", "password", "qos", "retain", "user")

    def __init__(self, parts: tuple[str, ...]) -> None:
        self.user = ""
        self.password = ""
        self.client_id = ""
        self.qos = 1
        self.retain = False
        for part in parts:
            name, _, value = part.partition("=")
            if name == "username":
                self.user = value
            elif name == "password":
                self.password = value
            elif name == "clientid":
                self.client_id = value
            elif name == "qos" and value in ("0", "1", "2"):
                self.qos = int(value)
            elif name == "retain" and value in _SWITCHES:
                self.retain = _SWITCHES[value]
            else:
                raise ProtocolError(
                    BAD_REQUEST, f"{part[:80]!r}: there are username, password, clientid, qos (0, 1, 2), retain (0, 1)"
                )


@final
class Endpoint(DatagramHandler):
    """The CoAP side of the broker."""

    def __init__(self, hosts: Hosts, access: Access, clock: Clock) -> None:
        self._hosts = hosts
        self._access = access
        self._clock = clock
        self._port: DatagramListener | None = None
        self._exchanges: dict[tuple[Peer, int], _Exchange] = {}
        self._open = 0
        self._next_id = 0
        self._blocks = Blocks()

    def opened(self, port: DatagramListener) -> None:
        self._port = port

    def received(self, data: bytes, peer: Peer) -> None:
        if len(data) < _HEADER_BYTES:
            return
        message_id = int.from_bytes(data[2:4])
        known = self._exchanges.get((peer, message_id))
        now_us = self._clock.monotonic_us()
        if known is not None and data[:1] == known.head[:1] and known.since_us > now_us - _REMEMBERED_US:
            self._send(known.answer, peer)
            return
        exchange = _Exchange(peer, data[:12], now_us)
        try:
            request = decode_request(data)
        except ProtocolError as error:
            if error.code != MALFORMED:
                self._answer(exchange, error.code, str(error))
            elif data[0] >> 4 == 4:  # version 1, confirmable
                self._send(encode_reset(message_id), peer)
            return
        if request is None:
            return
        if request.code == 0:
            if request.is_confirmable:
                self._send(encode_reset(message_id), peer)
        elif self._open < _MAX_OPEN:
            self._remember(exchange, message_id)
            self._open += 1
            self._admit(exchange, request)

    def _remember(self, exchange: _Exchange, message_id: int) -> None:
        key = (exchange.peer, message_id)
        self._exchanges.pop(key, None)
        while len(self._exchanges) >= _MAX_REMEMBERED:
            del self._exchanges[next(iter(self._exchanges))]
        self._exchanges[key] = exchange

    # -- one request -------------------------------------------------------------------------------------------------

    def _admit(self, exchange: _Exchange, request: Request) -> None:
        """Check the login of a request, then publish."""
        peer = exchange.peer
        try:
            query = _Query(request.query)
        except ProtocolError as error:
            self._finish(exchange, error.code, str(error))
            return
        if request.code not in (POST, PUT):
            self._finish(exchange, METHOD_NOT_ALLOWED, "POST and PUT publish; there is nothing else to do here")
            return
        if not query.user and not query.password:
            self._finish(exchange, UNAUTHORIZED, "log in with ?username=...&password=...")
            return

        def admitted(account: Account | None) -> None:
            if account is None:
                self._finish(exchange, UNAUTHORIZED, "the login is wrong")
            else:
                self._guarded(exchange, lambda: self._publish(exchange, request, query, account))

        self._access.login(Login(query.user, query.password.encode(), peer.host, peer.is_loopback), admitted)

    def _publish(self, exchange: _Exchange, request: Request, query: _Query, account: Account) -> None:
        payload = request.payload
        if request.block is not None:
            key = (exchange.peer, request.path, request.query)
            body = self._blocks.add(key, request.block, payload, exchange.since_us)
            if body is None:
                self._finish(exchange, CONTINUE, "", request.block)
                return
            payload = body
        client = self._client(account, query)
        client.check_rate(self._clock.monotonic_us())
        properties = encode_native(Properties(None, request.content_type))

        def confirmed(error: HeadraceError | None) -> None:
            if error is None:
                self._finish(exchange, CHANGED, "", request.block)
            else:
                self._finish(exchange, _code_of(error), str(error), request.block)

        client.publish_topic(
            topic_of(request.path),
            payload,
            self._clock.now_us(),
            properties,
            None,
            query.qos,
            query.retain,
            confirmed if query.qos else None,
        )
        if not query.qos:
            confirmed(None)

    def _client(self, account: Account, query: _Query) -> Client:
        broker, rights = self._hosts.find(DEFAULT_HOST), self._access.enter(account, DEFAULT_HOST)
        assert broker is not None
        client_id = query.client_id or f"{PROTOCOL}:{account.name}"
        return Client(broker, account, rights, client_id, PROTOCOL, NATIVE)

    def _guarded(self, exchange: _Exchange, call: Callable[[], None]) -> None:
        try:
            call()
        except ProtocolError as error:
            self._finish(exchange, error.code, str(error))
        except HeadraceError as error:
            self._finish(exchange, _code_of(error), str(error))

    def _finish(self, exchange: _Exchange, code: int, words: str, block: Block | None = None) -> None:
        self._open -= 1
        self._answer(exchange, code, words, block)

    def _answer(self, exchange: _Exchange, code: int, words: str, block: Block | None = None) -> None:
        message_id = int.from_bytes(exchange.head[2:4])
        if exchange.head[0] >> 4 & 3:  # not confirmable: the answer is a message of its own
            self._next_id = message_id = self._next_id + 1 & 0xFFFF
        exchange.answer = encode_answer(exchange.head, code, message_id, words, block)
        self._send(exchange.answer, exchange.peer)

    def _send(self, data: bytes, peer: Peer) -> None:
        if data and self._port is not None:
            self._port.send(data, peer)


def topic_of(path: tuple[str, ...]) -> str:
    """The topic that a path means: `/a/b` and `/mqtt/publish/a/b` are both `a/b`."""
    return "/".join(path[2:] if path[:2] == _PREFIX else path)


def _code_of(error: HeadraceError) -> int:
    return next(code for kind, code in _CODES if isinstance(error, kind))

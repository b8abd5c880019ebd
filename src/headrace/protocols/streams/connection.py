"""One client's connection, from the login to the close. Bytes are in codec.py, the work of commands in other files."""

import struct
from typing import Final, final

from headrace.clock import Clock
from headrace.core.access.logins import Account, Login
from headrace.core.access.permissions import READ
from headrace.core.client import Client
from headrace.core.queue.queue import Queue
from headrace.errors import AccessRefused, HeadraceError, PreconditionFailed, ProtocolError
from headrace.model import AMQP10
from headrace.net.connection import Wire
from headrace.net.facts import ChannelFacts, ConnectionFacts
from headrace.net.handler import Handler
from headrace.protocols.answers import Answers
from headrace.protocols.inlet import Inlet, LoginGate
from headrace.protocols.server import Server
from headrace.protocols.streams import frames
from headrace.protocols.streams.codec import Decoder, Event, Publish, Request, frame, respond, table, text, texts
from headrace.protocols.streams.frames import CLOSE, CORRELATED, FIELDS, HEARTBEAT_SECONDS, OK, RESPONSE
from headrace.protocols.streams.management import Management
from headrace.protocols.streams.publishing import Publishers
from headrace.protocols.streams.server import PROTOCOL, ConnectionContext, code_of
from headrace.protocols.streams.subscriptions import Subscriptions

PLAIN: Final = "PLAIN"
EXTERNAL: Final = "EXTERNAL"
_GOODBYE_SECONDS: Final = 2.0
_MAX_REASON_CHARACTERS: Final = 1024
_MAX_HEARTBEAT_SECONDS: Final = 3600
_COMPATIBLE_WITH: Final = "RabbitMQ"
_COMPATIBLE_VERSION: Final = "4.0.0"
"""Clients ask the version of RabbitMQ before they use commands that it has had since."""


def parse_login(
    mechanism: str, response: bytes, certificate_name: str, address: str, is_loopback: bool
) -> Login | None:
    """The login; None for a response that does not fit the mechanism."""
    if mechanism == PLAIN:
        parts = response.split(b"\0")
        return Login(parts[1].decode(errors="replace"), parts[2], address, is_loopback) if len(parts) == 3 else None
    return Login(certificate_name, None, address, is_loopback)


def encode_close(code: int, why: str) -> bytes:
    """The server's close."""
    return frame(CLOSE, struct.pack(">IH", 1, code) + text(why[:_MAX_REASON_CHARACTERS]))


@final
class Connection(Handler):
    """The state of one connection."""

    def __init__(self, server: Server, clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self._decoder = Decoder()
        self._wire: Wire | None = None
        self._client_properties: dict[str, str] = {}
        self._account: Account | None = None
        self._is_tuned = False
        self._frame_max = frames.FRAME_MAX_BYTES
        self._heartbeat = HEARTBEAT_SECONDS
        self._gate: LoginGate[Event] = LoginGate(server.access)
        self._context: ConnectionContext | None = None
        self._open_parts: _Parts | None = None
        self._is_closing = False
        self._inlet = Inlet(server.intake, self._end)

    # -- calls of net --------------------------------------------------------------------------------------------------

    def opened(self, wire: Wire) -> None:
        self._wire = self._inlet.wire = wire

    def feed(self, data: bytes) -> None:
        context = self._context
        if context is not None:
            context.now_us = self._clock.now_us()
        try:
            self._take_all(self._decoder.feed(data))
        except HeadraceError as error:
            self._end(error)
            return
        self._inlet.note(self._decoder.held_bytes)
        if context is not None and context.client.published:
            self._inlet.meter(context.client, self._clock.monotonic_us())

    def hold_output(self, is_held: bool) -> None:
        if self._context is not None and self._open_parts is not None:
            self._context.is_held = is_held
            if not is_held:
                self._open_parts.subscriptions.refresh()

    def beat(self) -> None:
        self._send_raw(frame(frames.HEARTBEAT, b""))

    def stop(self) -> None:
        if self._context is None:
            if self._wire is not None:
                self._wire.close()
            return
        self._end(ProtocolError(OK, "the server stops"))

    def lost(self) -> None:
        self._gate.drop()
        self._leave()
        self._decoder.clear()
        self._inlet.end()

    def facts(self) -> ConnectionFacts | None:
        context = self._context
        if context is None:
            return None
        return ConnectionFacts(
            protocol="RabbitMQ stream",
            user=context.client.account.name,
            host=context.broker.topology.host,
            client_id=context.client.client_id,
            heartbeat_seconds=self._heartbeat,
            frame_max=self._frame_max,
            client_properties=self._client_properties,
            channels=[ChannelFacts(0)],
        )

    # -- events ------------------------------------------------------------------------------------------------------

    def _take_all(self, events: list[Event]) -> None:
        for at, event in enumerate(events):
            if self._gate.is_shut:
                self._gate.hold(events[at:])
                return
            self._take(event)

    def _take(self, event: Event) -> None:
        parts = self._open_parts
        if self._is_closing:
            if isinstance(event, Request) and event.key == CLOSE | RESPONSE and self._wire is not None:
                self._wire.close()
        elif isinstance(event, Publish):
            if parts is None:
                raise ProtocolError(frames.PRECONDITION_FAILED, "a publish before the connection is open")
            parts.publishers.publish(event)
        elif event.key in _LOGIN:
            self._log_in(event)
        elif event.key == CLOSE:
            self._closed(event)
        elif event.key & ~RESPONSE != frames.HEARTBEAT:
            if parts is None:
                raise ProtocolError(
                    frames.PRECONDITION_FAILED, f"the command {event.key:#06x} before the connection is open"
                )
            self._command(parts, event)

    def _command(self, parts: "_Parts", request: Request) -> None:
        """Carry out a command. An error answers it; only what has no answer may end the connection."""
        try:
            parts.handle(request)
        except HeadraceError as error:
            if CORRELATED not in FIELDS[request.key] or request.key & RESPONSE:
                raise
            parts.context.answers.send(respond(request, code_of(error), _ERROR_BODIES.get(request.key, b"")))

    # -- beginning -----------------------------------------------------------------------------------------------------

    def _log_in(self, request: Request) -> None:
        """Take a command of the login. Raises ProtocolError for one that is not due."""
        key = request.key
        if self._wire is None or self._context is not None:
            raise ProtocolError(frames.PRECONDITION_FAILED, f"the command {key:#06x} on an open connection")
        if key == frames.PEER_PROPERTIES:
            self._client_properties = request.table(0)
            properties = {
                "product": _COMPATIBLE_WITH,
                "version": _COMPATIBLE_VERSION,
                "platform": f"Headrace {self._server.version}",
                "cluster_name": "headrace",
                "information": "Licensed under the Apache License 2.0",
            }
            self._send_raw(respond(request, OK, table(properties)))
        elif key == frames.SASL_HANDSHAKE:
            self._send_raw(respond(request, OK, texts(self._mechanisms())))
        elif key == frames.SASL_AUTHENTICATE:
            self._authenticate(request)
        elif self._account is None:
            raise ProtocolError(frames.AUTHENTICATION_FAILURE, f"the command {key:#06x} before the login")
        elif key == frames.OPEN:
            self._open(request, self._wire, self._account)
        else:
            self._tune(request)

    def _mechanisms(self) -> list[str]:
        return [PLAIN, EXTERNAL] if self._wire is not None and self._wire.certificate_name else [PLAIN]

    def _authenticate(self, request: Request) -> None:
        wire = self._wire
        assert wire is not None
        mechanism = request.text(0)
        if self._account is not None:
            raise ProtocolError(frames.PRECONDITION_FAILED, "a second login")
        if mechanism not in self._mechanisms():
            self._send_raw(respond(request, frames.MECHANISM_NOT_SUPPORTED))
            return
        login = parse_login(mechanism, request.raw(1), wire.certificate_name, wire.address, wire.is_loopback)
        if login is None:
            self._authenticated(request, frames.SASL_ERROR, None)
            return
        self._gate.check(
            wire, login, lambda account: self._authenticated(request, frames.AUTHENTICATION_FAILURE, account)
        )

    def _authenticated(self, request: Request, failure: int, account: Account | None) -> None:
        """Answer a login, and go on with the events that waited for it."""
        wire = self._wire
        held = self._gate.open(wire)
        if wire is None or wire.is_closing:
            return
        if account is None:
            self._send_raw(respond(request, failure))
            self._is_closing = True
            wire.close()
            return
        self._account = account
        self._send_raw(respond(request) + frame(frames.TUNE, struct.pack(">II", self._frame_max, self._heartbeat)))
        try:
            self._take_all(held)
        except HeadraceError as error:
            self._end(error)

    def _tune(self, request: Request) -> None:
        frame_max = request.number(0) or frames.FRAME_MAX_BYTES
        if frame_max < frames.FRAME_MIN_BYTES:
            raise ProtocolError(
                frames.PRECONDITION_FAILED, f"frames of {frame_max} bytes at most are below {frames.FRAME_MIN_BYTES}"
            )
        self._frame_max = min(frame_max, frames.FRAME_MAX_BYTES)
        self._heartbeat = min(request.number(1), _MAX_HEARTBEAT_SECONDS)
        self._is_tuned = True

    def _open(self, request: Request, wire: Wire, account: Account) -> None:
        """Enter a virtual host, or say why not."""
        if not self._is_tuned:
            raise ProtocolError(frames.PRECONDITION_FAILED, "open before tune")

        client = self._enter(request.text(0), wire, account)
        if client is None:
            self._send_raw(respond(request, frames.HOST_ACCESS_FAILURE, table({})))
            self._is_closing = True
            wire.close()
            return
        answers = Answers(wire, client.broker, self._answers_changed, self._end)
        context = self._context = ConnectionContext(wire, client, self._frame_max, answers)
        context.now_us = self._clock.now_us()
        context.end = self._end
        self._open_parts = _Parts(context)
        self._decoder.max_frame_bytes = self._frame_max
        host, _, port = wire.local.rpartition(":")
        place = {"advertised_host": host.strip("[]"), "advertised_port": port}
        self._send_raw(respond(request, OK, table(place)))
        wire.keep_alive(self._heartbeat)

    def _enter(self, host: str, wire: Wire, account: Account) -> Client | None:
        """Enter a virtual host as one of the user's connections; None if that is refused."""
        broker = self._server.find_broker(host)
        try:
            rights = self._server.access.enter(account, host)
        except AccessRefused:
            return None
        assert broker is not None
        client_id = self._client_properties.get("connection_name") or wire.peer
        client = Client(broker, account, rights, client_id, PROTOCOL, AMQP10)
        return client if client.connect(self._inlet.pause_by_broker, self._on_ended, self._on_rights) else None

    # -- ending --------------------------------------------------------------------------------------------------------

    def _closed(self, request: Request) -> None:
        """Answer the client's close."""
        self._is_closing = True
        self._leave()
        self._send_raw(respond(request))
        if self._wire is not None:
            self._wire.close()

    def _end(self, error: HeadraceError) -> None:
        """Close the connection with an error."""
        wire = self._wire
        if self._is_closing or wire is None:
            return
        self._is_closing = True
        self._leave()
        self._send_raw(encode_close(code_of(error), str(error)))
        wire.close(_GOODBYE_SECONDS)

    def _leave(self) -> None:
        """End publishers and subscriptions, and give the account back."""
        parts, self._open_parts = self._open_parts, None
        context, self._context = self._context, None
        if parts is not None:
            parts.close()
        if context is not None:
            context.client.leave()

    def _on_ended(self, why: str) -> None:
        """The user or the virtual host is gone."""
        self._end(PreconditionFailed(why))

    def _on_rights(self) -> None:
        if self._open_parts is not None:
            self._open_parts.restrict()

    def _answers_changed(self) -> None:
        """Read on when no answer waits any more."""
        if self._open_parts is not None:
            self._open_parts.subscriptions.refresh()

    def _send_raw(self, data: bytes) -> None:
        if self._wire is not None:
            self._wire.send(data)


_LOGIN: Final = frozenset(
    {
        frames.PEER_PROPERTIES,
        frames.SASL_HANDSHAKE,
        frames.SASL_AUTHENTICATE,
        frames.TUNE,
        frames.TUNE | RESPONSE,
        frames.OPEN,
    }
)
_ERROR_BODIES: Final = {
    frames.QUERY_PUBLISHER_SEQUENCE: bytes(8),
    frames.QUERY_OFFSET: bytes(8),
    frames.ROUTE: bytes(4),
    frames.PARTITIONS: bytes(4),
    frames.STREAM_STATS: bytes(4),
}
"""The empty fields of responses that clients read whatever their code is."""


@final
class _Parts:
    """The publishers, subscriptions and commands of an open connection, and the streams that they use."""

    def __init__(self, context: ConnectionContext) -> None:
        self.context = context
        self.publishers = Publishers(context)
        self.subscriptions = Subscriptions(context)
        self._management = Management(context)
        self._watched: dict[Queue, None] = {}

    def handle(self, request: Request) -> None:
        """Carry out a command and answer it. Raises HeadraceError."""
        key, answers = request.key, self.context.answers
        if key == frames.CREDIT:
            self.subscriptions.credit(request.number(0), request.number(1))
        elif key == frames.DECLARE_PUBLISHER:
            self._watch(self.publishers.declare(request.number(0), request.text(1), request.text(2)))
            answers.send(respond(request))
        elif key == frames.DELETE_PUBLISHER:
            self._unwatch(self.publishers.delete(request.number(0)))
            answers.send(respond(request))
        elif key == frames.SUBSCRIBE:
            subscription = self.subscriptions.prepare(request)
            self._watch(subscription.queue)
            answers.send(respond(request))
            self.subscriptions.start(subscription, request.table(4))
        elif key == frames.UNSUBSCRIBE:
            self._unwatch(self.subscriptions.unsubscribe(request.number(0)))
            answers.send(respond(request))
        elif key == frames.CONSUMER_UPDATE | RESPONSE:
            self.subscriptions.updated(request)
        elif not self._management.handle(request):
            raise ProtocolError(frames.UNKNOWN_FRAME, f"the command {key:#06x} is not for a server")

    def restrict(self) -> None:
        """End the subscriptions to streams that the user may not read any more."""
        for queue in self.subscriptions.streams():
            if not self.context.client.rights.may(READ, queue.name):
                self.subscriptions.forget(queue)
                self._unwatch(queue)
                self._send_update(queue)

    def close(self) -> None:
        self.publishers.close()
        self.subscriptions.close()
        for queue in self._watched:
            queue.when_gone(self, None)
        self._watched.clear()
        self.context.answers.drop()

    def _watch(self, queue: Queue) -> None:
        if queue not in self._watched:
            self._watched[queue] = None
            queue.when_gone(self, lambda: self._gone(queue))

    def _unwatch(self, queue: Queue) -> None:
        if not (self.publishers.use(queue) or self.subscriptions.use(queue)):
            self._watched.pop(queue, None)
            queue.when_gone(self, None)

    def _gone(self, queue: Queue) -> None:
        """Tell the client that a stream is gone; its publishers and subscriptions are gone with it."""
        self._watched.pop(queue, None)
        self.publishers.forget(queue)
        self.subscriptions.forget(queue)
        self._send_update(queue)

    def _send_update(self, queue: Queue) -> None:
        body = struct.pack(">H", frames.STREAM_NOT_AVAILABLE) + text(queue.name)
        self.context.answers.send(frame(frames.METADATA_UPDATE, body))

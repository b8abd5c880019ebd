"""One client's connection, from the protocol header over SASL and open to the close. Sessions do the work."""

from typing import Final, final

from headrace.clock import Clock
from headrace.core.access.logins import Account, Admit, Login
from headrace.core.access.users import GUEST
from headrace.errors import HeadraceError, ProtocolError
from headrace.net.connection import Wire
from headrace.net.facts import ConnectionFacts
from headrace.net.handler import Handler
from headrace.protocols.amqp10 import frames
from headrace.protocols.amqp10.codec import Decoder, Event, Hello, encode_frame, encode_sasl
from headrace.protocols.amqp10.context import NODE, SOLE_CONNECTION, ConnectionContext, enter
from headrace.protocols.amqp10.coordinator import Transactions
from headrace.protocols.amqp10.frames import CHANNEL_MAX, IDLE_TIMEOUT_MS, ends_session_only
from headrace.protocols.amqp10.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Transfer,
    error_for,
)
from headrace.protocols.amqp10.publishing import attach_sender
from headrace.protocols.amqp10.server import Server
from headrace.protocols.amqp10.session import Link, Session
from headrace.protocols.amqp10.subscriptions import attach_receiver
from headrace.protocols.inlet import Inlet, LoginGate
from headrace.wire.types import Map

PLAIN: Final = "PLAIN"
ANONYMOUS: Final = "ANONYMOUS"
EXTERNAL: Final = "EXTERNAL"


def parse_login(
    mechanism: str, response: bytes, certificate_name: str, address: str, is_loopback: bool
) -> Login | None:
    """Return the login; None for a mechanism that is not offered or a response that does not fit it.

    An anonymous client is guest, with guest's first password.
    """
    if mechanism == PLAIN:
        parts = response.split(b"\0")
        if len(parts) != 3:
            return None
        return Login(parts[1].decode(errors="replace"), parts[2], address, is_loopback)
    if mechanism == ANONYMOUS:
        return Login(GUEST, GUEST.encode(), address, is_loopback)
    if mechanism == EXTERNAL and certificate_name:
        return Login(certificate_name, None, address, is_loopback)
    return None


CONTAINER_ID: Final = "headrace"
_OFFERED: Final = ["ANONYMOUS-RELAY", "DELAYED_DELIVERY", "SHARED-SUBS", SOLE_CONNECTION]
_GOODBYE_SECONDS: Final = 2.0

# Clients of RabbitMQ 4 refuse a server that does not claim to be one, so we claim it to them.
_COMPATIBLE_WITH: Final = "RabbitMQ"
_COMPATIBLE_VERSION: Final = "4.2.0"


def answer_open(opening: Open | None, version: str, is_in: bool) -> Open:
    """Return our open to a client that may come in or not."""
    answer = Open(CONTAINER_ID)
    answer.max_frame_size = frames.MAX_FRAME_SIZE
    answer.channel_max = CHANNEL_MAX
    answer.idle_timeout = IDLE_TIMEOUT_MS // 2
    answer.offered = _OFFERED
    properties = _introduction(opening, version)
    if not is_in:
        properties["amqp:connection-establishment-failed"] = True
    answer.properties = Map.of(properties)
    return answer


def _introduction(opening: Open | None, version: str) -> dict[str, object]:
    """Return our name: RabbitMQ 4 to its own clients, and to clients that do not name their product."""
    product = None if opening is None else opening.properties.get("product")
    if isinstance(product, str) and _COMPATIBLE_WITH.lower() not in product.lower():
        return {"product": "Headrace", "version": version}
    return {
        "product": _COMPATIBLE_WITH,
        "version": _COMPATIBLE_VERSION,
        "platform": f"Headrace {version}",
        "node": NODE,
        "cluster_name": NODE,
    }


def _attach_link(session: Session, attach: Attach) -> Link:
    return attach_receiver(session, attach) if attach.is_receiver else attach_sender(session, attach)


@final
class Connection(Handler):
    """The state of one connection, and its sessions."""

    def __init__(self, server: Server, clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self._decoder = Decoder()
        self._wire: Wire | None = None
        self._account: Account | None = None
        self._is_greeted = False
        self._gate: LoginGate[Event] = LoginGate(server.access)
        self._context: ConnectionContext | None = None
        self._transactions: Transactions | None = None
        self._sessions: dict[int, Session] = {}
        self._opening: Open | None = None
        """The client's open."""
        self._is_opened = False
        """True once our open is sent."""
        self._is_closing = False
        self._inlet = Inlet(server.intake, self._refuse_intake)

    # -- calls of net ------------------------------------------------------------------------------------------------

    def opened(self, wire: Wire) -> None:
        self._wire = self._inlet.wire = wire

    def feed(self, data: bytes) -> None:
        context = self._context
        if context is not None:
            context.now_us = self._clock.now_us()
        try:
            self._take_all(self._decoder.feed(data))
        except ProtocolError as error:
            self._end(error)
            return
        if self._decoder.failure is not None and not self._gate.is_shut:
            self._end(self._decoder.failure)
        self._note_intake()
        if context is not None and context.client.published:
            self._inlet.meter(context.client, self._clock.monotonic_us())

    def _take_all(self, events: list[Event]) -> None:
        """Handle events in their order; neighbouring dispositions that agree are one."""
        row: Disposition | None = None
        for at, event in enumerate(events):
            if self._gate.is_shut:
                self._gate.hold(events[at:])
                return
            if isinstance(event, Disposition):
                if row is not None and row.extends_to(event):
                    continue
                if row is not None:
                    self._take(row)
                row = event
                continue
            if row is not None:
                self._take(row)
                row = None
            self._take(event)
        if row is not None:
            self._take(row)
        self._publish_row()

    def _publish_row(self) -> None:
        if self._context is not None:
            self._context.flush_row()

    def hold_output(self, is_held: bool) -> None:
        if self._context is not None:
            self._context.is_held = is_held
            for session in list(self._sessions.values()):
                session.refresh()

    def facts(self) -> ConnectionFacts | None:
        context = self._context
        if context is None:
            return None
        return ConnectionFacts(
            protocol="AMQP 1.0",
            user=context.client.account.name,
            host=context.host.name,
            client_id=context.container_id,
            frame_max=context.frame_max,
            channel_max=CHANNEL_MAX,
            channels=[session.facts() for session in self._sessions.values()],
        )

    def beat(self) -> None:
        self._send_raw(frames.EMPTY_FRAME)

    def stop(self) -> None:
        if self._context is None:
            if self._wire is not None:
                self._wire.close()
            return
        self._end(ProtocolError(frames.CONNECTION_FORCED, "the server stops"))

    def lost(self) -> None:
        self._gate.drop()
        self._close_sessions()
        self._decoder.clear()
        self._note_intake()
        context, self._context = self._context, None
        if context is not None:
            context.host.containers.leave(context.container_id)
            context.client.leave()
        self._inlet.end()

    # -- events -------------------------------------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        if not isinstance(event, Transfer):
            self._publish_row()
        if self._is_closing:
            if isinstance(event, Close) and self._wire is not None:
                self._wire.close()
        elif isinstance(event, Transfer | Disposition | Flow | Attach | Detach):
            self._in_session(event)
        elif isinstance(event, Begin):
            self._begin(event)
        elif isinstance(event, End):
            self._session_ended(event)
        elif isinstance(event, Hello):
            self._greet(event)
        elif isinstance(event, SaslInit):
            if not self._is_greeted or self._account is not None:
                raise ProtocolError(frames.ILLEGAL_STATE, "a login where none is due")
            self._check(event.mechanism, event.response or b"", self._logged_in)
        elif isinstance(event, Open):
            self._open(event)
        else:
            self._closed()

    def _in_session(self, event: Transfer | Disposition | Flow | Attach | Detach) -> None:
        session = self._sessions.get(event.channel)
        if session is None:
            if self._context is None:
                raise ProtocolError(frames.ILLEGAL_STATE, "a connection begins with open")
            raise ProtocolError(frames.NOT_ALLOWED, f"there is no session on channel {event.channel}")
        if session.is_closing:
            return
        try:
            if isinstance(event, Transfer):
                session.transfer(event)
            elif isinstance(event, Disposition):
                session.disposition(event)
            elif isinstance(event, Flow):
                session.flow(event)
            elif isinstance(event, Attach):
                session.attach(event)
            else:
                session.detach(event)
        except ProtocolError as error:
            if not ends_session_only(error):
                raise
            self._publish_row()
            self._end_session(session, error)

    # -- beginning ---------------------------------------------------------------------------------------------------

    def _greet(self, hello: Hello) -> None:
        """Answer a protocol header. A client of another protocol or version learns ours."""
        if not hello.is_known or (self._is_greeted and (hello.is_sasl or self._account is None)):
            self._send_raw(frames.SASL_HEADER)
            self._is_closing = True
            if self._wire is not None:
                self._wire.close()
            return
        if hello.is_sasl:
            self._is_greeted = True
            with_certificate = [EXTERNAL] if self._wire is not None and self._wire.certificate_name else []
            mechanisms = SaslMechanisms([PLAIN, ANONYMOUS, *with_certificate])
            self._send_raw(frames.SASL_HEADER + encode_sasl(mechanisms.encode()))
            return
        self._send_raw(frames.AMQP_HEADER)
        if not self._is_greeted:
            self._is_greeted = True
            self._check(ANONYMOUS, b"", self._let_in)

    def _check(self, mechanism: str, response: bytes, admit: Admit) -> None:
        """Check a login, which may take a while."""
        wire = self._wire
        assert wire is not None
        login = parse_login(mechanism, response, wire.certificate_name, wire.address, wire.is_loopback)
        if login is None:
            admit(None)
        else:
            self._gate.check(wire, login, admit)

    def _logged_in(self, account: Account | None) -> None:
        self._send_raw(encode_sasl(SaslOutcome(frames.SASL_AUTH if account is None else frames.SASL_OK).encode()))
        if account is None and self._wire is not None:
            self._is_closing = True
            self._wire.close()
        self._let_in(account)

    def _let_in(self, account: Account | None) -> None:
        """Go on with the events that waited for the login."""
        self._account = account
        held = self._gate.open(self._wire)
        if not held:
            return
        try:
            self._take_all(held)
        except ProtocolError as error:
            self._end(error)

    def _send_open(self) -> None:
        """Send our open once, also before a close, which needs one."""
        if self._is_opened:
            return
        self._is_opened = True
        answer = answer_open(self._opening, self._server.version, self._context is not None)
        self._send_raw(encode_frame(0, answer.encode()))

    def _open(self, opening: Open) -> None:
        if self._opening is not None or self._wire is None:
            raise ProtocolError(frames.ILLEGAL_STATE, "open on an open connection")
        self._opening = opening
        account = self._account
        if account is None:
            raise ProtocolError(frames.UNAUTHORIZED, "a connection without a login is not let in")
        context = enter(self._server, self._wire, account, opening)
        client = context.client
        if not client.connect(self._inlet.pause_by_broker, self._on_ended, self._on_rights):
            raise ProtocolError(frames.RESOURCE_LIMIT, client.refusal)
        try:
            context.host.containers.enter(client.client_id, SOLE_CONNECTION in opening.desired)
        except ProtocolError:
            client.leave()
            raise
        self._context = context
        self._send_open()
        context.now_us = self._clock.now_us()
        self._transactions = Transactions(context)
        beat_ms = min(opening.idle_timeout or IDLE_TIMEOUT_MS, IDLE_TIMEOUT_MS)
        self._wire.keep_alive(beat_ms / 2000, IDLE_TIMEOUT_MS / 1000)

    # -- sessions ----------------------------------------------------------------------------------------------------

    def _begin(self, begin: Begin) -> None:
        if self._context is None or self._transactions is None:
            raise ProtocolError(frames.ILLEGAL_STATE, "a connection begins with open")
        if begin.channel > CHANNEL_MAX:
            raise ProtocolError(frames.FRAMING_ERROR, f"channel {begin.channel} is above the agreed {CHANNEL_MAX}")
        if begin.channel in self._sessions:
            raise ProtocolError(frames.NOT_ALLOWED, f"there is a session on channel {begin.channel} already")
        account = self._context.client.account
        if not account.open_channel():
            limit = account.user.limits.max_channels
            raise ProtocolError(frames.RESOURCE_LIMIT, f"user '{account.name}' has the {limit} sessions it may have")
        session = Session(self._context, begin, self._transactions, _attach_link, self._fail_session)
        self._sessions[begin.channel] = session
        session.start()

    def _session_ended(self, end: End) -> None:
        session = self._sessions.pop(end.channel, None)
        if session is None:
            raise ProtocolError(frames.NOT_ALLOWED, f"there is no session on channel {end.channel}")
        if not session.is_closing:
            self._end_session(session, None)

    def _fail_session(self, session: Session, error: HeadraceError) -> None:
        """End a session whose changes storage refused. Its end may be among the answers that waited."""
        session.way_out.drop()
        self._end_session(session, error)

    def _end_session(self, session: Session, error: HeadraceError | None) -> None:
        if not session.is_closing:
            session.flush_answers()
            self._stop(session)
        session.send(End(error_for(error) if error is not None else None).encode())

    def _stop(self, session: Session) -> None:
        session.is_closing = True
        session.end()
        session.context.client.account.close_channel()

    def _close_sessions(self) -> None:
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            session.way_out.drop()
            if not session.is_closing:
                self._stop(session)
        if self._transactions is not None:
            self._transactions.end()

    # -- ending ------------------------------------------------------------------------------------------------------

    def _closed(self) -> None:
        """Answer the client's close."""
        for session in self._sessions.values():
            session.flush_answers()
        self._is_closing = True
        self._close_sessions()
        self._send_raw(encode_frame(0, Close().encode()))
        if self._wire is not None:
            self._wire.close()

    def _end(self, error: HeadraceError) -> None:
        """Close the connection with an error."""
        self._publish_row()
        if self._is_closing or self._wire is None:
            return
        self._is_closing = True
        self._close_sessions()
        self._note_intake()
        if self._account is None and self._opening is None:
            self._wire.close()
            return
        self._send_open()
        self._send_raw(encode_frame(0, Close(error_for(error)).encode()))
        self._wire.close(_GOODBYE_SECONDS)

    def _on_ended(self, why: str) -> None:
        """The user or the virtual host is gone."""
        self._end(ProtocolError(frames.CONNECTION_FORCED, why))

    def _on_rights(self) -> None:
        """Detach links from sources that the user may no longer read."""
        for session in list(self._sessions.values()):
            session.restrict()

    def _note_intake(self) -> None:
        """Report the memory of incomplete, uncommitted and unsettled messages."""
        context = self._context
        self._inlet.note(self._decoder.held_bytes + (0 if context is None else context.held_bytes))

    def _refuse_intake(self, error: HeadraceError) -> None:
        self._end(ProtocolError(frames.RESOURCE_LIMIT, str(error)))

    def _send_raw(self, data: bytes) -> None:
        if self._wire is not None:
            self._wire.send(data)

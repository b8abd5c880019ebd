"""One client's connection, from CONNECT to the end. Publishing and subscriptions have files of their own."""

import secrets
from collections.abc import Callable
from typing import Final, final

from headrace.clock import Clock
from headrace.core.access.logins import Account, Login
from headrace.core.access.users import GUEST
from headrace.core.broker import Broker
from headrace.core.client import Client
from headrace.core.routing.topology import DEFAULT_HOST
from headrace.errors import AccessRefused, HeadraceError, Refused
from headrace.model import AMQP091
from headrace.net.connection import Wire
from headrace.net.facts import ChannelFacts, ConnectionFacts
from headrace.net.handler import Handler
from headrace.protocols.inlet import Inlet, LoginGate
from headrace.protocols.server import Server
from headrace.protocols.stomp.codec import (
    CONNECT,
    CONNECTED,
    CONTENT_TYPE,
    ERROR,
    HEART_BEAT,
    RECEIPT,
    STOMP,
    V10,
    VERSIONS,
    Decoder,
    Frame,
    chosen_version,
    encode_frame,
    malformed,
)
from headrace.protocols.stomp.publishing import Publisher, Transaction
from headrace.protocols.stomp.server import PROTOCOL, ConnectionContext
from headrace.protocols.stomp.subscriptions import Subscriptions

_MAX_CONNECT_BYTES: Final = 64 << 10
"""The largest body before the login: there is none."""
_LEAST_BEAT_MS: Final = 1000
_MAX_BEAT_MS: Final = 1 << 31
_GRACE: Final = 2
"""Heart-beats that may fail to come before a client counts as gone."""
_NEVER_SECONDS: Final = 1e9
_MAX_TRANSACTIONS: Final = 100


@final
class Connection(Handler):
    """Turns the frames of one connection into calls of its publisher and its subscriptions."""

    def __init__(self, server: Server, clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self._decoder = Decoder(_MAX_CONNECT_BYTES)
        self._wire: Wire | None = None
        self._connect: Frame | None = None
        self._gate: LoginGate[Frame] = LoginGate(server.access)
        self._context: ConnectionContext | None = None
        self._publisher: Publisher | None = None
        self._subscriptions: Subscriptions | None = None
        """None until CONNECTED is sent."""
        self._transactions: dict[str, Transaction] = {}
        self._beats_ms = (0, 0)
        """The time between two heart-beats of ours, and between two of the client's; 0 for none."""
        self._is_ending = False
        self._buffered_bytes = 0
        self._inlet = Inlet(server.intake, lambda error: self.end(error))

    # -- calls from net ------------------------------------------------------------------------------------------------

    def opened(self, wire: Wire) -> None:
        self._wire = self._inlet.wire = wire

    def feed(self, data: bytes) -> None:
        frames = self._decoder.feed(data)
        context = self._context
        if context is not None:
            context.now_us = self._clock.now_us()
        self._take_all(frames)
        if self._decoder.failure is not None:
            self.end(self._decoder.failure)
        self._note_intake()
        if context is not None and context.client.published:
            self._inlet.meter(context.client, self._clock.monotonic_us())

    def buffered(self, size_bytes: int) -> None:
        self._buffered_bytes = size_bytes
        self._note_intake()

    def hold_output(self, is_held: bool) -> None:
        if self._subscriptions is not None:
            self._subscriptions.hold(is_held)

    def beat(self) -> None:
        if self._wire is not None:
            self._wire.send(HEART_BEAT)

    def stop(self) -> None:
        self.end(Refused("the broker stops"))

    def ended(self) -> bool:
        return False

    def lost(self) -> None:
        self._gate.drop()
        self._leave()
        self._decoder.clear()
        self._note_intake()
        self._inlet.end()
        self._wire = None

    def facts(self) -> ConnectionFacts | None:
        context, subscriptions = self._context, self._subscriptions
        if context is None or subscriptions is None:
            return None
        consumers = subscriptions.consumers
        channel = ChannelFacts(
            1, unsettled=subscriptions.unsettled, is_transactional=bool(self._transactions), consumers=consumers
        )
        return ConnectionFacts(
            protocol=f"STOMP {context.version}",
            user=context.client.account.name,
            host=context.broker.topology.host,
            client_id=context.client.client_id,
            heartbeat_seconds=self._beats_ms[0] // 1000,
            channels=[channel],
        )

    # -- the login -----------------------------------------------------------------------------------------------------

    def _begin(self, frame: Frame) -> None:
        """Handle CONNECT; frames behind it wait until the login is checked."""
        wire = self._wire
        assert wire is not None
        if frame.command not in (CONNECT, STOMP):
            raise malformed(f"{frame.command[:32]} where CONNECT is due")
        if not chosen_version(frame.headers):
            accepted = frame.get("accept-version")
            raise malformed(f"version {accepted[:64]!r} is not supported: {', '.join(reversed(VERSIONS))} are")
        self._beats_ms = _beats(frame.headers.get("heart-beat", "0,0"))
        self._connect = frame
        login = _login(frame, wire)
        if login is None:
            raise AccessRefused("a login and a passcode are needed")
        self._gate.check(wire, login, self._logged_in)

    def _logged_in(self, account: Account | None) -> None:
        wire, frame = self._wire, self._connect
        held = self._gate.open(wire)
        if wire is None or frame is None or self._is_ending:
            return
        try:
            if account is None:
                raise AccessRefused("login or passcode is wrong")
            self._open(wire, frame, account)
        except HeadraceError as error:
            self.end(error)
            return
        self._take_all(held)

    def _open(self, wire: Wire, frame: Frame, account: Account) -> None:
        """Enter the virtual host and answer. Raises AccessRefused."""
        host, broker = self._host(frame.get("host"))
        rights = self._server.access.enter(account, host)
        assert broker is not None
        client_id = frame.get("client-id") or wire.peer
        client = Client(broker, account, rights, client_id, PROTOCOL, AMQP091)
        if not client.connect(self._inlet.pause_by_broker, self._on_ended, self._on_rights):
            raise AccessRefused(client.refusal)
        version = self._decoder.version
        session = "session-" + secrets.token_urlsafe(16)
        self._context = context = ConnectionContext(wire, client, version, session)
        context.end = self.end
        context.now_us = self._clock.now_us()
        self._subscriptions = Subscriptions(context)
        self._publisher = Publisher(context, self._subscriptions.reply_queue)
        self._decoder.max_body_bytes = self._server.intake.largest_bytes
        ours_ms, theirs_ms = self._beats_ms
        headers = [("version", version), ("session", session), ("server", f"Headrace/{self._server.version}")]
        if version != V10:
            headers.append(("heart-beat", f"{ours_ms},{theirs_ms}"))
        wire.send(encode_frame(CONNECTED, headers, version))
        self._keep_alive(wire, ours_ms / 1000, theirs_ms / 1000 * _GRACE)

    def _host(self, name: str) -> tuple[str, Broker | None]:
        """The virtual host of a CONNECT: the one named, or the default one for the name of a machine."""
        broker = self._server.find_broker(name) if name else None
        if broker is None and (not name or name == "localhost" or "." in name or ":" in name):
            return DEFAULT_HOST, self._server.find_broker(DEFAULT_HOST)
        return name, broker

    def _keep_alive(self, wire: Wire, interval_seconds: float, silence_seconds: float) -> None:
        if interval_seconds:
            wire.keep_alive(interval_seconds, silence_seconds or _NEVER_SECONDS)
        else:
            wire.watch(silence_seconds, lambda: self.end(Refused("no heart-beat came")))

    # -- calls from core ---------------------------------------------------------------------------------------------

    def _on_ended(self, why: str) -> None:
        """The user or the virtual host is gone."""
        self.end(Refused(why))

    def _on_rights(self) -> None:
        if self._subscriptions is not None:
            self._subscriptions.restrict()

    # -- frames --------------------------------------------------------------------------------------------------------

    def _take_all(self, frames: list[Frame]) -> None:
        for frame in frames:
            if self._is_ending:
                return
            try:
                if self._publisher is not None:
                    self._take(frame)
                elif self._gate.is_shut:
                    self._gate.hold([frame])
                else:
                    self._begin(frame)
            except HeadraceError as error:
                self.end(error, frame.get("receipt"))

    def _take(self, frame: Frame) -> None:
        handler = _HANDLERS.get(frame.command)
        if handler is None:
            raise malformed(f"there is no command {frame.command[:32]!r}")
        handler(self, frame)

    def _send(self, frame: Frame) -> None:
        publisher, receipt = self._publisher, frame.get("receipt")
        assert publisher is not None
        transaction = self._transaction(frame)
        publisher.send(frame, self._answer(receipt) if receipt and transaction is None else None, transaction)
        if receipt and transaction is not None:
            self._receipt_in_turn(receipt)

    def _subscribe(self, frame: Frame) -> None:
        assert self._subscriptions is not None
        self._subscriptions.subscribe(frame)
        self._receipt_when_safe(frame)

    def _unsubscribe(self, frame: Frame) -> None:
        assert self._subscriptions is not None
        self._subscriptions.unsubscribe(frame)
        self._receipt_when_safe(frame)

    def _ack(self, frame: Frame) -> None:
        self._settle(frame, True)

    def _nack(self, frame: Frame) -> None:
        if self._decoder.version == V10:
            raise malformed("there is no command 'NACK' in STOMP 1.0")
        self._settle(frame, False)

    def _settle(self, frame: Frame, is_ack: bool) -> None:
        assert self._subscriptions is not None
        transaction = self._transaction(frame)
        self._subscriptions.settle(frame, is_ack, transaction)
        receipt = frame.get("receipt")
        if receipt and transaction is not None:
            self._receipt_in_turn(receipt)
        else:
            self._receipt_when_safe(frame)

    def _transaction(self, frame: Frame) -> Transaction | None:
        """The transaction that a frame belongs to; None for none. Raises Refused if it did not begin."""
        name = frame.headers.get("transaction")
        if name is None:
            return None
        transaction = self._transactions.get(name)
        if transaction is None:
            raise Refused(f"there is no transaction {name[:64]!r}")
        return transaction

    def _begin_transaction(self, frame: Frame) -> None:
        name = frame.require("transaction")
        if name in self._transactions:
            raise Refused(f"there is a transaction {name[:64]!r} already")
        if len(self._transactions) >= _MAX_TRANSACTIONS:
            raise Refused(f"there are {_MAX_TRANSACTIONS} transactions, and there may be no more")
        self._transactions[name] = Transaction()
        if receipt := frame.get("receipt"):
            self._receipt_in_turn(receipt)

    def _commit(self, frame: Frame) -> None:
        publisher, transaction = self._publisher, self._transaction(frame)
        assert publisher is not None
        if transaction is None:
            raise malformed("COMMIT needs the header 'transaction'")
        del self._transactions[frame.get("transaction")]
        publisher.commit(transaction, self._answer(frame.get("receipt")))

    def _abort(self, frame: Frame) -> None:
        transaction = self._transaction(frame)
        if transaction is None:
            raise malformed("ABORT needs the header 'transaction'")
        del self._transactions[frame.get("transaction")]
        transaction.abort()
        if receipt := frame.get("receipt"):
            self._receipt_in_turn(receipt)

    def _disconnect(self, frame: Frame) -> None:
        """End on the client's request; the receipt says that everything before it is stored."""
        context, receipt = self._context, frame.get("receipt")
        assert context is not None
        self._leave()
        if not receipt:
            self._close()
            return
        self._is_ending = True  # nothing counts behind a DISCONNECT

        def stored(error: HeadraceError | None) -> None:
            if self._wire is not None:
                command, headers = (RECEIPT, [("receipt-id", receipt)])
                if error is not None:
                    command, headers = ERROR, [("message", str(error)), ("receipt-id", receipt)]
                self._wire.send(encode_frame(command, headers, context.version))
            self._close()

        context.broker.when_safe(stored)

    # -- receipts ------------------------------------------------------------------------------------------------------

    def _answer(self, receipt: str) -> Callable[[HeadraceError | None], None]:
        """A callback that sends the receipt once all is stored, or ends the connection."""

        def answer(error: HeadraceError | None) -> None:
            context = self._context
            if context is None or self._is_ending:
                return
            if error is not None:
                self.end(error, receipt)
            elif receipt:
                context.wire.send(encode_frame(RECEIPT, [("receipt-id", receipt)], context.version))

        return answer

    def _receipt_when_safe(self, frame: Frame) -> None:
        """Send the receipt that a frame asks for, once its effect would survive a crash."""
        receipt, context = frame.get("receipt"), self._context
        if receipt and context is not None:
            context.broker.when_safe(self._answer(receipt))

    def _receipt_in_turn(self, receipt: str) -> None:
        """Send a receipt behind those of the messages so far: the frame itself stored nothing."""
        if self._context is not None:
            self._context.broker.in_turn(self._answer(receipt))

    # -- the end -----------------------------------------------------------------------------------------------------

    def end(self, error: HeadraceError, receipt: str = "") -> None:
        """Tell the client why, and close."""
        if self._is_ending or self._wire is None:
            return
        text = str(error)
        headers = [("message", text.partition("\n")[0][:255]), (CONTENT_TYPE, "text/plain")]
        if receipt:
            headers.append(("receipt-id", receipt))
        self._wire.send(encode_frame(ERROR, headers, self._decoder.version, text.encode()))
        self._leave()
        self._close()

    def _close(self) -> None:
        self._is_ending = True
        self._decoder.clear()
        self._note_intake()
        if self._wire is not None:
            self._wire.close()

    def _leave(self) -> None:
        """End the subscriptions and the client; what was not committed is forgotten."""
        context, subscriptions = self._context, self._subscriptions
        self._transactions.clear()
        self._publisher = self._subscriptions = None
        self._context = None
        if context is not None and subscriptions is not None:
            context.broker.in_steps(subscriptions.close())
            context.client.leave()

    def _note_intake(self) -> None:
        """Report the memory of an incomplete frame and of transactions."""
        staged = sum([each.size_bytes for each in self._transactions.values()])
        self._inlet.note(0 if self._is_ending else self._decoder.held_bytes + self._buffered_bytes + staged)


def _login(frame: Frame, wire: Wire) -> Login | None:
    """The login of a CONNECT. Without one, a certificate counts, and a client from this machine is guest."""
    user, password = frame.headers.get("login"), frame.get("passcode").encode(errors="surrogateescape")
    if user is not None:
        return Login(user, password, wire.address, wire.is_loopback)
    if wire.certificate_name:
        return Login(wire.certificate_name, None, wire.address, wire.is_loopback)
    if wire.is_loopback:
        return Login(GUEST, GUEST.encode(), wire.address, wire.is_loopback)
    return None


def _beats(text: str) -> tuple[int, int]:
    """Our interval and the client's in milliseconds; 0 for no heart-beats. Raises ProtocolError."""
    able, comma, wanted = text.partition(",")
    able, wanted = able.strip(), wanted.strip()
    for each in (able, wanted):
        if not (comma and each.isascii() and each.isdecimal() and len(each) <= 10):
            raise malformed(f"the header 'heart-beat' is two numbers of milliseconds, not {text[:32]!r}")
    return _bounded(int(wanted)), _bounded(int(able))


def _bounded(interval_ms: int) -> int:
    return min(max(interval_ms, _LEAST_BEAT_MS), _MAX_BEAT_MS) if interval_ms else 0


_HANDLERS: Final[dict[str, Callable[[Connection, Frame], None]]] = {
    "SEND": Connection._send,
    "SUBSCRIBE": Connection._subscribe,
    "UNSUBSCRIBE": Connection._unsubscribe,
    "ACK": Connection._ack,
    "NACK": Connection._nack,
    "BEGIN": Connection._begin_transaction,
    "COMMIT": Connection._commit,
    "ABORT": Connection._abort,
    "DISCONNECT": Connection._disconnect,
}

"""Transactions: declared and discharged by messages to a coordinator; what they did is done by core as one."""

import secrets
from typing import TYPE_CHECKING, Final, final

from headrace.core.queue.dispatch import Delivery
from headrace.core.queue.group import NACK
from headrace.core.transaction import Publish
from headrace.errors import HeadraceError, ProtocolError, Refused
from headrace.protocols.amqp10.conditions import error_for
from headrace.protocols.amqp10.frames import (
    DECLARE,
    DECODE_ERROR,
    DISCHARGE,
    RESOURCE_LIMIT,
    TRANSACTION_ROLLBACK,
    UNKNOWN_TRANSACTION,
    VALUE,
    Fields,
)
from headrace.protocols.amqp10.links import Incoming, IncomingLink, Sink
from headrace.protocols.amqp10.performatives import ACCEPTED, Declared, Rejected, Transactional
from headrace.protocols.amqp10.reading import Reader
from headrace.protocols.amqp10.sections import joined, split
from headrace.protocols.amqp10.subscriptions import settlement_of
from headrace.protocols.amqp10.types import Described, Symbol

if TYPE_CHECKING:
    from headrace.protocols.amqp10.context import ConnectionContext
    from headrace.protocols.amqp10.links import OutgoingLink

_MAX_OPEN: Final = 256
_MAX_PUBLISHES: Final = 100_000
_MAX_BYTES: Final = 128 << 20
_STAGED_BYTES: Final = 512
"""Memory that a staged message takes besides its payload and properties."""
_NAMES: Final = {"amqp:declare:list": DECLARE, "amqp:discharge:list": DISCHARGE}


@final
class _Staged:
    """What one transaction has done so far."""

    __slots__ = ("publishes", "settled", "settlements", "size_bytes")

    def __init__(self) -> None:
        self.publishes: list[Publish] = []
        self.settlements: list[tuple[Delivery, int]] = []
        self.settled: list[tuple[OutgoingLink, int, bool]] = []
        """The deliveries of those, by link and number, and whether the receiver has settled them."""
        self.size_bytes = 0


@final
class Transactions:
    """The open transactions of one connection."""

    def __init__(self, peer: "ConnectionContext") -> None:
        self._peer = peer
        self._open: dict[bytes, _Staged] = {}

    def declare(self) -> bytes:
        if len(self._open) >= _MAX_OPEN:
            raise ProtocolError(RESOURCE_LIMIT, f"{_MAX_OPEN} transactions are open already")
        name = secrets.token_bytes(8)
        self._open[name] = _Staged()
        return name

    def post(self, link: IncomingLink, delivery: Incoming, publish: Publish) -> None:
        """A message is published if its transaction is committed. Raises ProtocolError (unknown id, too much)."""
        assert isinstance(delivery.state, Transactional)
        staged = self._staged(delivery.state.transaction)
        size_bytes = len(publish.message.payload) + len(publish.message.properties) + _STAGED_BYTES
        staged.size_bytes += size_bytes
        self._peer.held_bytes += size_bytes
        if staged.size_bytes > _MAX_BYTES or len(staged.publishes) >= _MAX_PUBLISHES:
            raise ProtocolError(
                RESOURCE_LIMIT, f"a transaction holds at most {_MAX_PUBLISHES} messages with {_MAX_BYTES} bytes"
            )
        staged.publishes.append(publish)
        if not delivery.settled:
            link.done(delivery.number, Transactional(delivery.state.transaction, ACCEPTED))

    def retire(self, link: "OutgoingLink", number: int, state: Transactional, settled: bool) -> None:
        """A delivery ends so if its transaction is committed. Raises ProtocolError (unknown id)."""
        staged = self._staged(state.transaction)
        sent = link.unsettled[number]
        if state.outcome is None or sent.delivery is None:
            return
        sent.state = state
        staged.settlements.append((sent.delivery, settlement_of(self._peer.broker, sent.delivery, state.outcome)))
        staged.settled.append((link, number, settled))
        if settled:
            link.forget(number)

    def _staged(self, name: bytes) -> _Staged:
        staged = self._open.get(name)
        if staged is None:
            raise ProtocolError(UNKNOWN_TRANSACTION, f"there is no open transaction {name.hex()[:32]}")
        return staged

    def commit(self, name: bytes, link: IncomingLink, number: int) -> None:
        """All of it happens now, or nothing does; the link is told when that is safe."""
        staged = self._close(name)
        here = [(delivery, how) for delivery, how in staged.settlements if not delivery.group.queue.is_gone]

        def committed(error: HeadraceError | None) -> None:
            if error is None:
                self._settle(staged)
                link.done(number, ACCEPTED)
                return
            self._undo(staged)
            link.done(number, Rejected(error_for(ProtocolError(TRANSACTION_ROLLBACK, str(error)))))

        try:
            self._peer.broker.transaction(staged.publishes, here, committed)
        except HeadraceError as error:
            committed(error)

    def roll_back(self, name: bytes) -> None:
        self._undo(self._close(name))

    def _close(self, name: bytes) -> _Staged:
        """Take a transaction from those that are open. Raises ProtocolError (unknown id)."""
        staged = self._staged(name)
        del self._open[name]
        self._peer.held_bytes -= staged.size_bytes
        return staged

    def end(self) -> None:
        """Whoever began them is gone: none of them happens."""
        for name in list(self._open):
            self.roll_back(name)

    def _settle(self, staged: _Staged) -> None:
        for link, number, settled in staged.settled:
            if not settled and not link.is_over and number in link.unsettled:
                state = link.unsettled[number].state
                link.forget(number)
                link.tell_settled(number, state)

    def _undo(self, staged: _Staged) -> None:
        """What the receiver settled in vain comes back; what it did not settle is still with it."""
        for (delivery, _), (link, number, settled) in zip(staged.settlements, staged.settled, strict=True):
            if number in link.unsettled:
                link.unsettled[number].state = None
            if settled:
                try:
                    self._peer.broker.settle(delivery, NACK)
                except Refused:
                    continue  # it went back with its consumer


@final
class CoordinatorSink(Sink):
    """Takes what is sent to a coordinator. Its transactions end with it."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._mine: list[bytes] = []

    def take(self, link: IncomingLink, delivery: Incoming) -> None:
        number, fields = _request(delivery.message)
        try:
            if number == DECLARE:
                name = self._transactions.declare()
                self._mine.append(name)
                link.done(delivery.number, Declared(name))
                return
            wanted = fields.binary(0, "txn-id") or b""
            if fields.flag(1, "fail"):
                self._transactions.roll_back(wanted)
                link.done(delivery.number, ACCEPTED)
            else:
                self._transactions.commit(wanted, link, delivery.number)
            if wanted in self._mine:
                self._mine.remove(wanted)
        except HeadraceError as error:
            link.done(delivery.number, Rejected(error_for(error)))

    def end(self, is_closed: bool) -> None:
        for name in self._mine:
            self._transactions.roll_back(name)
        self._mine.clear()


def _request(message: bytes) -> tuple[int, Fields]:
    """What a coordinator is asked for. Raises ProtocolError."""
    properties, payload = split(message)
    body = joined(bytes([properties[0] & 0x7F]), payload)
    reader = Reader(body)
    value = reader.value() if body else None
    if isinstance(value, Described) and value.descriptor in (VALUE, "amqp:amqp-value:*"):
        value = value.value
    if isinstance(value, Described) and isinstance(value.value, list):
        descriptor = value.descriptor
        number = _NAMES.get(descriptor) if isinstance(descriptor, Symbol) else descriptor
        if number in (DECLARE, DISCHARGE) and isinstance(number, int):
            return int(number), Fields("declare" if number == DECLARE else "discharge", value.value)
    raise ProtocolError(DECODE_ERROR, "a coordinator takes declare and discharge")

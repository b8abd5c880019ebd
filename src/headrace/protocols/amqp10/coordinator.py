"""Transactions: messages to a coordinator declare and discharge them, and core commits each with one batch."""

import secrets
from typing import Final, final

from headrace.core.queue.dispatch import Delivery
from headrace.core.queue.group import NACK
from headrace.core.transaction import Publish
from headrace.errors import HeadraceError, ProtocolError, Refused
from headrace.protocols.amqp10 import frames
from headrace.protocols.amqp10.context import ConnectionContext
from headrace.protocols.amqp10.performatives import (
    ACCEPTED,
    Declare,
    Declared,
    Rejected,
    Transactional,
    error_for,
    request_of,
)
from headrace.protocols.amqp10.session import Incoming, IncomingLink, OutgoingLink, Sink
from headrace.protocols.amqp10.subscriptions import settlement_of
from headrace.wire.amqp10 import VALUE, joined, split
from headrace.wire.amqp10_values import Reader, descriptor_number
from headrace.wire.types import Described

_MAX_OPEN: Final = 256
_MAX_PUBLISHES: Final = 100_000
_MAX_BYTES: Final = 128 << 20
_STAGED_BYTES: Final = 512
"""Memory of a staged message besides its payload and properties."""


@final
class _Settlement:
    """A delivery that a transaction settles when it commits."""

    __slots__ = ("delivery", "how", "is_settled", "link", "number", "state")

    def __init__(
        self, link: OutgoingLink, number: int, delivery: Delivery, how: int, state: Transactional, is_settled: bool
    ) -> None:
        self.link = link
        self.number = number
        self.delivery = delivery
        self.how = how
        self.state = state
        self.is_settled = is_settled
        """True if the receiver has settled it, and expects no answer."""


@final
class _Transaction:
    """The publishes and settlements of one transaction so far."""

    __slots__ = ("publishes", "settlements", "size_bytes")

    def __init__(self) -> None:
        self.publishes: list[Publish] = []
        self.settlements: list[_Settlement] = []
        self.size_bytes = 0


@final
class Transactions:
    """The open transactions of one connection."""

    def __init__(self, context: ConnectionContext) -> None:
        self._context = context
        self._open: dict[bytes, _Transaction] = {}

    def declare(self) -> bytes:
        if len(self._open) >= _MAX_OPEN:
            raise ProtocolError(frames.RESOURCE_LIMIT, f"{_MAX_OPEN} transactions are open already")
        name = secrets.token_bytes(8)
        self._open[name] = _Transaction()
        return name

    def post(self, link: IncomingLink, delivery: Incoming, publish: Publish) -> None:
        """Stage a message. Raises ProtocolError (unknown id, resource limit)."""
        assert isinstance(delivery.state, Transactional)
        transaction = self._find(delivery.state.transaction)
        size_bytes = len(publish.message.payload) + len(publish.message.properties) + _STAGED_BYTES
        transaction.size_bytes += size_bytes
        self._context.held_bytes += size_bytes
        if transaction.size_bytes > _MAX_BYTES or len(transaction.publishes) >= _MAX_PUBLISHES:
            error = f"a transaction holds at most {_MAX_PUBLISHES} messages with {_MAX_BYTES} bytes"
            raise ProtocolError(frames.RESOURCE_LIMIT, error)
        transaction.publishes.append(publish)
        if not delivery.settled:
            link.done(delivery.number, Transactional(delivery.state.transaction, ACCEPTED))

    def retire(self, link: OutgoingLink, number: int, state: Transactional, is_settled: bool) -> None:
        """Stage the settlement of a delivery. Raises ProtocolError (unknown id)."""
        transaction = self._find(state.transaction)
        delivery = link.unsettled[number]
        if state.outcome is None or delivery is None:
            return
        how = settlement_of(delivery, state.outcome)
        transaction.settlements.append(_Settlement(link, number, delivery, how, state, is_settled))
        if is_settled:
            link.forget(number)

    def _find(self, name: bytes) -> _Transaction:
        transaction = self._open.get(name)
        if transaction is None:
            raise ProtocolError(frames.UNKNOWN_TRANSACTION, f"there is no open transaction {name.hex()[:32]}")
        return transaction

    def commit(self, name: bytes, link: IncomingLink, number: int) -> None:
        """Do all of it or nothing. The link hears of it when the commit is durable."""
        transaction = self._close(name)
        here = [(one.delivery, one.how) for one in transaction.settlements if not one.delivery.group.queue.is_gone]

        def committed(error: HeadraceError | None) -> None:
            if error is None:
                self._tell_settled(transaction)
                link.done(number, ACCEPTED)
                return
            self._undo(transaction)
            link.done(number, Rejected(error_for(ProtocolError(frames.TRANSACTION_ROLLBACK, str(error)))))

        try:
            self._context.broker.transaction(transaction.publishes, here, committed)
        except HeadraceError as error:
            committed(error)

    def roll_back(self, name: bytes) -> None:
        self._undo(self._close(name))

    def _close(self, name: bytes) -> _Transaction:
        """Remove a transaction from the open ones. Raises ProtocolError (unknown id)."""
        transaction = self._find(name)
        del self._open[name]
        self._context.held_bytes -= transaction.size_bytes
        return transaction

    def end(self) -> None:
        """Roll back all transactions: the connection is over."""
        for name in list(self._open):
            self.roll_back(name)

    def _tell_settled(self, transaction: _Transaction) -> None:
        for one in transaction.settlements:
            if not one.is_settled and not one.link.is_over and one.number in one.link.unsettled:
                one.link.forget(one.number)
                one.link.tell_settled(one.number, one.state)

    def _undo(self, transaction: _Transaction) -> None:
        """Redeliver messages that the receiver settled in vain. It still holds the others."""
        for one in transaction.settlements:
            if one.is_settled:
                try:
                    self._context.broker.settle(one.delivery, NACK)
                except Refused:
                    continue  # it went back with its consumer


@final
class CoordinatorSink(Sink):
    """Takes the requests to a coordinator. Its transactions end with it."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._mine: list[bytes] = []

    def take(self, link: IncomingLink, delivery: Incoming) -> None:
        described = _request_in(delivery.message)
        try:
            request = request_of(described)
            if isinstance(request, Declare):
                name = self._transactions.declare()
                self._mine.append(name)
                link.done(delivery.number, Declared(name))
                return
            if request.fail:
                self._transactions.roll_back(request.transaction)
                link.done(delivery.number, ACCEPTED)
            else:
                self._transactions.commit(request.transaction, link, delivery.number)
            if request.transaction in self._mine:
                self._mine.remove(request.transaction)
        except HeadraceError as error:
            link.done(delivery.number, Rejected(error_for(error)))

    def end(self) -> None:
        for name in self._mine:
            self._transactions.roll_back(name)
        self._mine.clear()


def _request_in(message: bytes) -> Described:
    """Return the body of a request to a coordinator. Raises ProtocolError."""
    properties, payload = split(message)
    body = joined(bytes([properties[0] & 0x7F]), payload)
    value = Reader(body).value() if body else None
    if isinstance(value, Described) and descriptor_number(value.descriptor) == VALUE:
        value = value.value
    number = descriptor_number(value.descriptor) if isinstance(value, Described) else -1
    if isinstance(value, Described) and isinstance(value.value, list) and number in (frames.DECLARE, frames.DISCHARGE):
        return value
    raise ProtocolError(frames.DECODE_ERROR, "a coordinator takes declare and discharge")

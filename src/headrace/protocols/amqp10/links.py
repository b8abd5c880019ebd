"""The links of a session, in and out: handles, credit, pieces, tags, outcomes. Messages are up to sinks and origins.

A link renews its sender's credit when half of it is used, so a sender never waits for it while the broker keeps up.
No link resumes deliveries: a detached link forgets them, and unsettled ones go back to their queue.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, final

from headrace.core.queue.dispatch import Consumer, Delivery
from headrace.errors import HeadraceError, ProtocolError
from headrace.protocols.amqp10 import frames
from headrace.protocols.amqp10.codec import TransferEncoder
from headrace.protocols.amqp10.performatives import (
    RELEASED,
    Attach,
    Detach,
    Disposition,
    Flow,
    Outcome,
    State,
    Transactional,
    Transfer,
    error_for,
    outcome_in,
)

if TYPE_CHECKING:
    from headrace.protocols.amqp10.session import Session

_SERIAL: Final = 0xFFFFFFFF
_HALF: Final = 0x80000000


class Link(ABC):
    """An attached link. `is_over` is set once either side has detached it."""

    def __init__(self, session: "Session", attach: Attach) -> None:
        self.session = session
        self.context = session.context
        self.name = attach.name
        self.handle = attach.handle
        self.attach = attach
        self.is_over = False

    @abstractmethod
    def flow(self, flow: Flow) -> None:
        """Take the credit, or the question, of the peer."""

    @abstractmethod
    def settle(self, number: int, disposition: Disposition) -> None:
        """Take the state of a delivery from the peer."""

    @abstractmethod
    def ending(self, is_closed: bool) -> Iterator[None]:
        """Stop sending at once, and give up all deliveries in the steps.

        A closed link also gives up what outlives a detached one.
        """

    def end(self, is_closed: bool) -> None:
        """Give up all deliveries: the peer detached the link."""
        self.context.broker.in_steps(self.ending(is_closed))

    def refresh(self) -> None:
        """Look again how much the peer and its session can take."""
        return

    def detach(self, error: HeadraceError) -> None:
        """Detach the link from this side."""
        if self.is_over:
            return
        self.session.send(Detach(self.handle, True, error_for(error)).encode())
        self.session.forget(self)
        self.is_over = True
        self.end(False)

    def steal(self) -> None:
        """Detach the link because another one of its name is attached."""
        self.detach(ProtocolError(frames.STOLEN, f"the link {self.name[:64]!r} was attached again"))


class Origin(ABC):
    """The place that the messages of an outgoing link come from."""

    consumer: Consumer | None = None
    """The consumer that core delivers to, if there is one."""
    queue = ""
    """The name of the queue, if the origin is one."""

    @abstractmethod
    def open(self, link: "OutgoingLink") -> None:
        """Take the link that messages go out on."""

    @abstractmethod
    def allow(self, count: int) -> None:
        """Let `count` messages out, and no more until the next call."""

    @abstractmethod
    def settled(self, delivery: Delivery, outcome: Outcome) -> None:
        """Settle a delivery as the receiver decided."""

    @abstractmethod
    def end(self, is_closed: bool) -> None:
        """Give up all deliveries, and also what outlives a detached link if it is closed."""

    def ending(self, is_closed: bool) -> Iterator[None]:
        """Do the same in steps. The origin sends nothing from now on."""
        return self._end_each(is_closed)

    def _end_each(self, is_closed: bool) -> Iterator[None]:
        self.end(is_closed)
        yield


@final
class OutgoingLink(Link):
    """The sending end of a link."""

    def __init__(self, session: "Session", attach: Attach, origin: Origin) -> None:
        super().__init__(session, attach)
        self.origin = origin
        self.key = (self.context.container_id, attach.name)
        """The key of its source, if that is durable."""
        self._encoder = TransferEncoder(session.channel, attach.handle, self.context.frame_max)
        self._is_settled = attach.sender_settles == frames.SENDER_SETTLED
        source = attach.source
        default = outcome_in(source.default_outcome) if source is not None else None
        self._default: Outcome = default or RELEASED
        self._delivery_count = 0
        self._credit = 0
        self._is_draining = False
        self._has_sent = False
        self._last_tag = 0
        self.unsettled: dict[int, Delivery | None] = {}
        """Unsettled deliveries by number; None for a message that no queue waits for."""
        self._settling: deque[tuple[int, State | None]] = deque()
        """Settlements on their way to storage, of which the receiver hears then."""

    # -- sending -----------------------------------------------------------------------------------------------------

    def send(self, messages: list[bytes], deliveries: list[Delivery] | None) -> None:
        """Send whole messages. Without deliveries their outcomes go nowhere."""
        session = self.session
        most = self.attach.max_message_size
        encoder = self._encoder
        out: list[bytes] = []
        settled = self._is_settled
        for at, message in enumerate(messages):
            if most and len(message) > most:
                session.send_transfers(out)
                error = f"a message of {len(message)} bytes is larger than the {most} that the receiver takes"
                self.detach(ProtocolError(frames.MESSAGE_SIZE_EXCEEDED, error))
                return
            number = session.next_delivery_id()
            tag = self._last_tag = self._last_tag + 1 & _SERIAL
            if not settled:
                self.unsettled[number] = None if deliveries is None else deliveries[at]
                session.sent[number] = self
            out += encoder.encode(number, tag, settled, message)
        count = len(messages)
        self._credit -= count
        self._delivery_count = self._delivery_count + count & _SERIAL
        self._has_sent = True
        session.send_transfers(out)

    # -- credit ------------------------------------------------------------------------------------------------------

    def flow(self, flow: Flow) -> None:
        if flow.link_credit is not None:
            limit = (flow.delivery_count or 0) + flow.link_credit
            credit = limit - self._delivery_count & _SERIAL
            self._credit = credit if credit < _HALF else 0
        self._is_draining = flow.drain
        if flow.drain:
            self._drain_soon()
        elif flow.echo:
            self._send_flow()

    def refresh(self) -> None:
        room = self.session.room
        self.origin.allow(min(self._credit, room))
        if self._is_draining and self._credit and room:
            self._drain_soon()

    def _drain_soon(self) -> None:
        """Drain once core has delivered all ready messages."""
        self._has_sent = False
        self.context.broker.after_delivery(self.origin.queue, self._drain)

    def _drain(self) -> None:
        """Give back the credit that there is no message for."""
        if self.is_over or not self._is_draining:
            return
        if self._credit and self._has_sent:
            self.refresh()  # there may be more
            return
        if self._credit and not self.session.room:
            return  # the session calls `refresh` when there is room
        self._is_draining = False
        self._delivery_count = self._delivery_count + self._credit & _SERIAL
        self._credit = 0
        self.origin.allow(0)
        self._send_flow(drain=True)

    def _send_flow(self, drain: bool = False) -> None:
        self.session.send_flow(self.handle, self._delivery_count, self._credit, drain)

    # -- settling ----------------------------------------------------------------------------------------------------

    def settle(self, number: int, disposition: Disposition) -> None:
        state = disposition.state
        if isinstance(state, Transactional):
            self.session.transactions.retire(self, number, state, disposition.settled)
            return
        outcome = outcome_in(state)
        if outcome is None and not disposition.settled:
            return  # progress of the receiver, which decides nothing
        delivery = self.unsettled[number]
        self.forget(number)
        if delivery is not None:
            self.origin.settled(delivery, outcome or self._default)
        if disposition.settled:
            return
        if delivery is None or not delivery.group.queue.durable:
            self.tell_settled(number, state)
        else:  # the receiver forgets it then, so no crash may bring it back
            self._settling.append((number, state))
            self.context.broker.when_safe(self._stored)

    def _stored(self, error: HeadraceError | None) -> None:
        """Tell of the next settlement: core answers in the order of the calls."""
        number, state = self._settling.popleft()
        if self.is_over:
            return
        if error is None:
            self.tell_settled(number, state)
        else:  # storage failed, and core tries again
            self._settling.append((number, state))
            self.context.broker.when_safe(self._stored)

    def forget(self, number: int) -> None:
        self.unsettled.pop(number, None)
        self.session.sent.pop(number, None)

    def tell_settled(self, number: int, state: State | None) -> None:
        self.session.send(Disposition(self.session.channel, False, number, number, True, state).encode())

    # -- the end -----------------------------------------------------------------------------------------------------

    def ending(self, is_closed: bool) -> Iterator[None]:
        for number in self.unsettled:
            self.session.sent.pop(number, None)
        if is_closed:
            self.context.host.sources.forget(self.key)
        else:
            self.context.host.sources.detached(self.key)
        return self.origin.ending(is_closed)


_MAX_UNSETTLED: Final = 10_000
_PART_BYTES: Final = 64
"""Memory of a part of a message besides its bytes."""
_UNSETTLED_BYTES: Final = 256
"""Memory of a delivery that its sender has to settle first."""


@final
class Incoming:
    """A whole delivery from the peer."""

    __slots__ = ("format", "message", "number", "settled", "state")

    def __init__(self, first: Transfer, settled: bool, message: bytes) -> None:
        self.number = first.id
        self.settled = settled
        self.state = first.state
        self.format = first.message_format
        self.message = message


class Sink(ABC):
    """The place that the messages of an incoming link go to."""

    @abstractmethod
    def take(self, link: "IncomingLink", delivery: Incoming) -> None:
        """Take a delivery, and call `link.done` unless it is settled. A HeadraceError ends the link."""

    @abstractmethod
    def end(self) -> None:
        """Let go of everything: the link is gone."""


@final
class IncomingLink(Link):
    """The receiving end of a link."""

    def __init__(self, session: "Session", attach: Attach, sink: Sink) -> None:
        super().__init__(session, attach)
        self._sink = sink
        self._settles_second = attach.receiver_settles == frames.RECEIVER_SECOND
        self._delivery_count = attach.initial_delivery_count or 0
        self._credit = 0
        self._first: Transfer | None = None
        """The first piece of a delivery of which more pieces follow."""
        self._parts: list[bytes] = []
        self._size = 0
        self._held_bytes = 0
        self._settled = False
        self._unsettled: set[int] = set()
        """Deliveries that the sender has to settle first."""

    def grant(self) -> None:
        """Give the sender its full credit."""
        self._credit = frames.LINK_CREDIT
        self._send_flow()

    def _grant_more(self) -> None:
        """Renew the credit before the sender runs out, unless it leaves too many deliveries unsettled."""
        if self._credit < frames.LINK_CREDIT // 2 and len(self._unsettled) < _MAX_UNSETTLED:
            self.grant()

    def _send_flow(self) -> None:
        self.session.send_flow(self.handle, self._delivery_count, self._credit)

    # -- deliveries --------------------------------------------------------------------------------------------------

    def transfer(self, transfer: Transfer) -> None:
        if self._first is not None:
            self._continue(transfer)
            return
        if self._credit <= 0:
            error = f"a delivery on the link {self.name[:64]!r} without credit"
            raise ProtocolError(frames.TRANSFER_LIMIT_EXCEEDED, error)
        if transfer.id < 0 or transfer.tag is None or len(transfer.tag) > frames.MAX_TAG_BYTES:
            error = f"a delivery needs an id and a tag of at most {frames.MAX_TAG_BYTES} bytes"
            raise ProtocolError(frames.INVALID_FIELD, error)
        self._credit -= 1
        self._delivery_count = self._delivery_count + 1 & _SERIAL
        self._grant_more()
        if transfer.more and not transfer.aborted:
            self._first = transfer
            self._settled = transfer.settled is True
            self._size = 0
            self._add(transfer.payload)
        elif not transfer.aborted:
            self._take(transfer, transfer.settled is True, transfer.payload)

    def _continue(self, transfer: Transfer) -> None:
        first = self._first
        assert first is not None
        if transfer.id >= 0 and transfer.id != first.id:
            error = f"delivery {transfer.id} begins before delivery {first.id} has ended"
            raise ProtocolError(frames.INVALID_FIELD, error)
        if transfer.aborted:
            self._drop()
            return
        self._settled = self._settled or transfer.settled is True
        self._add(transfer.payload)
        if transfer.state is not None:
            first.state = transfer.state
        if transfer.more:
            return
        message = b"".join(self._parts)
        settled = self._settled
        self._drop()
        self._take(first, settled, message)

    def _add(self, piece: bytes) -> None:
        self._size += len(piece)
        most = self.context.broker.intake.largest_bytes
        if self._size > most:
            self._drop()
            raise ProtocolError(frames.MESSAGE_SIZE_EXCEEDED, f"a message is larger than {most} bytes")
        self._parts.append(piece)
        self._held_bytes += len(piece) + _PART_BYTES
        self.context.held_bytes += len(piece) + _PART_BYTES

    def _drop(self) -> None:
        self._first = None
        self._parts = []
        self.context.held_bytes -= self._held_bytes
        self._held_bytes = 0

    def _take(self, first: Transfer, settled: bool, message: bytes) -> None:
        number = first.id
        if not settled and (self._settles_second or first.receiver_settles == frames.RECEIVER_SECOND):
            if number not in self._unsettled:
                self.context.held_bytes += _UNSETTLED_BYTES
            self._unsettled.add(number)
            self.session.received[number] = self
        self._sink.take(self, Incoming(first, settled, message))

    # -- outcomes ----------------------------------------------------------------------------------------------------

    def done(self, number: int, state: State) -> None:
        """Tell the sender the outcome of a delivery."""
        if not self.is_over:
            self.session.answer(number, state, number not in self._unsettled)

    def settle(self, number: int, disposition: Disposition) -> None:
        """Forget a delivery: its sender knows the outcome."""
        if disposition.settled:
            self.session.received.pop(number, None)
            if number in self._unsettled:
                self._unsettled.discard(number)
                self.context.held_bytes -= _UNSETTLED_BYTES
            self._grant_more()

    # -- flow and end ------------------------------------------------------------------------------------------------

    def flow(self, flow: Flow) -> None:
        if flow.delivery_count is not None:
            skipped = flow.delivery_count - self._delivery_count & _SERIAL
            if skipped < _HALF:
                self._delivery_count = flow.delivery_count
                self._credit = max(self._credit - skipped, 0)
        self._grant_more()
        if flow.echo:
            self._send_flow()

    def ending(self, is_closed: bool) -> Iterator[None]:
        self._drop()
        self.context.held_bytes -= _UNSETTLED_BYTES * len(self._unsettled)
        for number in self._unsettled:
            self.session.received.pop(number, None)
        self._unsettled.clear()
        self._sink.end()
        return iter(())

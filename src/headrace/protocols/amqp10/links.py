"""The links of a session, in and out: names, handles, credit, pieces, tags, outcomes. Messages are others' affair.

Credit is given again when half of it is used, so that a sender never waits for it while the broker keeps up.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, final

from headrace.core.queue.dispatch import Consumer, Delivery
from headrace.errors import HeadraceError, ProtocolError
from headrace.protocols.amqp10.codec import TransferEncoder, encode_frame
from headrace.protocols.amqp10.conditions import error_for
from headrace.protocols.amqp10.frames import (
    INVALID_FIELD,
    LINK_CREDIT,
    MAX_TAG_BYTES,
    MESSAGE_SIZE_EXCEEDED,
    RECEIVER_SECOND,
    SENDER_SETTLED,
    STOLEN,
    TRANSFER_LIMIT_EXCEEDED,
)
from headrace.protocols.amqp10.performatives import (
    ACCEPTED,
    RELEASED,
    Attach,
    Detach,
    Disposition,
    Flow,
    Outcome,
    State,
    Transactional,
    Transfer,
    outcome_in,
)

if TYPE_CHECKING:
    from headrace.protocols.amqp10.session import Session


class Link(ABC):
    """An attached link. `is_over` once it was detached by either side."""

    def __init__(self, session: "Session", attach: Attach) -> None:
        self.session = session
        self.peer = session.peer
        self.name = attach.name
        self.key = (session.peer.container_id, attach.name)
        """What it is found again by when it is resumed."""
        self.handle = attach.handle
        self.attach = attach
        self.is_over = False

    @abstractmethod
    def flow(self, flow: Flow) -> None:
        """The peer says what credit there is, or asks."""

    @abstractmethod
    def settle(self, number: int, disposition: Disposition) -> None:
        """The peer says what has become of a delivery."""

    @abstractmethod
    def end(self, is_closed: bool) -> None:
        """The peer detached the link, for good or perhaps to resume it; nothing is sent any more."""

    def end_with_session(self) -> Iterator[None]:
        """The session is over, and the link with it; what is long of that is done in the steps."""
        self.end(False)
        return iter(())

    @abstractmethod
    def abandon(self) -> None:
        """We detached the link: what is unsettled goes back, what outlives links stays."""

    def steal(self) -> None:
        """Another link takes over: detach this one from this side, so that the other can resume it."""
        if self._detach(ProtocolError(STOLEN, f"the link {self.name[:64]!r} was attached again")):
            self.end(False)

    def refresh(self) -> None:
        """The peer or its session can take more again, or cannot."""
        return

    def detach(self, error: HeadraceError | None) -> None:
        """Detach the link from this side; it cannot be resumed."""
        if self._detach(error):
            self.abandon()

    def _detach(self, error: HeadraceError | None) -> bool:
        if self.is_over:
            return False
        detach = Detach(self.handle, True, None if error is None else error_for(error))
        self.session.send(detach.encode())
        self.session.forget(self)
        self.is_over = True
        return True


_SERIAL: Final = 0xFFFFFFFF
_HALF: Final = 0x80000000
_BY_OFFSET: Final = 1 << 63
"""Set in tags that are made from offsets: those have eight bytes, the others four."""


@final
class Sent:
    """A delivery that went out and is not settled; None where nobody waits to hear of it."""

    __slots__ = ("delivery", "state", "tag")

    def __init__(self, tag: int, delivery: Delivery | None) -> None:
        self.tag = tag
        self.delivery = delivery
        self.state: State | None = None

    @property
    def tag_bytes(self) -> bytes:
        return self.tag.to_bytes(8 if self.tag & _BY_OFFSET else 4)


def offset_tag(delivery: Delivery) -> int:
    """A tag that is the same after a restart: where the message is in its log, and which attempt it is."""
    return _BY_OFFSET | (delivery.offset & 0x7FFFFFFFFFFF) << 16 | delivery.attempts & 0xFFFF


def place_in(tag: int) -> int:
    """What such a tag says of the message alone: the same for all attempts; 0 for another tag."""
    return tag >> 16 if tag & _BY_OFFSET else 0


class Origin(ABC):
    """Where what goes out on a link comes from."""

    consumer: Consumer | None = None
    """Whom core delivers to for it, if anybody."""
    queue = ""
    """The queue that it is, if it is one."""
    tags_by_offset = False
    """Whether deliveries are known again by their tags after a restart."""

    @abstractmethod
    def open(self, link: "OutgoingLink") -> None:
        """This is the link that messages go out on."""

    @abstractmethod
    def allow(self, count: int) -> None:
        """So many messages may be sent and then no more, until it is called again."""

    @abstractmethod
    def settled(self, delivery: Delivery, outcome: Outcome) -> None:
        """The receiver is done with this."""

    @abstractmethod
    def leave(self) -> None:
        """No more messages are wanted; what is unsettled stays with the link."""

    @abstractmethod
    def end(self, is_closed: bool) -> None:
        """The link is gone, and what is unsettled with it; for good where it was closed."""

    def ending(self, is_closed: bool) -> Iterator[None]:
        """The same in steps; nothing is sent from now on."""
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
        self._encoder = TransferEncoder(session.channel, attach.handle, session.peer.frame_max, origin.tags_by_offset)
        self._is_settled = attach.sender_settles == SENDER_SETTLED
        source = attach.source
        default = outcome_in(source.default_outcome) if source is not None else None
        self._default: Outcome = default or RELEASED
        self._delivery_count = 0
        self._credit = 0
        self._is_draining = False
        self._has_sent = False
        self.last_tag = 0
        self.unsettled: dict[int, Sent] = {}
        self.dormant: list[Sent] = []
        """What is unsettled and waits for another attach, as its receiver's list of it was not complete."""
        self._settling: deque[Callable[[], None]] = deque()
        """What the receiver is told as its settlements are stored."""

    # -- sending -----------------------------------------------------------------------------------------------------

    def send(self, messages: list[bytes], deliveries: list[Delivery] | None) -> None:
        """Send whole messages; without deliveries nobody is told what becomes of them."""
        session = self.session
        most = self.attach.max_message_size
        encoder = self._encoder
        out: list[bytes] = []
        settled = self._is_settled
        by_offset = self.origin.tags_by_offset
        for at, message in enumerate(messages):
            if most and len(message) > most:
                session.send_transfers(out)
                error = f"a message of {len(message)} bytes is larger than the {most} that the receiver takes"
                self.detach(ProtocolError(MESSAGE_SIZE_EXCEEDED, error))
                return
            number = session.next_delivery_id()
            if by_offset and deliveries is not None:
                tag = offset_tag(deliveries[at])
            else:
                tag = self.last_tag = self.last_tag + 1 & _SERIAL
            if not settled:
                self.unsettled[number] = Sent(tag, None if deliveries is None else deliveries[at])
                session.sent[number] = self
            out += encoder.encode(number, tag, settled, message)
        count = len(messages)
        self._credit -= count
        self._delivery_count = self._delivery_count + count & _SERIAL
        self._has_sent = True
        session.send_transfers(out)

    def resume(self, sent: Sent, message: bytes, settled: bool) -> None:
        """Send again, under its tag, what was unsettled when the link was detached."""
        transfer = Transfer(self.session.channel, self.handle)
        transfer.id = self.session.next_delivery_id()
        transfer.tag = sent.tag_bytes
        transfer.settled = settled
        transfer.state = sent.state
        transfer.resume = True
        if not settled:
            self.unsettled[transfer.id] = sent
            self.session.sent[transfer.id] = self
        most = self.peer.frame_max - 128
        pieces = [message[at : at + most] for at in range(0, len(message), most)] or [b""]
        frames: list[bytes] = []
        for at, piece in enumerate(pieces, 1):
            transfer.more = at < len(pieces)
            frames.append(encode_frame(self.session.channel, transfer.encode(), piece))
        self.session.send_transfers(frames)

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
        """Look again once what is ready was delivered."""
        self._has_sent = False
        self.peer.broker.after_delivery(self.origin.queue, self._drain)

    def _drain(self) -> None:
        """Give back the credit that no message is there for."""
        if self.is_over or not self._is_draining:
            return
        if self._credit and self._has_sent:
            self.refresh()  # there may be more
            return
        if self._credit and not self.session.room:
            return  # `refresh` is called when there is room
        self._is_draining = False
        self._delivery_count = self._delivery_count + self._credit & _SERIAL
        self._credit = 0
        self.origin.allow(0)
        self._send_flow(drain=True)

    def _send_flow(self, drain: bool = False) -> None:
        flow = self.session.state()
        flow.handle = self.handle
        flow.delivery_count = self._delivery_count
        flow.link_credit = self._credit
        flow.drain = drain
        self.session.send(flow.encode())

    # -- settling ----------------------------------------------------------------------------------------------------

    def settle(self, number: int, disposition: Disposition) -> None:
        state = disposition.state
        if isinstance(state, Transactional):
            self.session.transactions.retire(self, number, state, disposition.settled)
            return
        outcome = outcome_in(state)
        sent = self.unsettled[number]
        if outcome is None and not disposition.settled:
            sent.state = state  # how far the receiver is; nothing is decided
            return
        self.forget(number)
        if sent.delivery is not None:
            self.origin.settled(sent.delivery, outcome or self._default)
        if not disposition.settled:
            self.when_stored(sent.delivery, lambda: self.tell_settled(number, state))

    def when_stored(self, delivery: Delivery | None, tell: Callable[[], None]) -> None:
        """Tell the receiver that a delivery is settled once no crash brings it back: it may forget it then."""
        if delivery is None or not delivery.group.queue.durable:
            tell()
        else:
            self._settling.append(tell)
            self.peer.broker.when_safe(self._stored)

    def _stored(self, error: HeadraceError | None) -> None:
        """The next one is stored: core tells in the order in which it was asked."""
        tell = self._settling.popleft()
        if self.is_over:
            return
        if error is None:
            tell()
        else:  # what could not be stored is tried again
            self._settling.append(tell)
            self.peer.broker.when_safe(self._stored)

    def forget(self, number: int) -> None:
        self.unsettled.pop(number, None)
        self.session.sent.pop(number, None)

    def tell_settled(self, number: int, state: State | None) -> None:
        self.session.send(Disposition(self.session.channel, False, number, number, True, state).encode())

    def end(self, is_closed: bool) -> None:
        self._forget_all()
        suspended = self.peer.host.suspended
        if is_closed or not suspended.keep_receiver(self):
            suspended.closed(self, True)
            self.peer.broker.in_steps(self.origin.ending(is_closed))

    def end_with_session(self) -> Iterator[None]:
        source = self.attach.source
        if source is None or not source.ends_with_session:
            return super().end_with_session()
        self._forget_all()
        self.peer.host.suspended.closed(self, True)
        return self.origin.ending(True)

    def abandon(self) -> None:
        self._forget_all()
        self.peer.host.suspended.closed(self, True)
        self.peer.broker.in_steps(self.origin.ending(False))

    def _forget_all(self) -> None:
        for number in self.unsettled:
            self.session.sent.pop(number, None)


_MAX_UNSETTLED: Final = 10_000
_PART_BYTES: Final = 64
"""Memory that a part of a message takes besides its bytes."""
_UNSETTLED_BYTES: Final = 256
"""Memory that a delivery takes which its sender has to settle first."""


@final
class Incoming:
    """A whole delivery that came in."""

    __slots__ = ("format", "message", "number", "settled", "state")

    def __init__(self, first: Transfer, settled: bool, message: bytes) -> None:
        self.number = first.id
        self.settled = settled
        self.state = first.state
        self.format = first.message_format
        self.message = message


class Sink(ABC):
    """Where what comes in on a link goes."""

    @abstractmethod
    def take(self, link: "IncomingLink", delivery: Incoming) -> None:
        """See to it that `link.done` is called unless it is settled. Raises HeadraceError to have the link ended."""

    @abstractmethod
    def end(self, is_closed: bool) -> None:
        """The link is gone."""


@final
class IncomingLink(Link):
    """The receiving end of a link."""

    def __init__(self, session: "Session", attach: Attach, sink: Sink) -> None:
        super().__init__(session, attach)
        self._sink = sink
        self._settles_second = attach.receiver_settles == RECEIVER_SECOND
        self._delivery_count = attach.initial_delivery_count
        self._credit = 0
        self._first: Transfer | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._held_bytes = 0
        self._settling_bytes = 0
        self._settled = False
        self._tags: dict[int, bytes] = {}
        """The tags of deliveries that the sender has to settle first."""
        self.states: dict[bytes, State | None] = {}
        """What became of those, by tag: what a resumed link has to tell; None while it is not known."""
        self.is_exact = False
        """Whether it is stored which tags were accepted, so that it is known after a restart too."""
        self._numbers: dict[bytes, int] = {}
        """By which number each tag that is not decided yet was resumed."""
        self.heir: IncomingLink | None = None
        """The link that goes on for this one."""

    def grant(self) -> None:
        """Let the sender send."""
        self._credit = LINK_CREDIT
        self._send_flow()

    def _grant_more(self) -> None:
        """Before the sender runs out, unless it leaves too much unsettled that we have to remember."""
        if self._credit < LINK_CREDIT // 2 and len(self._tags) < _MAX_UNSETTLED:
            self.grant()

    def _send_flow(self) -> None:
        flow = self.session.state()
        flow.handle = self.handle
        flow.delivery_count = self._delivery_count
        flow.link_credit = self._credit
        self.session.send(flow.encode())

    # -- deliveries --------------------------------------------------------------------------------------------------

    def transfer(self, transfer: Transfer) -> None:
        if self._first is not None:
            self._continue(transfer)
            return
        if self._credit <= 0:
            raise ProtocolError(TRANSFER_LIMIT_EXCEEDED, f"a delivery on the link {self.name[:64]!r} without credit")
        if transfer.id < 0 or transfer.tag is None or len(transfer.tag) > MAX_TAG_BYTES:
            raise ProtocolError(INVALID_FIELD, f"a delivery needs an id and a tag of at most {MAX_TAG_BYTES} bytes")
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
            raise ProtocolError(INVALID_FIELD, f"delivery {transfer.id} begins before delivery {first.id} has ended")
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
        most = self.peer.broker.intake.largest_bytes
        if self._size > most:
            self._drop()
            raise ProtocolError(MESSAGE_SIZE_EXCEEDED, f"a message is larger than {most} bytes")
        self._parts.append(piece)
        self._held_bytes += len(piece) + _PART_BYTES
        self.peer.held_bytes += len(piece) + _PART_BYTES

    def _drop(self) -> None:
        self._first = None
        self._parts = []
        self.peer.held_bytes -= self._held_bytes
        self._held_bytes = 0

    def _take(self, first: Transfer, settled: bool, message: bytes) -> None:
        if not settled and (self._settles_second or first.receiver_settles == RECEIVER_SECOND):
            assert first.tag is not None
            if first.resume and first.tag in self.states:
                self._resume(first.id, first.tag)
                return
            self._expect(first.id, first.tag, None)
        self._sink.take(self, Incoming(first, settled, message))

    def _expect(self, number: int, tag: bytes, state: State | None) -> None:
        if number not in self._tags:
            self._settling_bytes += _UNSETTLED_BYTES
            self.peer.held_bytes += _UNSETTLED_BYTES
        self._tags[number] = tag
        self.states[tag] = state
        self.session.received[number] = self

    def _resume(self, number: int, tag: bytes) -> None:
        """It came before: say what became of it, now or when it is known."""
        known = self.states[tag]
        self._expect(number, tag, known)
        if known is None:
            self._numbers[tag] = number
        else:
            self.session.answer(number, known, False)

    def published(self, number: int) -> None:
        """The delivery was just published; if it is stored, so is its tag."""
        tag = self._tags.get(number) if self.is_exact else None
        if tag is not None:
            self.peer.host.suspended.store.accept(self.key, tag)

    # -- outcomes ----------------------------------------------------------------------------------------------------

    def done(self, number: int, state: State) -> None:
        """Tell the sender what became of a delivery."""
        tag = self._tags.get(number)
        if tag is not None:
            is_asked_for = self.heir is None or tag in self.states
            if is_asked_for:
                self.states[tag] = state
            if self.is_exact and (state is not ACCEPTED or not is_asked_for):
                self.peer.host.suspended.store.forget(self.key, tag)
        if not self.is_over:
            self.session.answer(number, state, tag is None)
        elif self.heir is not None and tag is not None:
            self.heir.inherit(tag, state)

    def inherit(self, tag: bytes, state: State) -> None:
        """What a link before this one was waiting for is known now."""
        number = self._numbers.pop(tag, None)
        if self.heir is not None:
            self.heir.inherit(tag, state)
        elif number is not None and not self.is_over:
            self.session.answer(number, state, False)

    def settle(self, number: int, disposition: Disposition) -> None:
        """The sender knows what became of it, and so we need not."""
        if disposition.settled:
            self.session.received.pop(number, None)
            tag = self._tags.pop(number, None)
            if tag is not None:
                self._settling_bytes -= _UNSETTLED_BYTES
                self.peer.held_bytes -= _UNSETTLED_BYTES
                self.forget(tag)
            self._grant_more()

    def forget(self, tag: bytes) -> None:
        """Its sender will not ask for it again."""
        if self.states.pop(tag, None) is ACCEPTED and self.is_exact:
            self.peer.host.suspended.store.forget(self.key, tag)

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

    def end(self, is_closed: bool) -> None:
        self._drop()
        self.peer.held_bytes -= self._settling_bytes
        self._settling_bytes = 0
        for number in self._tags:
            self.session.received.pop(number, None)
        suspended = self.peer.host.suspended
        if is_closed or not suspended.keep_sender(self):
            suspended.closed(self, False)
            for tag in list(self.states):
                self.forget(tag)
        self._sink.end(is_closed)

    def abandon(self) -> None:
        self.end(False)

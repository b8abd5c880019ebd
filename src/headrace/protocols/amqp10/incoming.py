"""A link whose messages come in: credit, pieces put together, outcomes told. What becomes of them is the sink's.

Credit is given again when half of it is used, so that a sender never waits for it while the broker keeps up.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, final

from headrace.errors import ProtocolError
from headrace.protocols.amqp10.frames import (
    INVALID_FIELD,
    LINK_CREDIT,
    MAX_MESSAGE_BYTES,
    MAX_TAG_BYTES,
    MESSAGE_SIZE_EXCEEDED,
    RECEIVER_SECOND,
    TRANSFER_LIMIT_EXCEEDED,
)
from headrace.protocols.amqp10.link import Link
from headrace.protocols.amqp10.performatives import Attach, Disposition, Flow, Transfer
from headrace.protocols.amqp10.states import ACCEPTED, State

if TYPE_CHECKING:
    from headrace.protocols.amqp10.session import Session

_SERIAL: Final = 0xFFFFFFFF
_HALF: Final = 0x80000000
_MAX_UNSETTLED: Final = 10_000


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
        if self._size > MAX_MESSAGE_BYTES:
            self._drop()
            raise ProtocolError(MESSAGE_SIZE_EXCEEDED, f"a message is larger than {MAX_MESSAGE_BYTES} bytes")
        self._parts.append(piece)

    def _drop(self) -> None:
        self._first = None
        self._parts = []

    def _take(self, first: Transfer, settled: bool, message: bytes) -> None:
        if not settled and (self._settles_second or first.receiver_settles == RECEIVER_SECOND):
            assert first.tag is not None
            if first.resume and first.tag in self.states:
                self._resume(first.id, first.tag)
                return
            self._expect(first.id, first.tag, None)
        self._sink.take(self, Incoming(first, settled, message))

    def _expect(self, number: int, tag: bytes, state: State | None) -> None:
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

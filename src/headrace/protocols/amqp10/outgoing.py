"""A link whose messages go out: credit, drain, tags, what is unsettled. Where they come from is the origin's."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, final

from headrace.core.delivery import Consumer, Delivery
from headrace.errors import ProtocolError
from headrace.protocols.amqp10.codec import TransferEncoder, encode_frame
from headrace.protocols.amqp10.frames import MESSAGE_SIZE_EXCEEDED, SENDER_SETTLED
from headrace.protocols.amqp10.link import Link
from headrace.protocols.amqp10.performatives import Attach, Disposition, Flow, Transfer
from headrace.protocols.amqp10.states import RELEASED, Outcome, State, Transactional, outcome_in

if TYPE_CHECKING:
    from headrace.protocols.amqp10.session import Session

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
            self.tell_settled(number, state)

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
            self.origin.end(is_closed)

    def abandon(self) -> None:
        self._forget_all()
        self.peer.host.suspended.closed(self, True)
        self.origin.end(False)

    def _forget_all(self) -> None:
        for number in self.unsettled:
            self.session.sent.pop(number, None)

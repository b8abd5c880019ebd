"""One session and its links: handles, windows, credit, pieces, tags, outcomes. Messages are up to sinks and origins.

Both windows count frames of transfers. Ours opens again when half of it is used, whatever becomes of the messages: the
credit of links bounds them, and the broker reads nothing while it has too much in hand. Frames that the peer's window
has no room for wait here, and meanwhile no link of the session gets more.

A link renews its sender's credit when half of it is used, so a sender never waits for it while the broker keeps up.
No link resumes deliveries: a detached link forgets them, and unsettled ones go back to their queue.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final, final

from headrace.core.queue.dispatch import Consumer, Delivery
from headrace.errors import AccessRefused, HeadraceError, ProtocolError
from headrace.net.facts import ChannelFacts
from headrace.protocols.amqp10 import frames
from headrace.protocols.amqp10.addresses import parse_node
from headrace.protocols.amqp10.codec import TransferEncoder, encode_accepted, encode_frame
from headrace.protocols.amqp10.context import ConnectionContext
from headrace.protocols.amqp10.frames import INCOMING_WINDOW, OUTGOING_WINDOW, ends_link_only
from headrace.protocols.amqp10.performatives import (
    ACCEPTED,
    RELEASED,
    Attach,
    Begin,
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
from headrace.protocols.answers import Answers
from headrace.wire.types import Map

if TYPE_CHECKING:
    from headrace.protocols.amqp10.coordinator import Transactions

_SERIAL: Final = 0xFFFFFFFF
_HALF: Final = 0x80000000
_MAX_UNSETTLED: Final = 10_000
_PART_BYTES: Final = 64
"""Memory of a part of a message besides its bytes."""
_UNSETTLED_BYTES: Final = 256
"""Memory of a delivery that its sender has to settle first."""


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

    def accepted(self, deliveries: list[Delivery]) -> None:
        """Settle deliveries that the receiver accepted, in their order."""
        for delivery in deliveries:
            self.settled(delivery, ACCEPTED)

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
        settled = self._is_settled
        out: list[bytes] = []
        is_row = session.takes_at_once(len(messages)) and not most and encoder.fit(messages)
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
            if is_row:
                encoder.write(number, tag, settled, message)
            else:
                out += encoder.encode(number, tag, settled, message)
        count = len(messages)
        self._credit -= count
        self._delivery_count = self._delivery_count + count & _SERIAL
        self._has_sent = True
        if is_row:
            session.send_row(encoder.take(), count)
        else:
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


@final
class Session:
    """The state of one session. Calls raise ProtocolError that ends the session or the connection."""

    def __init__(
        self,
        context: ConnectionContext,
        begin: Begin,
        transactions: "Transactions",
        attach_link: "Callable[[Session, Attach], Link]",
        failed: "Callable[[Session, HeadraceError], None]",
    ) -> None:
        """`failed` runs when storage refuses a change that an answer waits for."""
        self.context = context
        self.channel = begin.channel
        self.way_out = Answers(context.wire, context.broker, self.refresh, lambda error: failed(self, error))
        self.transactions = transactions
        self._attach_link = attach_link
        """Makes a link and answers its attach. Raises HeadraceError kinds if it cannot be."""
        self.is_closing = False
        """True once we ended the session, also while the peer has not confirmed it."""
        self._links: dict[int, Link] = {}
        self._by_name: dict[tuple[str, bool], Link] = {}
        """The same links by name and whether the peer receives on them."""
        self._detached: set[int] = set()
        """Handles that we detached and the peer has not detached yet."""
        self._most_handles = min(begin.handle_max, frames.HANDLE_MAX)
        self._next_incoming_id = begin.next_outgoing_id
        self._room = INCOMING_WINDOW
        self._next_outgoing_id = 0
        self._peer_room = begin.incoming_window
        self._waiting: deque[bytes] = deque()
        """Frames of transfers that the peer's window has no room for."""
        self._next_delivery_id = 0
        self.sent: dict[int, Link] = {}
        """The links of our unsettled deliveries."""
        self.received: dict[int, Link] = {}
        """The links of incoming deliveries that the sender has to settle first."""
        self._answers: list[tuple[int, State, bool]] = []
        self._is_answer_due = False

    def start(self) -> None:
        begin = Begin(self.channel, self._next_outgoing_id, INCOMING_WINDOW, OUTGOING_WINDOW)
        begin.handle_max = frames.HANDLE_MAX
        self.send(begin.encode())

    def send(self, performative: bytes) -> None:
        self.way_out.send(encode_frame(self.channel, performative))

    def facts(self) -> ChannelFacts:
        """Return the figures of the session for operators."""
        origins = [link.origin for link in self._links.values() if isinstance(link, OutgoingLink)]
        consumers = [origin.consumer for origin in origins if origin.consumer is not None]
        return ChannelFacts(self.channel, unsettled=len(self.sent), consumers=consumers)

    # -- links -------------------------------------------------------------------------------------------------------

    def attach(self, attach: Attach) -> None:
        handle = attach.handle
        if handle > self._most_handles:
            raise ProtocolError(frames.FRAMING_ERROR, f"handle {handle} is above the agreed {self._most_handles}")
        if handle in self._links:
            raise ProtocolError(frames.HANDLE_IN_USE, f"handle {handle} is that of another link")
        former = self._by_name.get((attach.name, attach.is_receiver))
        if former is not None:
            former.steal()
        self._detached.discard(handle)
        try:
            made = self._attach_link(self, attach)
        except HeadraceError as error:
            if not ends_link_only(error):
                raise
            self._refuse_attach(attach, error)
            return
        self._links[handle] = made
        self._by_name[attach.name, attach.is_receiver] = made
        made.refresh()

    def _refuse_attach(self, attach: Attach, error: HeadraceError) -> None:
        """Answer without the terminus that the peer asked for, then detach with the reason [2.6.3]."""
        answer = Attach(attach.name, attach.handle, not attach.is_receiver)
        if attach.is_receiver:
            answer.target = attach.target
        else:
            answer.source = attach.source
        self.send(answer.encode())
        self.send(Detach(attach.handle, True, error_for(error)).encode())
        self._detached.add(attach.handle)

    def answer_to(self, attach: Attach) -> Attach:
        """Return the answer to an attach, with the same termini."""
        answer = Attach(attach.name, attach.handle, not attach.is_receiver)
        answer.sender_settles = attach.sender_settles
        answer.receiver_settles = attach.receiver_settles
        answer.source = attach.source
        answer.target = attach.target
        answer.properties = Map([(key, value) for key, value in attach.properties.pairs if key == "paired"])
        return answer

    def confirm(self, answer: Attach) -> None:
        """Send the answer to an attach once the declarations for it are durable."""
        self.way_out.hold()
        self.send(answer.encode())

    def detach(self, detach: Detach) -> None:
        link = self._links.pop(detach.handle, None)
        if link is None:
            if detach.handle not in self._detached:
                raise _unattached(detach.handle)
            self._detached.discard(detach.handle)
            return
        link.is_over = True
        self._forget_name(link)
        link.end(detach.closed)
        self.flush_answers()
        self.way_out.hold()  # deletions that go with the link are durable first
        self.send(Detach(detach.handle, detach.closed).encode())

    def forget(self, link: Link) -> None:
        """Forget a link that we detached."""
        if self._links.get(link.handle) is link:
            del self._links[link.handle]
            self._detached.add(link.handle)
            self._forget_name(link)

    def _forget_name(self, link: Link) -> None:
        key = (link.name, link.attach.is_receiver)
        if self._by_name.get(key) is link:
            del self._by_name[key]

    def links(self) -> list[Link]:
        return list(self._links.values())

    def restrict(self) -> None:
        """Detach links from sources that the user may no longer read."""
        for link in self.links():
            if isinstance(link, OutgoingLink):
                source = link.attach.source
                if source is None or source.dynamic:
                    continue
                try:
                    self.context.check_read(parse_node(source.address, source.capabilities))
                except AccessRefused as error:
                    link.detach(error)

    def end(self) -> None:
        """Detach all links. None of them sends any more."""
        links, self._links = self._links, {}
        self._by_name.clear()
        for link in links.values():
            link.is_over = True
        self.context.broker.in_steps(chain.from_iterable([link.ending(False) for link in links.values()]))
        self._waiting.clear()
        self.sent.clear()
        self.received.clear()

    # -- input ------------------------------------------------------------------------------------------------------

    def transfer(self, transfer: Transfer) -> None:
        self._next_incoming_id = self._next_incoming_id + 1 & _SERIAL
        self._room -= 1
        if self._room < 0:
            text = f"more than {INCOMING_WINDOW} transfers without a window for them"
            raise ProtocolError(frames.WINDOW_VIOLATION, text)
        if self._room < INCOMING_WINDOW // 2:
            self._room = INCOMING_WINDOW
            self.send(self.state().encode())
        link = self._links.get(transfer.handle)
        if link is None:
            if transfer.handle in self._detached:
                return  # sent before the peer knew of the detach
            raise _unattached(transfer.handle)
        if not isinstance(link, IncomingLink):
            text = f"a transfer on the link {link.name[:64]!r}, whose receiver sent it"
            raise ProtocolError(frames.ERRANT_LINK, text)
        try:
            link.transfer(transfer)
        except HeadraceError as error:
            self.refuse(link, error)

    def refuse(self, link: Link, error: HeadraceError) -> None:
        """Detach a link with an error. Raises errors that end more than a link."""
        if not ends_link_only(error):
            raise error
        self.flush_answers()
        link.detach(error)

    def flow(self, flow: Flow) -> None:
        had_room = self.room > 0
        ahead = self._next_outgoing_id - (flow.next_incoming_id or 0) & _SERIAL
        if ahead >= _HALF:
            raise ProtocolError(frames.WINDOW_VIOLATION, f"next-incoming-id {flow.next_incoming_id} was never sent")
        self._peer_room = flow.incoming_window - ahead
        self._send_waiting()
        if flow.handle is None:
            if flow.echo:
                self.send(self.state().encode())
            self.refresh()
            return
        link = self._links.get(flow.handle)
        if link is None:
            if flow.handle in self._detached:
                return
            raise _unattached(flow.handle)
        link.flow(flow)
        if had_room:
            link.refresh()
        else:
            self.refresh()

    def state(self) -> Flow:
        """Return a flow with the windows of the session."""
        flow = Flow()
        flow.next_incoming_id = self._next_incoming_id
        flow.incoming_window = self._room
        flow.next_outgoing_id = self._next_outgoing_id
        flow.outgoing_window = OUTGOING_WINDOW
        return flow

    def send_flow(self, handle: int, delivery_count: int, credit: int, drain: bool = False) -> None:
        """Tell the peer the state of one link."""
        flow = self.state()
        flow.handle = handle
        flow.delivery_count = delivery_count
        flow.link_credit = credit
        flow.drain = drain
        self.send(flow.encode())

    def disposition(self, disposition: Disposition) -> None:
        """Take the state of deliveries from the peer: of ours if it is their receiver, else of its own."""
        table = self.sent if disposition.is_receiver else self.received
        first, last = disposition.first, disposition.last
        if first == last:
            link = table.get(first)
            if link is not None:
                link.settle(first, disposition)
            return
        span = last - first & _SERIAL
        if span >= _HALF:
            return  # the last is before the first
        if span < 2 * len(table):
            numbers = [number & _SERIAL for number in range(first, first + span + 1)]
        else:
            numbers = [number for number in table if number - first & _SERIAL <= span]
        if disposition.is_receiver and disposition.settled and disposition.state is ACCEPTED:
            self._accept(numbers)
            return
        for number in numbers:
            link = table.get(number)
            if link is not None:
                link.settle(number, disposition)

    def _accept(self, numbers: list[int]) -> None:
        """Settle deliveries that the peer accepted and forgot, those of one link together."""
        last: OutgoingLink | None = None
        found: list[Delivery] = []
        for number in numbers:
            link = self.sent.pop(number, None)
            if not isinstance(link, OutgoingLink):
                continue
            delivery = link.unsettled.pop(number, None)
            if delivery is None:
                continue
            if link is not last and last is not None:
                last.origin.accepted(found)
                found = []
            last = link
            found.append(delivery)
        if last is not None:
            last.origin.accepted(found)

    # -- output -----------------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Return how many frames of transfers the peer takes now."""
        if self._waiting or self.context.is_held or self.way_out.is_waiting:
            return 0
        return max(self._peer_room, 0)

    def next_delivery_id(self) -> int:
        number = self._next_delivery_id
        self._next_delivery_id = number + 1 & _SERIAL
        return number

    def takes_at_once(self, count: int) -> bool:
        """True if the peer's window has room for so many frames."""
        return not self._waiting and count <= self._peer_room

    def send_row(self, transfers: bytes, count: int) -> None:
        """Send frames of transfers that the peer's window has room for."""
        self._peer_room -= count
        self._next_outgoing_id = self._next_outgoing_id + count & _SERIAL
        self.way_out.send(transfers)

    def send_transfers(self, transfers: list[bytes]) -> None:
        """Send frames of transfers. Frames that the peer's window has no room for wait."""
        count = len(transfers)
        if self.takes_at_once(count):
            self.send_row(b"".join(transfers), count)
            return
        self._waiting.extend(transfers)
        self._send_waiting()

    def _send_waiting(self) -> None:
        waiting = self._waiting
        out: list[bytes] = []
        while waiting and self._peer_room > 0:
            out.append(waiting.popleft())
            self._peer_room -= 1
        if out:
            self._next_outgoing_id = self._next_outgoing_id + len(out) & _SERIAL
            self.way_out.send(b"".join(out))

    def refresh(self) -> None:
        """Look again how much the peer can take, for all links."""
        for link in self.links():
            link.refresh()

    # -- answers -----------------------------------------------------------------------------------------------------

    def answer(self, number: int, state: State, settled: bool) -> None:
        """Tell a sender the state of its delivery before the next flush, with one frame for neighbours that agree."""
        if not self._is_answer_due:
            self._is_answer_due = True
            self.context.wire.before_flush(self.flush_answers)
        self._answers.append((number, state, settled))

    def flush_answers(self) -> None:
        self._is_answer_due = False
        answers, self._answers = self._answers, []
        if self.is_closing:
            return
        at = 0
        while at < len(answers):
            first, state, settled = answers[at]
            last = first
            at += 1
            while at < len(answers) and answers[at] == (last + 1, state, settled):
                last += 1
                at += 1
            self._send_disposition(first, last, state, settled)

    def _send_disposition(self, first: int, last: int, state: State, settled: bool) -> None:
        if state is ACCEPTED:
            self.way_out.send(encode_accepted(self.channel, True, first, last, settled))
        else:
            self.send(Disposition(self.channel, True, first, last, settled, state).encode())


def _unattached(handle: int) -> ProtocolError:
    return ProtocolError(frames.UNATTACHED_HANDLE, f"handle {handle} is that of no link")

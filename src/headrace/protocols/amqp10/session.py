"""One session: links by handle, windows both ways, deliveries by number. links.py has the links.

Both windows count frames of transfers. Ours opens again when half of it is used, whatever becomes of the messages: the
credit of links bounds them, and the broker reads nothing while it has too much in hand. Frames that the peer's window
has no room for wait here, and meanwhile no link of the session gets more.
"""

from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Final, final

from headrace.errors import AccessRefused, HeadraceError, ProtocolError
from headrace.net.facts import ChannelFacts
from headrace.protocols.amqp10 import frames
from headrace.protocols.amqp10.addresses import parse_node
from headrace.protocols.amqp10.codec import encode_accepted, encode_frame
from headrace.protocols.amqp10.context import ConnectionContext
from headrace.protocols.amqp10.frames import INCOMING_WINDOW, OUTGOING_WINDOW, ends_link_only
from headrace.protocols.amqp10.links import IncomingLink, Link, OutgoingLink
from headrace.protocols.amqp10.performatives import (
    ACCEPTED,
    Attach,
    Begin,
    Detach,
    Disposition,
    Flow,
    State,
    Transfer,
    error_for,
)
from headrace.protocols.answers import Answers
from headrace.wire.types import Map

if TYPE_CHECKING:
    from headrace.protocols.amqp10.coordinator import Transactions

_SERIAL: Final = 0xFFFFFFFF
_HALF: Final = 0x80000000


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
            for number in range(first, first + span + 1):
                link = table.get(number & _SERIAL)
                if link is not None:
                    link.settle(number & _SERIAL, disposition)
            return
        for number in [number for number in table if number - first & _SERIAL <= span]:
            table[number].settle(number, disposition)

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

    def send_transfers(self, transfers: list[bytes]) -> None:
        """Send frames of transfers. Frames that the peer's window has no room for wait."""
        count = len(transfers)
        if not self._waiting and count <= self._peer_room:
            self._peer_room -= count
            self._next_outgoing_id = self._next_outgoing_id + count & _SERIAL
            self.way_out.send(b"".join(transfers))
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

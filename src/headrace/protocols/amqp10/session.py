"""One session: links by handle, windows both ways, deliveries by number. What links do is theirs.

Both windows count frames of transfers. Ours is opened again when half of it is used, whatever becomes of the
messages: what bounds them is the link's credit and that nothing is read while the broker has too much in hand. What
the peer's window has no room for waits here, and meanwhile no link of the session gets more.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final, final

from headrace.errors import HeadraceError, ProtocolError
from headrace.net.facts import ChannelFacts
from headrace.protocols.amqp10.attaching import attach_link
from headrace.protocols.amqp10.codec import encode_accepted, encode_frame
from headrace.protocols.amqp10.conditions import ends_link_only
from headrace.protocols.amqp10.frames import (
    ERRANT_LINK,
    FRAMING_ERROR,
    HANDLE_IN_USE,
    HANDLE_MAX,
    INCOMING_WINDOW,
    OUTGOING_WINDOW,
    UNATTACHED_HANDLE,
    WINDOW_VIOLATION,
)
from headrace.protocols.amqp10.links import IncomingLink, Link, OutgoingLink
from headrace.protocols.amqp10.performatives import ACCEPTED, Attach, Begin, Detach, Disposition, Flow, State, Transfer
from headrace.protocols.amqp10.subscriptions import refusal_of
from headrace.protocols.answers import Answers

if TYPE_CHECKING:
    from headrace.protocols.amqp10.context import ConnectionContext
    from headrace.protocols.amqp10.coordinator import Transactions

_SERIAL: Final = 0xFFFFFFFF
_HALF: Final = 0x80000000


@final
class Session:
    """The state of one session. Calls raise ProtocolError for the session's or the connection's sake."""

    def __init__(
        self,
        peer: "ConnectionContext",
        channel: int,
        begin: Begin,
        transactions: "Transactions",
        failed: "Callable[[Session, HeadraceError], None]",
    ) -> None:
        """`failed` is called when something that the peer was to be told is not so."""
        self.peer = peer
        self.way_out = Answers(peer.wire, peer.broker, self.refresh, lambda error: failed(self, error))
        self.channel = channel
        self.transactions = transactions
        self.is_closing = False
        """Whether we ended it and wait for the peer to say that it knows."""
        self._links: dict[int, Link] = {}
        self._by_name: dict[tuple[str, bool], Link] = {}
        """The same by their names and whether the peer receives on them."""
        self._detached: set[int] = set()
        """Handles that we detached and the peer has not detached yet."""
        self._most_handles = min(begin.handle_max, HANDLE_MAX)
        self._next_incoming_id = begin.next_outgoing_id
        self._room = INCOMING_WINDOW
        self._next_outgoing_id = 0
        self._peer_room = begin.incoming_window
        self._waiting: deque[bytes] = deque()
        """Frames of transfers that the peer's window has no room for."""
        self._next_delivery_id = 0
        self.sent: dict[int, Link] = {}
        """The links of deliveries that we sent and that are not settled."""
        self.received: dict[int, Link] = {}
        """The links of deliveries that came and that the sender has to settle first."""
        self._answers: list[tuple[int, State, bool]] = []
        self._is_answer_due = False

    def start(self) -> None:
        begin = Begin(self.channel, self._next_outgoing_id, INCOMING_WINDOW, OUTGOING_WINDOW)
        begin.handle_max = HANDLE_MAX
        self.send(begin.encode())

    def send(self, performative: bytes) -> None:
        self.way_out.send(encode_frame(self.channel, performative))

    def facts(self) -> ChannelFacts:
        """What goes on here, for those who look after the broker."""
        origins = [link.origin for link in self._links.values() if isinstance(link, OutgoingLink)]
        consumers = [origin.consumer for origin in origins if origin.consumer is not None]
        return ChannelFacts(self.channel, unsettled=len(self.sent), consumers=consumers)

    # -- links -------------------------------------------------------------------------------------------------------

    def attach(self, attach: Attach) -> None:
        if attach.handle > self._most_handles:
            raise ProtocolError(FRAMING_ERROR, f"handle {attach.handle} is above the agreed {self._most_handles}")
        if attach.handle in self._links:
            raise ProtocolError(HANDLE_IN_USE, f"handle {attach.handle} is that of another link")
        former = self._by_name.get((attach.name, attach.is_receiver))
        if former is not None:
            former.steal()
        self._detached.discard(attach.handle)
        made = attach_link(self, attach)
        if made is None:
            self._detached.add(attach.handle)
        else:
            self._links[attach.handle] = made
            self._by_name[attach.name, attach.is_receiver] = made
            made.refresh()

    def detach(self, detach: Detach) -> None:
        link = self._links.pop(detach.handle, None)
        if link is None:
            if detach.handle not in self._detached:
                raise ProtocolError(UNATTACHED_HANDLE, f"handle {detach.handle} is that of no link")
            self._detached.discard(detach.handle)
            return
        link.is_over = True
        self._forget_name(link)
        link.end(detach.closed)
        self.flush_answers()
        self.way_out.hold()  # what goes with the link stays gone
        self.send(Detach(detach.handle, detach.closed).encode())

    def forget(self, link: Link) -> None:
        """We detached a link."""
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
        """The user's rights have changed: links from what it may not read any more are detached, and say so."""
        for link in self.links():
            if isinstance(link, OutgoingLink):
                error = refusal_of(self.peer, link.attach.source)
                if error is not None:
                    link.detach(error)

    def end(self) -> None:
        """The session is over: its links are detached, and none of them can send any more."""
        links, self._links = self._links, {}
        self._by_name.clear()
        leaving: list[Iterator[None]] = []
        for link in links.values():
            link.is_over = True
            leaving.append(link.end_with_session())
        self.peer.broker.in_steps(chain.from_iterable(leaving))
        self._waiting.clear()
        self.sent.clear()
        self.received.clear()

    # -- what comes in -----------------------------------------------------------------------------------------------

    def transfer(self, transfer: Transfer) -> None:
        self._next_incoming_id = self._next_incoming_id + 1 & _SERIAL
        self._room -= 1
        if self._room < 0:
            raise ProtocolError(WINDOW_VIOLATION, f"more than {INCOMING_WINDOW} transfers without a window for them")
        if self._room < INCOMING_WINDOW // 2:
            self._room = INCOMING_WINDOW
            self.send(self.state().encode())
        link = self._links.get(transfer.handle)
        if link is None:
            if transfer.handle in self._detached:
                return  # sent before the peer knew
            raise ProtocolError(UNATTACHED_HANDLE, f"handle {transfer.handle} is that of no link")
        if not isinstance(link, IncomingLink):
            raise ProtocolError(ERRANT_LINK, f"a transfer on the link {link.name[:64]!r}, whose receiver sent it")
        try:
            link.transfer(transfer)
        except HeadraceError as error:
            self.refuse(link, error)

    def refuse(self, link: Link, error: HeadraceError) -> None:
        """End a link for what is wrong with it. Raises what is more than that."""
        if not ends_link_only(error):
            raise error
        self.flush_answers()
        link.detach(error)

    def flow(self, flow: Flow) -> None:
        had_room = self.room > 0
        ahead = self._next_outgoing_id - (flow.next_incoming_id or 0) & _SERIAL
        if ahead >= _HALF:
            raise ProtocolError(WINDOW_VIOLATION, f"next-incoming-id {flow.next_incoming_id} was never sent")
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
            raise ProtocolError(UNATTACHED_HANDLE, f"handle {flow.handle} is that of no link")
        link.flow(flow)
        if had_room:
            link.refresh()
        else:
            self.refresh()

    def state(self) -> Flow:
        """A flow that says how the session stands."""
        flow = Flow()
        flow.next_incoming_id = self._next_incoming_id
        flow.incoming_window = self._room
        flow.next_outgoing_id = self._next_outgoing_id
        flow.outgoing_window = OUTGOING_WINDOW
        return flow

    def disposition(self, disposition: Disposition) -> None:
        """The peer says what became of deliveries: of ours where it is their receiver, of its own where it is not."""
        table = self.sent if disposition.is_receiver else self.received
        first, last = disposition.first, disposition.last
        if first == last:
            link = table.get(first)
            if link is not None:
                link.settle(first, disposition)
            return
        span = last - first & _SERIAL
        if span >= _HALF:
            return  # the last before the first: no deliveries
        if span < 2 * len(table):
            for number in range(first, first + span + 1):
                link = table.get(number & _SERIAL)
                if link is not None:
                    link.settle(number & _SERIAL, disposition)
            return
        for number in [number for number in table if number - first & _SERIAL <= span]:
            table[number].settle(number, disposition)

    # -- what goes out -----------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many frames of transfers the peer takes now."""
        if self._waiting or self.peer.is_held or self.way_out.is_waiting:
            return 0
        return max(self._peer_room, 0)

    def next_delivery_id(self) -> int:
        number = self._next_delivery_id
        self._next_delivery_id = number + 1 & _SERIAL
        return number

    def send_transfers(self, frames: list[bytes]) -> None:
        """Send these, or keep those that the peer's window has no room for."""
        count = len(frames)
        if not self._waiting and count <= self._peer_room:
            self._peer_room -= count
            self._next_outgoing_id = self._next_outgoing_id + count & _SERIAL
            self.way_out.send(b"".join(frames))
            return
        self._waiting.extend(frames)
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
        """The peer can take more again, or cannot."""
        for link in self.links():
            link.refresh()

    # -- answers -----------------------------------------------------------------------------------------------------

    def answer(self, number: int, state: State, settled: bool) -> None:
        """Tell a sender what became of its delivery, at the end of the turn: all that say the same with one frame."""
        if not self._is_answer_due:
            self._is_answer_due = True
            self.peer.wire.before_flush(self.flush_answers)
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

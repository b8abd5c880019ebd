"""What a link that is attached again goes on with: AMQP 1.0 [2.6.13]. What was kept of it is in suspended.py."""

from typing import TYPE_CHECKING, Final

from headrace.core.group import RELEASE
from headrace.errors import Refused
from headrace.protocols.amqp10.consuming import Subscription
from headrace.protocols.amqp10.outgoing import OutgoingLink, Sent, place_in
from headrace.protocols.amqp10.performatives import Attach
from headrace.protocols.amqp10.states import State, outcome_in, state_of
from headrace.protocols.amqp10.suspended import SuspendedReceiver, SuspendedSender
from headrace.protocols.amqp10.types import Described, Map
from headrace.protocols.amqp10.writing import encode_value

if TYPE_CHECKING:
    from headrace.protocols.amqp10.incoming import IncomingLink

_AROUND_LIST: Final = 64
"""More than a frame and its lists need around what is in them, in bytes."""


def recall(kept: SuspendedReceiver, known: Map) -> None:
    """Have what was kept under the tags by which the receiver knows it."""
    tags = [int.from_bytes(tag) for tag, _ in known.pairs if isinstance(tag, bytes) and len(tag) == 8]
    places = {place_in(tag): tag for tag in tags if place_in(tag)}
    for sent in kept.unsettled:
        sent.tag = places.get(place_in(sent.tag), sent.tag)


def take_over(link: OutgoingLink, kept: SuspendedReceiver, attach: Attach) -> None:
    """Go on where a link to a receiver was detached.

    What the receiver has decided is settled so, what it still has is resumed, and what it knows nothing of goes back in
    line: untried if it says what it knows, else as what a consumer had that is gone.
    """
    origin, former = link.origin, kept.origin
    if not isinstance(origin, Subscription) or not isinstance(former, Subscription):
        if former is not None:
            former.end(False)
        return
    if attach.unsettled is None:
        former.give_back()
        return
    origin.former += former.former
    former.former = []
    link.last_tag = kept.last_tag
    states = {bytes(tag): state for tag, state in attach.unsettled.pairs if isinstance(tag, bytes)}
    for sent in kept.unsettled:
        if sent.tag_bytes in states:
            _resume(link, origin, sent, states[sent.tag_bytes])
        elif attach.incomplete_unsettled:
            link.dormant.append(sent)
        elif sent.delivery is not None:
            try:
                origin.broker.settle(sent.delivery, RELEASE)
            except Refused:
                continue  # its time ran out meanwhile


def _resume(link: OutgoingLink, origin: Subscription, sent: Sent, value: object) -> None:
    delivery = sent.delivery
    assert delivery is not None
    outcome = outcome_in(state_of(value if isinstance(value, Described) else None))
    if outcome is None:
        link.resume(sent, origin.rendered(delivery), False)
        return
    origin.settled(delivery, outcome)
    sent.state = outcome
    link.resume(sent, b"", True)


def go_on(link: "IncomingLink", kept: SuspendedSender, attach: Attach) -> None:
    """Go on where a link from a sender was detached: it hears of what it still asks for, the rest is forgotten."""
    link.states = kept.states
    if kept.link is not None:
        kept.link.heir = link
    asked = {tag for tag, _ in (attach.unsettled or Map()).pairs}
    for tag in [] if attach.incomplete_unsettled else list(kept.states):
        if tag not in asked:
            link.forget(tag)


def say_unsettled(answer: Attach, states: dict[bytes, State | None], frame_max: int) -> None:
    """Have the answer to an attach say what is unsettled here, as far as a frame has room for it."""
    room = frame_max - _AROUND_LIST - len(answer.encode())
    pairs: list[tuple[object, object]] = []
    for tag, state in states.items():
        described = None if state is None else state.described()
        room -= len(encode_value(tag)) + len(encode_value(described))
        if room < 0:
            answer.incomplete_unsettled = True
            break
        pairs.append((tag, described))
    answer.unsettled = Map(pairs)

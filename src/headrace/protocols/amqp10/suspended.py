"""Links that are detached and may be resumed, by container and name. How long is what their termini ask for.

A terminus that is to be durable is stored while it is attached too, so that a crash loses nothing. What its receiver
held is claimed in the group of the queue under the name of the link, and is held for it again after a restart.
"""

from typing import TYPE_CHECKING, Final, final

from headrace.clock import Clock
from headrace.core.broker import Broker
from headrace.core.delivery import Consumer, Delivery
from headrace.errors import Corrupt
from headrace.protocols.amqp10.consuming import Subscription, consumer_name
from headrace.protocols.amqp10.outgoing import Origin, Sent, offset_tag
from headrace.protocols.amqp10.states import ACCEPTED, State
from headrace.protocols.amqp10.termini import (
    CONNECTION_CLOSE,
    LINK_DETACH,
    NEVER,
    SESSION_END,
    UNSETTLED_STATE,
    Source,
    Target,
    Terminus,
)
from headrace.protocols.amqp10.terminus_store import Key, StoredSource, TerminusStore

if TYPE_CHECKING:
    from headrace.protocols.amqp10.incoming import IncomingLink
    from headrace.protocols.amqp10.link import Link
    from headrace.protocols.amqp10.outgoing import OutgoingLink

_MAX_LINKS: Final = 1024
"""How many are kept of each kind; the oldest goes first."""


@final
class SuspendedReceiver:
    """What is left of a link to a receiver: what it was sent and has not settled."""

    __slots__ = ("expires_us", "last_tag", "origin", "owner", "session", "terminus", "unsettled")

    def __init__(self, source: Source, origin: Origin | None, unsettled: list[Sent]) -> None:
        self.terminus = source
        self.origin = origin
        self.unsettled = unsettled
        self.last_tag = 0
        self.session: object = None
        self.owner: object = None
        self.expires_us = 0
        """When it is over for good; 0 while that is not known."""


@final
class SuspendedSender:
    """What is left of a link from a sender: what became of deliveries that it has not settled."""

    __slots__ = ("expires_us", "link", "owner", "session", "states", "terminus")

    def __init__(self, target: Target, states: dict[bytes, State | None]) -> None:
        self.terminus = target
        self.states = states
        self.link: IncomingLink | None = None
        """The link it was, which may have deliveries on their way to the disk."""
        self.session: object = None
        self.owner: object = None
        self.expires_us = 0


@final
class Suspended:
    """All links of one virtual host that may be resumed."""

    def __init__(self, clock: Clock, broker: Broker) -> None:
        self._clock = clock
        self._broker = broker
        self.store = TerminusStore(broker.kept)
        self._receivers: dict[Key, SuspendedReceiver] = {}
        self._senders: dict[Key, SuspendedSender] = {}
        self._attached: dict[tuple[Key, bool], Link] = {}
        """Those that last, by key and whether their peer is the receiver: their names are taken over, not shared."""
        self._restore()

    # -- attaching ---------------------------------------------------------------------------------------------------

    def make_way(self, key: Key, is_receiver: bool) -> None:
        """A link of this name is about to be attached: one that is there already is detached and can be resumed."""
        link = self._attached.pop((key, is_receiver), None)
        if link is not None and not link.is_over:
            link.steal()

    def receiver(self, key: Key) -> SuspendedReceiver | None:
        return self._receivers.get(key)

    def sender(self, key: Key) -> SuspendedSender | None:
        return self._senders.get(key)

    def resume_receiver(self, key: Key) -> SuspendedReceiver | None:
        """The link of that name, for its new attach to take over."""
        return self._receivers.pop(key, None)

    def resume_sender(self, key: Key) -> SuspendedSender | None:
        return self._senders.pop(key, None)

    def receiver_attached(self, link: "OutgoingLink", stored: StoredSource | None) -> None:
        """Store its source if that is durable. Raises ProtocolError (resource limit)."""
        if stored is not None:
            self.store.put_source(link.key, stored)
        if link.attach.source is not None and link.attach.source.lasts:
            self._attached[link.key, True] = link

    def sender_attached(self, link: "IncomingLink", target: Target) -> None:
        """Store its target if that is durable. Raises ProtocolError (resource limit)."""
        if target.durable and target.lasts:
            self.store.put_target(link.key, target)
        if target.lasts:
            self._attached[link.key, False] = link

    # -- detaching ---------------------------------------------------------------------------------------------------

    def closed(self, link: "Link", is_receiver: bool) -> None:
        """A link is gone for good, and its terminus with it."""
        self._detached(link, is_receiver)
        if is_receiver:
            self.store.delete_source(link.key)
        else:
            self.store.delete_target(link.key)

    def _detached(self, link: "Link", is_receiver: bool) -> None:
        if self._attached.get((link.key, is_receiver)) is link:
            del self._attached[link.key, is_receiver]

    def keep_receiver(self, link: "OutgoingLink") -> bool:
        """Keep a link that was detached, if its source asks for that; False when it is over."""
        source = link.attach.source
        if source is None or not source.stays:
            return False
        self._detached(link, True)
        link.origin.leave()
        kept = SuspendedReceiver(source, link.origin, [*link.unsettled.values(), *link.dormant])
        kept.last_tag = link.last_tag
        kept.session, kept.owner = link.session, link.peer.owner
        kept.expires_us = self._expiry(source)
        self._receivers[link.key] = kept
        if len(self._receivers) > _MAX_LINKS:
            self._drop_receiver(next(iter(self._receivers)), is_expired=False)
        return True

    def keep_sender(self, link: "IncomingLink") -> bool:
        """Remember what became of deliveries whose sender does not know that we know; False when that is over."""
        target = link.attach.target
        if not isinstance(target, Target) or not target.stays or not (link.states or target.lasts):
            return False
        self._detached(link, False)
        kept = SuspendedSender(target, link.states)
        kept.link, kept.session, kept.owner = link, link.session, link.peer.owner
        kept.expires_us = self._expiry(target)
        self._senders[link.key] = kept
        if len(self._senders) > _MAX_LINKS:
            self._drop_sender(next(iter(self._senders)))
        return True

    def _expiry(self, terminus: Terminus) -> int:
        is_due = terminus.expiry_policy == LINK_DETACH
        return self._clock.now_us() + terminus.timeout * 1_000_000 if is_due else 0

    # -- expiry ------------------------------------------------------------------------------------------------------

    def session_ended(self, session: object) -> None:
        for key, kept in [item for item in self._all() if item[1].session is session]:
            self._over(key, kept, (SESSION_END,))

    def connection_closed(self, owner: object) -> None:
        for key, kept in [item for item in self._all() if item[1].owner is owner]:
            self._over(key, kept, (SESSION_END, CONNECTION_CLOSE))

    def _all(self) -> list[tuple[Key, SuspendedReceiver | SuspendedSender]]:
        return [*self._receivers.items(), *self._senders.items()]

    def _over(self, key: Key, kept: SuspendedReceiver | SuspendedSender, policies: tuple[str, ...]) -> None:
        if kept.terminus.expiry_policy not in policies or kept.expires_us:
            return
        if kept.terminus.timeout:
            kept.expires_us = self._clock.now_us() + kept.terminus.timeout * 1_000_000
        else:
            self._drop(key, kept)

    def sweep(self) -> None:
        """Be done with those whose time is over."""
        now_us = self._clock.now_us()
        for key, kept in [item for item in self._all() if 0 < item[1].expires_us <= now_us]:
            self._drop(key, kept)

    def _drop(self, key: Key, kept: SuspendedReceiver | SuspendedSender) -> None:
        if isinstance(kept, SuspendedReceiver):
            self._drop_receiver(key, is_expired=True)
        else:
            self._drop_sender(key)

    def _drop_receiver(self, key: Key, is_expired: bool) -> None:
        """A subscription goes with it where it has expired; where there are only too many, it is found again."""
        kept = self._receivers.pop(key)
        if kept.origin is not None:
            kept.origin.end(is_expired)
        self.store.delete_source(key)

    def _drop_sender(self, key: Key) -> None:
        kept = self._senders.pop(key)
        self.store.delete_target(key)
        if kept.terminus.is_exact:
            for tag, state in kept.states.items():
                if state is ACCEPTED:
                    self.store.forget(key, tag)

    # -- coming back -------------------------------------------------------------------------------------------------

    def _restore(self) -> None:
        """After a restart all links are detached, and what they last for begins now."""
        now_us = self._clock.now_us()
        for key, source in self.store.sources.items():
            receiver = self._restored(key, source)
            receiver.expires_us = 0 if source.source.expiry_policy == NEVER else now_us + _timeout_us(source.source)
            self._receivers[key] = receiver
        for key, stored in self.store.targets.items():
            sender = SuspendedSender(stored.target, dict.fromkeys(stored.tags, ACCEPTED))
            sender.expires_us = 0 if stored.target.expiry_policy == NEVER else now_us + _timeout_us(stored.target)
            self._senders[key] = sender
        self.store.sources, self.store.targets = {}, {}

    def _restored(self, key: Key, stored: StoredSource) -> SuspendedReceiver:
        if stored.source.durable != UNSETTLED_STATE:
            return SuspendedReceiver(stored.source, None, [])
        consumer = Consumer(consumer_name(key), _nothing)
        try:
            held = self._broker.reclaim(stored.queue, stored.group, consumer)
        except Corrupt:
            held = []  # the queue is refused; whoever uses it is told
        origin = Subscription(self._broker, stored.queue)
        origin.former.append(consumer)
        return SuspendedReceiver(stored.source, origin, [Sent(offset_tag(one), one) for one in held])


def _timeout_us(terminus: Terminus) -> int:
    return terminus.timeout * 1_000_000


def _nothing(deliveries: list[Delivery]) -> None:
    return

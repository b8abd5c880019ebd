"""Detached links that may be resumed, and termini that outlive the broker's process as keyed state.

A terminus that is to be durable is stored while it is attached too, so that a crash loses nothing. What its receiver
held is claimed in the group of the queue under the name of the link, and is held for it again after a restart.

A key is a letter, the container id with its length (u32, big-endian) before it, and the link's name the same way:

    s  the source of a link to a receiver: the version 1, then an AMQP list of the source, its queue and its group
    t  the target of a link from a sender: the version 1, then the target
    d  and a delivery tag behind: a message that was accepted on such a link, and that its sender has not settled
"""

import logging
from typing import TYPE_CHECKING, Final, final

from headrace.clock import Clock
from headrace.core.broker import Broker
from headrace.core.queue.dispatch import Consumer, Delivery
from headrace.errors import Corrupt, ProtocolError
from headrace.protocols.amqp10.frames import RESOURCE_LIMIT
from headrace.protocols.amqp10.links import Origin, Sent, offset_tag
from headrace.protocols.amqp10.performatives import (
    ACCEPTED,
    CONNECTION_CLOSE,
    LINK_DETACH,
    NEVER,
    SESSION_END,
    UNSETTLED_STATE,
    Source,
    State,
    Target,
    Terminus,
    source_of,
    target_of,
)
from headrace.protocols.amqp10.reading import Reader
from headrace.protocols.amqp10.subscriptions import Subscription, consumer_name
from headrace.protocols.amqp10.types import Described
from headrace.protocols.amqp10.writing import encode_value

if TYPE_CHECKING:
    from headrace.core.ledger import ProtocolStore
    from headrace.protocols.amqp10.links import IncomingLink, Link, OutgoingLink

_log: Final = logging.getLogger("headrace.amqp10")
_VERSION: Final = b"\x01"
_SOURCE: Final = b"s"
_TARGET: Final = b"t"
_TAG: Final = b"d"
_MAX_STORED: Final = 4096
_MAX_NAME_BYTES: Final = 512
_MAX_VALUE_BYTES: Final = 16 << 10

Key = tuple[str, str]
"""A container's id and a link's name."""


@final
class StoredSource:
    """A source, and whose messages its receiver held."""

    __slots__ = ("group", "queue", "source")

    def __init__(self, source: Source, queue: str, group: str) -> None:
        self.source = source
        self.queue = queue
        self.group = group


@final
class StoredTarget:
    """A target, and the tags of what was accepted for it."""

    __slots__ = ("tags", "target")

    def __init__(self, target: Target) -> None:
        self.target = target
        self.tags: list[bytes] = []


@final
class TerminusStore:
    """The termini of one virtual host; so many and so large at most."""

    def __init__(self, kept: "ProtocolStore") -> None:
        self._kept = kept
        self._keys: set[bytes] = set()
        """The termini that are stored, for their number."""
        self.sources: dict[Key, StoredSource] = {}
        """Those that were there at the start; whoever restores them takes them out."""
        self.targets: dict[Key, StoredTarget] = {}
        self._load()

    def put_source(self, key: Key, stored: StoredSource) -> None:
        """Raises ProtocolError (resource limit)."""
        self._put(_SOURCE + _encode_key(key), [stored.source.described(), stored.queue, stored.group])

    def put_target(self, key: Key, target: Target) -> None:
        """Raises ProtocolError (resource limit)."""
        self._put(_TARGET + _encode_key(key), target.described())

    def delete_source(self, key: Key) -> None:
        self._delete(_SOURCE + _encode_key(key))

    def delete_target(self, key: Key) -> None:
        """Tags are the caller's to forget."""
        self._delete(_TARGET + _encode_key(key))

    def accept(self, key: Key, tag: bytes) -> None:
        """The message that was just published is the one of this tag: that is stored if the message is."""
        self._kept.prove(_TAG + _encode_key(key) + tag)

    def forget(self, key: Key, tag: bytes) -> None:
        """Nobody will ask for this tag again."""
        self._kept.delete(_TAG + _encode_key(key) + tag)

    def _put(self, key: bytes, value: object) -> None:
        raw = _VERSION + encode_value(value)
        if len(key) > _MAX_NAME_BYTES or len(raw) > _MAX_VALUE_BYTES:
            raise ProtocolError(
                RESOURCE_LIMIT,
                f"a durable terminus may have {_MAX_NAME_BYTES} bytes of names and {_MAX_VALUE_BYTES} of its own",
            )
        if key not in self._keys and len(self._keys) >= _MAX_STORED:
            raise ProtocolError(RESOURCE_LIMIT, f"{_MAX_STORED} durable termini are kept already")
        self._keys.add(key)
        self._kept.put(key, raw)

    def _delete(self, key: bytes) -> None:
        if key in self._keys:
            self._keys.discard(key)
            self._kept.delete(key)

    def _load(self) -> None:
        """What cannot be read is left out, and the log says so."""
        for key, value in sorted(self._kept.items(), key=lambda item: item[0][:1] == _TAG):
            try:
                self._read(key, value)
            except (ValueError, IndexError, ProtocolError) as error:
                _log.error("a kept terminus is left out: %r: %s", key, error)

    def _read(self, raw: bytes, value: bytes) -> None:
        kind, key, rest = _decode_key(raw)
        if kind == _TAG:
            if key in self.targets:
                self.targets[key].tags.append(rest)
            else:
                self._kept.delete(raw)  # its terminus is gone
            return
        if value[:1] != _VERSION or kind not in (_SOURCE, _TARGET):
            raise ValueError(f"the version {value[:1].hex()} is not known")
        self._keys.add(raw)
        found = Reader(value[1:]).value()
        if kind == _TARGET:
            target = target_of(found if isinstance(found, Described) else None)
            if not isinstance(target, Target):
                raise ValueError("it is no target")
            self.targets[key] = StoredTarget(target)
        else:
            self.sources[key] = _stored_source(found)


def _stored_source(found: object) -> StoredSource:
    described, queue, group = found if isinstance(found, list) and len(found) == 3 else (None, "", "")
    source = source_of(described if isinstance(described, Described) else None)
    if source is None:
        raise ValueError("it is no source")
    return StoredSource(source, str(queue), str(group))


def _encode_key(key: Key) -> bytes:
    return b"".join([len(name.encode()).to_bytes(4) + name.encode() for name in key])


def _decode_key(raw: bytes) -> tuple[bytes, Key, bytes]:
    """The letter, the key, and what is behind it. Raises ValueError."""
    at = 1
    names: list[str] = []
    for _ in range(2):
        end = at + 4 + int.from_bytes(raw[at : at + 4])
        if end > len(raw):
            raise ValueError("the key is cut short")
        names.append(raw[at + 4 : end].decode())
        at = end
    return raw[:1], (names[0], names[1]), raw[at:]


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

"""Sessions from their first connection to their end, with their wills and their storage. No wire.

Changes of a session are stored in the commit of their turn. A session that does not outlive its connection is in memory
only, but for its will, which is due even after a crash of the broker.

Keys of the table `sessions` are the virtual host and the client id, each followed by U+0000, then a letter:

    s            the session: JSON {"lifetime_s", "left_us", "user"}
    f<pattern>   a subscription: JSON of the values that differ from the default
    w            its will: delay and time to live in seconds (u32 each, big-endian), then the message as in session.py
    i<number>    number of a received exactly-once message, not released (u16, big-endian)
    o<number>    number of a delivered exactly-once message, not completed
"""

import heapq
import json
import logging
from collections.abc import Callable, Iterator
from typing import Final, final

from headrace.clock import Clock
from headrace.core.access.permissions import Rights
from headrace.core.batch import Batch
from headrace.core.pipeline import AT_ONCE, CommitPipeline, take_steps
from headrace.core.pubsub.pubsub import PubSub
from headrace.core.pubsub.session import (
    FOREVER,
    Session,
    Subscriber,
    Subscription,
    Will,
    decode_envelope,
    encode_envelope,
    topics_read,
)
from headrace.errors import Corrupt
from headrace.storage.api import SESSIONS, Items

_SEPARATOR: Final = b"\0"
_TAKEN: Final = b"i"
_COMPLETING: Final = b"o"
_log: Final = logging.getLogger("headrace.core")


@final
class SessionStore:
    """Stores the sessions of one virtual host, and loads them at the start."""

    def __init__(self, items: Items, host: str) -> None:
        self._items = items
        self._prefix = host.encode() + _SEPARATOR

    def load(self) -> dict[str, Session]:
        """All sessions by client id; unreadable entries are logged and left out.

        A client with a will and no stored session gets one of lifetime 0.
        """
        sessions: dict[str, Session] = {}
        for key, value in self._items(SESSIONS):
            if not key.startswith(self._prefix):
                continue
            client, _, fact = key[len(self._prefix) :].partition(_SEPARATOR)
            session = sessions.setdefault(client.decode(), Session(client.decode()))
            try:
                _read(session, fact, value)
            except (ValueError, KeyError, TypeError, Corrupt) as error:
                _log.error("an entry of the session %r is left out: %r: %s", session.client_id, fact, error)
        return sessions

    def put(self, batch: Batch, session: Session) -> None:
        session.is_stored = True
        values = {"lifetime_s": session.lifetime_s, "left_us": session.left_us, "user": session.user}
        value = json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()
        batch.durable.put(SESSIONS, self._key(session, b"s"), value)

    def put_subscription(self, batch: Batch, subscription: Subscription) -> None:
        key = self._key(subscription.session, b"f" + subscription.pattern.encode())
        batch.durable.put(SESSIONS, key, _encode_subscription(subscription))

    def delete_subscription(self, batch: Batch, session: Session, pattern: str) -> None:
        batch.durable.delete(SESSIONS, self._key(session, b"f" + pattern.encode()))

    def put_will(self, batch: Batch, session: Session, will: Will) -> None:
        value = will.delay_s.to_bytes(4) + will.expires_s.to_bytes(4) + encode_envelope(will.envelope)
        batch.durable.put(SESSIONS, self._key(session, b"w"), value)

    def delete_will(self, batch: Batch, session: Session) -> None:
        batch.durable.delete(SESSIONS, self._key(session, b"w"))

    def put_number(self, batch: Batch, session: Session, kind: bytes, number: int) -> None:
        batch.durable.put(SESSIONS, self._key(session, kind + number.to_bytes(2)), b"")

    def delete_number(self, batch: Batch, session: Session, kind: bytes, number: int) -> None:
        batch.durable.delete(SESSIONS, self._key(session, kind + number.to_bytes(2)))

    def delete(self, batch: Batch, session: Session) -> None:
        """Delete all entries of the session but its will."""
        session.is_stored = False
        batch.durable.delete(SESSIONS, self._key(session, b"s"))
        for pattern in session.subscriptions:
            self.delete_subscription(batch, session, pattern)
        for kind, numbers in ((_TAKEN, session.taken), (_COMPLETING, session.completing)):
            for number in numbers:
                self.delete_number(batch, session, kind, number)

    def _key(self, session: Session, fact: bytes) -> bytes:
        return b"".join((self._prefix, session.client_id.encode(), _SEPARATOR, fact))


def _read(session: Session, fact: bytes, value: bytes) -> None:
    kind, rest = fact[:1], fact[1:]
    if kind == b"s":
        values = json.loads(value)
        session.lifetime_s, session.left_us = int(values["lifetime_s"]), int(values["left_us"])
        session.user = str(values["user"])
        if session.lifetime_s < FOREVER:
            raise ValueError(f"a lifetime of {session.lifetime_s}")
        session.is_stored = True
    elif kind == b"f":
        pattern = rest.decode()
        session.subscriptions[pattern] = _decode_subscription(session, pattern, value)
        session.pattern_size += len(pattern)
    elif kind == b"w":
        envelope = decode_envelope(value[8:], f"the will of {session.client_id!r}")
        session.will = Will(envelope, int.from_bytes(value[:4]), int.from_bytes(value[4:8]))
    elif kind in (_TAKEN, _COMPLETING) and len(rest) == 2:
        (session.taken if kind == _TAKEN else session.completing).add(int.from_bytes(rest))
    else:
        raise ValueError("no such fact")


def _encode_subscription(subscription: Subscription) -> bytes:
    plain = Subscription(subscription.session, subscription.pattern)
    names = ("assurance", "identifier", "no_echo", "keeps_retain", "retained", "group", "auto_commit")
    values = {name: value for name in names if (value := getattr(subscription, name)) != getattr(plain, name)}
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()


def _decode_subscription(session: Session, pattern: str, value: bytes) -> Subscription:
    return Subscription(session, pattern, **json.loads(value))


_SECOND_US: Final = 1_000_000
_SLACK: Final = 1024

PublishWill = Callable[[Will], None]


@final
class Sessions:
    """The sessions of one virtual host by client id."""

    def __init__(
        self, clock: Clock, pipeline: CommitPipeline, pubsub: PubSub, store: SessionStore, publish: PublishWill
    ) -> None:
        self._clock = clock
        self._pipeline = pipeline
        self._pubsub = pubsub
        self._store = store
        self._publish = publish
        self._sessions: dict[str, Session] = {}
        self._due: list[tuple[int, str]] = []
        """Heap of due times by client id; outdated entries are skipped."""
        self.connected = 0
        self._is_on_time = False
        """True while due sessions are processed step by step."""
        self._load()

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def get(self, client_id: str) -> Session | None:
        return self._sessions.get(client_id)

    def _load(self) -> None:
        now_us = self._clock.now_us()
        for session in self._store.load().values():
            # A session that was connected at a crash lost its connection then, at an unknown time.
            session.left_us = session.left_us or now_us
            if session.is_stored:
                self._pubsub.restore(session)
            self._sessions[session.client_id] = session
            self._plan(session, now_us)
        self._pubsub.drop_left()

    # -- connections ---------------------------------------------------------------------------------------------------

    def connect(
        self, client_id: str, clean: bool, lifetime_s: int, link: Subscriber, will: Will | None = None, user: str = ""
    ) -> tuple[Session, bool]:
        """Attach a connection to the client's session; returns it and True if it existed before.

        With `clean`, or for another user, an existing session ends first. A connected session loses its old connection.
        """
        former = self._sessions.get(client_id)
        if former is not None and former.link is not None:
            old = former.link
            self._detach(former, keeps_will=True)
            old.replaced()
            former = self._sessions.get(client_id)
        if former is not None and (clean or not former.is_kept or former.user != user):
            self._end(former)
            former = None
        session = former or Session(client_id, user)
        self._sessions[client_id] = session
        batch = self._pipeline.open()
        if former is not None and session.will is not None:  # the client is back before its will was due
            session.will = None
            self._store.delete_will(batch, session)
        session.lifetime_s = lifetime_s
        session.left_us = session.due_us = 0
        session.link = link
        link.session = session
        self.connected += 1
        if will is not None:
            session.will = will
            self._store.put_will(batch, session, will)
        if session.is_kept or session.is_stored:
            self._store.put(batch, session)
        self._pubsub.attach(session)
        return session, former is not None

    def leave(self, link: Subscriber, with_will: bool) -> None:
        """Detach a lost connection; its will is published now or after its delay, unless it was withdrawn."""
        session = link.session
        if session is not None and session.link is link:
            self._detach(session, with_will)

    def set_lifetime(self, session: Session, lifetime_s: int) -> None:
        """Set the time that the session outlives its connection."""
        session.lifetime_s = lifetime_s
        if session.is_kept:
            self._store.put(self._pipeline.open(), session)

    def _detach(self, session: Session, keeps_will: bool) -> None:
        now_us = self._clock.now_us()
        self.connected -= 1
        session.link = None
        session.left_us = now_us
        self._pubsub.detach(session)
        if not keeps_will and session.will is not None:
            session.will = None
            self._store.delete_will(self._pipeline.open(), session)
        if not session.lifetime_s:
            self._end(session)
            return
        if session.will is not None and not session.will.delay_s:
            self._send_will(session)
        self._store.put(self._pipeline.open(), session)
        self._plan(session, now_us)

    def end(self, session: Session) -> None:
        """End a session for an operator, and close its connection."""
        link = session.link
        if link is not None:
            self._detach(session, keeps_will=True)
            link.replaced()
        if self._sessions.get(session.client_id) is session:
            self._end(session)

    def _end(self, session: Session) -> None:
        """Remove the session and publish its will at once."""
        self._send_will(session)
        batch = self._pipeline.open()
        if session.is_stored:
            self._store.delete(batch, session)
        self._pubsub.end(session)
        session.due_us = 0
        del self._sessions[session.client_id]

    # -- subscriptions -------------------------------------------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> bool:
        """Add a subscription, stored with its session; see PubSub.subscribe."""
        is_to_begin_with_retained = self._pubsub.subscribe(subscription)
        if subscription.session.is_stored:
            self._store.put_subscription(self._pipeline.open(), subscription)
        return is_to_begin_with_retained

    def unsubscribe(self, session: Session, pattern: str) -> Subscription | None:
        """Remove a subscription; see PubSub.unsubscribe."""
        subscription = self._pubsub.unsubscribe(session, pattern)
        if subscription is not None and session.is_stored:
            self._store.delete_subscription(self._pipeline.open(), session, pattern)
        return subscription

    def restrict(self, user: str, rights: Rights | None) -> bool:
        """Apply changed rights of a user, None for no rights: remove subscriptions and wills that they forbid.

        A connection that loses a subscription is closed, as there is no other way to tell the client. Returns True if a
        session lost something.
        """
        has_lost = False
        for session in self:
            if session.user == user and self._sessions.get(session.client_id) is session:
                has_lost = self._restrict(session, rights) or has_lost
        return has_lost

    def _restrict(self, session: Session, rights: Rights | None) -> bool:
        client_id = session.client_id
        lost = [
            pattern
            for pattern in session.subscriptions
            if rights is None or not rights.may_subscribe(topics_read(pattern), client_id)
        ]
        for pattern in lost:
            self.unsubscribe(session, pattern)
        will = session.will
        if will is not None and not (rights and rights.may_publish(will.envelope.message.source.topic, client_id)):
            session.will = None
            self._store.delete_will(self._pipeline.open(), session)
        if session.link is not None and (lost or rights is None):
            session.link.restricted()
        return bool(lost) or will is not session.will

    # -- exactly-once messages -----------------------------------------------------------------------------------------

    def take(self, session: Session, number: int) -> None:
        """Remember a received number: until it is finished, the same number is the same message.

        In the turn of the publish, it is stored if the message is.
        """
        session.taken.add(number)
        if session.is_stored:
            self._store.put_number(self._pipeline.open(), session, _TAKEN, number)

    def finish_taken(self, session: Session, number: int) -> bool:
        """Forget a taken number, as the client sends it no more; False if it was not taken."""
        return self._finish(session, session.taken, _TAKEN, number)

    def complete(self, session: Session, number: int) -> None:
        """Remember a delivered number: the message must be completed and not sent again."""
        session.completing.add(number)
        if session.is_stored:
            self._store.put_number(self._pipeline.open(), session, _COMPLETING, number)

    def finish_completing(self, session: Session, number: int) -> bool:
        """Forget a number that the client has completed; False if it was not completing."""
        return self._finish(session, session.completing, _COMPLETING, number)

    def _finish(self, session: Session, numbers: set[int], kind: bytes, number: int) -> bool:
        if number not in numbers:
            return False
        numbers.remove(number)
        if session.is_stored:
            self._store.delete_number(self._pipeline.open(), session, kind, number)
        return True

    # -- time ----------------------------------------------------------------------------------------------------------

    def on_time(self, now_us: int) -> None:
        """Publish due wills and end due sessions."""
        if not self._is_on_time:
            self._is_on_time = True
            take_steps(self._pipeline, self._run_due(now_us))

    def _run_due(self, now_us: int) -> Iterator[None]:
        seen = 0
        try:
            while self._due and self._due[0][0] <= now_us:
                due_us, client_id = heapq.heappop(self._due)
                seen += 1
                session = self._sessions.get(client_id)
                if session is not None and session.due_us == due_us and session.link is None:
                    if session.lifetime_s != FOREVER and session.ends_us <= now_us:
                        self._end(session)
                    else:
                        self._send_will(session)
                        self._plan(session, now_us)
                if seen % AT_ONCE == 0:
                    yield
        finally:  # later due times must run after an error too
            self._is_on_time = False

    @property
    def next_due_us(self) -> int:
        """Next due time; 0 = never."""
        return self._due[0][0] if self._due else 0

    def _plan(self, session: Session, now_us: int) -> None:
        """Schedule a disconnected session for its will or its end."""
        dues = [session.ends_us] if session.ends_us else []
        if session.will is not None:
            dues.append(now_us + session.will.delay_s * _SECOND_US)
        session.due_us = min(dues, default=0)
        if session.due_us:
            heapq.heappush(self._due, (session.due_us, session.client_id))
        if len(self._due) > 2 * len(self._sessions) + _SLACK:
            self._due = [(other.due_us, other.client_id) for other in self._sessions.values() if other.due_us]
            heapq.heapify(self._due)

    def _send_will(self, session: Session) -> None:
        will, session.will = session.will, None
        if will is not None:
            self._store.delete_will(self._pipeline.open(), session)
            self._publish(will)

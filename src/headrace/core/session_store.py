"""Sessions as the engine's keyed state: one entry for each fact, so that each changes by itself. No decisions.

The table `sessions` has keys of a virtual host and a client id, each followed by U+0000, then a letter for the fact:

    s            the session: JSON {"lifetime_s", "left_us", "user"}
    f<pattern>   a subscription: JSON of what differs from the default
    w            its will: seconds it waits, seconds it is good for (u32 each, big-endian), then the message as
                 envelope.py has it
    i<number>    a message taken exactly once from the client and not finished (u16, big-endian)
    o<number>    one that the client has taken exactly once and not finished
"""

import json
import logging
from collections.abc import Iterable
from typing import Final, final

from headrace.core.envelope import decode_envelope, encode_envelope
from headrace.core.session import FOREVER, Session, Will
from headrace.core.subscription import Subscription
from headrace.core.turn import Turn
from headrace.errors import Corrupt
from headrace.storage.api import SESSIONS, Engine

_SEPARATOR: Final = b"\0"
_NUMBERS: Final = (b"i", b"o")
_log: Final = logging.getLogger("headrace.core")


@final
class SessionStore:
    """Writes what changes about the sessions of one virtual host, and reads all of it at the start."""

    def __init__(self, engine: Engine, host: str) -> None:
        self._engine = engine
        self._prefix = host.encode() + _SEPARATOR

    def load(self) -> dict[str, Session]:
        """All sessions by client id; an entry that cannot be read is left out, and the log says so.

        A client that had a will and no stored session gets one of lifetime 0.
        """
        sessions: dict[str, Session] = {}
        for key, value in self._engine.items(SESSIONS):
            if not key.startswith(self._prefix):
                continue
            client, _, fact = key[len(self._prefix) :].partition(_SEPARATOR)
            session = sessions.setdefault(client.decode(), Session(client.decode()))
            try:
                _read(session, fact, value)
            except (ValueError, KeyError, TypeError, Corrupt) as error:
                _log.error("an entry of the session %r is left out: %r: %s", session.client_id, fact, error)
        return sessions

    def put(self, turn: Turn, session: Session) -> None:
        session.is_stored = True
        values = {"lifetime_s": session.lifetime_s, "left_us": session.left_us, "user": session.user}
        value = json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()
        turn.durable.put(SESSIONS, self._key(session, b"s"), value)

    def put_subscription(self, turn: Turn, subscription: Subscription) -> None:
        key = self._key(subscription.session, b"f" + subscription.pattern.encode())
        turn.durable.put(SESSIONS, key, _encode_subscription(subscription))

    def delete_subscription(self, turn: Turn, session: Session, pattern: str) -> None:
        turn.durable.delete(SESSIONS, self._key(session, b"f" + pattern.encode()))

    def put_will(self, turn: Turn, session: Session, will: Will) -> None:
        value = will.delay_s.to_bytes(4) + will.expires_s.to_bytes(4) + encode_envelope(will.envelope)
        turn.durable.put(SESSIONS, self._key(session, b"w"), value)

    def delete_will(self, turn: Turn, session: Session) -> None:
        turn.durable.delete(SESSIONS, self._key(session, b"w"))

    def put_taken(self, turn: Turn, session: Session, number: int) -> None:
        turn.durable.put(SESSIONS, self._key(session, b"i" + number.to_bytes(2)), b"")

    def delete_taken(self, turn: Turn, session: Session, number: int) -> None:
        turn.durable.delete(SESSIONS, self._key(session, b"i" + number.to_bytes(2)))

    def put_completing(self, turn: Turn, session: Session, number: int) -> None:
        turn.durable.put(SESSIONS, self._key(session, b"o" + number.to_bytes(2)), b"")

    def delete_completing(self, turn: Turn, session: Session, number: int) -> None:
        turn.durable.delete(SESSIONS, self._key(session, b"o" + number.to_bytes(2)))

    def delete(self, turn: Turn, session: Session) -> None:
        """Forget everything about the session but its will."""
        session.is_stored = False
        turn.durable.delete(SESSIONS, self._key(session, b"s"))
        for pattern in session.subscriptions:
            self.delete_subscription(turn, session, pattern)
        for kind, numbers in ((b"i", session.taken), (b"o", session.completing)):
            self._delete_numbers(turn, session, kind, numbers)

    def _delete_numbers(self, turn: Turn, session: Session, kind: bytes, numbers: Iterable[int]) -> None:
        for number in numbers:
            turn.durable.delete(SESSIONS, self._key(session, kind + number.to_bytes(2)))

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
    elif kind == b"w":
        envelope = decode_envelope(value[8:], f"the will of {session.client_id!r}")
        session.will = Will(envelope, int.from_bytes(value[:4]), int.from_bytes(value[4:8]))
    elif kind in _NUMBERS and len(rest) == 2:
        (session.taken if kind == b"i" else session.completing).add(int.from_bytes(rest))
    else:
        raise ValueError("no such fact")


def _encode_subscription(subscription: Subscription) -> bytes:
    plain = Subscription(subscription.session, subscription.pattern)
    names = ("assurance", "identifier", "no_echo", "keeps_retain", "retained", "group", "auto_commit")
    values = {name: value for name in names if (value := getattr(subscription, name)) != getattr(plain, name)}
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()


def _decode_subscription(session: Session, pattern: str, value: bytes) -> Subscription:
    return Subscription(session, pattern, **json.loads(value))

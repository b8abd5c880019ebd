"""What clients were told of the messages of a queue and of things that exist, and whether it is true after a crash."""

import time
from collections import Counter
from collections.abc import Iterable
from typing import Final, final

from tests.crash.kills.message import number_of, publisher_of, uids_in_order

SETTLED_SECONDS: Final = 1.0
"""A settlement that reached the broker this long before a crash is not undone by it."""


class Commits:
    """How far storage surely is: a confirm vouches for everything that the broker had before that publish was sent.

    Settlements ride in the commits of others. Where commits are large and the machine is busy, a second is not enough
    for the next one; the promise then counts from that one on.
    """

    stored_until = 0.0
    killed_at = 0.0
    """When a broker was killed last before a round whose books nobody checks."""

    @classmethod
    def hold(cls, at: float) -> bool:
        """Whether what the broker had at this time is stored."""
        return at < cls.stored_until


_HELD_SECONDS: Final = 1.5
"""A delivery that was held this long before a crash is known as a delivery afterwards."""

_LATE_SECONDS: Final = 1.0
"""An expired message may come this late, as clocks of two processes are read at different moments."""

_MOST_SHOWN: Final = 5


@final
class Found:
    """A message that a reader got after a crash."""

    __slots__ = ("at", "redelivered", "uid", "wrong")

    def __init__(self, uid: str, redelivered: bool | None = None, wrong: str = "") -> None:
        self.uid = uid
        self.redelivered = redelivered
        self.wrong = wrong
        self.at = time.monotonic()


@final
class Entry:
    """What clients know of one message in one queue; times are of the monotonic clock, 0 for never."""

    __slots__ = (
        "confirmed_at",
        "ended_at",
        "expires_s",
        "given_at",
        "is_answered",
        "refused",
        "rejected",
        "sent_at",
        "settling_at",
    )

    def __init__(self, expires_s: float) -> None:
        self.sent_at = time.monotonic()
        self.confirmed_at = 0.0
        self.refused = False
        self.expires_s = expires_s
        self.given_at = 0.0
        self.settling_at = 0.0
        self.ended_at = 0.0
        """When the broker surely had the settlement."""
        self.is_answered = False
        """Whether the settlement had an answer of its own, and so holds from then on."""
        self.rejected = False

    def may_be_gone(self, now: float) -> bool:
        """Whether its absence breaks no promise."""
        return (
            not self.confirmed_at
            or self.settling_at > 0
            or (self.expires_s > 0 and now >= self.sent_at + self.expires_s)
        )


@final
class Book:
    """One queue, or one with the queue for its dead letters: a message is in one of the two, never in both."""

    def __init__(self, name: str, in_order: bool = True, is_watched: bool = True) -> None:
        self.name = name
        self.in_order = in_order
        self.is_watched = is_watched
        """Whether consumers of the round may have got messages that they know nothing of."""
        self.entries: dict[str, Entry] = {}
        self.confirmed = 0
        self.settled = 0

    # -- what clients do, and hear

    def sending(self, uid: str, expires_s: float = 0.0) -> None:
        self.entries[uid] = Entry(expires_s)

    def told(self, uid: str) -> None:
        """The broker has confirmed it."""
        entry = self.entries[uid]
        entry.confirmed_at = time.monotonic()
        Commits.stored_until = max(Commits.stored_until, entry.sent_at)
        self.confirmed += 1

    def refused(self, uid: str) -> None:
        self.entries[uid].refused = True

    def given(self, uid: str) -> None:
        """A consumer has it."""
        entry = self.entries.get(uid)
        if entry is not None:
            entry.given_at = entry.given_at or time.monotonic()

    def released(self, uid: str) -> None:
        """A consumer gave it back as one that nobody had."""
        entry = self.entries.get(uid)
        if entry is not None:
            entry.given_at = 0.0

    def settling(self, uid: str, rejected: bool = False) -> None:
        """A consumer is about to settle it."""
        entry = self.entries.get(uid)
        if entry is not None:
            entry.settling_at = time.monotonic()
            entry.rejected = rejected

    def ended(self, uids: Iterable[str], is_answered: bool = False) -> None:
        """The broker has these settlements: it answered something later, or the settlements themselves."""
        for uid in uids:
            entry = self.entries.get(uid)
            if entry is not None:
                entry.ended_at = time.monotonic()
                entry.is_answered = is_answered
                self.settled += 1

    # -- after a crash

    def check(self, found: list[Found], killed_at: float, dead: list[Found] | None = None) -> list[str]:
        """Everything that is not as clients were told. The book then knows only what is still there."""
        now = time.monotonic()
        problems = [f"{one.uid} is damaged: {one.wrong}" for one in [*found, *(dead or [])] if one.wrong]
        live, buried = Counter(one.uid for one in found), Counter(one.uid for one in dead or [])
        total = live + buried
        problems += [f"{uid} is unknown, or came back" for uid in total if uid not in self.entries]
        problems += [f"{uid} is there {count} times" for uid, count in total.items() if count > 1]
        for uid, entry in self.entries.items():
            problems += self._wrong_of(uid, entry, live[uid], buried[uid], killed_at, now, dead is not None)
        for one in found:
            entry_found = self.entries.get(one.uid)
            if entry_found is not None:
                problems += self._wrong_flags(one, entry_found, killed_at)
        for is_marked in (True, False):  # redeliveries may come before others
            uid = uids_in_order([one.uid for one in found if bool(one.redelivered) is is_marked])
            if uid and self.in_order:
                problems.append(f"{uid} is out of order, {'redelivered' if is_marked else 'delivered'}")
        if not self.is_watched and dead is None:
            problems += self._gaps(live)
        self.entries = {uid: entry for uid, entry in self.entries.items() if total[uid]}
        shown = [f"{self.name}: {problem}" for problem in problems[:_MOST_SHOWN]]
        return shown + ([f"{self.name}: ... {len(problems)} in all"] if len(problems) > _MOST_SHOWN else [])

    def _wrong_of(
        self, uid: str, entry: Entry, live: int, buried: int, killed_at: float, now: float, has_grave: bool
    ) -> list[str]:
        age = f"confirmed {killed_at - entry.confirmed_at:.3f} s before the kill"
        if not live + buried and not entry.refused:
            if has_grave and entry.rejected:
                return [f"{uid} was rejected, and is in neither queue; {age}"] if entry.confirmed_at else []
            if not entry.may_be_gone(now):
                return [f"{uid} is LOST; {age}"]
            if has_grave and entry.confirmed_at and not entry.settling_at:
                return [f"{uid} has expired and is no dead letter; {age}"]
        if entry.refused and live + buried:
            return [f"{uid} was refused and is there"]
        # A round of an embedded program begins with a kill of its own, right after a reader acknowledged all.
        crashed_at = Commits.killed_at if entry.ended_at < Commits.killed_at else killed_at
        since = crashed_at - entry.ended_at
        is_stored = since >= SETTLED_SECONDS and Commits.hold(entry.ended_at)
        if entry.ended_at and live and (entry.is_answered or is_stored):
            how = "with an answer " if entry.is_answered else ""
            return [f"{uid} was settled {how}{since:.3f} s before the kill and is there"]
        return []

    def _wrong_flags(self, one: Found, entry: Entry, killed_at: float) -> list[str]:
        problems: list[str] = []
        if entry.expires_s and entry.confirmed_at and one.at > entry.confirmed_at + entry.expires_s + _LATE_SECONDS:
            problems.append(
                f"{one.uid} came {one.at - entry.confirmed_at:.1f} s after its confirm, good for {entry.expires_s}"
            )
        if one.redelivered is None:
            return problems
        if one.redelivered and not self.is_watched:
            problems.append(f"{one.uid} is marked as redelivered, and nobody had it")
        is_known = killed_at - entry.given_at >= _HELD_SECONDS and Commits.hold(entry.given_at + SETTLED_SECONDS)
        if entry.given_at and is_known and not one.redelivered:
            problems.append(f"{one.uid} was held {killed_at - entry.given_at:.1f} s and is not marked as redelivered")
        return problems

    def _gaps(self, live: Counter[str]) -> list[str]:
        """Messages that are missing before others of the same publisher: one channel's are stored in order."""
        last: dict[str, int] = {}
        for uid in live:
            last[publisher_of(uid)] = max(last.get(publisher_of(uid), -1), number_of(uid))
        return [
            f"{uid} is missing before others of its publisher"
            for uid, entry in self.entries.items()
            if not entry.refused
            and not entry.expires_s
            and not entry.settling_at
            and not live[uid]
            and number_of(uid) < last.get(publisher_of(uid), -1)
        ]

    def drained(self, found: Iterable[Found]) -> None:
        """A reader has acknowledged all of these after the crash, and has heard that the broker knows."""
        for one in found:
            self.settling(one.uid)
            self.ended([one.uid])

    def looked_at(self, found: Iterable[Found]) -> None:
        """A reader has had all of these, and left them."""
        for one in found:
            self.given(one.uid)
        self.is_watched = True


@final
class Facts:
    """Things that clients were told exist, or do not; and those that they asked for without an answer."""

    def __init__(self) -> None:
        self._asked: dict[str, bool] = {}
        self._told: dict[str, bool] = {}
        self.count = 0

    def asking(self, fact: str, value: bool) -> None:
        self._asked[fact] = value

    def told(self, fact: str, value: bool) -> None:
        self._asked.pop(fact, None)
        self._told[fact] = value
        self.count += 1

    def check(self, there: set[str]) -> list[str]:
        """Facts that are not so. What nobody had an answer to is from now on as it was found."""
        problems = [
            f"{fact} {'is gone' if value else 'is there'}, and a client was told otherwise"
            for fact, value in self._told.items()
            if fact not in self._asked and (fact in there) != value
        ]
        self._told = {fact: fact in there for fact in (*self._told, *self._asked)}
        self._asked.clear()
        return problems

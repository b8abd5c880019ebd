"""Publishers that number their messages: which numbers a stream has, so that a message sent twice is stored once.

What is known of a publisher is stored in the batch of its messages, and so is true after a crash too. Numbers grow; a
number that is not above the last one is a message that the stream has, unless storage refused it.

A key is the virtual host as for queues, then the length of the stream's name in characters, a blank, the stream's name,
a blank and the publisher's name. A value is the version 1, then big-endian numbers of 8 bytes: the time of storing in
microseconds, the last number, and the first and last number of each range that was refused.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Final, final

from headrace.errors import PreconditionFailed
from headrace.storage.api import PUBLISHERS, Commit, Items
from headrace.storage.ranges import RangeSet

NONE: Final = -1
"""The last number of a publisher without messages."""
MAX_PUBLISHERS: Final = 1000
"""Publishers that one stream remembers: a new one makes it forget the one that was silent for longest."""
MAX_NAME_CHARACTERS: Final = 255
_MAX_REFUSED: Final = 256
"""Ranges of refused numbers; beyond it the lowest two become one, and what is between them may be stored twice."""
_VERSION: Final = b"\x01"
_NUMBER: Final = struct.Struct(">Q")


@final
class Publisher:
    """One publisher of one stream: the numbers of its messages that the stream has."""

    __slots__ = ("_deletes", "_key", "_stored", "_unsent", "last", "name", "queue", "refused", "used_us")

    def __init__(self, key: bytes, queue: str, name: str, used_us: int) -> None:
        self._key = key
        self.queue = queue
        self.name = name
        self.used_us = used_us
        """The time when it last published or was declared."""
        self.last = NONE
        """The highest number that was taken, stored or on its way."""
        self.refused = RangeSet()
        """Numbers up to the last one that the stream does not have: storage refused them."""
        self._stored = NONE
        """The highest number that storage was given."""
        self._deletes = False
        """True if the batch that stores it deletes a publisher of a former stream of that name."""
        self._unsent = 0
        """Batches that have numbers of it and were not given to storage yet."""

    def known(self, numbers: Sequence[int]) -> list[bool] | None:
        """Tell for each number whether the stream has it already; None if all of them are new."""
        last = self.last
        for number in numbers:
            if number <= last:
                return self._look_at(numbers)
            last = number
        return None

    def _look_at(self, numbers: Sequence[int]) -> list[bool]:
        found: list[bool] = []
        last = self.last
        again: set[int] = set()
        for number in numbers:
            is_known = number <= last and (number in again or number not in self.refused)
            found.append(is_known)
            if not is_known and number <= last:
                again.add(number)
            last = max(last, number)
        return found

    def must_wait(self, is_in_batch: bool, numbers: Sequence[int]) -> bool:
        """True if refused numbers cannot be taken now: a batch before the open one would say that the stream has them.

        `is_in_batch` is True if the open one has numbers of it.
        """
        return self._unsent > is_in_batch and any([number in self.refused for number in numbers])

    def settled_to(self, most: int) -> int:
        """The highest number up to this one that the stream has, or that is on its way to it; NONE for none."""
        last = min(self.last, most)
        for start, stop in reversed(list(self.refused)):
            if start <= last < stop:
                last = start - 1
        return last

    def take(self, start: int, stop: int, is_first: bool) -> None:
        """Take numbers, which are new or were refused; `is_first` is True for the first in their batch."""
        self.last = max(self.last, stop - 1)
        self._unsent += is_first
        if self.refused.size:
            self.refused = _without(self.refused, start, stop)

    def refuse_one(self, number: int) -> None:
        """Note a number that was refused; nothing changes for one that the stream has."""
        if number <= self.last and number not in self.refused:
            return
        self.last = max(self.last, number)
        self._refuse(number, number + 1)

    # -- calls of the batch ------------------------------------------------------------------------------------------

    def put(self, commit: Commit, numbers: RangeSet) -> None:
        """Store with these messages that the stream has them."""
        highest = max([stop - 1 for _, stop in numbers])
        self._stored = max(self._stored, highest)
        parts = [_VERSION, _NUMBER.pack(self.used_us), _NUMBER.pack(self._stored)]
        for start, stop in self.refused:
            parts.append(_NUMBER.pack(start) + _NUMBER.pack(stop - 1))
        self._unsent -= 1
        self._deletes = (PUBLISHERS, self._key) in commit.puts
        commit.put(PUBLISHERS, self._key, b"".join(parts))

    def refuse(self, commit: Commit, numbers: RangeSet) -> None:
        """Note that these messages were not stored; the commit does not say any more that they were."""
        place = (PUBLISHERS, self._key)
        if commit.puts.get(place) is None:
            self._unsent -= 1
        elif self._deletes:
            commit.delete(*place)
        else:
            del commit.puts[place]
        for start, stop in numbers:
            self._refuse(start, stop)

    def restore(self, value: bytes) -> None:
        """Take over what was stored."""
        numbers = [number for (number,) in _NUMBER.iter_unpack(value[1:])]
        self.used_us, self.last = numbers[0], numbers[1]
        self._stored = self.last
        for at in range(2, len(numbers) - 1, 2):
            self.refused.add(numbers[at], numbers[at + 1] + 1)

    def _refuse(self, start: int, stop: int) -> None:
        self.refused.add(start, stop)
        if len(self.refused) > _MAX_REFUSED:
            (first, _), (_, last) = list(self.refused)[:2]
            self.refused.add(first, last)


def _without(ranges: RangeSet, start: int, stop: int) -> RangeSet:
    left = RangeSet()
    for first, last in ranges:
        left.add(first, min(last, start))
        left.add(max(first, stop), last)
    return left


@final
class Publishers:
    """All numbered publishers of one virtual host."""

    def __init__(self, items: Items, scoped: Callable[[str], str], unscoped: Callable[[str], str | None]) -> None:
        """`scoped` and `unscoped` turn names into those of the virtual host in storage, and back."""
        self._scoped = scoped
        self._by_queue: dict[str, dict[str, Publisher]] = {}
        for key, value in items(PUBLISHERS):
            place = unscoped(key.decode())
            if place is not None and value[:1] == _VERSION:
                length, _, rest = place.partition(" ")
                queue, name = rest[: int(length)], rest[int(length) + 1 :]
                publisher = Publisher(key, queue, name, 0)
                publisher.restore(value)
                self._by_queue.setdefault(queue, {})[name] = publisher

    def find(self, queue: str, name: str) -> Publisher | None:
        """The publisher of that name; None if the stream has nothing of it."""
        return self._by_queue.get(queue, {}).get(name)

    def open(self, commit: Commit, queue: str, name: str, now_us: int) -> Publisher:
        """The publisher of that name, new if need be. Raises PreconditionFailed for a name that cannot be stored."""
        if len(name) > MAX_NAME_CHARACTERS or "\0" in name:
            raise PreconditionFailed(
                f"publisher name {name[:64]!r} must have at most {MAX_NAME_CHARACTERS} characters and no U+0000"
            )
        known = self._by_queue.setdefault(queue, {})
        publisher = known.get(name)
        if publisher is None:
            if len(known) >= MAX_PUBLISHERS:
                self._drop(commit, known.pop(min(known, key=lambda each: known[each].used_us)))
            publisher = known[name] = Publisher(self._key(queue, name), queue, name, now_us)
        publisher.used_us = now_us
        return publisher

    def forget(self, commit: Commit, queue: str) -> None:
        """Forget the publishers of a stream that is deleted."""
        for publisher in self._by_queue.pop(queue, {}).values():
            self._drop(commit, publisher)

    def _drop(self, commit: Commit, publisher: Publisher) -> None:
        commit.delete(PUBLISHERS, self._key(publisher.queue, publisher.name))

    def _key(self, queue: str, name: str) -> bytes:
        return self._scoped(f"{len(queue)} {queue} {name}").encode()

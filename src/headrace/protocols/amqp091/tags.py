"""The delivery tags of a channel: what is out with the client and not yet settled. Nothing is settled here."""

from typing import Final, final

from headrace.core.delivery import Delivery

_LAST_BYTES: Final = [bytes([number]) for number in range(256)]
_SLACK: Final = 256
"""So many places in the row may be empty before somebody looks, and as many as are taken."""


@final
class Tags:
    """What is out by its tag, oldest first.

    Tags are given out one after the other, so that deliveries stand in a row without their tags: a dictionary took 300
    instructions and two numbers more for each, of 10,000. What stays out while most that came later are settled is put
    aside, so that the row is no longer than twice what is out.
    """

    __slots__ = ("_aside", "_first", "_head", "_high", "_out", "_row", "last")

    def __init__(self) -> None:
        self.last = 0
        """The last that was given out."""
        self._row: list[Delivery | None] = []
        """What the tags from `_first` to `last` are for; None where that is settled, or need not be."""
        self._first = 1
        self._out = 0
        """How many of the row are not settled."""
        self._aside: dict[int, Delivery] = {}
        """Those before it that are not."""
        self._high = 0
        self._head = bytes(7)
        """All of a tag but its last byte, which few of them change: 130 instructions to encode one instead of 380."""

    def __len__(self) -> int:
        return self._out + len(self._aside)

    def hold(self, delivery: Delivery) -> int:
        """The tag of a delivery that the client has to settle."""
        self.last += 1
        self._row.append(delivery)
        self._out += 1
        return self.last

    def pass_by(self) -> int:
        """The tag of one that it does not."""
        self.last += 1
        if self._row:
            self._row.append(None)
            self._tidy()
        else:
            self._first = self.last + 1
        return self.last

    def encoded(self, tag: int) -> bytes:
        """A tag as it is sent."""
        high = tag >> 8
        if high != self._high:
            self._high = high
            self._head = high.to_bytes(7, "big")
        return self._head + _LAST_BYTES[tag & 255]

    def get(self, tag: int) -> Delivery | None:
        """What is out with this tag."""
        at = tag - self._first
        if at < 0:
            return self._aside.get(tag)
        return self._row[at] if at < len(self._row) else None

    def take(self, tag: int) -> Delivery | None:
        """The same; it is out no more."""
        at = tag - self._first
        if at < 0:
            return self._aside.pop(tag, None)
        if at >= len(self._row):
            return None
        delivery = self._row[at]
        if delivery is not None:
            self._row[at] = None
            self._out -= 1
            self._tidy()
        return delivery

    def up_to(self, last: int) -> list[int]:
        """The tags up to this one that are out, oldest first."""
        found = [tag for tag in self._aside if tag <= last]
        for at in range(min(len(self._row), last - self._first + 1)):
            if self._row[at] is not None:
                found.append(self._first + at)
        return found

    def take_to(self, last: int) -> list[Delivery]:
        """What is out with these tags; it is out no more."""
        found: list[Delivery] = []
        if self._aside:
            for tag in [tag for tag in self._aside if tag <= last]:
                found.append(self._aside.pop(tag))
        stop = max(0, min(len(self._row), last - self._first + 1))
        for delivery in self._row if stop == len(self._row) else self._row[:stop]:
            if delivery is not None:
                found.append(delivery)
                self._out -= 1
        self._shorten(stop)
        return found

    def put_back(self, taken: dict[int, Delivery]) -> None:
        """These were taken and are out after all."""
        for tag, delivery in taken.items():
            if tag < self._first:
                self._aside[tag] = delivery
            else:
                self._row[tag - self._first] = delivery
                self._out += 1
        self._aside = dict(sorted(self._aside.items()))

    def clear(self) -> None:
        """Nothing is out."""
        self._aside.clear()
        self._out = 0
        self._tidy()

    def _tidy(self) -> None:
        """See to it that the row does not get long for little: on the whole, a few instructions for each tag."""
        length = len(self._row)
        if not self._out:
            self._shorten(length)
        elif length > 2 * self._out + _SLACK:
            half = (length + 1) // 2
            for at in range(half):
                delivery = self._row[at]
                if delivery is not None:
                    self._aside[self._first + at] = delivery
                    self._out -= 1
            self._shorten(half)

    def _shorten(self, count: int) -> None:
        """Let go of the first places of the row, in which nothing is left."""
        if count == len(self._row):
            self._row = []
        else:
            del self._row[:count]
        self._first += count

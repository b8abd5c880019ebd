"""Who is told what became of a turn, in the order of the publishes. When that is known is line.py's."""

from collections.abc import Callable
from typing import final

from headrace.errors import HeadraceError

Confirm = Callable[[HeadraceError | None], None]
ConfirmAll = Callable[[int, HeadraceError | None], None]
"""Told how many of those that were published together are meant."""


@final
class _Row:
    """Publishes in a row that one call confirms."""

    __slots__ = ("count", "tell")

    def __init__(self, tell: ConfirmAll, count: int) -> None:
        self.tell = tell
        self.count = count


@final
class Confirms:
    """Those who wait for a turn. Whoever publishes to many queues in turn is told once of all, not once of each."""

    __slots__ = ("_last", "_waiting", "is_awaited")

    def __init__(self) -> None:
        self._waiting: list[Confirm | _Row] = []
        self._last: _Row | None = None
        """The last of those who wait, where more may be added to it."""
        self.is_awaited = False
        """Whether one of them waits for the disk."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, confirm: Confirm, is_awaited: bool = True) -> None:
        """Have this called; `is_awaited` says whether it waits for the disk."""
        self._waiting.append(confirm)
        self._last = None
        self.is_awaited = self.is_awaited or is_awaited

    def add_all(self, confirm: ConfirmAll, count: int, is_awaited: bool) -> None:
        """Have this called for so many publishes; the very same callable again right behind it is one call."""
        last = self._last
        if last is not None and last.tell is confirm:
            last.count += count
        else:
            last = self._last = _Row(confirm, count)
            self._waiting.append(last)
        self.is_awaited = self.is_awaited or is_awaited

    def tell(self, error: HeadraceError | None) -> None:
        """Call all of them; nobody waits any more."""
        waiting, self._waiting = self._waiting, []
        self._last = None
        self.is_awaited = False
        for each in waiting:
            if isinstance(each, _Row):
                each.tell(each.count, error)
            else:
                each(error)

"""A SlateDB database that can be read: get and scan, and what its errors mean. Who writes is in database.py.

Every call waits for its answer, at most as long as it may; then it raises Unavailable.
"""

import copy
from collections.abc import Iterator
from typing import Any, Final, Self

from headrace.clock import Clock
from headrace.errors import Corrupt, Fatal, Fenced, HeadraceError, Unavailable
from headrace.storage.objects.binding import (
    BYTES,
    HANDLE,
    Call,
    Function,
    Kind,
    function,
    lift_raw,
    lower,
    lower_raw,
    native,
    raw_form,
    rows,
)
from headrace.storage.objects.encodings import lexical_successor

Row = tuple[bytes, bytes]

_ROWS: Final = 1000
_MIB: Final = 1 << 20
_CANNOT_READ: Final = (native.Error.Unavailable, native.Error.Invalid)


class Readable:
    """An open database, by whichever handle of the library."""

    def __init__(self, kind: str, place: str, timeout_ms: int, clock: Clock) -> None:
        """`kind` is what the library's functions call the handle, which the one who opens it sets."""
        self.clock = clock
        self.place = place
        self._timeout_ms = timeout_ms
        self._handle: Any = None
        self._get: Function = function(f"method_{kind}_get")
        self._scan: Function = function(f"method_{kind}_scan_with_options")
        self._options = {order: _scan_options(order) for order in (False, True)}

    def within(self, timeout_ms: int) -> Self:
        """The same database with less patience, for whoever must not wait long. Close the other one."""
        impatient = copy.copy(self)
        impatient._timeout_ms = min(timeout_ms, self._timeout_ms)
        return impatient

    def get(self, key: bytes) -> bytes | None:
        with translated(self.place):
            begin = self._get(self._handle._uniffi_clone_handle(), lower(key))
            raw = lift_raw(self._finish(BYTES, begin, "reading"))
            return raw[5:] if raw[0] else None

    def scan(self, start: bytes, end: bytes | None, reverse: bool = False, at_once: int = _ROWS) -> Iterator[list[Row]]:
        """The rows from `start` up to but not including `end`, in runs of up to `at_once`."""
        for raw in self.scan_raw(start, end, reverse, at_once):
            found = rows(raw)
            if found:
                yield found
            if len(found) < at_once:
                return

    def scan_raw(self, start: bytes, end: bytes | None, reverse: bool = False, at_once: int = _ROWS) -> Iterator[bytes]:
        """The same in the library's own form, without an end: whoever gets fewer rows than `at_once` is done."""
        if end is not None and start >= end:
            return
        with translated(self.place):
            bounds = lower_raw(_range(start, end))
            options = lower_raw(self._options[reverse])
            begin = self._scan(self._handle._uniffi_clone_handle(), bounds, options)
            iterator = native._UniffiFfiConverterTypeDbIterator.lift(self._finish(HANDLE, begin, "reading"))
        while True:
            with translated(self.place):
                begin = function("method_dbiterator_next_batch")(iterator._uniffi_clone_handle(), at_once)
                raw = lift_raw(self._finish(BYTES, begin, "reading"))
            yield raw

    def scan_prefix(self, prefix: bytes, at_once: int = _ROWS) -> Iterator[Row]:
        """All rows whose keys begin with the prefix."""
        for found in self.scan(prefix, lexical_successor(prefix), at_once=at_once):
            yield from found

    def last(self, start: bytes, end: bytes) -> Row | None:
        """The last row from `start` up to but not including `end`."""
        for found in self.scan(start, end, reverse=True, at_once=1):
            return found[0]
        return None

    def _finish(self, kind: Kind, future: int, doing: str) -> Any:
        return finish(kind, future, self.place, doing, self._timeout_ms, self.clock)


def finish(kind: Kind, future: int, place: str, doing: str, timeout_ms: int, clock: Clock) -> Any:
    """What came of an operation that was begun. Raises Unavailable when it takes too long, and the library's errors."""
    call = Call(kind, future, clock)
    if not call.wait(timeout_ms):
        call.release()
        raise away(place, doing, timeout_ms)
    return call.result()


def away(place: str, doing: str, timeout_ms: int) -> Unavailable:
    then = "; the broker goes on by itself once it can" if doing == "writing" else ""
    return Unavailable(
        f"{place} does not answer: {doing} took more than {timeout_ms / 1000:g} s. "
        f"Check that the store can be reached{then}"
    )


class translated:  # noqa: N801 - it reads as a statement
    """The library's errors become ours."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, native.Error | native.InternalError):
            raise _ours(error, self._place) from error


def _ours(error: Exception, place: str) -> HeadraceError:
    text = str(getattr(error, "message", error))
    if isinstance(error, native.Error.Closed) and error.reason == native.CloseReason.FENCED:
        return Fenced(
            f"another process has opened {place} and owns it now; this one must not write any more, and stops"
        )
    if isinstance(error, native.Error.Data):
        return Corrupt(place, 0, text)
    if isinstance(error, _CANNOT_READ):
        return Unavailable(f"{place} cannot be used: {text}")
    return Fatal(f"{place} failed: {text}. What was confirmed before is kept; start again")


def _scan_options(reverse: bool) -> bytes:
    order = native.IterationOrder.DESCENDING if reverse else native.IterationOrder.ASCENDING
    options = native.ScanOptions(
        durability_filter=native.DurabilityLevel.MEMORY,
        dirty=False,
        read_ahead_bytes=1 if reverse else _MIB,
        cache_blocks=True,
        max_fetch_tasks=4,
        order=order,
    )
    return raw_form(native._UniffiFfiConverterTypeScanOptions, options)


def _range(start: bytes, end: bytes | None) -> bytes:
    """A range of keys in the library's own form."""
    last = b"\x00" if end is None else b"\x01" + len(end).to_bytes(4, "big") + end
    return b"\x01" + len(start).to_bytes(4, "big") + start + b"\x01" + last + b"\x00"

"""SlateDB's library, called directly: whole byte strings at a time, and without an event loop. No records, no engine.

The package's own conversion copies byte by byte in Python (80 us for a record of 100 bytes; 9 us here), and its
asynchronous methods want an event loop. Both are what its generator made of the library's plain functions, which are
called here instead. They belong to one release, so that one is required.
"""

import ctypes
import itertools
import struct
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple, final

from slatedb.uniffi._slatedb_uniffi import slatedb

from headrace.clock import Clock
from headrace.errors import Unavailable
from headrace.storage.objects.memory import use_few_arenas

REQUIRED: Final = "0.17.0"
_READY: Final = 0

native: Final[Any] = slatedb
"""The package's own module: classes, options and errors."""

_Buffer: Final = native._UniffiRustBuffer
_LENGTH: Final = struct.Struct(">i")


class _ForeignBytes(ctypes.Structure):
    _fields_ = (("len", ctypes.c_int32), ("data", ctypes.c_char_p))


def check_version(found: str) -> None:
    """Raises Unavailable unless this is the release whose functions are called here."""
    if found != REQUIRED:
        raise Unavailable(f"slatedb {found} is installed, {REQUIRED} is needed: pip install 'headrace[objects]'")


check_version(version("slatedb"))
use_few_arenas()

_library: Final = native._UniffiLib
# These return at once and never call back, so they need not let other threads run: with a busy event loop beside it,
# a call that does waits for up to 5 ms to go on.
_quick: Final = ctypes.PyDLL(str(Path(native.__file__).with_name("libslatedb_uniffi.so")))


def _function(name: str, restype: Any, *argtypes: Any) -> Any:
    function = getattr(_quick, name)
    function.argtypes = (*argtypes, ctypes.c_void_p)
    function.restype = restype
    return function


_from_bytes: Final = _function("ffi_slatedb_uniffi_rustbuffer_from_bytes", _Buffer, _ForeignBytes)
_clone_batch: Final = _function("uniffi_slatedb_uniffi_fn_clone_writebatch", ctypes.c_uint64, ctypes.c_uint64)
_put: Final = _function("uniffi_slatedb_uniffi_fn_method_writebatch_put", None, ctypes.c_uint64, _Buffer, _Buffer)
_delete: Final = _function("uniffi_slatedb_uniffi_fn_method_writebatch_delete", None, ctypes.c_uint64, _Buffer)


class Kind(NamedTuple):
    """The functions for futures of one type of result."""

    poll: Any
    complete: Any
    free: Any


def _kind(name: str) -> Kind:
    prefix = "ffi_slatedb_uniffi_rust_future_"
    return Kind(*[getattr(_library, f"{prefix}{function}_{name}") for function in Kind._fields])


NOTHING: Final = _kind("void")
HANDLE: Final = _kind("u64")
BYTES: Final = _kind("rust_buffer")

_numbers: Final = itertools.count(1)
_waiting: dict[int, "SimpleQueue[int]"] = {}


@native._UNIFFI_RUST_FUTURE_CONTINUATION_CALLBACK  # type: ignore[untyped-decorator, unused-ignore]
def _continue(number: int, code: int) -> None:
    """Called by the library's threads."""
    waiting = _waiting.get(number)
    if waiting is not None:
        waiting.put(code)


@final
class Call:
    """One operation that goes on in the library's threads. Made and waited for by one thread of ours."""

    def __init__(self, kind: Kind, future: int, clock: Clock) -> None:
        self._kind = kind
        self._future = future
        self._clock = clock
        self._codes: SimpleQueue[int] = SimpleQueue()
        self._number = next(_numbers)
        self._is_ready = False
        _waiting[self._number] = self._codes
        self._poll()

    def wait(self, timeout_ms: int) -> bool:
        """Whether it came to its end in this time; if not, go on waiting, or give up with `release`."""
        end_us = self._clock.monotonic_us() + timeout_ms * 1000
        while not self._is_ready:
            try:
                code = self._codes.get(timeout=max(0.0, (end_us - self._clock.monotonic_us()) / 1_000_000))
            except Empty:
                return False
            if code == _READY:
                self._is_ready = True
            else:
                self._poll()
        return True

    def result(self) -> Any:
        """What came of it. Raises the library's error."""
        try:
            return native._uniffi_rust_call_with_error(
                native._UniffiFfiConverterTypeError, self._kind.complete, self._future
            )
        finally:
            self.release()

    def release(self) -> None:
        """Be done with it, whether or not it came to its end."""
        if _waiting.pop(self._number, None) is not None:
            self._kind.free(self._future)

    def _poll(self) -> None:
        self._kind.poll(self._future, _continue, self._number)


@final
class Batch:
    """Changes that are written as one."""

    def __init__(self) -> None:
        self.native = native.WriteBatch()
        self._handle: int = self.native._handle
        self._status = native._UniffiRustCallStatus.default()
        self._address = ctypes.addressof(self._status)

    def put(self, key: bytes, value: bytes) -> None:
        status = self._address
        _put(_clone_batch(self._handle, status), lower(key), lower(value), status)
        if self._status.code:
            self._fail()

    def delete(self, key: bytes) -> None:
        status = self._address
        _delete(_clone_batch(self._handle, status), lower(key), status)
        if self._status.code:
            self._fail()

    def _fail(self) -> None:
        native._uniffi_check_call_status(native._UniffiFfiConverterTypeError, self._status)


_ignored_status: Final = native._UniffiRustCallStatus.default()
_ignored: Final = ctypes.addressof(_ignored_status)


def lower(value: bytes) -> Any:
    """Bytes as the library takes them: the length, then they themselves, copied in one go."""
    raw = _LENGTH.pack(len(value)) + value
    return _from_bytes(_ForeignBytes(len(raw), raw), _ignored)


def lower_raw(value: bytes) -> Any:
    """A value that is in the library's own form already."""
    return _from_bytes(_ForeignBytes(len(value), value), _ignored)


def raw_form(converter: Any, value: object) -> bytes:
    """A value in the library's own form, to be lowered many times."""
    return lift_raw(converter.lower(value))


def lift_raw(buffer: Any) -> bytes:
    """What the library returned, in its own form."""
    try:
        return ctypes.string_at(buffer.data, buffer.len)
    finally:
        buffer.free()


def rows(raw: bytes) -> list[tuple[bytes, bytes]]:
    """The keys and values of a list of rows in the library's own form."""
    unpack = _LENGTH.unpack_from
    (count,) = unpack(raw, 0)
    at = 4
    found: list[tuple[bytes, bytes]] = []
    for _ in range(count):
        end = at + 4 + unpack(raw, at)[0]
        key = raw[at + 4 : end]
        at = end + 4 + unpack(raw, end)[0]
        found.append((key, raw[end + 4 : at]))
        at += 16  # its sequence number and its time
        at += 9 if raw[at] else 1  # when it expires
    return found


Function = Callable[..., Any]


def function(name: str) -> Function:
    """A function of the library that begins an operation."""
    found: Function = getattr(_library, f"uniffi_slatedb_uniffi_fn_{name}")
    return found

"""The location of a store, its plain objects, and direct calls of SlateDB's library. No records, no engine.

The package's own conversion copies byte by byte in Python (80 us for a record of 100 bytes; 9 us here), and its
asynchronous methods need an event loop. This module calls the library's plain functions instead. They belong to one
release, which is required.

The library's threads allocate and free the blocks of tables by the megabyte. glibc keeps freed memory in an arena for
every few threads: over two million messages that came to 130 MB beside 55 MB in use.
"""

import contextlib
import ctypes
import itertools
import os
import struct
from collections.abc import Callable
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple, final
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore, from_url
from slatedb.uniffi._slatedb_uniffi import slatedb

from headrace.clock import Clock
from headrace.config.replication import is_name
from headrace.errors import Refused, Unavailable

_M_ARENA_MAX: Final = -8
_ARENAS: Final = 2

_allocator: Final[Any] = ctypes.CDLL(None)


def use_few_arenas() -> None:
    """Let all threads share a few arenas. Call it before threads start."""
    with contextlib.suppress(AttributeError):  # other C libraries have none
        _allocator.mallopt(_M_ARENA_MAX, _ARENAS)


def give_back() -> None:
    """Return free memory to the system; takes some milliseconds."""
    with contextlib.suppress(AttributeError):
        _allocator.malloc_trim(0)


REQUIRED: Final = "0.17.0"
_READY: Final = 0

native: Final[Any] = slatedb
"""The package's own module: classes, options and errors."""

_Buffer: Final = native._UniffiRustBuffer
_LENGTH: Final = struct.Struct(">i")


class _ForeignBytes(ctypes.Structure):
    _fields_ = (("len", ctypes.c_int32), ("data", ctypes.c_char_p))


def check_version(found: str) -> None:
    """Raises Unavailable unless this is the required release."""
    if found != REQUIRED:
        raise Unavailable(f"slatedb {found} is installed, {REQUIRED} is needed: pip install 'headrace[objects]'")


check_version(version("slatedb"))
use_few_arenas()

_library: Final = native._UniffiLib
# These functions return at once and never call back, so they keep the interpreter's lock: beside a busy event loop, a
# call that releases it waits up to 5 ms to get it again.
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
    """Note the progress of a call; the library's threads call this."""
    waiting = _waiting.get(number)
    if waiting is not None:
        waiting.put(code)


@final
class Call:
    """One operation in the library's threads. One thread of ours begins it and waits for it."""

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
        """Wait for its end; False if the time is over: wait again or give up with `release`."""
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
        """The result. Raises the library's error."""
        try:
            return native._uniffi_rust_call_with_error(
                native._UniffiFfiConverterTypeError, self._kind.complete, self._future
            )
        finally:
            self.release()

    def release(self) -> None:
        """Free it, whether or not it has ended."""
        if _waiting.pop(self._number, None) is not None:
            self._kind.free(self._future)

    def _poll(self) -> None:
        self._kind.poll(self._future, _continue, self._number)


@final
class Batch:
    """Changes that are written atomically."""

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
    """Bytes for the library: their length and a copy of them."""
    raw = _LENGTH.pack(len(value)) + value
    return _from_bytes(_ForeignBytes(len(raw), raw), _ignored)


def lower_raw(value: bytes) -> Any:
    """A value for the library that is in its own form already."""
    return _from_bytes(_ForeignBytes(len(value), value), _ignored)


def raw_form(converter: Any, value: object) -> bytes:
    """A value in the library's own form, to be lowered many times."""
    return lift_raw(converter.lower(value))


def lift_raw(buffer: Any) -> bytes:
    """The bytes that the library returned, in its own form."""
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


VARIABLES: Final = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}
"""The prefix of each vendor's environment variables."""
_MANIFESTS: Final = "manifest"


def open_bucket(url: str, timeout_ms: int, create: bool) -> ObjectStore:
    """The objects below a URL. Each call waits at most this long, and is not retried.

    Raises obstore's errors: BaseError, OSError and ValueError.
    """
    scheme = urlsplit(url).scheme
    if scheme not in VARIABLES:
        return from_url(url, mkdir=True) if create else from_url(url)
    waiting = timedelta(milliseconds=timeout_ms)
    return from_url(
        url,
        client_options={
            "timeout": waiting,
            "connect_timeout": waiting,
            "allow_http": os.environ.get(f"{VARIABLES[scheme]}_ALLOW_HTTP", "").lower() == "true",
        },
        retry_config={"max_retries": 0, "retry_timeout": waiting},  # the caller decides about retries
    )


def groups(url: str, timeout_ms: int) -> list[str]:
    """The replication groups that have a database in a store, in order. Raises Unavailable."""
    try:
        return groups_in(open_bucket(url, timeout_ms, create=False))
    except (BaseError, OSError, ValueError) as error:
        raise Unavailable(f"reading in {url} failed: {str(error).partition(chr(10))[0]}") from error


def groups_in(bucket: ObjectStore) -> list[str]:
    """The replication groups in an open store. Raises obstore's errors."""
    return [name for name in folders(bucket) if is_name(name) and _has_manifest(bucket, name)]


def folders(bucket: ObjectStore, inside: str = "") -> list[str]:
    """The names of folders at the top or inside another, in order. Raises obstore's errors."""
    found = obstore.list_with_delimiter(bucket, inside or None)["common_prefixes"]
    return sorted([path.rstrip("/").rpartition("/")[2] for path in found])


def _has_manifest(bucket: ObjectStore, name: str) -> bool:
    return any(len(batch) for batch in obstore.list(bucket, f"{name}/{_MANIFESTS}/", chunk_size=1))


SCHEMES: Final = ("s3", "gs", "az", "file", "memory")


@final
class Location:
    """A place for databases, one path for each."""

    def __init__(self, url: str, create: bool = True) -> None:
        """Make a missing directory unless `create` is False.

        Raises Refused when the URL cannot be one of a store, Unavailable when the store cannot be used.
        """
        self.url = url.rstrip("/")
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES:
            raise Refused(f"{url!r} is not the URL of a store: it begins with {', '.join(f'{s}://' for s in SCHEMES)}")
        if parts.query or parts.fragment or parts.username or parts.password:
            raise Refused(
                f"{url!r}: a store's URL has no user, query or fragment; credentials come from the environment"
            )
        self.directory = unquote(parts.path) if parts.scheme == "file" else ""
        """Its path on this machine; "" for a remote store."""
        self._prefix = "" if self.directory else unquote(parts.path).strip("/")
        self.store = self._resolve(url, parts.scheme, parts.netloc, unquote(parts.path), create)

    def path(self, name: str) -> str:
        """The path of a database in the store."""
        return f"{self._prefix}/{name}" if self._prefix else name

    def describe(self, name: str) -> str:
        return f"the store {self.url}/{name}"

    def _resolve(self, url: str, scheme: str, host: str, path: str, create: bool) -> Any:
        try:
            if scheme == "file":
                return _directory(url, host, path, create)
            if scheme == "memory":
                return native.ObjectStore.resolve("memory:///")
            if not host:
                raise Refused(f"{url!r} names no bucket: write {scheme}://bucket/prefix")
            return native.ObjectStore.resolve(f"{scheme}://{host}")
        except native.Error as error:
            text = getattr(error, "message", error)
            raise Unavailable(f"the store {url} cannot be used: {text}") from error


def _directory(url: str, host: str, path: str, create: bool) -> Any:
    if host or len(path) < 2:
        raise Refused(f"{url!r} names no directory: write file:///path/of/a/directory")
    if not create and not Path(path).is_dir():
        raise Unavailable(f"there is no directory {path}, and so no store {url}")
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"the directory of {url} cannot be made: {error.strerror or error}") from error
    builder = native.ObjectStoreBuilder(native.ObjectStoreType.LOCAL)
    builder.with_config("local_path", path)
    return builder.build()

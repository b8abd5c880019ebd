"""Names as paths, JSON documents with a checksum, the lock of a directory, and crc32. No formats of messages.

Lower-case letters, digits, `-`, `_` and inner `.` stand for themselves, every other byte is `%xx`; so names that differ
only in case stay apart where the file system does not tell case. What gets too long for one path component is cut
into several, each but the last ending in `+`.
"""

import fcntl
import json
import os
from pathlib import Path, PurePath
from typing import Any, Final, final

from headrace.clock import Clock
from headrace.errors import Corrupt, Unavailable
from headrace.storage.local.disk import PRIVATE_FILE

try:
    # The same numbers as zlib's at twelve times its speed: a message of 64 KiB took 15 us for that alone.
    from zlib_ng.zlib_ng import crc32
except ImportError:  # on Spark's executors, which get our code alone
    from zlib import crc32

__all__ = ["crc32"]


@final
class DirectoryLock:
    """Held from construction until `release`, or until the process is gone."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        """Raises Unavailable, naming the holder, when another process has the directory open."""
        self._fd = os.open(_path(directory), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        _take(self._fd, fcntl.LOCK_EX, directory)
        who = {"pid": os.getpid(), "host": os.uname().nodename, "since_us": clock.now_us()}
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, json.dumps(who).encode(), 0)

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@final
class ReadingLock:
    """Keeps brokers out of a directory while it is read, without writing a byte; readers do not exclude each other."""

    def __init__(self, directory: Path) -> None:
        """Raises Unavailable, naming the holder, when another process may write to the directory."""
        self._fd = -1
        try:
            fd = os.open(_path(directory), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # no broker was ever here: this is a copy, or new
        _take(fd, fcntl.LOCK_SH, directory)
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _path(directory: Path) -> Path:
    return directory / "LOCK"


def _take(fd: int, kind: int, directory: Path) -> None:
    """Raises Unavailable, and closes the file, when it is locked already."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(fd, 4096, 0)
        os.close(fd)
        raise Unavailable(
            f"the data directory {directory} is in use by {_describe(holder)}; "
            f"stop that process or choose another directory"
        ) from error


def _describe(holder: bytes) -> str:
    try:
        who = json.loads(holder)
        pid, host = int(who["pid"]), str(who["host"])
    except (ValueError, KeyError, TypeError):
        return "another process"
    if host == os.uname().nodename and not _is_alive(pid):
        return f"a process that reads it, such as `headrace doctor` (the last broker here was process {pid})"
    return f"process {pid} on {host}"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def encode_json(values: dict[str, Any]) -> bytes:
    """The document with its checksum added, laid out; `values` says which format it is in."""
    whole = {**values, "crc32": f"{crc32(_canonical(values)):08x}"}
    return json.dumps(whole, ensure_ascii=False, indent=1).encode()


def seal_json(document: bytes) -> bytes:
    """A document in its shortest form but for line breaks, which has members and no checksum yet, with that added."""
    shortest = document.replace(b"\n", b"")  # within texts they are escaped
    return document[:-1] + f',"crc32":"{crc32(shortest):08x}"}}'.encode()


def decode_json(data: bytes, path: Path, newest: int) -> dict[str, Any]:
    """The values of a document. Raises Corrupt when it is none, is damaged, or has a format that is not known."""
    file = str(path)
    try:
        values = json.loads(data)
    except ValueError as error:
        raise Corrupt(file, getattr(error, "pos", 0), f"this is not JSON: {error}") from error
    if not isinstance(values, dict) or "crc32" not in values:
        raise Corrupt(file, 0, "the checksum is missing")
    crc = values.pop("crc32")
    try:
        found = f"{crc32(_canonical(values)):08x}"
    except UnicodeEncodeError as error:
        raise Corrupt(file, 0, f"a text in it is not valid Unicode: {error}") from error
    if crc != found:
        raise Corrupt(file, 0, f"the checksum does not fit; it says {crc}")
    if values.get("format") not in range(1, newest + 1):
        raise Corrupt(file, 0, f"format {values.get('format')} is not known to this release; use a newer one")
    return values


def _canonical(values: dict[str, Any]) -> bytes:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()


_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_.")
_COMPONENT: Final = 200
_MORE: Final = "+"


def encode_name(name: str) -> str:
    """A relative path for this name; different names give different paths, none inside another."""
    raw = name.encode()
    text = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in raw)
    if text.startswith("."):
        text = "%2e" + text[1:]
    if len(text) > _COMPONENT:
        text = text.replace(".", "%2e")  # so that no later piece can be "." or ".."
    pieces = [text[at : at + _COMPONENT] for at in range(0, len(text), _COMPONENT)]
    return "/".join([piece + _MORE for piece in pieces[:-1]] + pieces[-1:])


def decode_name(path: str) -> str:
    """The name that `encode_name` made this path of. Raises ValueError when it made no such path."""
    pieces = PurePath(path).parts
    text = "".join(piece.removesuffix(_MORE) for piece in pieces)
    raw = bytearray()
    at = 0
    while at < len(text):
        if text[at] == "%":
            raw.append(int(text[at + 1 : at + 3], 16))
            at += 3
        else:
            raw += text[at].encode()
            at += 1
    name = raw.decode()
    if encode_name(name) != path:
        raise ValueError(f"{path!r} is not the path of a name")
    return name


def is_partial(component: str) -> bool:
    """Whether this path component goes on in the folder below it."""
    return component.endswith(_MORE)

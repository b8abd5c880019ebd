"""Names as paths, JSON documents with a checksum, the lock of a directory, and crc32. No messages.

In a path, lower-case letters, digits, `-`, `_` and inner `.` stand for themselves, every other byte is `%xx`. So names
that differ only in case stay apart on file systems that ignore case. A name that is too long for one path component
has several, each but the last ending in `+`.
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
    # zlib-ng gives zlib's numbers at twelve times its speed: zlib took 15 us for a message of 64 KiB.
    from zlib_ng.zlib_ng import crc32
except ImportError:  # Spark's executors get our code without dependencies
    from zlib import crc32

__all__ = ["crc32"]


class ReadingLock:
    """A shared lock for readers: it keeps brokers out of a directory without writing a byte."""

    def __init__(self, directory: Path) -> None:
        """Raises Unavailable, naming the holder, when another process may write to the directory."""
        self._fd = -1
        try:
            fd = os.open(_path(directory), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # no broker ever opened this directory: it is a copy, or new
        _take(fd, fcntl.LOCK_SH, directory)
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@final
class DirectoryLock(ReadingLock):
    """An exclusive lock, held from construction until `release` or the end of the process."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        """Raises Unavailable, naming the holder, when another process has the directory open."""
        self._fd = os.open(_path(directory), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        _take(self._fd, fcntl.LOCK_EX, directory)
        who = {"pid": os.getpid(), "host": os.uname().nodename, "since_us": clock.now_us()}
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, json.dumps(who).encode(), 0)


def _path(directory: Path) -> Path:
    return directory / "LOCK"


def _take(fd: int, kind: int, directory: Path) -> None:
    """Lock the file. Raises Unavailable, and closes it, when another process has locked it."""
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
    """An indented document with a checksum; `values` has its format."""
    whole = {**values, "crc32": f"{crc32(_canonical(values)):08x}"}
    return json.dumps(whole, ensure_ascii=False, indent=1).encode()


def crc32_json(part: bytes, before: int = 0) -> int:
    """The checksum of a part of a document, which is in its shortest form except for line breaks."""
    return crc32(part.replace(b"\n", b""), before)  # within texts line breaks are escaped


def seal_json(document: bytes, before: int = 0) -> bytes:
    """Add a checksum to a document, or to its end: `before` is the checksum of the parts before it."""
    return document[:-1] + f',"crc32":"{crc32_json(document, before):08x}"}}'.encode()


def decode_json(data: bytes, path: Path, newest: int) -> dict[str, Any]:
    """The values of a document. Raises Corrupt when it is damaged or its format is unknown."""
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
    """A relative path for this name. Different names get different paths, none inside another."""
    raw = name.encode()
    text = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in raw)
    if text.startswith("."):
        text = "%2e" + text[1:]
    if len(text) > _COMPONENT:
        text = text.replace(".", "%2e")  # no later piece may be "." or ".."
    pieces = [text[at : at + _COMPONENT] for at in range(0, len(text), _COMPONENT)]
    return "/".join([piece + _MORE for piece in pieces[:-1]] + pieces[-1:])


def decode_name(path: str) -> str:
    """The name of a path from `encode_name`. Raises ValueError for any other path."""
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
    """True if the name continues in the next path component."""
    return component.endswith(_MORE)

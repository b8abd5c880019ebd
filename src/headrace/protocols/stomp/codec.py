"""STOMP frames: bytes to values and back, for versions 1.0, 1.1 and 1.2. No sockets, no broker.

    COMMAND LF | name:value LF ... | LF | body | NUL

Lines may end with CR LF. The header `content-length` counts the body; without it the body ends at the first NUL. Empty
lines between frames are heart-beats.
"""

from typing import Final, final

from headrace.errors import ProtocolError

V10: Final = "1.0"
V11: Final = "1.1"
V12: Final = "1.2"
VERSIONS: Final = (V12, V11, V10)
"""The versions, the preferred one first."""

CONNECT: Final = "CONNECT"
STOMP: Final = "STOMP"
CONNECTED: Final = "CONNECTED"
ERROR: Final = "ERROR"
MESSAGE: Final = "MESSAGE"
RECEIPT: Final = "RECEIPT"

CONTENT_LENGTH: Final = "content-length"
CONTENT_TYPE: Final = "content-type"
HEART_BEAT: Final = b"\n"

MAX_HEAD_BYTES: Final = 64 << 10
"""The largest command with its headers."""
MALFORMED: Final = 1
"""The code of every error here; STOMP has no codes."""
_UNLIMITED: Final = 1 << 62
_BLANK: Final = b"\r\n"
_NO_BODY_LENGTH: Final = -1
_ENCODED: Final = {ord("\\"): "\\\\", ord("\n"): "\\n", ord(":"): "\\c"}
_ENCODED_BY: Final[dict[str, dict[int, str]]] = {
    V10: {ord("\n"): "\\n", ord("\r"): "\\r"},  # 1.0 has no escapes, and no value may end its line
    V11: _ENCODED,
    V12: {**_ENCODED, ord("\r"): "\\r"},
}
_DECODED: Final = {"n": "\n", "c": ":", "\\": "\\"}


@final
class Frame:
    """One frame of a client."""

    __slots__ = ("body", "command", "headers")

    def __init__(self, command: str, headers: dict[str, str]) -> None:
        self.command = command
        self.headers = headers
        """Of a header that is repeated, the first counts."""
        self.body = b""

    def get(self, name: str) -> str:
        """The value of a header; "" if it is absent."""
        return self.headers.get(name, "")

    def require(self, name: str) -> str:
        """The value of a header. Raises ProtocolError if it is absent."""
        value = self.headers.get(name)
        if value is None:
            raise malformed(f"{self.command} needs the header {name!r}")
        return value


def malformed(text: str) -> ProtocolError:
    return ProtocolError(MALFORMED, text)


def chosen_version(headers: dict[str, str]) -> str:
    """The highest common version for a CONNECT; "" if there is none. A client that names none speaks 1.0."""
    accepted = [each.strip() for each in headers.get("accept-version", V10).split(",")]
    return next((version for version in VERSIONS if version in accepted), "")


@final
class Decoder:
    """Cuts the bytes of one client into frames. Until its CONNECT, the version is 1.0."""

    __slots__ = ("_frame", "_length", "_parts", "_size", "failure", "max_body_bytes", "version")

    def __init__(self, max_body_bytes: int = _UNLIMITED) -> None:
        self.max_body_bytes = max_body_bytes
        self.version = V10
        self.failure: ProtocolError | None = None
        """The error behind the frames of the last feed: they came before it and count."""
        self._parts: list[bytes] = []
        """Bytes of an incomplete frame. Large bodies are joined once."""
        self._size = 0
        self._frame: Frame | None = None
        """The frame whose body is incomplete; the parts begin with its body."""
        self._length = _NO_BODY_LENGTH

    @property
    def held_bytes(self) -> int:
        """Bytes of an incomplete frame."""
        return self._size

    def clear(self) -> None:
        """Drop an incomplete frame."""
        self._parts = []
        self._size = 0

    def feed(self, data: bytes) -> list[Frame]:
        """Take bytes; returns the frames that are complete. `failure` tells of an error behind them."""
        found: list[Frame] = []
        if self.failure is not None:
            return found
        if self._parts:
            self._parts.append(data)
            self._size += len(data)
            if self._must_wait(data):
                return found
            data = b"".join(self._parts)
            self.clear()
        try:
            at = self._take_all(data, found)
        except ProtocolError as error:
            self.failure = error.with_traceback(None)  # a traceback would keep the bytes
            return found
        if at < len(data):
            self._parts = [data[at:] if at else data]
            self._size = len(data) - at
        return found

    def _must_wait(self, data: bytes) -> bool:
        """True if these bytes do not end the incomplete frame: spares joining its parts again and again."""
        if self._frame is None or self._size > self.max_body_bytes + 1:
            return False
        if self._length != _NO_BODY_LENGTH:
            return self._size <= self._length
        return b"\0" not in data

    def _take_all(self, data: bytes, found: list[Frame]) -> int:
        """Add all complete frames; returns where the incomplete rest begins. Raises ProtocolError."""
        at = 0
        size = len(data)
        while True:
            frame = self._frame
            if frame is None:
                while at < size and data[at] in _BLANK:
                    at += 1
                if at == size:
                    return at
                end = self._head_end(data, at)
                if end < 0:
                    return at
                frame = self._begin(data[at:end])
                at = end
            end = self._body_end(data, at)
            if end < 0:
                self._frame = frame
                return at
            frame.body = data[at:end]
            self._frame = None
            found.append(frame)
            at = end + 1

    def _head_end(self, data: bytes, at: int) -> int:
        """The end of the head that begins here, with its empty line; -1 if it is incomplete."""
        end = data.find(b"\n\n", at, at + MAX_HEAD_BYTES)
        stop = end if end >= 0 else at + MAX_HEAD_BYTES
        crlf = data.find(b"\n\r\n", at, stop)
        if crlf >= 0:
            return crlf + 3
        if end >= 0:
            return end + 2
        nul = data.find(b"\0", at, stop)
        if nul >= 0:
            raise malformed("a frame has no empty line between its headers and its body")
        if len(data) - at >= MAX_HEAD_BYTES:
            raise malformed(f"the headers of a frame have more than {MAX_HEAD_BYTES} bytes")
        return -1

    def _begin(self, head: bytes) -> Frame:
        """Read a command with its headers."""
        try:
            lines = head.decode().split("\n")
        except UnicodeDecodeError as error:
            raise malformed(f"the headers of a frame are not UTF-8: {error.reason}") from error
        if b"\0" in head:
            raise malformed("a frame has no empty line between its headers and its body")
        command = lines[0].removesuffix("\r")
        is_first = command in (CONNECT, STOMP)
        escapes = not is_first and self.version != V10
        headers: dict[str, str] = {}
        for at in range(1, len(lines)):
            line = lines[at].removesuffix("\r")
            if not line:
                break
            name, colon, value = line.partition(":")
            if not colon:
                raise malformed(f"{command[:32]}: the header {line[:64]!r} has no colon")
            if escapes:
                if "\\" in line:
                    name, value = self._unescaped(name), self._unescaped(value)
            elif not is_first:
                value = value.strip(" ")  # 1.0 shows a space behind the colon
            headers.setdefault(name, value)
        if is_first:
            if "accept-version" not in headers:
                headers = {name: value.strip(" ") for name, value in headers.items()}
            self.version = chosen_version(headers) or V10
        self._length = _length(command, headers)
        if self._length > self.max_body_bytes:
            raise malformed(f"a body of {self._length} bytes is too large: {self.max_body_bytes} at most")
        return Frame(command, headers)

    def _unescaped(self, text: str) -> str:
        parts = text.split("\\")
        out = [parts[0]]
        at = 1
        while at < len(parts):
            part = parts[at]
            if not part and at + 1 < len(parts):  # the backslash itself, and the text behind it
                out.append("\\" + parts[at + 1])
                at += 2
                continue
            letter = part[:1]
            character = _DECODED.get(letter, "\r" if letter == "r" and self.version == V12 else "")
            if not character:
                raise malformed(f"the header {text[:64]!r} has an escape that STOMP {self.version} does not know")
            out.append(character + part[1:])
            at += 1
        return "".join(out)

    def _body_end(self, data: bytes, at: int) -> int:
        """The position of the NUL behind the body that begins here; -1 if it is incomplete."""
        length = self._length
        if length == _NO_BODY_LENGTH:
            end = data.find(b"\0", at)
            size = (len(data) if end < 0 else end) - at
            if size > self.max_body_bytes:
                raise malformed(f"a body of more than {self.max_body_bytes} bytes is too large")
            return end
        end = at + length
        if end >= len(data):
            return -1
        if data[end]:
            raise malformed(f"the body is longer than its {CONTENT_LENGTH} of {length}")
        return end


def _length(command: str, headers: dict[str, str]) -> int:
    text = headers.get(CONTENT_LENGTH)
    if text is None:
        return _NO_BODY_LENGTH
    text = text.strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise malformed(f"{command[:32]}: {CONTENT_LENGTH} {text[:32]!r} is not a number of bytes")
    return int(text)


def encode_header(name: str, value: str, version: str) -> str:
    """One header line, escaped as the version has it."""
    table = _ENCODED_BY[version]
    return f"{name.translate(table)}:{value.translate(table)}\n"


def encode_head(command: str, headers: list[tuple[str, str]], version: str) -> bytes:
    """The command and header lines of a frame; more header lines, an empty line, the body and NUL must follow.

    CONNECTED escapes nothing: a client may not know the version yet.
    """
    if command == CONNECTED:
        lines = [f"{name}:{value}\n" for name, value in headers]
    else:
        lines = [encode_header(name, value, version) for name, value in headers]
    return f"{command}\n{''.join(lines)}".encode(errors="surrogateescape")


def encode_frame(command: str, headers: list[tuple[str, str]], version: str, body: bytes = b"") -> bytes:
    """A whole frame."""
    head = encode_head(command, headers, version)
    length = f"{CONTENT_LENGTH}:{len(body)}\n".encode() if body else b""
    return b"".join((head, length, b"\n", body, b"\0"))

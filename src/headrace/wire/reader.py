"""Numbers and bytes of a wire format, one after the other. The formats build on it; none of their values are here."""

from headrace.errors import ProtocolError


class ByteReader:
    """Reads big-endian numbers and bytes up to `end`. Raises ProtocolError with `code` where bytes are missing."""

    __slots__ = ("_code", "_data", "_end", "_what", "at")

    def __init__(self, data: bytes, at: int, end: int, code: int, what: str) -> None:
        self._data = data
        self.at = at
        self._end = end
        self._code = code
        self._what = what
        """The name of these bytes in errors."""

    @property
    def is_at_end(self) -> bool:
        return self.at >= self._end

    def octet(self) -> int:
        return self._data[self.step(1)]

    def short(self) -> int:
        at = self.step(2)
        return self._data[at] << 8 | self._data[at + 1]

    def long(self) -> int:
        at, data = self.step(4), self._data
        return data[at] << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3]

    def longlong(self) -> int:
        return self.long() << 32 | self.long()

    def raw(self, size: int) -> bytes:
        at = self.step(size)
        return self._data[at : at + size]

    def step(self, size: int) -> int:
        """Step over `size` bytes; returns their start."""
        at = self.at
        if at + size > self._end:
            raise self.error(f"{size} bytes are due where {self._end - at} are left")
        self.at = at + size
        return at

    def error(self, problem: str) -> ProtocolError:
        return ProtocolError(self._code, f"{self._what}: {problem}" if self._what else problem)

"""STOMP for a node that forwards clients: where frames end, how to say goodbye, how to refuse."""

from typing import Final, final

from headrace.net.handover import Refusal, Tracker
from headrace.protocols.stomp.codec import CONNECTED, CONTENT_TYPE, ERROR, V10, encode_frame

_LENGTH: Final = b"\ncontent-length:"
_EOL: Final = ord("\n")


@final
class StompTracker(Tracker):
    """Follows the frames of a server. Every body of ours has its length before it."""

    def _measure(self, data: bytes, at: int, size: int) -> int:
        if data[at] == _EOL:
            return 1
        end = data.find(b"\n\n", at)
        if end < 0:
            return 0
        command = data[at : data.find(b"\n", at)].decode(errors="replace")
        self.is_admitted = self.is_admitted or command == CONNECTED
        self.has_parted = self.has_parted or command == ERROR
        found = data.rfind(_LENGTH, at, end)
        length = 0
        if found >= 0:
            start = found + len(_LENGTH)
            stop = data.find(b"\n", start, end + 1)
            length = int(data[start:stop])
        return end + 2 + length + 1 - at

    @property
    def awaits_farewell(self) -> bool:
        return False

    def _goodbye(self, why: str) -> bytes:
        return encode_error(why) if self.is_admitted else b""


@final
class StompRefusal(Refusal):
    """Answers CONNECT with an ERROR that names the node that serves, or says that none does."""

    def _hear(self, data: bytes) -> None:
        redirect = self.redirect
        where = f"; connect to {redirect.address}" if redirect.address else ""
        self.send(encode_error(redirect.why + where))
        self.end()


def encode_error(why: str) -> bytes:
    """An ERROR in a form that every version reads."""
    return encode_frame(ERROR, [("message", why), (CONTENT_TYPE, "text/plain")], V10, why.encode())

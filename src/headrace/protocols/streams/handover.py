"""The stream protocol on a node that forwards clients to another: where frames end, goodbye, refusal."""

from typing import Final, final

from headrace.net.handover import FindRedirect, Refusal, Tracker
from headrace.protocols.streams.codec import Decoder
from headrace.protocols.streams.connection import encode_close
from headrace.protocols.streams.frames import CLOSE, HOST_ACCESS_FAILURE, OPEN, RESPONSE, STREAM_NOT_AVAILABLE

_SIZE_BYTES: Final = 4
_KEY_END: Final = 6
_GOODBYE_SECONDS: Final = 2.0


@final
class StreamTracker(Tracker):
    """Follows the frames of the server."""

    def _measure(self, data: bytes, at: int, size: int) -> int:
        if size - at < _KEY_END:
            return 0
        key = int.from_bytes(data[at + _SIZE_BYTES : at + _KEY_END])
        self.is_admitted = self.is_admitted or key == OPEN | RESPONSE
        self.has_parted = self.has_parted or key & ~RESPONSE == CLOSE
        return _SIZE_BYTES + max(2, int.from_bytes(data[at : at + _SIZE_BYTES]))

    def _goodbye(self, why: str) -> bytes:
        return encode_close(STREAM_NOT_AVAILABLE, why) if self.is_admitted else b""


@final
class StreamRefusal(Refusal):
    """Closes the connection at the client's first command, with the address of another node. Checks no logins."""

    def __init__(self, find_redirect: FindRedirect) -> None:
        super().__init__(find_redirect)
        self._decoder = Decoder()

    def _hear(self, data: bytes) -> None:
        if self._decoder.feed(data):
            elsewhere = self.redirect
            place = f": {elsewhere.address}" if elsewhere.address else ""
            self.send(encode_close(HOST_ACCESS_FAILURE, elsewhere.why + place))
            self.end(_GOODBYE_SECONDS)

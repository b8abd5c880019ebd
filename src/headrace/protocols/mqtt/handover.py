"""MQTT for a node that forwards clients: where packets end, how to say goodbye, how to refuse."""

from typing import Final, final

from headrace.net.handover import FindRedirect, Redirect, Refusal, Tracker
from headrace.protocols.mqtt.codec import Decoder, encode_connack, encode_disconnect
from headrace.protocols.mqtt.connection import MAX_CONNECT_BYTES
from headrace.protocols.mqtt.packets import CONNACK, DISCONNECT, V5, Connect
from headrace.protocols.mqtt.reasons import SERVER_SHUTTING_DOWN, SERVER_UNAVAILABLE, SUCCESS, USE_ANOTHER_SERVER
from headrace.wire.mqtt5 import REASON_STRING, SERVER_REFERENCE, PropertyList

_MAX_LENGTH_BYTES: Final = 4


@final
class MqttTracker(Tracker):
    """Follows the packets of a server to a client of this version."""

    def __init__(self, version: int) -> None:
        super().__init__()
        self._version = version

    def _measure(self, data: bytes, at: int, size: int) -> int:
        length, start, shift = 0, at + 1, 0
        while True:
            if start == size:
                return 0
            octet = data[start]
            start += 1
            length |= (octet & 0x7F) << shift
            shift += 7
            if octet < 0x80 or start - at > _MAX_LENGTH_BYTES:
                break
        kind = data[at] >> 4
        if kind == CONNACK:
            if size < start + 2:
                return 0
            self.is_admitted = data[start + 1] == SUCCESS
            self.has_parted = not self.is_admitted
        elif kind == DISCONNECT:
            self.has_parted = True
        return start + length - at

    @property
    def awaits_farewell(self) -> bool:
        return False

    def _goodbye(self, why: str) -> bytes:
        if not self.is_admitted or self._version != V5:
            return b""
        return encode_disconnect(V5, SERVER_SHUTTING_DOWN)


@final
class MqttRefusal(Refusal):
    """Answers CONNECT with the address of the node that serves, or that none does."""

    def __init__(self, find_redirect: FindRedirect) -> None:
        super().__init__(find_redirect)
        self._decoder = Decoder(MAX_CONNECT_BYTES, 0)

    def _hear(self, data: bytes) -> None:
        for packet in self._decoder.feed(data):
            if isinstance(packet, Connect):
                self.send(_refused(packet, self.redirect))
            self.end()


def _refused(connect: Connect, elsewhere: Redirect) -> bytes:
    """CONNACK, without properties if they make it too large for the client."""
    reason = USE_ANOTHER_SERVER if elsewhere.address else SERVER_UNAVAILABLE
    properties = PropertyList()
    properties.texts[REASON_STRING] = elsewhere.why
    if elsewhere.address:
        properties.texts[SERVER_REFERENCE] = elsewhere.address
    answer = encode_connack(connect.version, False, reason, properties)
    is_too_long = 0 < connect.maximum_packet_bytes < len(answer)
    return encode_connack(connect.version, False, reason) if is_too_long else answer


def version_of(start: bytes) -> int:
    """The protocol level of a CONNECT with these first bytes: type, length, name, level. 0 for none."""
    at = 1
    while at < len(start) and at < _MAX_LENGTH_BYTES and start[at] >= 0x80:
        at += 1
    at += 1
    level = at + 2 + int.from_bytes(start[at : at + 2])
    return start[level] if level < len(start) else 0

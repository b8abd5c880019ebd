"""Both ends over MQTT 3.1.1, as a client. A topic is a routing key with dots for its slashes, and back.

A source is a persistent session at QoS 1: its broker keeps what comes while the shovel is away. Properties of AMQP
messages do not exist in MQTT 3.1.1 and stay behind.
"""

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import Final, final

from headrace.core.routing.topics import key_of_topic
from headrace.errors import AccessRefused, HeadraceError, Refused, Unavailable
from headrace.shovel.ends import Arrived, Confirmed, Destination, Place, Shipment, Source

_CONNACK: Final = 2
_PUBLISH: Final = 3
_PUBACK: Final = 4
_SUBACK: Final = 9
_PING: Final = b"\xc0\x00"
_DISCONNECT: Final = b"\xe0\x00"
_PUBACK_BYTES: Final = b"\x40\x02"
_PERSISTENT: Final = b"\x10\x00\x02"
"""Properties of AMQP that say: delivery mode 2."""
_BEAT_SECONDS: Final = 20
_SECONDS: Final = 30.0
"""Longest time that a broker may take for an answer."""
_MAX_PACKET_BYTES: Final = 256 << 20
_LAST_ID: Final = 65_535
_PASSING: Final = 3
"""Code of CONNACK for a server that is not available now."""


def _text(text: str) -> bytes:
    raw = text.encode(errors="surrogateescape")
    return len(raw).to_bytes(2, "big") + raw


def _packet(first: int, content: bytes) -> bytes:
    """A packet: first byte, length in groups of seven bits, content."""
    length, left = bytearray([first]), len(content)
    while True:
        left, digit = divmod(left, 128)
        length.append(digit | 128 if left else digit)
        if not left:
            return bytes(length) + content


@final
class Connection(asyncio.Protocol):
    """One connection of a session."""

    def __init__(self, place: Place, client_id: str, is_clean: bool, on_packet: Callable[[int, bytes], None]) -> None:
        self._place = place
        self._client_id = client_id
        self._is_clean = is_clean
        self._on_packet = on_packet
        """Called with the first byte of a packet and its content."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._answer: asyncio.Future[bytes] | None = None
        self._is_lost = self._loop.create_future()
        self._beat: asyncio.TimerHandle | None = None
        self._heard = 0.0
        self._is_paused = False
        self.failure: HeadraceError | None = None
        """The reason why it ended."""
        self.on_end: Callable[[HeadraceError], None] = _nothing

    async def open(self) -> None:
        """Connect and log in. Raises Unavailable, Refused."""
        place = self._place
        context = ssl.create_default_context() if place.has_tls else None
        try:
            async with asyncio.timeout(_SECONDS):
                await self._loop.create_connection(lambda: self, place.host, place.port, ssl=context)
        except (OSError, TimeoutError) as error:
            raise Unavailable(f"no broker answers at {place.shown}: {error}") from error
        flags = 0xC2 if self._is_clean else 0xC0
        head = _text("MQTT") + bytes([4, flags]) + (3 * _BEAT_SECONDS).to_bytes(2, "big")
        login = _text(self._client_id) + _text(place.user) + _text(place.password)
        code = (await self.ask(_packet(0x10, head + login)))[1]
        if code == _PASSING:
            raise Unavailable(f"the broker at {place.shown} is not available")
        if code:
            raise AccessRefused(f"the broker at {place.shown} refuses the login with code {code}")
        self._keep_alive()

    async def ask(self, packet: bytes) -> bytes:
        """Send a packet and wait for CONNACK or SUBACK. Raises what ended the connection, Unavailable in silence."""
        if self.failure is not None:
            raise self.failure
        self._answer = self._loop.create_future()
        self.write(packet)
        try:
            async with asyncio.timeout(_SECONDS):
                return await self._answer
        except TimeoutError as error:
            raise Unavailable(f"the broker at {self._place.shown} does not answer") from error
        finally:
            self._answer = None

    async def close(self) -> None:
        """Disconnect; a persistent session stays."""
        if self._beat is not None:
            self._beat.cancel()
        if self._transport is None:
            return
        self.write(_DISCONNECT)
        self._transport.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SECONDS):
                await asyncio.shield(self._is_lost)

    def _keep_alive(self) -> None:
        if self.failure is not None:
            return
        if not self._is_paused and self._loop.time() - self._heard > 3 * _BEAT_SECONDS:
            self._fail(Unavailable(f"the broker at {self._place.shown} is silent"))
            return
        self.write(_PING)
        self._beat = self._loop.call_later(_BEAT_SECONDS, self._keep_alive)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._heard = self._loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(Unavailable(f"the connection to {self._place.shown} is lost{f': {exc}' if exc else ''}"))
        if not self._is_lost.done():
            self._is_lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        self._buffer += data
        try:
            self._read()
        except (ValueError, IndexError) as error:
            self._fail(Refused(f"the broker at {self._place.shown} sends what is no MQTT: {error}"))

    def write(self, data: bytes) -> None:
        if self._transport is not None and self.failure is None:
            self._transport.write(data)

    def pause(self, is_paused: bool) -> None:
        """Read nothing for now, or go on."""
        self._is_paused = is_paused
        self._heard = self._loop.time()
        if self._transport is not None and self.failure is None:
            (self._transport.pause_reading if is_paused else self._transport.resume_reading)()

    def _fail(self, failure: HeadraceError) -> None:
        if self.failure is not None:
            return
        self.failure = failure
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(failure)
        if self._transport is not None:
            self._transport.close()
        self.on_end(failure)

    def _read(self) -> None:
        buffer, at, end = self._buffer, 0, len(self._buffer)
        while self.failure is None:
            size, start = 0, at + 1
            while start < end and buffer[start] & 128 and start - at < 4:
                size |= (buffer[start] & 127) << 7 * (start - at - 1)
                start += 1
            if start >= end:
                break
            size |= (buffer[start] & 127) << 7 * (start - at - 1)
            if size > _MAX_PACKET_BYTES:
                raise ValueError(f"a packet of {size} bytes")
            if start + 1 + size > end:
                break
            self._take(buffer[at], bytes(buffer[start + 1 : start + 1 + size]))
            at = start + 1 + size
        del buffer[:at]

    def _take(self, first: int, content: bytes) -> None:
        if first >> 4 not in (_CONNACK, _SUBACK):
            self._on_packet(first, content)
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(content)


def _nothing(_: HeadraceError) -> None:
    return


def _client_id(place: Place) -> str:
    """A name that is the same for every run of this shovel."""
    return "headrace-shovel-" + blake2b(f"{place.shown} {place.queue}".encode(), digest_size=6).hexdigest()


@final
class TopicSource(Source):
    """The messages of a topic filter."""

    def __init__(self, place: Place, on_end: Callable[[HeadraceError], None]) -> None:
        self._connection = Connection(place, _client_id(place), False, self._take)
        self._place = place
        self._on_end = on_end
        self._arrived: Arrived | None = None
        self._early: list[Shipment] = []
        """Messages of the session that came before the answer to the subscription."""
        self._held: deque[int] = deque()
        """Packet identifiers of deliveries that are not acknowledged; 0 at QoS 0."""
        self._settled = 0

    async def open(self, arrived: Arrived) -> None:
        await self._connection.open()
        subscribe = b"\x00\x01" + _text(self._place.queue) + b"\x01"
        if (await self._connection.ask(_packet(0x82, subscribe)))[2] > 2:
            raise AccessRefused(f"the broker at {self._place.shown} refuses the subscription to {self._place.queue!r}")
        self._connection.on_end = self._on_end
        self._arrived = arrived
        if self._early:
            early, self._early = self._early, []
            arrived(early)

    def _take(self, first: int, content: bytes) -> None:
        if first >> 4 != _PUBLISH:
            return
        at = 2 + int.from_bytes(content[:2], "big")
        topic, packet_id = content[2:at].decode(errors="surrogateescape"), 0
        if first & 6:
            packet_id = int.from_bytes(content[at : at + 2], "big")
            at += 2
        self._held.append(packet_id)
        shipment = Shipment("", key_of_topic(topic), _PERSISTENT, content[at:])
        if self._arrived is None:
            self._early.append(shipment)
        else:
            self._arrived([shipment])

    def settle(self, count: int) -> None:
        acks: list[bytes] = []
        while self._settled < count:
            self._settled += 1
            packet_id = self._held.popleft()
            if packet_id:
                acks.append(_PUBACK_BYTES + packet_id.to_bytes(2, "big"))
        self._connection.write(b"".join(acks))

    def pause(self, is_paused: bool) -> None:
        self._connection.pause(is_paused)

    async def waiting(self) -> int:
        raise Refused("MQTT does not tell how many messages wait: a shovel from a topic has no end")

    async def silence(self) -> None:
        self._connection.pause(True)  # the subscription stays, so that nothing is missed until the next run

    async def close(self) -> None:
        self._connection.on_end = _nothing
        await self._connection.close()


@final
class TopicDestination(Destination):
    """A topic to publish to at QoS 1, or the topic of each message."""

    def __init__(self, place: Place, on_end: Callable[[HeadraceError], None]) -> None:
        self._connection = Connection(place, "", True, self._take)
        self._place = place
        self._on_end = on_end
        self._confirmed: Confirmed | None = None
        self._sent = 0
        self._numbers: dict[int, int] = {}
        """Numbers of messages without a confirm, by packet identifier."""

    async def open(self, confirmed: Confirmed) -> None:
        await self._connection.open()
        self._connection.on_end = self._on_end
        self._confirmed = confirmed

    def send(self, shipments: list[Shipment]) -> None:
        self._connection.write(b"".join([self._encoded(shipment) for shipment in shipments]))

    def _encoded(self, shipment: Shipment) -> bytes:
        self._sent += 1
        packet_id = (self._sent - 1) % _LAST_ID + 1  # free again: fewer messages are on their way
        self._numbers[packet_id] = self._sent
        topic = self._place.queue or key_of_topic(shipment.key)
        return _packet(0x32, _text(topic) + packet_id.to_bytes(2, "big") + shipment.body)

    def _take(self, first: int, content: bytes) -> None:
        if first >> 4 == _PUBACK and self._confirmed is not None:
            number = self._numbers.pop(int.from_bytes(content[:2], "big"), 0)
            if number:
                self._confirmed(number, False)

    async def close(self) -> None:
        self._connection.on_end = _nothing
        await self._connection.close()

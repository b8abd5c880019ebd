"""Both ends over AMQP 0-9-1, as a client. Message properties pass through as bytes, so none is lost or changed.

Cold methods go through pamqp; deliveries, publishes, acknowledgements and confirms are read and written here.
"""

import asyncio
import contextlib
import ssl
import struct
from collections.abc import Callable
from typing import Any, Final, final

from pamqp import commands
from pamqp.base import Frame
from pamqp.exceptions import PAMQPException
from pamqp.frame import marshal, unmarshal

from headrace.errors import HeadraceError, NotFound, Refused, Unavailable
from headrace.shovel.ends import WINDOW, Arrived, Confirmed, Destination, Place, Shipment, Source

_GREETING: Final = b"AMQP\x00\x00\x09\x01"
_METHOD: Final = 1
_HEADER: Final = 2
_BODY: Final = 3
_END: Final = 0xCE
_HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
_HEAD: Final = struct.Struct(">BHI")
_ACK: Final = struct.Struct(">HHQB")
_DELIVER: Final = 60 << 16 | 60
_ACKED: Final = 60 << 16 | 80
_NACKED: Final = 60 << 16 | 120
_RETURN: Final = 60 << 16 | 50
_CHANNEL: Final = 1
_ASKING: Final = 2
"""Channel on which a source asks how many messages wait."""
_FRAME_BYTES: Final = 128 << 10
_MAX_BODY_BYTES: Final = 512 << 20
_HEARTBEAT_SECONDS: Final = 30
_SECONDS: Final = 30.0
"""Longest time that a broker may take for an answer."""
_STREAM_OFFSET: Final = b"\x0fx-stream-offset"
MOST_COPIED: Final = 65_535
"""Most messages that a quorum queue delivers without an acknowledgement; classic queues have no limit."""
_PASSING: Final = (320, 506, 541)
"""Codes of errors that may pass: forced, resource error, internal error."""


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _HEAD.pack(kind, channel, len(payload)) + payload + b"\xce"


def _failure(code: int, text: str) -> HeadraceError:
    """Return the error that the broker closed with."""
    if code in _PASSING:
        return Unavailable(f"the broker closed: {code} {text}")
    return (NotFound if code == 404 else Refused)(f"the broker refuses: {code} {text}")


@final
class Connection(asyncio.Protocol):
    """One connection with two channels."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._answer: asyncio.Future[Frame] | None = None
        self._is_lost = self._loop.create_future()
        self._beat: asyncio.TimerHandle | None = None
        self._heard = 0.0
        self.frame_bytes = _FRAME_BYTES
        self.failure: HeadraceError | None = None
        """The reason why it ended."""
        self.on_end: Callable[[], None] = _nothing
        self.on_messages: Arrived = _nothing_of
        self.on_confirmed: Confirmed = _nothing_of_two
        self.on_refused: Callable[[HeadraceError], None] = _nothing_of
        self._arrived: list[Shipment] = []
        self._message: tuple[str, str] | None = None
        """Exchange and key of the message that is arriving; None between messages."""
        self._returned = False
        """True while a returned message is arriving."""
        self._properties = b""
        self._body = bytearray()
        self._left = 0

    # -- opening and closing -----------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    async def open(self) -> None:
        """Connect and log in. Raises Unavailable, Refused."""
        place = self._place
        context = ssl.create_default_context() if place.has_tls else None
        try:
            async with asyncio.timeout(_SECONDS):
                await self._loop.create_connection(lambda: self, place.host, place.port, ssl=context)
        except (OSError, TimeoutError) as error:
            raise Unavailable(f"no broker answers at {place.shown}: {error}") from error
        await self._ask(_GREETING, commands.Connection.Start)
        login = f"\0{place.user}\0{place.password}"
        about: dict[str, Any] = {"product": "Headrace shovel", "capabilities": _CAPABILITIES}
        tune = await self.call(0, commands.Connection.StartOk(about, "PLAIN", login), commands.Connection.Tune)
        assert isinstance(tune, commands.Connection.Tune)
        self.frame_bytes = min(tune.frame_max or _FRAME_BYTES, _FRAME_BYTES)
        beat = min(tune.heartbeat or _HEARTBEAT_SECONDS, _HEARTBEAT_SECONDS)
        self.write(marshal(commands.Connection.TuneOk(tune.channel_max, self.frame_bytes, beat), 0))
        await self.call(0, commands.Connection.Open(place.vhost), commands.Connection.OpenOk)
        self._keep_alive(beat / 2)
        await self.call(_CHANNEL, commands.Channel.Open(), commands.Channel.OpenOk)

    async def call(self, channel: int, method: Frame, answer: type[Frame]) -> Frame:
        """Send a method and wait for its answer. Raises what ended the connection, and Unavailable in silence."""
        return await self._ask(marshal(method, channel), answer)

    async def _ask(self, data: bytes, answer: type[Frame]) -> Frame:
        if self.failure is not None:
            raise self.failure
        self._answer = self._loop.create_future()
        self.write(data)
        try:
            async with asyncio.timeout(_SECONDS):
                found = await self._answer
        except TimeoutError as error:
            raise Unavailable(f"the broker at {self._place.shown} does not answer") from error
        finally:
            self._answer = None
        if not isinstance(found, answer):
            raise Refused(f"the broker at {self._place.shown} answers with {found.name}")
        return found

    async def close(self) -> None:
        """Say goodbye and close, whatever the broker answers."""
        if self._beat is not None:
            self._beat.cancel()
        if self._transport is None:
            return
        if self.failure is None:
            with contextlib.suppress(HeadraceError):
                self._transport.resume_reading()
                await self.call(0, commands.Connection.Close(200, "done", 0, 0), commands.Connection.CloseOk)
        self._transport.abort()
        await self._is_lost

    def _keep_alive(self, seconds: float) -> None:
        """Send heartbeats, and end a connection that is silent for four of them."""
        if self.failure is not None:
            return
        if self._loop.time() - self._heard > 4 * seconds:
            self._fail(Unavailable(f"the broker at {self._place.shown} is silent"))
            return
        self.write(_HEARTBEAT)
        self._beat = self._loop.call_later(seconds, self._keep_alive, seconds)

    # -- asyncio.Protocol --------------------------------------------------------------------------------------------

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
        except (PAMQPException, ValueError, struct.error, UnicodeDecodeError, IndexError) as error:
            self._fail(Refused(f"the broker at {self._place.shown} sends what is no AMQP 0-9-1: {error}"))
        if self._arrived:
            arrived, self._arrived = self._arrived, []
            self.on_messages(arrived)

    def write(self, data: bytes) -> None:
        if self._transport is not None and self.failure is None:
            self._transport.write(data)

    def pause(self, is_paused: bool) -> None:
        """Read nothing for now, or go on."""
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
        self.on_end()

    # -- frames ------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        buffer, at, end = self._buffer, 0, len(self._buffer)
        if end >= 8 and buffer[:4] == b"AMQP":
            raise ValueError(f"it wants {bytes(buffer[4:8])!r}")
        while end - at >= 8 and self.failure is None:
            kind, channel, size = _HEAD.unpack_from(buffer, at)
            stop = at + 7 + size
            if size > _MAX_BODY_BYTES:
                raise ValueError(f"a frame of {size} bytes")
            if stop >= end:
                break
            if buffer[stop] != _END:
                raise ValueError("a frame has no end")
            self._take(kind, channel, bytes(buffer[at + 7 : stop]))
            at = stop + 1
        del buffer[:at]

    def _take(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == _METHOD:
            self._take_method(channel, payload)
        elif kind == _HEADER and self._message is not None:
            self._left = int.from_bytes(payload[4:12], "big")
            self._properties = payload[12:]
            self._body.clear()
            if not self._left:
                self._complete()
        elif kind == _BODY and self._message is not None:
            self._left -= len(payload)
            if self._left or self._body:
                self._body += payload
            if not self._left:
                self._complete(b"" if self._body else payload)

    def _take_method(self, channel: int, payload: bytes) -> None:
        method = int.from_bytes(payload[:4], "big")
        if method == _DELIVER:
            at = 5 + payload[4] + 9
            exchange, at = _short(payload, at)
            key, _ = _short(payload, at)
            self._message, self._returned = (exchange, key), False
        elif method in (_ACKED, _NACKED):
            number, flags = int.from_bytes(payload[4:12], "big"), payload[12]
            if method == _ACKED:
                self.on_confirmed(number, bool(flags & 1))
            else:
                self.on_refused(Unavailable("the destination refuses a message: its queue is full, or cannot store it"))
        else:
            self._take_cold(channel, method, payload)

    def _take_cold(self, channel: int, number: int, payload: bytes) -> None:
        _, _, found = unmarshal(_frame(_METHOD, channel, payload))
        assert isinstance(found, Frame)
        if number == _RETURN:
            self._message, self._returned = ("", ""), True
            self.on_refused(NotFound("the destination has no queue for a message"))
        elif isinstance(found, commands.Connection.Close | commands.Channel.Close):
            is_whole = isinstance(found, commands.Connection.Close)
            self.write(marshal(commands.Connection.CloseOk() if is_whole else commands.Channel.CloseOk(), channel))
            self._fail(_failure(found.reply_code or 0, found.reply_text))
        elif isinstance(found, commands.Basic.Cancel):
            self._fail(NotFound("the queue is gone: its broker cancelled the consumer"))
        elif isinstance(found, commands.Connection.Blocked | commands.Connection.Unblocked):
            return  # it reads no more meanwhile, and the window fills
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(found)

    def _complete(self, body: bytes = b"") -> None:
        assert self._message is not None
        (exchange, key), self._message = self._message, None
        if self._returned:
            return
        body = body or bytes(self._body)
        self._body.clear()
        self._arrived.append(Shipment(exchange, key, self._properties, body, _offset_in(self._properties)))


def _short(payload: bytes, at: int) -> tuple[str, int]:
    stop = at + 1 + payload[at]
    return payload[at + 1 : stop].decode(errors="surrogateescape"), stop


def _offset_in(properties: bytes) -> int:
    """The header `x-stream-offset`, which brokers add to deliveries of streams; -1 if there is none."""
    at = properties.rfind(_STREAM_OFFSET)
    if at < 0 or properties[at + 16 : at + 17] != b"l":
        return -1
    return int.from_bytes(properties[at + 17 : at + 25], "big")


def _nothing() -> None:
    return


def _nothing_of(_: object) -> None:
    return


def _nothing_of_two(_: object, __: object) -> None:
    return


_CAPABILITIES: Final = {
    "publisher_confirms": True,
    "consumer_cancel_notify": True,
    "basic.nack": True,
    "authentication_failure_close": True,
}


@final
class QueueSource(Source):
    """A queue or a stream to consume."""

    def __init__(
        self,
        place: Place,
        on_end: Callable[[HeadraceError], None],
        takes: bool = True,
        offset: object = None,
        is_classic: bool = True,
    ) -> None:
        """Without `takes` nothing is acknowledged, so a queue has all its messages back in the end."""
        self._is_classic = is_classic
        self._connection = Connection(place)
        self._place = place
        self._takes = takes
        self._offset = offset
        """Start in a stream: `first` or an offset; None for a queue."""
        self._on_end = on_end
        self._is_asking = False

    async def count(self) -> int:
        """Connect and return how many messages wait there. Raises Unavailable, Refused, NotFound."""
        await self._connect()
        return await self.waiting()

    async def _connect(self) -> None:
        if not self._connection.is_open:
            await self._connection.open()

    async def open(self, arrived: Arrived) -> None:
        connection = self._connection
        await self._connect()
        connection.on_messages = arrived
        is_bounded = self._takes or self._offset is not None
        window = commands.Basic.Qos(0, WINDOW if is_bounded else 0 if self._is_classic else MOST_COPIED, False)
        await connection.call(_CHANNEL, window, commands.Basic.QosOk)
        arguments: dict[str, Any] = {} if self._offset is None else {"x-stream-offset": self._offset}
        consume = commands.Basic.Consume(queue=self._place.queue, consumer_tag="headrace-shovel", arguments=arguments)
        await connection.call(_CHANNEL, consume, commands.Basic.ConsumeOk)
        connection.on_end = self._ended

    def _ended(self) -> None:
        assert self._connection.failure is not None
        self._on_end(self._connection.failure)

    def settle(self, count: int) -> None:
        if self._takes or self._offset is not None:  # a stream keeps its messages, and the window goes on
            self._connection.write(_frame(_METHOD, _CHANNEL, _ACK.pack(60, 80, count, 1)))

    def pause(self, is_paused: bool) -> None:
        self._connection.pause(is_paused)

    async def waiting(self) -> int:
        connection = self._connection
        if not self._is_asking:
            await connection.call(_ASKING, commands.Channel.Open(), commands.Channel.OpenOk)
            self._is_asking = True
        declare = commands.Queue.Declare(queue=self._place.queue, passive=True)
        found = await connection.call(_ASKING, declare, commands.Queue.DeclareOk)
        assert isinstance(found, commands.Queue.DeclareOk)
        return found.message_count or 0

    async def silence(self) -> None:
        with contextlib.suppress(HeadraceError):
            cancel = commands.Basic.Cancel(consumer_tag="headrace-shovel")
            await self._connection.call(_CHANNEL, cancel, commands.Basic.CancelOk)

    async def close(self) -> None:
        self._connection.on_end = _nothing
        await self._connection.close()


@final
class QueueDestination(Destination):
    """A queue, or an exchange, to publish to."""

    def __init__(self, place: Place, on_end: Callable[[HeadraceError], None]) -> None:
        self._connection = Connection(place)
        self._place = place
        self._on_end = on_end

    async def open(self, confirmed: Confirmed) -> None:
        connection = self._connection
        await connection.open()
        await connection.call(_CHANNEL, commands.Confirm.Select(), commands.Confirm.SelectOk)
        connection.on_confirmed = confirmed
        connection.on_refused = self._on_end
        connection.on_end = self._ended

    def _ended(self) -> None:
        assert self._connection.failure is not None
        self._on_end(self._connection.failure)

    def send(self, shipments: list[Shipment]) -> None:
        try:
            self._connection.write(b"".join([self._encoded(shipment) for shipment in shipments]))
        except OverflowError:
            self._on_end(Refused("a message has a routing key of more than 255 bytes, which AMQP 0-9-1 cannot send"))

    def _encoded(self, shipment: Shipment) -> bytes:
        exchange = self._place.exchange.encode()
        key = (shipment.key if exchange else self._place.queue).encode(errors="surrogateescape")
        body, most = shipment.body, self._connection.frame_bytes - 8
        is_mandatory = not exchange  # an exchange may lead nowhere, as its owner likes
        method = b"\x00\x3c\x00\x28\x00\x00%c%b%c%b%c" % (len(exchange), exchange, len(key), key, is_mandatory)
        header = b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + shipment.properties
        parts = [_frame(_METHOD, _CHANNEL, method), _frame(_HEADER, _CHANNEL, header)]
        parts += [_frame(_BODY, _CHANNEL, body[at : at + most]) for at in range(0, len(body), most)]
        return b"".join(parts)

    async def close(self) -> None:
        self._connection.on_end = _nothing
        await self._connection.close()

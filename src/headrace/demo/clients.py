"""The clients of the demo: an MQTT publisher, and an AMQP 0-9-1 publisher and worker. No other features."""

import asyncio
import struct
from collections.abc import Callable
from typing import Final, cast, final

from pamqp import base, body, commands, frame, header
from pamqp.common import FieldTable

_PROTOCOL: Final = b"AMQP\x00\x00\x09\x01"
_CHANNEL: Final = 1
_PUBLISH_QOS_1: Final = 0x32
_PUBACK: Final = 0x40

Handle = Callable[[bytes], str]
"""Handles a message; returns ACK, RETRY or REJECT."""
ACK: Final = "ack"
RETRY: Final = "retry"
REJECT: Final = "reject"


@final
class MqttPublisher:
    """MQTT 3.1.1 at QoS 1: `publish` returns when the broker has the message."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._packet_id = 0

    @classmethod
    async def connect(cls, port: int, client_id: str) -> "MqttPublisher":
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        flags = 0xC2  # a user, a password, a clean session
        connect = _text("MQTT") + bytes([4, flags, 0, 0]) + _text(client_id) + _text("guest") + _text("guest")
        writer.write(_packet(0x10, connect))
        answer = await reader.readexactly(4)
        if answer[3]:
            raise ConnectionError(f"the broker refused the MQTT login with code {answer[3]}")
        return cls(reader, writer)

    async def publish(self, topic: str, payload: bytes) -> None:
        self._packet_id = self._packet_id % 65535 + 1
        number = struct.pack(">H", self._packet_id)
        self._writer.write(_packet(_PUBLISH_QOS_1, _text(topic) + number + payload))
        answer = await self._reader.readexactly(4)
        if answer[0] != _PUBACK or answer[2:] != number:
            raise ConnectionError(f"the broker answered a publish with {answer.hex()}")

    def close(self) -> None:
        self._writer.close()


@final
class AmqpClient:
    """AMQP 0-9-1 on one channel: either publishes with confirms, or consumes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._buffer = b""

    @classmethod
    async def connect(cls, port: int, name: str) -> "AmqpClient":
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        client = cls(reader, writer)
        writer.write(_PROTOCOL)
        await client._expect(commands.Connection.Start)
        about: FieldTable = {"product": "headrace demo", "connection_name": name}
        client._send(commands.Connection.StartOk(about, "PLAIN", "\0guest\0guest", "en_US"), 0)
        tune = cast("commands.Connection.Tune", await client._expect(commands.Connection.Tune))
        client._send(commands.Connection.TuneOk(tune.channel_max, tune.frame_max, 0), 0)
        client._send(commands.Connection.Open("/"), 0)
        await client._expect(commands.Connection.OpenOk)
        client._send(commands.Channel.Open())
        await client._expect(commands.Channel.OpenOk)
        return client

    async def confirm(self) -> None:
        """Turn publisher confirms on."""
        self._send(commands.Confirm.Select())
        await self._expect(commands.Confirm.SelectOk)

    async def publish(self, queue: str, payload: bytes) -> None:
        """Return when the broker has the message."""
        properties = commands.Basic.Properties(content_type="application/json", delivery_mode=2)
        self._send(commands.Basic.Publish(exchange="", routing_key=queue))
        self._writer.write(frame.marshal(header.ContentHeader(0, len(payload), properties), _CHANNEL))
        self._writer.write(frame.marshal(body.ContentBody(payload), _CHANNEL))
        await self._expect(commands.Basic.Ack)

    async def work(self, queue: str, handle: Handle) -> None:
        """Consume until the connection ends."""
        self._send(commands.Basic.Qos(prefetch_count=10))
        await self._expect(commands.Basic.QosOk)
        self._send(commands.Basic.Consume(queue=queue))
        tag = 0
        while True:
            value = await self._receive()
            if isinstance(value, commands.Basic.Deliver):
                tag = value.delivery_tag or 0
            elif isinstance(value, body.ContentBody):
                outcome = handle(value.value)
                if outcome == ACK:
                    self._send(commands.Basic.Ack(tag))
                else:
                    self._send(commands.Basic.Nack(tag, requeue=outcome == RETRY))

    def close(self) -> None:
        self._writer.close()

    def _send(self, method: base.Frame, channel: int = _CHANNEL) -> None:
        self._writer.write(frame.marshal(method, channel))

    async def _expect(self, kind: type[base.Frame]) -> object:
        value = await self._receive()
        if not isinstance(value, kind):
            raise ConnectionError(f"the broker answered {value!r}")
        return value

    async def _receive(self) -> object:
        while True:
            if self._buffer:
                used, _, value = frame.unmarshal(self._buffer) if len(self._buffer) > 7 else (0, 0, None)
                if used:
                    self._buffer = self._buffer[used:]
                    return value
            data = await self._reader.read(1 << 16)
            if not data:
                raise ConnectionError("the broker ended the connection")
            self._buffer += data


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">H", len(data)) + data


def _packet(kind: int, data: bytes) -> bytes:
    length = bytearray()
    rest = len(data)
    while True:
        length.append(rest % 128 | (0x80 if rest > 127 else 0))
        rest //= 128
        if not rest:
            return bytes([kind]) + bytes(length) + data

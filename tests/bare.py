"""AMQP 0-9-1 by hand, for what no client library would send."""

import socket

from pamqp import commands

from headrace.protocols.amqp091.codec import Decoder, Method
from headrace.protocols.amqp091.frames import PROTOCOL_HEADER
from headrace.protocols.amqp091.methods import encode_method
from tests.servers import Server


class Bare:
    """A client that sends what it is told to."""

    def __init__(self, server: Server, capabilities: dict[str, bool] | None = None) -> None:
        self._properties = {"capabilities": capabilities or {}}
        self.socket = socket.create_connection(("127.0.0.1", server.port), 10)
        self._decoder = Decoder()
        self._decoder.feed(PROTOCOL_HEADER)
        self._methods: list[Method] = []

    def open(self, heartbeat: int = 0, channel_max: int = 0) -> None:
        self.socket.sendall(PROTOCOL_HEADER)
        assert self.method().method.name == "Connection.Start"
        login = {"mechanism": "PLAIN", "response": b"\0guest\0guest", "locale": "en_US"}
        self.send(0, commands.Connection.StartOk, client_properties=self._properties, **login)
        assert self.method().method.name == "Connection.Tune"
        self.send(0, commands.Connection.TuneOk, channel_max=channel_max, frame_max=131072, heartbeat=heartbeat)
        self.send(0, commands.Connection.Open, virtual_host="/")
        assert self.method().method.name == "Connection.OpenOk"
        self.send(1, commands.Channel.Open)
        assert self.method().method.name == "Channel.OpenOk"

    def send(self, channel: int, kind: type, **fields: object) -> None:
        self.socket.sendall(encode_method(channel, kind, fields))

    def method(self) -> Method:
        while not self._methods:
            data = self.socket.recv(65536)
            assert data, "the server closed"
            self._methods += [event for event in self._decoder.feed(data) if isinstance(event, Method)]
        return self._methods.pop(0)

    def close_code(self) -> int:
        found = self.method().method
        assert isinstance(found, commands.Connection.Close)
        return int(found.reply_code or 0)

    def is_closed(self) -> bool:
        self.socket.settimeout(10)
        while True:
            if not self.socket.recv(65536):
                return True

"""Handshake, logins, virtual hosts, heartbeats, malformed frames, slow consumers: with pika and with bare sockets."""

import contextlib
import socket
import struct
import time
from collections.abc import Iterator

import pika
import pytest
from pamqp import commands
from pika.exceptions import (
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from headrace.protocols.amqp091.codec import encode_content
from headrace.protocols.amqp091.frames import PROTOCOL_HEADER
from headrace.protocols.amqp091.methods import encode_method
from tests.bare import Bare
from tests.servers import Server, drain


@pytest.fixture
def client(server: Server) -> Iterator[Bare]:
    bare = Bare(server)
    yield bare
    bare.socket.close()


@pytest.mark.parametrize("greeting", [b"AMQP\x00\x00\x09\x00", b"AMQP\x01\x01\x08\x00", b"GET / HTTP/1.1\r\n\r\n"])
def test_a_wrong_protocol_header_gets_the_supported_one_and_a_close(server: Server, greeting: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 10) as client:
        client.sendall(greeting)
        answer = b""
        while data := client.recv(100):
            answer += data

    assert answer == b"AMQP\x00\x00\x09\x01"


def test_a_wrong_password_is_refused(server: Server) -> None:
    with pytest.raises(ProbableAuthenticationError, match="403"):
        server.connect(credentials=pika.PlainCredentials("guest", "wrong"))


def test_amqplain_logs_in(client: Bare) -> None:
    client.socket.sendall(PROTOCOL_HEADER)
    client.method()
    login = b"\x05LOGINS\0\0\0\x05guest\x08PASSWORDS\0\0\0\x05guest"
    client.send(0, commands.Connection.StartOk, mechanism="AMQPLAIN", response=login, locale="en_US")

    assert client.method().method.name == "Connection.Tune"


def test_an_unknown_virtual_host_is_530(server: Server) -> None:
    with pytest.raises((ProbableAccessDeniedError, ConnectionClosedByBroker), match="530"):
        server.connect(virtual_host="elsewhere")


def test_capabilities_are_those_that_clients_look_for(server: Server) -> None:
    connection = server.connect()
    impl = connection._impl

    assert impl.publisher_confirms
    assert impl.basic_nack
    assert impl.consumer_cancel_notify
    assert impl.exchange_exchange_bindings
    assert impl.server_properties["product"] == "Headrace"


def test_heartbeats_come_and_a_silent_peer_is_ended(client: Bare) -> None:
    client.open(heartbeat=1)
    began = time.monotonic()

    got = b""
    client.socket.settimeout(60)
    while data := client.socket.recv(100):
        got += data

    assert got.count(b"\x08\x00\x00\x00\x00\x00\x00\xce") >= 2
    assert time.monotonic() - began > 1.5


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"\x01\x00\x01\xff\xff\xff\xff\x00", 501),
        (b"\x01\x00\x01\x00\x00\x00\x04\x00\x3c\x00\x14\x00", 501),
        (b"\x09\x00\x01\x00\x00\x00\x00\xce", 501),
        (b"\x01\x00\x01\x00\x00\x00\x05\x00\x32\x00\x0a\x00\xce", 502),
        (b"\x01\x00\x01\x00\x00\x00\x04\x00\x32\x00\x63\xce", 540),
        (b"\x03\x00\x01\x00\x00\x00\x01x\xce", 505),
        (encode_method(9, commands.Queue.Declare, {"queue": "q"}), 504),
        (encode_method(1, commands.Channel.Open), 504),
        (encode_method(0, commands.Connection.OpenOk), 503),
        (encode_method(1, commands.Basic.Recover, {"requeue": False}), 540),
    ],
)
def test_what_breaks_the_protocol_closes_the_connection_with_its_code(
    server: Server, client: Bare, frame: bytes, code: int
) -> None:
    client.open()
    client.socket.sendall(frame)

    assert client.close_code() == code
    client.send(0, commands.Connection.CloseOk)
    assert client.is_closed()
    assert server.connect().is_open


def test_a_reader_that_stops_reading_costs_little_memory_and_nobody_else(
    server: Server, client: Bare, name: str
) -> None:
    other = server.connect().channel()
    other.confirm_delivery()
    other.queue_declare(name)
    body = b"x" * 100_000
    for _ in range(600):
        other.basic_publish("", name, body)
    before = server.memory_bytes

    client.open()
    client.send(1, commands.Basic.Consume, queue=name, no_ack=True, consumer_tag="slow")
    time.sleep(0.5)
    other.queue_declare(f"{name}.other")
    other.basic_publish("", f"{name}.other", b"on time")

    assert drain(other, f"{name}.other", 1) == [b"on time"]
    assert server.memory_bytes - before < 30 << 20
    left = other.queue_declare(name, passive=True).method.message_count
    assert left > 300, "most of it waits in the queue, not in buffers"
    received = 0
    client.socket.settimeout(60)
    while received < 600 * len(body):
        received += len(client.socket.recv(1 << 20))


def test_a_flood_that_reads_nothing_is_slowed_down(server: Server, client: Bare) -> None:
    """Every publish comes back as a return; the client does not read them, so at some point it is not read from."""
    client.open()
    frame = encode_method(1, commands.Basic.Publish, {"routing_key": "nowhere", "mandatory": True})
    flood = (frame + encode_content(1, b"\0\0", b"y" * 50_000, 131072)) * 20
    client.socket.settimeout(1)
    before = server.memory_bytes
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < 400 << 20:
            sent += client.socket.send(flood)

    assert sent < 200 << 20
    assert server.memory_bytes - before < 60 << 20
    assert server.connect().is_open


def test_headers_arrive_byte_for_byte(client: Bare, name: str) -> None:
    client.open()
    table = (
        b"\x01bb\xff\x01BB\xff\x01ss\xff\xff\x01uu\xff\xff\x01II\0\0\0\x01\x01ii\xff\xff\xff\xff\x01ll" + b"\xff" * 8
    )
    table += b"\x01ff\0\0\0\0\x01dd" + b"\0" * 8 + b"\x01DD\x02\0\0\x01\x00\x01TT\0\0\0\0\0\0\0\x01\x01VV\x01tt\x01"
    table += b"\x01xx\0\0\0\x02\xff\xfe\x01SS\0\0\0\x02\xff\xfe\x01AA\0\0\0\x03s\0\x01\x01FF\0\0\0\x04\x01at\0"
    properties = struct.pack(">H", 0xA000) + b"\x03a/b" + struct.pack(">I", len(table)) + table
    client.send(1, commands.Queue.Declare, queue=name)
    client.method()
    client.socket.sendall(
        encode_method(1, commands.Basic.Publish, {"routing_key": name}) + encode_content(1, properties, b"body", 131072)
    )
    client.send(1, commands.Basic.Consume, queue=name, consumer_tag="c")

    got = b""
    client.socket.settimeout(60)
    while b"body\xce" not in got:
        got += client.socket.recv(65536)

    assert encode_content(1, properties, b"body", 131072) in got


def test_a_message_that_is_too_large_ends_its_channel_with_406(client: Bare) -> None:
    client.open()
    header = struct.pack(">HHQH", 60, 0, 1 << 40, 0)
    publish = encode_method(1, commands.Basic.Publish, {"routing_key": "q"})
    client.socket.sendall(publish + struct.pack(">BHI", 2, 1, len(header)) + header + b"\xce")
    closed = client.method().method
    client.send(2, commands.Channel.Open)

    assert isinstance(closed, commands.Channel.Close)
    assert closed.reply_code == 406
    assert client.method().method.name == "Channel.OpenOk"


def test_nothing_is_said_on_a_channel_after_its_close(client: Bare, name: str) -> None:
    client.open()
    client.send(1, commands.Queue.Declare, queue=name)
    client.method()
    publish = encode_method(1, commands.Basic.Publish, {"routing_key": name}) + encode_content(1, b"\0\0", b"x", 4096)
    client.socket.sendall(
        encode_method(1, commands.Confirm.Select)
        + encode_method(1, commands.Basic.Consume, {"queue": name, "no_ack": True})
        + publish * 50
        + encode_method(1, commands.Channel.Close)
        + encode_method(2, commands.Channel.Open)
    )
    got = b""
    client.socket.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        while data := client.socket.recv(65536):
            got += data

    after = got.partition(encode_method(1, commands.Channel.CloseOk))[2]
    assert after == encode_method(2, commands.Channel.OpenOk)


def test_a_server_that_stops_says_so(tmp_path_factory: pytest.TempPathFactory) -> None:
    own = Server(tmp_path_factory.mktemp("own"), in_memory=True)
    own.start()
    client = Bare(own)
    client.open()

    code = own.stop()

    assert client.close_code() == 320
    assert code == 0
    client.socket.close()


def test_a_client_that_does_not_finish_its_handshake_is_not_waited_for_on_stop(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    own = Server(tmp_path_factory.mktemp("own"), in_memory=True)
    own.start()
    with socket.create_connection(("127.0.0.1", own.port), 10) as client:
        client.sendall(b"AM")
        time.sleep(0.1)
        assert own.stop() == 0

"""The port for other nodes: whoever does not know the secret gets nowhere, and nobody has to wait for it."""

import contextlib
import secrets
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pika.exceptions import AMQPConnectionError, ConnectionClosedByBroker

from headrace.cluster.forwarding.preamble import (
    AMQP,
    ANSWER_BYTES,
    CHALLENGE_BYTES,
    HTTP,
    NOT_THE_OWNER,
    WELCOME,
    decode_answer,
    decode_challenge,
    encode_introduction,
)
from headrace.net import connection
from headrace.net.facts import Origin
from tests.nodes import SECRET, Nodes

_HEADER = b"AMQP\x00\x00\x09\x01"
_ORIGIN = Origin("192.0.2.7", 4711, "192.0.2.1:5672", "b")


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with Nodes("a", "b") as running:
        running.own("a")
        yield running


class Stranger:
    """A connection to the port for other nodes that says what it likes."""

    def __init__(self, nodes: Nodes, name: str = "a") -> None:
        self.socket = nodes.connect(name, "cluster")
        self.challenge = decode_challenge(self.take(CHALLENGE_BYTES))
        self.nonce = secrets.token_bytes(32)

    def take(self, count: int) -> bytes:
        """So many bytes, or fewer when there are no more."""
        data = b""
        while len(data) < count and (part := self.socket.recv(count - len(data))):
            data += part
        return data

    def introduce(self, secret: bytes = SECRET, origin: Origin = _ORIGIN, protocol: int = AMQP) -> bytes:
        data = encode_introduction(protocol, origin, self.nonce, self.challenge, secret)
        self.socket.sendall(data)
        return data

    def answer(self) -> int:
        return decode_answer(self.take(ANSWER_BYTES), self.nonce, self.challenge, SECRET)

    @property
    def is_refused(self) -> bool:
        try:
            return self.take(1) == b""
        except ConnectionResetError:
            return True


def test_whoever_knows_the_secret_is_let_in_and_speaks_for_its_client(nodes: Nodes) -> None:
    stranger = Stranger(nodes)
    stranger.introduce()

    assert stranger.answer() == WELCOME
    stranger.socket.sendall(_HEADER)
    assert stranger.take(1) == b"\x01"
    assert nodes["a"].has("192.0.2.7:4711")


def test_guest_of_another_machine_is_refused_although_the_node_that_passes_it_on_is_on_this_one(nodes: Nodes) -> None:
    for origin, status in ((_ORIGIN, b"401"), (Origin("127.0.0.1", 1, "127.0.0.1:1", "b", is_loopback=True), b"200")):
        stranger = Stranger(nodes)
        stranger.introduce(origin=origin, protocol=HTTP)
        assert stranger.answer() == WELCOME
        login = b"Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
        stranger.socket.sendall(b"GET /api/v1/overview HTTP/1.1\r\nHost: x\r\n" + login + b"Connection: close\r\n\r\n")
        assert stranger.take(12) == b"HTTP/1.1 " + status


def test_a_wrong_secret_is_refused(nodes: Nodes) -> None:
    stranger = Stranger(nodes)
    stranger.introduce(b"guessed")

    assert stranger.is_refused
    assert not nodes["a"].has(f"127.0.0.1:{stranger.socket.getsockname()[1]}")


def test_what_was_heard_on_one_connection_is_refused_on_another(nodes: Nodes) -> None:
    first = Stranger(nodes)
    heard = first.introduce()
    assert first.answer() == WELCOME
    second = Stranger(nodes)
    second.socket.sendall(heard)

    assert second.is_refused


def test_who_says_more_than_it_was_asked_is_refused(nodes: Nodes) -> None:
    stranger = Stranger(nodes)
    data = encode_introduction(AMQP, _ORIGIN, stranger.nonce, stranger.challenge, SECRET)
    stranger.socket.sendall(data + _HEADER)

    assert stranger.is_refused


@settings(max_examples=25)
@given(garbage=st.binary(min_size=5, max_size=4096).filter(lambda data: not data.startswith(b"HRFW\x01")))
def test_garbage_is_refused(nodes: Nodes, garbage: bytes) -> None:
    stranger = Stranger(nodes)
    stranger.socket.sendall(garbage)

    assert stranger.is_refused


def test_who_takes_too_long_is_refused(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HANDSHAKE_SECONDS", 0.2)
    stranger = Stranger(nodes)
    stranger.socket.sendall(b"HRFW\x01")

    assert stranger.is_refused


def test_a_node_that_is_not_the_owner_says_so(nodes: Nodes) -> None:
    stranger = Stranger(nodes, "b")
    stranger.introduce()

    assert stranger.answer() == NOT_THE_OWNER
    assert stranger.is_refused


def test_a_node_of_another_cluster_gets_no_client_and_nothing_that_one_says() -> None:
    heard = bytearray()
    with Nodes("b") as nodes, socket.create_server(("127.0.0.1", 0)) as impostor:
        nodes["b"].impatient()
        other = nodes.add("a", b"another secret")
        nodes.own("a")
        with pytest.raises((ConnectionClosedByBroker, AMQPConnectionError)):
            nodes.pika("b")
        assert other.wires == 0

        impostor.settimeout(60)
        port = impostor.getsockname()[1]
        nodes.tell_address("a", f"127.0.0.1:{port}")
        nodes.connect("b", "mqtt").sendall(b"\x10\x10secret password")
        met, _ = impostor.accept()
        with met:
            met.settimeout(60)
            met.sendall(b"HRFW\x01" + bytes(32))
            heard += met.recv(4096)
            met.sendall(bytes(33))
            with contextlib.suppress(ConnectionResetError):
                while part := met.recv(4096):
                    heard += part

    assert b"secret password" not in heard

"""Methods sent without waiting for answers, answers that are not wanted, as many channels as there may be."""

from collections.abc import Iterator

import pytest
from pamqp import commands

from headrace.protocols.amqp091.codec import encode_content
from headrace.protocols.amqp091.frames import CHANNEL_MAX
from headrace.protocols.amqp091.methods import encode_method
from tests.bare import Bare
from tests.servers import Server, drain


@pytest.fixture
def client(server: Server) -> Iterator[Bare]:
    bare = Bare(server)
    bare.open()
    yield bare
    bare.socket.close()


def _publish(channel: int, exchange: str, key: str, body: bytes, **bits: object) -> bytes:
    method = encode_method(channel, commands.Basic.Publish, {"exchange": exchange, "routing_key": key, **bits})
    return method + encode_content(channel, b"\0\0", body, 4096)


def _read_to(client: Bare, answer: bytes) -> None:
    """Read what comes, deliveries too, up to this answer."""
    data = b""
    while answer not in data:
        more = client.socket.recv(65536)
        assert more, "the server closed"
        data += more


def test_declarations_that_are_pipelined_are_answered_in_order(client: Bare, name: str) -> None:
    frames = []
    for number in range(50):
        frames.append(encode_method(1, commands.Queue.Declare, {"queue": f"{name}{number}", "exclusive": True}))
        frames.append(encode_method(1, commands.Queue.Bind, {"queue": f"{name}{number}", "exchange": "amq.fanout"}))
    frames.append(encode_method(1, commands.Queue.Declare, {"queue": f"{name}0", "passive": True}))
    client.socket.sendall(b"".join(frames))

    for number in range(50):
        declared = client.method().method
        assert isinstance(declared, commands.Queue.DeclareOk)
        assert declared.queue == f"{name}{number}"
        assert isinstance(client.method().method, commands.Queue.BindOk)
    assert isinstance(client.method().method, commands.Queue.DeclareOk)


def test_an_acknowledgement_of_several_followed_by_one_of_the_next_settles_them_all(
    client: Bare, server: Server, name: str
) -> None:
    """Both come in one piece, and the tag of the second is the next one: only the first is about all before it."""
    published = [_publish(1, "", name, b"%d" % number) for number in range(5)]
    gets = [encode_method(1, commands.Basic.Get, {"queue": name})] * 5
    acks = [
        encode_method(1, commands.Basic.Ack, {"delivery_tag": 3, "multiple": True}),
        encode_method(1, commands.Basic.Ack, {"delivery_tag": 4, "multiple": False}),
    ]
    declared = encode_method(1, commands.Queue.Declare, {"queue": name})
    client.socket.sendall(b"".join([declared, *published, *gets, encode_method(1, commands.Basic.Qos)]))
    _read_to(client, encode_method(1, commands.Basic.QosOk))

    client.socket.sendall(b"".join([*acks, encode_method(1, commands.Basic.Qos)]))
    _read_to(client, encode_method(1, commands.Basic.QosOk))
    client.send(1, commands.Channel.Close, reply_code=200, reply_text="", class_id=0, method_id=0)
    _read_to(client, encode_method(1, commands.Channel.CloseOk))

    assert drain(server.connect().channel(), name, 1, quiet=0.2) == [b"4"]


def test_what_is_not_to_be_answered_is_done_without_a_word(client: Bare, name: str) -> None:
    quiet = {"nowait": True}
    frames = [
        encode_method(1, commands.Exchange.Declare, {"exchange": name, "exchange_type": "direct", **quiet}),
        encode_method(1, commands.Exchange.Declare, {"exchange": f"{name}.2", "exchange_type": "fanout", **quiet}),
        encode_method(1, commands.Exchange.Bind, {"source": name, "destination": f"{name}.2", **quiet}),
        encode_method(1, commands.Queue.Declare, {"queue": name, **quiet}),
        encode_method(1, commands.Queue.Bind, {"queue": name, "exchange": f"{name}.2", **quiet}),
        encode_method(1, commands.Confirm.Select, quiet),
        _publish(1, name, "", b"quiet"),
        encode_method(1, commands.Queue.Declare, {"queue": f"{name}.empty", "exclusive": True, **quiet}),
        encode_method(1, commands.Basic.Consume, {"queue": f"{name}.empty", "consumer_tag": "c", **quiet}),
        encode_method(1, commands.Basic.Cancel, {"consumer_tag": "other", **quiet}),
    ]
    client.socket.sendall(b"".join(frames))

    waiting = 0
    while not waiting:
        client.send(1, commands.Queue.Declare, queue=name, passive=True)
        answer = client.method().method
        assert isinstance(answer, commands.Queue.DeclareOk)
        waiting = answer.message_count or 0
    endings = [
        encode_method(1, commands.Exchange.Unbind, {"source": name, "destination": f"{name}.2", **quiet}),
        encode_method(1, commands.Queue.Purge, {"queue": name, **quiet}),
        encode_method(1, commands.Exchange.Delete, {"exchange": name, **quiet}),
        encode_method(1, commands.Exchange.Delete, {"exchange": f"{name}.2", **quiet}),
        encode_method(1, commands.Basic.Cancel, {"consumer_tag": "c", **quiet}),
        encode_method(1, commands.Queue.Delete, {"queue": name, **quiet}),
        encode_method(1, commands.Queue.Declare, {"queue": name, "passive": True}),
    ]
    client.socket.sendall(b"".join(endings))
    closed = client.method().method
    assert isinstance(closed, commands.Channel.Close)
    assert closed.reply_code == 404


def test_an_error_without_an_answer_still_closes_the_channel(client: Bare, name: str) -> None:
    client.send(1, commands.Queue.Declare, queue="amq.mine", nowait=True)
    closed = client.method().method
    assert isinstance(closed, commands.Channel.Close)
    assert closed.reply_code == 403


def test_there_may_be_2047_channels_and_no_more(client: Bare, name: str) -> None:
    numbers = range(2, CHANNEL_MAX + 1)
    client.socket.sendall(b"".join(encode_method(number, commands.Channel.Open) for number in numbers))
    assert [client.method().method.name for _ in numbers] == ["Channel.OpenOk"] * (CHANNEL_MAX - 1)
    client.send(CHANNEL_MAX, commands.Queue.Declare, queue=name, exclusive=True)
    assert isinstance(client.method().method, commands.Queue.DeclareOk)

    client.send(CHANNEL_MAX + 1, commands.Channel.Open)
    assert client.close_code() == 530


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (_publish(1, "", "q", b"x", immediate=True), 540),
        (encode_method(1, commands.Basic.Qos, {"prefetch_size": 1}), 540),
        (
            encode_method(1, commands.Queue.Declare, {"queue": "tags", "exclusive": True, "nowait": True})
            + encode_method(1, commands.Basic.Consume, {"queue": "tags", "consumer_tag": "t", "nowait": True}) * 2,
            530,
        ),
        (b"\x01\x00\x01" + (200_000).to_bytes(4) + bytes(200_000) + b"\xce", 501),
    ],
    ids=["immediate", "prefetch_size", "a consumer tag twice", "a frame larger than agreed"],
)
def test_what_is_not_allowed_or_not_there_closes_the_connection(client: Bare, frames: bytes, code: int) -> None:
    client.socket.sendall(frames)
    assert client.close_code() == code

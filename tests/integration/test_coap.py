"""Publishing over CoAP: aiocoap as the device, pika as the consumer, and a socket for what aiocoap would never send."""

import asyncio
import logging
import socket
from collections.abc import Iterator

import pytest
from aiocoap import Context, Message
from aiocoap.numbers.codes import DELETE, GET, POST, PUT

from tests.servers import Server, drain, serving

_LOGIN = "username=guest&password=guest"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(Server(tmp_path_factory.mktemp("server"), True, ("--coap", "0"))) as running:
        yield running


@pytest.fixture
def name(request: pytest.FixtureRequest, server: Server) -> str:
    """A queue that no other test has."""
    queue = f"coap{abs(hash(request.node.nodeid))}"
    server.connect().channel().queue_declare(queue, durable=True)
    return queue


@pytest.fixture
def device(server: Server) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.connect(("127.0.0.1", server.ports["coap"]))
        made.settimeout(60)
        yield made


def say(server: Server, path: str, payload: bytes = b"", code: int = POST, **options: object) -> Message:
    """What the server answers to one request."""

    async def exchange() -> Message:
        logging.getLogger("coap").setLevel(logging.CRITICAL)
        context = await Context.create_client_context(transports=["udp6"])
        try:
            uri = f"coap://127.0.0.1:{server.ports['coap']}/{path}"
            request = Message(code=code, payload=payload, uri=uri, **options)
            return await asyncio.wait_for(context.request(request).response, 20)
        finally:
            await context.shutdown()

    return asyncio.run(exchange())


@pytest.mark.parametrize("code", [POST, PUT])
@pytest.mark.parametrize("prefix", ["", "mqtt/publish/"])
def test_a_path_is_a_topic_and_the_answer_comes_when_it_is_stored(
    server: Server, name: str, code: int, prefix: str
) -> None:
    answer = say(server, f"{prefix}$queue/{name}/eu?{_LOGIN}", b"21.5", code)

    assert str(answer.code) == "2.04 Changed"
    assert drain(server.connect().channel(), name, 1) == [b"21.5"]


def test_a_content_format_is_a_content_type(server: Server, name: str) -> None:
    say(server, f"$queue/{name}?{_LOGIN}&qos=2&clientid=sensor-7", b"{}", content_format=50)

    method, properties, _ = next(server.connect().channel().consume(name, inactivity_timeout=60))
    assert method is not None
    assert method.routing_key == f"$queue/{name}"
    assert properties is not None
    assert properties.content_type == "application/json"


def test_a_plain_topic_goes_through_the_topic_exchange_at_any_qos(server: Server, name: str) -> None:
    channel = server.connect().channel()
    channel.queue_bind(name, "amq.topic", f"{name}.temperature")

    for qos in (0, 1, 2):
        assert str(say(server, f"{name}/temperature?{_LOGIN}&qos={qos}", b"x").code) == "2.04 Changed"

    assert drain(channel, name, 3) == [b"x"] * 3


def test_a_body_in_blocks_is_one_message(server: Server, name: str) -> None:
    body = bytes(range(256)) * 40

    answer = say(server, f"$queue/{name}?{_LOGIN}", body)

    assert str(answer.code) == "2.04 Changed"
    assert drain(server.connect().channel(), name, 1) == [body]


@pytest.mark.parametrize(
    ("path", "code", "status", "words"),
    [
        ("a/b", POST, "4.01", "log in"),
        ("a/b?username=guest&password=wrong", POST, "4.01", "wrong"),
        (f"a/b?{_LOGIN}", GET, "4.05", "POST and PUT"),
        (f"a/b?{_LOGIN}", DELETE, "4.05", "POST and PUT"),
        (f"a/+/b?{_LOGIN}", POST, "4.00", "wildcard"),
        (f"?{_LOGIN}", POST, "4.00", "empty"),
        (f"mqtt/publish?{_LOGIN}", POST, "4.00", "empty"),
        (f"a?{_LOGIN}&qos=3", POST, "4.00", "qos=3"),
        (f"a?{_LOGIN}&speed=9", POST, "4.00", "speed=9"),
        (f"$SYS/broker?{_LOGIN}", POST, "4.03", "the server's"),
        (f"$queue/x/$ack?{_LOGIN}", POST, "4.00", "verb"),
    ],
)
def test_what_cannot_be_published_is_told_so(server: Server, path: str, code: int, status: str, words: str) -> None:
    answer = say(server, path, b"x", code)

    assert str(answer.code).startswith(status)
    assert words in answer.payload.decode()


def test_a_body_that_is_too_large_is_refused(server: Server, name: str) -> None:
    answer = say(server, f"$queue/{name}?{_LOGIN}", bytes((1 << 20) + 1))

    assert str(answer.code).startswith("4.13")


def request_to(queue: str, message_id: int, kind: int = 0) -> bytes:
    """POST $queue/<queue>, as bytes: version 1, a token of one byte."""
    path = b"".join(_option(11, part.encode(), number > 0) for number, part in enumerate(("$queue", queue)))
    query = _option(4, b"username=guest", False) + _option(0, b"password=guest", False)
    return bytes((0x41 | kind << 4, 0x02)) + message_id.to_bytes(2) + b"T" + path + query + b"\xffhi"


def _option(delta: int, value: bytes, is_same: bool) -> bytes:
    size = len(value)
    head = 0 if is_same else delta
    if size < 13:
        return bytes((head << 4 | size,)) + value
    return bytes((head << 4 | 13, size - 13)) + value


def test_a_request_that_comes_twice_is_answered_twice_and_published_once(
    server: Server, name: str, device: socket.socket
) -> None:
    device.send(request_to(name, 0x1234))
    first = device.recv(100)
    device.send(request_to(name, 0x1234))

    assert device.recv(100) == first == bytes.fromhex("61 44 1234 54")
    assert drain(server.connect().channel(), name, 1, quiet=0.5) == [b"hi"]


def test_an_answer_to_what_is_not_confirmable_is_a_message_of_its_own(name: str, device: socket.socket) -> None:
    device.send(request_to(name, 0x2000, kind=1))

    answer = device.recv(100)
    assert (answer[0], answer[1], answer[4:]) == (0x51, 0x44, b"T")


def test_a_ping_is_answered_with_a_reset(device: socket.socket) -> None:
    device.send(bytes.fromhex("40 00 0007"))

    assert device.recv(100) == bytes.fromhex("70 00 0007")


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        ("40 02 0008 ff", None),  # a payload marker without a payload is forgiven; there is no login
        ("49 02 0009 000000000000000000", "70 00 0009"),  # a token of nine bytes
        ("40 02 000a f0", "70 00 000a"),  # a reserved option length
        ("40 45 000b", "70 00 000b"),  # an answer that nobody asked for
        ("40 02 000c b1 ff", "70 00 000c"),  # a path that is not UTF-8
    ],
)
def test_what_cannot_be_read_is_reset(device: socket.socket, data: str, answer: str | None) -> None:
    device.send(bytes.fromhex(data))

    received = device.recv(600)
    if answer is None:
        assert received[:4] == bytes.fromhex("60 81 0008")
    else:
        assert received == bytes.fromhex(answer)


@pytest.mark.parametrize(
    ("option", "code"),
    [("51 00", 0x82), ("d0 16", 0xA5), ("d0 ec", 0x82)],  # if-none-match; proxy-uri; a critical one nobody knows
)
def test_a_critical_option_that_is_not_understood_is_refused(device: socket.socket, option: str, code: int) -> None:
    device.send(bytes.fromhex(f"40 02 0100 {option}"))

    assert device.recv(600)[1] == code


def test_noise_is_not_answered_and_harms_nobody(name: str, device: socket.socket) -> None:
    for noise in (b"", b"x", b"\x10\x0d\x00\x04MQTT", bytes(1000), b"\xff" * 100):
        device.send(noise)
    device.send(request_to(name, 0x3000))

    assert device.recv(100) == bytes.fromhex("61 44 3000 54")

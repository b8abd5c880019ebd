"""STOMP with clients of others: stomp.py in all versions, pika beside it, stompjs over WebSocket, and a kill -9."""

import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
import stomp  # type: ignore[import-untyped]

from tests.servers import Server, drain, serving

_SECONDS = 60.0
_VERSIONS = {"1.0": stomp.StompConnection10, "1.1": stomp.StompConnection11, "1.2": stomp.StompConnection12}


class Client(stomp.ConnectionListener):  # type: ignore[misc]
    """A connection of stomp.py that remembers what came."""

    def __init__(self, server: Server, version: str = "1.2", **options: Any) -> None:
        self.version = version
        self.messages: list[stomp.utils.Frame] = []
        self.errors: list[stomp.utils.Frame] = []
        self.receipts: list[str] = []
        self.is_gone = False
        self._changed = threading.Condition()
        self.stomp = _VERSIONS[version]([("127.0.0.1", server.ports["stomp"])], reconnect_attempts_max=1, **options)
        self.stomp.set_listener("", self)
        self.stomp.connect("guest", "guest", wait=True)
        self._receipts = 0

    def _note(self, kept: list[Any], value: object) -> None:
        with self._changed:
            kept.append(value)
            self._changed.notify_all()

    def on_message(self, frame: stomp.utils.Frame) -> None:
        self._note(self.messages, frame)

    def on_error(self, frame: stomp.utils.Frame) -> None:
        self._note(self.errors, frame)

    def on_receipt(self, frame: stomp.utils.Frame) -> None:
        self._note(self.receipts, frame.headers["receipt-id"])

    def on_disconnected(self) -> None:
        with self._changed:
            self.is_gone = True
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, _SECONDS), (self.messages, self.errors, self.receipts)

    def get(self, count: int) -> list[stomp.utils.Frame]:
        """The next messages."""
        self.wait(lambda: len(self.messages) >= count)
        with self._changed:
            found, self.messages[:] = self.messages[:count], self.messages[count:]
        return found

    def sure(self, call: Callable[..., object], *arguments: object, **headers: object) -> None:
        """Call, and wait for the receipt."""
        self._receipts += 1
        receipt = f"sure-{self._receipts}"
        call(*arguments, headers={**headers, "receipt": receipt})
        self.wait(lambda: receipt in self.receipts)

    def ack(self, frame: stomp.utils.Frame, is_ack: bool = True, **more: str) -> None:
        call = self.stomp.ack if is_ack else self.stomp.nack
        if self.version == "1.2":
            call(frame.headers["ack"], **more)
        elif self.version == "1.1":
            call(frame.headers["message-id"], frame.headers["subscription"], **more)
        else:
            call(frame.headers["message-id"], **more)

    def close(self) -> None:
        self.sure(lambda headers: self.stomp.disconnect(headers["receipt"]))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(Server(tmp_path_factory.mktemp("server"), options=("--stomp", "0"))) as running:
        yield running


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"stomp{abs(hash(request.node.nodeid))}"


@pytest.fixture
def connect(server: Server) -> Iterator[Callable[..., Client]]:
    made: list[Client] = []

    def connected(version: str = "1.2", **options: Any) -> Client:
        made.append(Client(server, version, **options))
        return made[-1]

    yield connected
    for client in made:
        if client.stomp.is_connected():
            client.stomp.disconnect()


@pytest.mark.parametrize("version", _VERSIONS)
def test_what_is_sent_comes_as_it_was_and_a_receipt_means_stored(
    server: Server, connect: Callable[..., Client], name: str, version: str
) -> None:
    client = connect(version)
    bodies = [b"x\0%d\xff" % number * (1 + 5000 * (number % 3)) for number in range(60)]
    for number, body in enumerate(bodies):
        headers = {"persistent": "true", "number": str(number), "priority": "4", "correlation-id": f"c{number}"}
        client.sure(client.stomp.send, f"/queue/{name}", body, **headers)

    reader = connect(version, auto_decode=False)
    reader.stomp.subscribe(f"/queue/{name}", id="1", ack="client")
    found = reader.get(len(bodies))

    assert [frame.body for frame in found] == bodies
    assert [frame.headers["number"] for frame in found] == [str(number) for number in range(60)]
    assert found[7].headers["correlation-id"] == "c7"
    assert found[7].headers["persistent"] == "true"
    assert found[7].headers["destination"] == f"/queue/{name}"
    reader.ack(found[-1])  # cumulative
    reader.close()
    assert server.connect().channel().queue_declare(name, passive=True).method.message_count == 0


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_each_message_is_settled_by_itself(connect: Callable[..., Client], name: str, version: str) -> None:
    client = connect(version)
    client.sure(client.stomp.subscribe, f"/queue/{name}", "1", "client-individual")
    for number in range(4):
        client.sure(client.stomp.send, f"/queue/{name}", str(number), **{"x-delivery-limit": ""} if number < 0 else {})
    first, second, third, fourth = client.get(4)
    client.ack(third)
    client.ack(second, is_ack=False)

    (again,) = client.get(1)

    assert (again.body, again.headers["redelivered"]) == ("1", "true")
    client.close()
    assert [first.body, fourth.body] == ["0", "3"]
    other = connect(version)
    other.stomp.subscribe(f"/queue/{name}", id="1", ack="auto")
    assert sorted(frame.body for frame in other.get(3)) == ["0", "1", "3"]


def test_a_message_that_is_refused_becomes_a_dead_letter(
    server: Server, connect: Callable[..., Client], name: str
) -> None:
    channel = server.connect().channel()
    channel.queue_declare(f"{name}.dead", durable=True)
    client = connect()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}.dead"}
    client.sure(client.stomp.subscribe, f"/queue/{name}", "1", "client-individual", **arguments)
    client.stomp.send(f"/queue/{name}", "bad")

    client.ack(client.get(1)[0], is_ack=False, requeue="false")

    assert drain(channel, f"{name}.dead", 1) == [b"bad"]


def test_pika_and_stomp_share_queues_and_properties(server: Server, connect: Callable[..., Client], name: str) -> None:
    channel = server.connect().channel()
    channel.queue_declare(name, durable=True, arguments={"x-max-priority": 5})
    client = connect()
    headers = {"persistent": "true", "content-type": "text/x", "type": "t", "app-id": "a", "expiration": "90000",
               "amqp-message-id": "m", "timestamp": "77", "priority": "3", "own": "v:1"}  # fmt: skip
    client.sure(client.stomp.send, f"/queue/{name}", "from stomp", **headers)  # the queue is right as it is
    _, properties, body = channel.basic_get(name, auto_ack=True)

    assert body == b"from stomp"
    assert properties.headers == {"own": "v:1"}
    got = [properties.content_type, properties.type, properties.app_id, properties.expiration, properties.message_id]
    assert got == ["text/x", "t", "a", "90000", "m"]
    assert [properties.timestamp, properties.priority, properties.delivery_mode] == [77, 3, 2]

    sent = pika.BasicProperties(headers={"n": 7, "yes": True, "list": [1, "x"]}, reply_to="answers", message_id="q")
    channel.basic_publish("", name, b"from pika", sent)
    client.stomp.subscribe(f"/amq/queue/{name}", id="1", ack="auto")
    (frame,) = client.get(1)
    assert frame.body == "from pika"
    assert [frame.headers[each] for each in ("n", "yes", "list")] == ["7", "true", '[1,"x"]']
    assert [frame.headers[each] for each in ("reply-to", "amqp-message-id")] == ["/reply-queue/answers", "q"]


def test_topics_reach_those_that_match_and_mqtt_alike(connect: Callable[..., Client], name: str) -> None:
    some, every, sender = connect(), connect("1.1"), connect("1.0")
    some.sure(some.stomp.subscribe, f"/topic/{name}.*.c", "1", "auto")
    every.sure(every.stomp.subscribe, f"/topic/{name}.#", "1", "auto")

    for key in ("a.c", "b.c", "b.d"):
        sender.sure(sender.stomp.send, f"/topic/{name}.{key}", key)

    assert [frame.body for frame in every.get(3)] == ["a.c", "b.c", "b.d"]
    assert [frame.headers["destination"] for frame in some.get(2)] == [f"/topic/{name}.a.c", f"/topic/{name}.b.c"]
    assert some.messages == []


def test_exchanges_are_sent_to_and_subscribed_by_key(server: Server, connect: Callable[..., Client], name: str) -> None:
    server.connect().channel().exchange_declare(name, "direct")
    client = connect()
    client.sure(client.stomp.subscribe, f"/exchange/{name}/warn", "1", "auto")
    client.sure(client.stomp.send, f"/exchange/{name}/info", "info")
    client.sure(client.stomp.send, f"/exchange/{name}/warn", "warn")

    assert client.get(1)[0].body == "warn"


def test_a_durable_subscription_keeps_what_comes_meanwhile_until_it_is_ended(
    server: Server, connect: Callable[..., Client], name: str
) -> None:
    def subscribe() -> Client:
        made = connect()
        made.sure(made.stomp.subscribe, f"/topic/{name}", "news", "client", durable="true")
        return made

    reader, sender = subscribe(), connect()
    reader.close()
    sender.sure(sender.stomp.send, f"/topic/{name}", "meanwhile")

    again = subscribe()
    assert again.get(1)[0].body == "meanwhile"
    again.sure(again.stomp.unsubscribe, "news", durable="true")

    names = [queue["name"] for queue in json.loads(_http(server, "/api/queues"))]
    assert not any(each.startswith("stomp-subscription-") for each in names)


def _all(line: socket.socket) -> bytes:
    """All that comes until the server closes."""
    with line.makefile("rb") as file:
        return file.read()


def _http(server: Server, path: str) -> bytes:
    return subprocess.run(
        ["curl", "-s", "-u", "guest:guest", server.http_url + path], capture_output=True, check=True
    ).stdout


def test_a_temporary_queue_gets_the_answers_of_another_protocol(
    server: Server, connect: Callable[..., Client], name: str
) -> None:
    client = connect()
    channel = server.connect().channel()
    channel.queue_declare(name, durable=True)
    client.stomp.send(f"/queue/{name}", "question", headers={"reply-to": "/temp-queue/here", "correlation-id": "7"})

    for method, properties, _ in channel.consume(name):
        channel.basic_publish("", properties.reply_to, b"answer", pika.BasicProperties(correlation_id="7"))
        channel.basic_ack(method.delivery_tag)
        break

    (frame,) = client.get(1)
    assert (frame.body, frame.headers["correlation-id"]) == ("answer", "7")
    assert frame.headers["subscription"] == "/temp-queue/here"


def test_a_transaction_happens_as_a_whole_or_not_at_all(connect: Callable[..., Client], name: str) -> None:
    client = connect()
    client.sure(client.stomp.subscribe, f"/queue/{name}", "1", "client-individual")
    client.sure(client.stomp.send, f"/queue/{name}", "job")
    (job,) = client.get(1)

    aborted = client.stomp.begin()
    client.stomp.send(f"/queue/{name}.out", "never", transaction=aborted)
    client.stomp.ack(job.headers["ack"], transaction=aborted)
    client.sure(client.stomp.abort, aborted)
    kept = client.stomp.begin()
    client.stomp.send(f"/queue/{name}.out", "result", transaction=kept)
    client.stomp.ack(job.headers["ack"], transaction=kept)
    client.sure(client.stomp.commit, kept)

    client.stomp.subscribe(f"/queue/{name}.out", id="2", ack="auto")
    assert client.get(1)[0].body == "result"
    client.close()
    other = connect()
    other.sure(other.stomp.subscribe, f"/queue/{name}", "1", "auto")
    other.sure(other.stomp.send, f"/queue/{name}", "end")
    assert other.get(1)[0].body == "end"


def test_consumers_with_a_prefetch_share_and_a_stuck_one_keeps_no_more(
    connect: Callable[..., Client], name: str
) -> None:
    stuck, healthy, sender = connect(), connect(), connect("1.1")
    for client in (stuck, healthy):
        client.sure(client.stomp.subscribe, f"/queue/{name}", "1", "client-individual", **{"prefetch-count": "2"})
    for number in range(50):
        sender.stomp.send(f"/queue/{name}", f"{number}")

    done: list[str] = []
    while len(done) < 48:
        (frame,) = healthy.get(1)
        healthy.ack(frame)
        done.append(frame.body)
    assert len(stuck.messages) == 2
    stuck.stomp.disconnect()

    assert sorted([*done, *[frame.body for frame in healthy.get(2)]], key=int) == [str(each) for each in range(50)]


def test_streams_groups_and_selectors_are_those_of_every_protocol(
    server: Server, connect: Callable[..., Client], name: str
) -> None:
    channel = server.connect().channel()
    channel.confirm_delivery()
    channel.queue_declare(f"{name}.log", durable=True, arguments={"x-queue-type": "stream"})
    for number in range(5):
        channel.basic_publish("", f"{name}.log", b"%d" % number)
    client = connect()
    client.stomp.subscribe(f"/amq/queue/{name}.log", id="1", ack="client", headers={"x-stream-offset": "2"})
    assert [(frame.body, frame.headers["x-stream-offset"]) for frame in client.get(3)] == [
        ("2", "2"), ("3", "3"), ("4", "4"),
    ]  # fmt: skip

    client.sure(client.stomp.subscribe, f"/queue/{name}", "2", "auto", selector="size > '5'")
    client.stomp.send(f"/queue/{name}", "small", headers={"size": "1"})
    client.stomp.send(f"/queue/{name}", "large", headers={"size": "9"})
    assert client.get(1)[0].body == "large"


@pytest.mark.parametrize(
    ("headers", "destination", "said"),
    [
        ({}, "/nowhere/x", "is no destination"),
        ({}, "/exchange/nothing/x", "no exchange 'nothing'"),
        ({"priority": "high"}, "/queue/x", "'priority' is a number"),
        ({"expiration": "soon"}, "/queue/x", "'expiration' is 'soon'"),
        ({"user-id": "root"}, "/queue/x", "authenticated user was 'guest'"),
        ({"transaction": "none"}, "/queue/x", "no transaction 'none'"),
    ],
)
def test_an_error_says_why_names_the_receipt_and_ends_the_connection(
    connect: Callable[..., Client], headers: dict[str, str], destination: str, said: str
) -> None:
    client = connect()
    client.stomp.send(destination, "x", headers={**headers, "receipt": "r"})

    client.wait(lambda: client.is_gone)

    assert said in client.errors[0].headers["message"]
    assert client.errors[0].headers["receipt-id"] == "r"
    assert client.receipts == []


def test_a_wrong_login_is_refused(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.ports["stomp"]), _SECONDS) as line:
        line.sendall(b"CONNECT\naccept-version:1.2\nhost:/\nlogin:guest\npasscode:no\n\n\0")
        said = _all(line)
    assert said.startswith(b"ERROR\nmessage:login or passcode is wrong\n")


@pytest.mark.parametrize(("host", "is_let_in"), [("/", True), ("localhost", True), ("10.0.0.1", True), ("x", False)])
def test_the_host_is_a_virtual_host_or_the_name_of_a_machine(server: Server, host: str, is_let_in: bool) -> None:
    with socket.create_connection(("127.0.0.1", server.ports["stomp"]), _SECONDS) as line:
        line.sendall(b"CONNECT\naccept-version:1.2\nhost:%b\nlogin:guest\npasscode:guest\n\n\0" % host.encode())
        said = line.recv(1000)
    assert said.startswith(b"CONNECTED\nversion:1.2\n" if is_let_in else b"ERROR\nmessage:access to vhost 'x' refused")


def test_heart_beats_come_and_a_silent_client_is_ended(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.ports["stomp"]), _SECONDS) as line:
        line.sendall(b"CONNECT\naccept-version:1.2\nhost:/\nheart-beat:1000,1000\n\n\0")
        said = _all(line)
    head, _, rest = said.partition(b"\0")
    assert b"heart-beat:1000,1000" in head
    assert rest.strip(b"\n") == b""
    assert rest.count(b"\n") >= 1


def test_a_lost_subscription_is_told(server: Server, connect: Callable[..., Client], name: str) -> None:
    client = connect()
    client.sure(client.stomp.subscribe, f"/queue/{name}", "1", "auto")
    server.connect().channel().queue_delete(name)

    client.wait(lambda: client.is_gone)

    assert "the queue of the subscription '1' is deleted" in client.errors[0].headers["message"]


def test_what_a_receipt_confirmed_survives_a_kill(tmp_path: Path) -> None:
    server = Server(tmp_path, options=("--stomp", "0"))
    server.start()
    try:
        client = Client(server)
        for number in range(40):
            client.stomp.send(f"/queue/jobs{number % 2}", f"{number}", headers={"receipt": f"r{number}"})
        client.wait(lambda: len(client.receipts) == 40)
        client.sure(client.stomp.subscribe, "/queue/jobs0", "1", "client")
        client.stomp.ack(client.get(10)[-1].headers["ack"], receipt="settled")
        client.wait(lambda: "settled" in client.receipts)
        server.kill()
        client.wait(lambda: client.is_gone)
        server.start()

        again = Client(server)
        for half in (0, 1):
            again.stomp.subscribe(f"/queue/jobs{half}", id=str(half), ack="client")
        found = sorted(int(frame.body) for frame in again.get(30))
        again.stomp.disconnect()
    finally:
        server.stop()

    assert found == sorted([*range(20, 40, 2), *range(1, 40, 2)])


_PROGRAM = """
const { Client } = require('@stomp/stompjs');
Object.assign(global, { WebSocket: require('ws') });
const got = [];
const client = new Client({
  brokerURL: process.env.BROKER_URL, connectHeaders: {login: 'guest', passcode: 'guest', host: '/'},
  reconnectDelay: 0,
  onConnect: () => {
    client.subscribe('/queue/js', frame => {
      got.push([frame.body, frame.headers.own]);
      frame.ack();
      if (got.length === 3) { console.log(JSON.stringify(got)); client.deactivate(); }
    }, {ack: 'client-individual'});
    client.publish({destination: '/queue/js', body: 'text \\u00e9', headers: {own: 'a:b'}});
    client.publish({destination: '/queue/js', binaryBody: new Uint8Array([98, 105, 110])});
    client.publish({destination: '/queue/js', body: 'x'.repeat(200000)});
  },
  onStompError: frame => { console.error(frame.headers.message); process.exit(1); },
});
client.activate();
"""


@pytest.mark.parametrize("way", ["ws", "http"])
def test_stompjs_over_websocket(server: Server, tmp_path_factory: pytest.TempPathFactory, way: str) -> None:
    directory = tmp_path_factory.mktemp("node")
    command = ["npm", "install", "--no-audit", "--no-fund", "@stomp/stompjs@7", "ws@8"]
    subprocess.run(command, cwd=directory, capture_output=True, check=True)
    (directory / "program.js").write_text(_PROGRAM)
    result = subprocess.run(
        ["node", "program.js"],
        cwd=directory,
        env={**os.environ, "BROKER_URL": f"ws://127.0.0.1:{server.ports[way]}/stomp"},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found[0] == ["text é", "a:b"]
    assert found[1][0] == "bin"
    assert len(found[2][0]) == 200_000

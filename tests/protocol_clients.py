"""Every protocol as one kind of client: may a login come in, publish, consume? Real clients, one question each."""

import asyncio
import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from urllib.parse import quote
from uuid import uuid4

import httpx
import paho.mqtt.client as paho
import pika
import pyarrow as pa
from aiocoap import Context, Message
from aiocoap.numbers.codes import POST, Code
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode
from pika.exceptions import AMQPConnectionError, AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker
from proton import ConnectionException, Delivery, Endpoint, ProtonException, Timeout
from proton import Message as ProtonMessage
from proton.utils import BlockingConnection, LinkDetached, SendException

from tests.servers import Server

SECONDS = 60.0
ADDRESS = "$queue/"


class ProtocolClient(ABC):
    """One protocol; each call says whether it was allowed, and fails for any other answer than a refusal.

    A topic is a queue's address or a plain one, as MQTT writes both.
    """

    name: str
    consumes = True

    def __init__(self, server: Server) -> None:
        self.server = server

    @abstractmethod
    def may_enter(self, user: str, password: str) -> bool: ...

    @abstractmethod
    def may_publish(self, user: str, password: str, topic: str, payload: bytes = b"x") -> bool: ...

    @abstractmethod
    def may_consume(self, user: str, password: str, topic: str) -> bool: ...


class Connected(ProtocolClient):
    """A protocol whose clients stay connected."""

    @abstractmethod
    def inside(self, user: str, password: str) -> AbstractContextManager[None]:
        """One more connection, for as long as the block takes."""

    @abstractmethod
    def publish_all(self, user: str, password: str, topic: str, count: int) -> int:
        """Publish so many over one connection, each when the one before is confirmed; returns how many were.

        Returns when all are, or when the connection ends.
        """

    @abstractmethod
    def is_stopped(self, user: str, password: str, topic: str, change: Callable[[], None]) -> bool:
        """True if readers of a queue are told when they may read it no more."""


class PutOff(Exception):
    """The answer says to try again later."""


class Unconnected(ProtocolClient):
    """A protocol of single requests."""

    def is_put_off(self, user: str, password: str, topic: str) -> bool:
        """True if the answer says that a publish is to be tried again later."""
        try:
            self.may_publish(user, password, topic)
        except PutOff:
            return True
        return False


class Amqp091(Connected):
    name = "amqp 0-9-1"

    def _connect(self, user: str, password: str) -> pika.BlockingConnection:
        return self.server.connect(credentials=pika.PlainCredentials(user, password), connection_attempts=1)

    def may_enter(self, user: str, password: str) -> bool:
        try:
            self._connect(user, password).close()
        except AMQPConnectionError:
            return False
        return True

    def may_publish(self, user: str, password: str, topic: str, payload: bytes = b"x") -> bool:
        channel = self._connect(user, password).channel()
        channel.confirm_delivery()
        exchange, key = ("", topic) if topic.startswith(ADDRESS) else ("amq.topic", topic.replace("/", "."))
        try:
            channel.basic_publish(exchange, key, payload)
        except ChannelClosedByBroker as refusal:
            if refusal.reply_code not in (403, 311):
                raise
            return False
        return True

    def may_consume(self, user: str, password: str, topic: str) -> bool:
        channel = self._connect(user, password).channel()
        try:
            if topic.startswith(ADDRESS):
                channel.basic_consume(topic, lambda *message: None)
            else:
                channel.queue_declare("inbox", exclusive=True)
                channel.queue_bind("inbox", "amq.topic", topic.replace("/", "."))
        except ChannelClosedByBroker as refusal:
            if refusal.reply_code != 403:
                raise
            return False
        finally:
            channel.connection.close()
        return True

    @contextlib.contextmanager
    def inside(self, user: str, password: str) -> Iterator[None]:
        with contextlib.closing(self._connect(user, password)):
            yield

    def publish_all(self, user: str, password: str, topic: str, count: int) -> int:
        channel = self._connect(user, password).channel()
        channel.confirm_delivery()
        for confirmed in range(count):
            try:
                channel.basic_publish("", topic, b"x")
            except AMQPError:
                return confirmed
        return count

    def is_stopped(self, user: str, password: str, topic: str, change: Callable[[], None]) -> bool:
        connection = self._connect(user, password)
        channel = connection.channel()
        cancelled: list[object] = []
        channel.add_on_cancel_callback(cancelled.append)
        channel.basic_consume(topic, lambda *message: None)
        change()
        connection.process_data_events(SECONDS)
        connection.close()
        return bool(cancelled)

    def may_open_channels(self, user: str, password: str, count: int) -> bool:
        connection = self._connect(user, password)
        try:
            for _ in range(count):
                connection.channel()
        except ConnectionClosedByBroker as refusal:
            if refusal.reply_code != 530:
                raise
            return False
        connection.close()
        return True


class Amqp10(Connected):
    name = "amqp 1.0"

    def _connect(self, user: str, password: str) -> BlockingConnection:
        url = f"amqp://127.0.0.1:{self.server.port}"
        return BlockingConnection(
            url, timeout=SECONDS, user=user, password=password, allowed_mechs="PLAIN", reconnect=False
        )

    def may_enter(self, user: str, password: str) -> bool:
        try:
            self._connect(user, password).close()
        except ConnectionException:
            return False
        return True

    def may_publish(self, user: str, password: str, topic: str, payload: bytes = b"x") -> bool:
        connection = self._connect(user, password)
        try:
            connection.create_sender(topic).send(ProtonMessage(body=payload))
        except SendException as refusal:
            if refusal.state != Delivery.REJECTED:
                raise
            return False
        finally:
            connection.close()
        return True

    def may_consume(self, user: str, password: str, topic: str) -> bool:
        connection = self._connect(user, password)
        try:
            connection.create_receiver(topic, credit=1)
        except LinkDetached as refusal:
            if "unauthorized-access" not in str(refusal):
                raise
            return False
        finally:
            connection.close()
        return True

    @contextlib.contextmanager
    def inside(self, user: str, password: str) -> Iterator[None]:
        with contextlib.closing(self._connect(user, password)):
            yield

    def publish_all(self, user: str, password: str, topic: str, count: int) -> int:
        sender = self._connect(user, password).create_sender(topic)
        for confirmed in range(count):
            try:
                sender.send(ProtonMessage(body=b"x"), timeout=False)
            except ProtonException:
                return confirmed
        sender.connection.close()
        return count

    def is_stopped(self, user: str, password: str, topic: str, change: Callable[[], None]) -> bool:
        connection = self._connect(user, password)
        receiver = connection.create_receiver(topic, credit=1)
        change()
        try:
            receiver.receive(SECONDS)
        except LinkDetached as refusal:
            return "unauthorized-access" in str(refusal)
        except Timeout:
            return False
        finally:
            connection.close()
        raise AssertionError("there was nothing to receive")

    def may_open_channels(self, user: str, password: str, count: int) -> bool:
        """Sessions, which AMQP 1.0 has instead."""
        connection = self._connect(user, password)
        sessions = [connection.conn.session() for _ in range(count)]
        try:
            for session in sessions:
                session.open()
            connection.wait(lambda: not any(session.state & Endpoint.REMOTE_UNINIT for session in sessions))
        except ConnectionException as refusal:
            if "resource-limit-exceeded" not in str(refusal):
                raise
            return False
        connection.close()
        return True


class Mqtt5(Connected):
    name = "mqtt 5"
    version = MQTTProtocolVersion.MQTTv5
    transport = "tcp"
    port = "mqtt"

    def _ask(self, user: str, password: str, topic: str = "", publish: bytes | None = None) -> ReasonCode | None:
        """The code of a CONNACK, or of the PUBACK or SUBACK of what is asked then; None when the connection ends."""
        client = self._client(user, password, "asking")
        answers: list[ReasonCode | None] = []
        answered = threading.Event()

        def answer(code: ReasonCode | None) -> None:
            answers.append(code)
            answered.set()

        def connected(client: paho.Client, data: object, flags: object, code: ReasonCode, properties: object) -> None:
            if code.is_failure or not topic:
                answer(code)
            elif publish is not None:
                client.publish(topic, publish, 1)
            else:
                client.subscribe(topic, 1)

        client.on_connect = connected
        client.on_publish = lambda client, data, number, code, properties: answer(code)
        client.on_subscribe = lambda client, data, number, codes, properties: answer(codes[0])
        client.on_disconnect = lambda client, data, flags, code, properties: answer(None)
        with self._running(client):
            assert answered.wait(SECONDS)
        return answers[0]

    @contextlib.contextmanager
    def inside(self, user: str, password: str) -> Iterator[None]:
        client, connected = self._client(user, password, "inside"), threading.Event()
        client.on_connect = lambda client, data, flags, code, properties: None if code.is_failure else connected.set()
        with self._running(client):
            assert connected.wait(SECONDS)
            yield

    def publish_all(self, user: str, password: str, topic: str, count: int) -> int:
        client, ended = self._client(user, password, "publishing"), threading.Event()
        confirmed: list[int] = []

        def publish(*_: object) -> None:
            if len(confirmed) == count:
                ended.set()
            else:
                client.publish(topic, b"x", 1)

        def published(client: paho.Client, data: object, number: int, code: ReasonCode, properties: object) -> None:
            confirmed.append(number)
            publish()

        client.on_connect, client.on_publish = publish, published
        client.on_disconnect = lambda *_: ended.set()
        with self._running(client):
            assert ended.wait(SECONDS)
        return len(confirmed)

    def is_stopped(self, user: str, password: str, topic: str, change: Callable[[], None]) -> bool:
        """The connection ends, as there is no other way to say it."""
        client, subscribed, ended = self._client(user, password, "reading"), threading.Event(), threading.Event()
        client.on_connect = lambda client, *_: client.subscribe(topic, 1) and None
        client.on_subscribe = lambda *_: subscribed.set()
        client.on_disconnect = lambda *_: ended.set()
        with self._running(client):
            assert subscribed.wait(SECONDS)
            change()
            return ended.wait(SECONDS)

    def _client(self, user: str, password: str, name: str) -> paho.Client:
        transport = self.transport
        identifier = f"{user}-{name}"  # of its own, or one user's client would end another's
        client = paho.Client(CallbackAPIVersion.VERSION2, identifier, protocol=self.version, transport=transport)  # type: ignore[arg-type]
        client.username_pw_set(user, password)
        return client

    @contextlib.contextmanager
    def _running(self, client: paho.Client) -> Iterator[None]:
        client.connect_timeout = SECONDS
        client.connect("127.0.0.1", self.server.ports[self.port])
        client.loop_start()
        try:
            yield
        finally:
            client.disconnect()
            client.loop_stop()

    def may_enter(self, user: str, password: str) -> bool:
        code = self._ask(user, password)
        assert code is not None
        return not code.is_failure

    def may_publish(self, user: str, password: str, topic: str, payload: bytes = b"x") -> bool:
        return self._is_allowed(self._ask(user, password, topic, payload), PacketTypes.PUBACK)

    def may_consume(self, user: str, password: str, topic: str) -> bool:
        return self._is_allowed(self._ask(user, password, topic), PacketTypes.SUBACK)

    def _is_allowed(self, code: ReasonCode | None, kind: int) -> bool:
        assert code is not None
        refusals = [
            ReasonCode(kind, name) for name in ("Not authorized", "Quota exceeded") if kind != PacketTypes.SUBACK
        ]
        refusals += [ReasonCode(kind, "Not authorized")]
        assert not code.is_failure or code in refusals, code
        return not code.is_failure


class Mqtt3(Mqtt5):
    """Has no word for a publish that is refused: the connection ends."""

    name = "mqtt 3.1.1"
    version = MQTTProtocolVersion.MQTTv311

    def _is_allowed(self, code: ReasonCode | None, kind: int) -> bool:
        if code is None:
            assert kind == PacketTypes.PUBACK
            return False
        return not code.is_failure


class WebSocket(Mqtt5):
    name = "mqtt over websocket"
    transport = "websockets"
    port = "ws"


class WebSocketOfHttp(WebSocket):
    name = "mqtt over the http port"
    port = "http"


class Http(Unconnected):
    name = "http api"

    def _post(self, login: tuple[str, str], path: str, body: dict[str, object]) -> bool:
        answer = httpx.post(self.server.http_url + path, auth=login, json=body, timeout=SECONDS, verify=False)
        if answer.status_code == 503:
            raise PutOff(answer.text)
        assert answer.status_code in (200, 401, 403, 413), answer.text
        return answer.status_code == 200

    def may_enter(self, user: str, password: str) -> bool:
        url = f"{self.server.http_url}/api/v1/queues/%2F/orders"
        return httpx.get(url, auth=(user, password), timeout=SECONDS, verify=False).status_code not in (401, 403)

    def may_publish(self, user: str, password: str, topic: str, payload: bytes = b"x") -> bool:
        return self._post((user, password), "/api/v1/publish/%2F", {"topic": topic, "payload": payload.decode()})

    def may_consume(self, user: str, password: str, topic: str) -> bool:
        queue = quote(topic.removeprefix(ADDRESS).split("/")[0], safe="")
        return self._post((user, password), f"/api/v1/queues/%2F/{queue}/consume", {"then": "requeue"})


class HttpPublish(Http):
    name = "http publish"
    consumes = False

    def may_enter(self, user: str, password: str) -> bool:
        return self._post((user, password), "/publish", {"topic": "$queue/everybodys", "payload": ""})

    def may_publish(self, user: str, password: str, topic: str, payload: bytes = b"x") -> bool:
        body: dict[str, object] = {"topic": topic, "payload": payload.decode(), "payload_encoding": "string", "qos": 1}
        return self._post((user, password), "/publish", body)


class RabbitMq(Http):
    name = "rabbitmq's http"

    def may_publish(self, user: str, password: str, topic: str, payload: bytes = b"x") -> bool:
        exchange, key = ("amq.default", topic) if topic.startswith(ADDRESS) else ("amq.topic", topic.replace("/", "."))
        body: dict[str, object] = {
            "routing_key": key,
            "payload": payload.decode(),
            "payload_encoding": "string",
            "properties": {},
        }
        return self._post((user, password), f"/api/exchanges/%2F/{exchange}/publish", body)

    def may_consume(self, user: str, password: str, topic: str) -> bool:
        queue = quote(topic.removeprefix(ADDRESS).split("/")[0], safe="")
        body: dict[str, object] = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
        return self._post((user, password), f"/api/queues/%2F/{queue}/get", body)


class Bulk(Http):
    name = "bulk"

    def may_enter(self, user: str, password: str) -> bool:
        answer = httpx.get(f"{self.server.http_url}/bulk/queues", auth=(user, password), timeout=SECONDS, verify=False)
        return answer.status_code not in (401, 403)

    def may_publish(self, user: str, password: str, topic: str, payload: bytes = b"x") -> bool:
        """Refused when a part is written, and, as somebody may go on all the same, when it is committed."""
        table = pa.table({"payload": [payload], "topic": [topic]})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        url = f"{self.server.http_url}/bulk/transactions/{uuid4()}"
        with httpx.Client(auth=(user, password), timeout=SECONDS, verify=False) as client:
            part = client.put(f"{url}/parts/p", params={"topic": topic}, content=bytes(sink.getvalue()))
            done = client.post(f"{url}/commit", json={"parts": ["p"]})
            client.delete(url)
        assert part.status_code in (200, 403), part.text
        if done.status_code == 503:
            raise PutOff(done.text)
        assert done.status_code in (200, 403, 413), done.text
        assert part.status_code == 200 or done.status_code == 403
        return done.status_code == 200

    def may_consume(self, user: str, password: str, topic: str) -> bool:
        queue = topic.removeprefix(ADDRESS).split("/")[0]
        url = f"{self.server.http_url}/bulk/messages"
        answer = httpx.get(url, params={"queue": queue}, auth=(user, password), timeout=SECONDS, verify=False)
        assert answer.status_code in (200, 403), answer.text
        return answer.status_code == 200


class Coap(Unconnected):
    name = "coap"
    consumes = False

    def _post(self, user: str, password: str, topic: str, payload: bytes) -> Code:
        async def exchange() -> Code:
            logging.getLogger("coap").setLevel(logging.CRITICAL)
            context = await Context.create_client_context(transports=["udp6"])
            try:
                query = f"username={quote(user, safe='')}&password={quote(password, safe='')}"
                uri = f"coap://127.0.0.1:{self.server.ports['coap']}/{topic}?{query}"
                request = Message(code=POST, payload=payload, uri=uri)
                return (await asyncio.wait_for(context.request(request).response, SECONDS)).code
            finally:
                await context.shutdown()

        return asyncio.run(exchange())

    def may_enter(self, user: str, password: str) -> bool:
        return self._is_allowed(self._post(user, password, "$queue/everybodys", b""))

    def may_publish(self, user: str, password: str, topic: str, payload: bytes = b"x") -> bool:
        return self._is_allowed(self._post(user, password, topic, payload))

    def may_consume(self, user: str, password: str, topic: str) -> bool:
        raise NotImplementedError

    def _is_allowed(self, code: Code) -> bool:
        if str(code)[:4] == "5.03":
            raise PutOff(code)
        assert str(code)[:4] in ("2.04", "4.01", "4.03", "4.13"), code
        return bool(code.is_successful())


PROTOCOL_CLIENTS: list[type[ProtocolClient]] = [
    Amqp091,
    Amqp10,
    Mqtt5,
    Mqtt3,
    WebSocket,
    WebSocketOfHttp,
    Http,
    HttpPublish,
    RabbitMq,
    Bulk,
    Coap,
]

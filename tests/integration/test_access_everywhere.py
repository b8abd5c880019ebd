"""The same users with the same permissions over every protocol: who may log in, publish, consume, and who may not."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator

import httpx
import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker
from proton import ConnectionException, Delivery, Message
from proton.utils import BlockingConnection, LinkDetached, SendException

from headrace.core.access import Access
from headrace.core.hosts import Hosts
from headrace.core.rights import Permission
from tests.doors import must, prepare
from tests.servers import Server

_SECONDS = 20.0
_ADDRESS = "$queue/orders"
_USERS = {
    "owner": ("^orders$", "^orders$|^amq[.]default$", "^orders$"),
    "writer": ("", "^orders$|^amq[.]default$", ""),
    "reader": ("", "", "^orders$"),
    "stranger": ("^other$", "^other$", "^other$"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Every user's password is the name; `outsider` may enter no virtual host."""
    directory = tmp_path_factory.mktemp("server")

    def users(hosts: Hosts, access: Access) -> None:
        for name in (*_USERS, "outsider"):
            access.put_user(name, name, ["management"], must)
        for name, patterns in _USERS.items():
            access.put_permission(Permission(name, "/", *patterns), must)

    prepare(directory / "data", users)
    running = Server(directory)
    running.start()
    channel = running.connect().channel()
    channel.queue_declare("orders", durable=True)
    yield running
    running.close_connections()
    assert running.stop() == 0, running.log()
    assert "Traceback" not in running.log(), running.log()


class Speaker(ABC):
    """One protocol; each call says whether it was allowed."""

    def __init__(self, server: Server) -> None:
        self.server = server

    @abstractmethod
    def may_enter(self, user: str, password: str) -> bool: ...

    @abstractmethod
    def may_publish(self, user: str) -> bool: ...

    @abstractmethod
    def may_consume(self, user: str) -> bool: ...


class Amqp091(Speaker):
    def _connect(self, user: str, password: str) -> pika.BlockingConnection:
        credentials = pika.PlainCredentials(user, password)
        return self.server.connect(credentials=credentials, connection_attempts=1)

    def may_enter(self, user: str, password: str) -> bool:
        try:
            self._connect(user, password).close()
        except AMQPConnectionError:
            return False
        return True

    def may_publish(self, user: str) -> bool:
        channel = self._connect(user, user).channel()
        channel.confirm_delivery()
        try:
            channel.basic_publish("", _ADDRESS, b"x")
        except ChannelClosedByBroker as refusal:
            if refusal.reply_code != 403:
                raise
            return False
        return True

    def may_consume(self, user: str) -> bool:
        try:
            self._connect(user, user).channel().basic_get("orders")
        except ChannelClosedByBroker as refusal:
            if refusal.reply_code != 403:
                raise
            return False
        return True


class Amqp10(Speaker):
    def _connect(self, user: str, password: str) -> BlockingConnection:
        url = f"amqp://127.0.0.1:{self.server.port}"
        return BlockingConnection(
            url, timeout=_SECONDS, user=user, password=password, allowed_mechs="PLAIN", reconnect=False
        )

    def may_enter(self, user: str, password: str) -> bool:
        try:
            self._connect(user, password).close()
        except ConnectionException:
            return False
        return True

    def may_publish(self, user: str) -> bool:
        connection = self._connect(user, user)
        try:
            connection.create_sender(_ADDRESS).send(Message(body="x"))
        except SendException as refusal:
            if refusal.state != Delivery.REJECTED:
                raise
            return False
        finally:
            connection.close()
        return True

    def may_consume(self, user: str) -> bool:
        connection = self._connect(user, user)
        try:
            connection.create_receiver(_ADDRESS, credit=1)
        except LinkDetached as refusal:
            if "unauthorized-access" not in str(refusal):
                raise
            return False
        finally:
            connection.close()
        return True


class Mqtt5(Speaker):
    def _ask(self, user: str, password: str, question: str) -> ReasonCode:
        """The reason code of a CONNACK, or of the PUBACK or SUBACK of what is asked then."""
        client = paho.Client(CallbackAPIVersion.VERSION2, f"{user}-{question}", protocol=MQTTProtocolVersion.MQTTv5)
        client.username_pw_set(user, password)
        answers: list[ReasonCode] = []
        answered = threading.Event()

        def answer(code: ReasonCode) -> None:
            answers.append(code)
            answered.set()

        def connected(client: paho.Client, data: object, flags: object, code: ReasonCode, properties: object) -> None:
            if code.is_failure or question == "enter":
                answer(code)
            elif question == "publish":
                client.publish(_ADDRESS, b"x", 1)
            else:
                client.subscribe(_ADDRESS, 1)

        client.on_connect = connected
        client.on_publish = lambda client, data, number, code, properties: answer(code)
        client.on_subscribe = lambda client, data, number, codes, properties: answer(codes[0])
        client.connect("127.0.0.1", self.server.ports["mqtt"])
        client.loop_start()
        assert answered.wait(_SECONDS)
        client.disconnect()
        client.loop_stop()
        return answers[0]

    def may_enter(self, user: str, password: str) -> bool:
        return not self._ask(user, password, "enter").is_failure

    def may_publish(self, user: str) -> bool:
        return self._is_allowed(self._ask(user, user, "publish"), PacketTypes.PUBACK)

    def may_consume(self, user: str) -> bool:
        return self._is_allowed(self._ask(user, user, "subscribe"), PacketTypes.SUBACK)

    def _is_allowed(self, code: ReasonCode, kind: int) -> bool:
        assert not code.is_failure or code == ReasonCode(kind, "Not authorized")
        return not code.is_failure


class Http(Speaker):
    def _post(self, user: str, path: str, body: dict[str, object]) -> bool:
        url = f"{self.server.http_url}/api/v1{path}"
        answer = httpx.post(url, auth=(user, user), json=body, timeout=_SECONDS)
        assert answer.status_code in (200, 403), answer.text
        return answer.status_code == 200

    def may_enter(self, user: str, password: str) -> bool:
        url = f"{self.server.http_url}/api/v1/queues/%2F/orders/messages"
        return httpx.get(url, auth=(user, password), timeout=_SECONDS).status_code not in (401, 403)

    def may_publish(self, user: str) -> bool:
        return self._post(user, "/publish/%2F", {"topic": _ADDRESS, "payload": "x"})

    def may_consume(self, user: str) -> bool:
        return self._post(user, "/queues/%2F/orders/consume", {"then": "requeue"})


@pytest.fixture(params=[Amqp091, Amqp10, Mqtt5, Http], ids=["amqp 0-9-1", "amqp 1.0", "mqtt 5", "http"])
def speaker(request: pytest.FixtureRequest, server: Server) -> Speaker:
    made = request.param(server)
    assert isinstance(made, Speaker)
    return made


@pytest.mark.parametrize(
    ("user", "publishes", "consumes"),
    [("owner", True, True), ("writer", True, False), ("reader", False, True), ("stranger", False, False)],
)
def test_a_user_may_do_the_same_over_every_protocol(
    speaker: Speaker, user: str, publishes: bool, consumes: bool
) -> None:
    assert speaker.may_publish(user) is publishes
    assert speaker.may_consume(user) is consumes


def test_a_wrong_password_and_a_host_without_permission_are_refused(speaker: Speaker) -> None:
    assert speaker.may_enter("reader", "reader")
    assert not speaker.may_enter("reader", "wrong")
    assert not speaker.may_enter("nobody", "nobody")
    assert not speaker.may_enter("outsider", "outsider")

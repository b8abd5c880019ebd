"""The clients of one protocol over many rounds: what they do until the kill, and what is checked after it."""

import abc
import json
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, final

import httpx
import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.crash.kills.book import Facts, Found
from tests.crash.kills.message import body_of, headers_of
from tests.servers import Server

_COMES_SECONDS = 60.0
_PREFETCH = 200
GUEST = ("guest", "guest")


@final
class Client(threading.Thread):
    """One client in a thread of its own. An error after the kill is what a client expects; one before is a problem."""

    def __init__(self, name: str, work: Callable[[], None], over: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self._over = over
        self.problem = ""

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            if not self._over.wait(0.5):  # a client may see the end before the killer returns
                text = "".join(traceback.format_exception(error))
                self.problem = f"{self.name} lost its broker before the kill: {text}"


class Part(abc.ABC):
    """Clients of one kind. `over` is set just before the kill."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.facts = Facts()
        self.over = threading.Event()
        self.round = 0
        self.wrong: list[str] = []
        """Answers that no client should get."""
        self._clients: list[Client] = []

    @abc.abstractmethod
    def set_up(self) -> None:
        """Declare everything that lasts for all rounds."""

    @abc.abstractmethod
    def work(self) -> list[Callable[[], None]]:
        """The clients of this round: functions that go on until their connection is lost or `over` is set."""

    @abc.abstractmethod
    def check(self, killed_at: float) -> list[str]:
        """All that is not as clients were told, read with clients of a broker that was started again."""

    @abc.abstractmethod
    def counts(self) -> dict[str, int]:
        """How much was confirmed and settled in all, by name: a load that does nothing proves nothing."""

    def close(self) -> None:  # noqa: B027 -- most have no clients beyond a round
        """Say goodbye to the broker."""

    def begin(self, number: int) -> None:
        self.round = number
        self.over.clear()
        self._clients = [Client(f"{work.__qualname__} of round {number}", work, self.over) for work in self.work()]
        for client in self._clients:
            client.start()

    def end(self) -> list[str]:
        """Wait for the clients of a round that is over."""
        deadline = time.monotonic() + _COMES_SECONDS
        for client in self._clients:
            client.join(max(0.0, deadline - time.monotonic()))
        wrong, self.wrong = self.wrong, []
        return wrong + [
            f"{client.name} does not notice that the broker is gone" if client.is_alive() else client.problem
            for client in self._clients
            if client.is_alive() or client.problem
        ]

    def publisher(self, name: str) -> str:
        """The name of a publisher of this round."""
        return f"r{self.round}{name}"


def drained(server: Server, queue: str, acknowledges: bool = True) -> list[Found]:
    """All messages of a queue in order, checked one by one, acknowledged or given back."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.port))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=_PREFETCH if acknowledges else 0)
    count = channel.queue_declare(queue, passive=True).method.message_count
    found: list[Found] = []
    tag = 0
    while len(found) < count:
        method, properties, body = next(channel.consume(queue, inactivity_timeout=_COMES_SECONDS))
        if method is None:
            return [*found, Found("none-0-0", wrong=f"{queue} announces {count}, and only {len(found)} come")]
        found.append(found_in(method, properties, body))
        tag = method.delivery_tag
        if acknowledges and len(found) % 100 == 0:
            channel.basic_ack(tag, multiple=True)
    if acknowledges and len(found) % 100:
        channel.basic_ack(tag, multiple=True)
    channel.cancel()
    if acknowledges:
        found += got(channel, queue)
    channel.queue_declare(queue, passive=True)
    connection.close()
    return found


def got(channel: BlockingChannel, queue: str) -> list[Found]:
    """The rest of a queue, one request for each message."""
    found: list[Found] = []
    while True:
        method, properties, body = channel.basic_get(queue)
        if method is None:
            return found
        found.append(found_in(method, properties, body))
        channel.basic_ack(method.delivery_tag)


def found_in(method: pika.spec.Basic.Deliver, properties: pika.BasicProperties, body: bytes) -> Found:
    headers = {name: value for name, value in (properties.headers or {}).items() if not name.startswith("x-")}
    uid = str(headers.get("uid") or properties.message_id or _in_key(method.routing_key, properties.headers or {}))
    wrong = ""
    if body != body_of(uid):
        wrong = f"{len(body)} bytes are not the {len(body_of(uid))} that were sent"
    elif properties.app_id == "headers" and headers != headers_of(uid):
        wrong = f"headers {headers}"
    return Found(uid, bool(method.redelivered), wrong)


def _in_key(key: str, headers: dict[str, Any]) -> str:
    """The identifier at the end of the key by which a message was published."""
    deaths = headers.get("x-death")
    if isinstance(deaths, str):  # a message that came by MQTT has texts only
        deaths = json.loads(deaths)
    published = str(deaths[-1]["routing-keys"][0]) if deaths else key
    return published.rpartition("/")[2]


def there(server: Server) -> set[str]:
    """All there is, in the words of `Facts`."""
    with httpx.Client(base_url=server.http_url, auth=GUEST, timeout=60) as client:
        queues = [queue["name"] for queue in client.get("/api/queues").raise_for_status().json()]
        exchanges = [found["name"] for found in client.get("/api/exchanges").raise_for_status().json()]
        bindings = [
            f"{found['source']} to {found['destination']} by {found['routing_key']}"
            for found in client.get("/api/bindings").raise_for_status().json()
            if found["source"]
        ]
        sessions: list[str] = []
        after: str | None = ""
        while after is not None:
            page = client.get("/api/v1/sessions", params={"limit": 1000, "after": after}).raise_for_status().json()
            sessions += [session["client_id"] for session in page["items"]]
            after = page.get("next")
    return {
        *[f"queue {name}" for name in queues],
        *[f"exchange {name}" for name in exchanges],
        *[f"binding {name}" for name in bindings],
        *[f"session {name}" for name in sessions],
    }

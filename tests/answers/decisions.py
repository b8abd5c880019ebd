"""Decisions about answers, and the broker that they are tried on. No answers: the other modules have them."""

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import final

import httpx
import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.servers import Server

SECONDS = 60.0
_GRACE_SECONDS = 0.1
"""Time in which an answer must not come."""

Request = Callable[[], object]
"""Asks for something, and returns when the answer is there."""


@final
class Place:
    """A broker whose syncs the test holds back, and clients of it."""

    def __init__(self, directory: Path) -> None:
        self.held = directory / "held"
        self._waiting = directory / "held.waiting"
        self._numbers = itertools.count(1)
        self._closing: list[Callable[[], None]] = []
        self.configuration = directory / "headrace.yaml"
        self.configuration.write_text("queues: []\n")
        self.server = Server(
            directory,
            options=["--coap", "0", "--stomp", "0", "--stream", "0", "--config", str(self.configuration)],
            environment={"HELD_SYNCS": str(self.held)},
            program="tests.held_server",
        )
        self.server.start()
        self.http = httpx.Client(base_url=self.server.http_url, auth=("guest", "guest"), timeout=SECONDS)
        self.declare("calm", **{"x-queue-type": "stream"})
        self.publish("calm")
        self.consume("calm", group="calm")

    # -- syncs -------------------------------------------------------------------------------------------------------

    def is_synced_first(self, request: Request) -> bool:
        """True if the answer to a request does not come before a sync that waits."""
        self._be_calm()
        self._waiting.unlink(missing_ok=True)
        self.held.touch()
        asking = _Asking(request)
        try:
            asking.start()
            while asking.is_alive() and not self._waiting.exists():
                time.sleep(0.001)
            asking.join(_GRACE_SECONDS)
            return asking.is_alive()
        finally:
            self.held.unlink()
            asking.join(SECONDS)
            assert not asking.is_alive(), "the answer did not come although everything is synced"
            if asking.error is not None:
                raise asking.error

    def comes_unsynced(self, request: Request) -> bool:
        """True if the answer to a request comes while no sync does."""
        self._be_calm()
        self.held.touch()
        asking = _Asking(request)
        try:
            asking.start()
            asking.join(SECONDS)
            if asking.error is not None:
                raise asking.error
            return not asking.is_alive()
        finally:
            self.held.unlink()

    def _be_calm(self) -> None:
        """Have all that was done so far synced, so that nothing else waits for a sync."""
        self.post("/api/v1/queues/%2F/calm/groups/calm/seek", {"position": "first"})

    # -- clients -----------------------------------------------------------------------------------------------------

    def name(self) -> str:
        """One that nothing else has."""
        return f"n{next(self._numbers)}"

    def call(self, method: str, path: str, body: object = None, content: bytes | None = None) -> httpx.Response:
        answer = self.http.request(method, path, json=body, content=content)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer

    def put(self, path: str, body: object = None) -> httpx.Response:
        return self.call("PUT", path, {} if body is None else body)

    def post(self, path: str, body: object = None) -> httpx.Response:
        return self.call("POST", path, {} if body is None else body)

    def channel(self) -> BlockingChannel:
        """A channel of AMQP 0-9-1 on a connection of its own."""
        return self.server.connect(heartbeat=0).channel()

    def declare(self, name: str = "", **arguments: object) -> str:
        """A durable queue."""
        name = name or self.name()
        self.put(f"/api/queues/%2F/{name}", {"arguments": arguments})
        return name

    def publish(self, queue: str, payload: str = "x") -> None:
        self.post("/api/v1/publish/%2F", {"routing_key": queue, "payload": payload})

    def filled(self, **arguments: object) -> str:
        """A durable queue with a message in it."""
        name = self.declare("", **arguments)
        self.publish(name)
        return name

    def consume(self, queue: str, group: str = "", then: str = "ack") -> None:
        body = {"group": group, "then": then, "position": "first" if group else None}
        self.post(f"/api/v1/queues/%2F/{queue}/consume", body)

    def grave(self) -> str:
        """A durable queue with a dead letter."""
        name = self.name()
        self.put(f"/api/v1/queues/%2F/{name}", {"dlq": {"enabled": True}})
        self.publish(name)
        self.consume(name, then="reject")
        assert self.http.get(f"/api/v1/queues/%2F/{name}/dead-letters").json()["items"]
        return name

    def on_close(self, call: Callable[[], None]) -> None:
        """Have this called when the test is over."""
        self._closing.append(call)

    def tidy(self) -> None:
        """End what one test opened."""
        closing, self._closing = self._closing, []
        for call in closing:
            call()
        self.server.close_connections()

    def close(self) -> None:
        self.http.close()
        self.server.kill()


@final
class _Asking(threading.Thread):
    """A request under way."""

    def __init__(self, request: Request) -> None:
        super().__init__(daemon=True)
        self._request = request
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._request()
        except (AssertionError, OSError, httpx.HTTPError, pika.exceptions.AMQPError) as error:
            self.error = error


@final
class Synced:
    """The promise of the answer survives a power loss. `prepare` makes all that the request needs."""

    def __init__(self, prepare: Callable[[Place], Request]) -> None:
        self.prepare = prepare


@final
class NotPromised:
    """The answer says nothing that has to survive; with `prepare`, it is tried that it comes without a sync."""

    def __init__(self, why: str, prepare: Callable[[Place], Request] | None = None) -> None:
        self.why = why
        self.prepare = prepare


Decision = Synced | NotPromised
Answers = dict[str, Decision]

"""What a power cut left, as an engine holds it and as clients of a broker over it find it. Nothing is checked here."""

import abc
import json
from typing import Any, final

import httpx
import pika
import pyarrow as pa

from headrace.core.routing.topology import DEFAULT_HOST, scoped
from headrace.protocols.streams import frames
from headrace.storage.api import (
    BINDINGS,
    EXCHANGES,
    HOSTS,
    KEPT,
    PARAMETERS,
    PERMISSIONS,
    PUBLISHERS,
    QUEUES,
    RETAINED,
    SESSIONS,
    TRANSACTIONS,
    USERS,
    Engine,
)
from headrace.storage.group_state import WORK, GroupState
from tests.paho_helpers import Paho, wait_for
from tests.servers import Server
from tests.stream_client import StreamClient, text

ABSENT = ""
"""The value of what is not there."""
_THERE = "there"
_SECONDS = 60.0


class Left(abc.ABC):
    """What is there after a cut."""

    def __init__(self) -> None:
        self._runs: dict[str, list[list[bytes]] | None] = {}
        self._present: dict[str, set[bytes]] = {}

    def runs(self, queue: str) -> list[list[bytes]] | None:
        """The payloads that wait in a queue, in runs each of which is in order; None if this reader cannot tell."""
        if queue not in self._runs:
            self._runs[queue] = self.read(queue)
        return self._runs[queue]

    def messages(self, queue: str) -> list[bytes]:
        """The payloads that wait in a queue; none if this reader cannot tell."""
        return [payload for run in self.runs(queue) or [] for payload in run]

    def present(self, queue: str) -> set[bytes]:
        """The same without doubles."""
        if queue not in self._present:
            self._present[queue] = set(self.messages(queue))
        return self._present[queue]

    @abc.abstractmethod
    def read(self, queue: str) -> list[list[bytes]] | None:
        """What `runs` returns."""

    @abc.abstractmethod
    def fact(self, kind: str, name: str) -> str | None:
        """The value of a fact, ABSENT for none; None if this reader cannot tell."""

    @abc.abstractmethod
    def sequence(self, stream: str, publisher: str) -> int:
        """The last number of a publisher of a stream; 0 for none."""

    @abc.abstractmethod
    def attempts(self, queue: str, payload: bytes) -> int | None:
        """How often a message was claimed; None if this reader cannot tell."""


@final
class EngineLeft(Left):
    """What an engine holds."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine
        self._sessions = {key.decode() for key, _ in engine.items(SESSIONS)}
        bindings = [json.loads(value) for _, value in engine.items(BINDINGS)]
        self._bindings = {f"{binding['source']}>{binding['destination']}" for binding in bindings}

    def read(self, queue: str) -> list[list[bytes]]:
        if queue not in self._engine.logs():
            return []
        log = self._engine.log(queue)
        states = self._work_groups(queue)
        rows = log.read(log.first_offset, 1 << 30)
        waiting = [
            bytes(message.payload)
            for offset, message in enumerate(rows, log.first_offset)
            if not states or any(offset >= state.committed and offset not in state.settled for state in states)
        ]
        return [waiting]

    def _work_groups(self, queue: str) -> list[GroupState]:
        return [state for state in self._engine.log(queue).groups.values() if state.mode == WORK]

    def fact(self, kind: str, name: str) -> str:
        if kind == "session":
            return _THERE if f"/\0{name}\0s" in self._sessions else ABSENT
        if kind == "subscription":
            client, _, pattern = name.partition(" ")
            return _THERE if f"/\0{client}\0f{pattern}" in self._sessions else ABSENT
        if kind == "binding":
            return _THERE if name in self._bindings else ABSENT
        if kind == "progress":
            queue, _, group = name.partition(" ")
            state = self._engine.log(queue).groups.get(group) if queue in self._engine.logs() else None
            return str(state.committed) if state is not None and state.committed else ABSENT
        table, key, shown = {
            "queue": (QUEUES, name, _there),
            "exchange": (EXCHANGES, name, _there),
            "user": (USERS, name, _there),
            "host": (HOSTS, name, _there),
            "source": (KEPT, f"/\0s{_framed(name)}", _there),
            "transaction": (TRANSACTIONS, f"transaction {name}", _there),
            "retained": (RETAINED, f"/\0{name}", lambda value: value.rpartition(b"=")[2].decode()),
            "permission": (PERMISSIONS, f"/\0{name}", lambda value: json.loads(value)["write"]),
            "policy": (PARAMETERS, f"policy {name}", lambda value: str(json.loads(value)["definition"]["max-length"])),
        }[kind]
        value = self._engine.get(table, key.encode())
        return ABSENT if value is None else str(shown(value))

    def sequence(self, stream: str, publisher: str) -> int:
        value = self._engine.get(PUBLISHERS, f"{len(stream)} {stream} {publisher}".encode())
        return 0 if value is None else int.from_bytes(value[9:17])

    def attempts(self, queue: str, payload: bytes) -> int | None:
        log = self._engine.log(queue)
        (state,) = self._work_groups(queue)
        for offset, entry in state.pending.items():
            (message,) = log.read(offset, 1)
            if bytes(message.payload) == payload:
                return entry.attempts
        return 0


def _there(_: bytes) -> str:
    return _THERE


def _framed(names: str) -> str:
    """Names that a blank separates, each behind its length (u32)."""
    return "".join(f"\0\0\0{chr(len(name))}{name}" for name in names.split(" "))


@final
class ClientLeft(Left):
    """What clients of a broker find that was started over what is left. They take messages, and give them back."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server
        self._connections: dict[str, pika.BlockingConnection] = {}
        with httpx.Client(base_url=f"{server.http_url}/api", auth=("guest", "guest"), timeout=_SECONDS) as http:
            self._facts = _facts(http)
        self._facts |= _retained(server)
        self._streams = {name for kind, name in self._facts if kind == "stream"}

    def read(self, queue: str) -> list[list[bytes]] | None:
        if queue.startswith("$session/"):
            return None
        if self.fact("queue", queue) == ABSENT:
            return []
        if queue in self._streams:
            return [_streamed(self._server, queue)]
        host, _, name = queue.rpartition("\0")
        return _consumed(self._connection(host or DEFAULT_HOST).channel(), name)

    def _connection(self, host: str) -> pika.BlockingConnection:
        if host not in self._connections:
            parameters = pika.ConnectionParameters("127.0.0.1", self._server.port, host, heartbeat=0)
            self._connections[host] = pika.BlockingConnection(parameters)
        return self._connections[host]

    def close(self) -> None:
        """Give back what was taken."""
        for connection in self._connections.values():
            connection.close()

    def fact(self, kind: str, name: str) -> str | None:
        if kind in ("subscription", "source", "transaction"):
            return None
        return self._facts.get((kind, name), ABSENT)

    def sequence(self, stream: str, publisher: str) -> int:
        if stream not in self._streams:
            return 0
        with StreamClient(self._server.ports["stream"]) as client:
            told = client.ask(frames.QUERY_PUBLISHER_SEQUENCE, text(publisher) + text(stream))
        return int.from_bytes(told.fields)

    def attempts(self, queue: str, payload: bytes) -> None:
        return None


def _facts(http: httpx.Client) -> dict[tuple[str, str], str]:
    """All there is over HTTP."""

    def listed(path: str) -> Any:
        return http.get(path).raise_for_status().json()

    found: dict[tuple[str, str], str] = {}
    for queue in listed("/queues"):
        name = scoped(queue["vhost"], queue["name"])
        found["queue", name] = _THERE
        if queue["type"] == "stream":
            found["stream", name] = _THERE
            groups = listed(f"/v1/queues/%2F/{name}/groups")["items"]
            found |= {("progress", f"{name} {group['name']}"): str(group["committed"] or ABSENT) for group in groups}
    found |= {("exchange", exchange["name"]): _THERE for exchange in listed("/exchanges")}
    found |= {("binding", f"{one['source']}>{one['destination']}"): _THERE for one in listed("/bindings")}
    found |= {("user", user["name"]): _THERE for user in listed("/users")}
    found |= {("permission", one["user"]): one["write"] for one in listed("/permissions") if one["vhost"] == "/"}
    found |= {("policy", one["name"]): str(one["definition"]["max-length"]) for one in listed("/policies/%2F")}
    found |= {("host", host["name"]): _THERE for host in listed("/vhosts")}
    sessions = listed("/v1/sessions?limit=1000")["items"]
    return found | {("session", session["client_id"]): _THERE for session in sessions}


def _retained(server: Server) -> dict[tuple[str, str], str]:
    """All retained messages that a new subscriber gets."""
    reader = Paho(server.mqtt_port, "reader")
    try:
        reader.subscribe("state/#", 1)
        reader.sure("state/end", b"", 1)  # what is retained comes before it
        wait_for(lambda: any([message.topic == "state/end" for message in reader.messages]))
    finally:
        reader.close()
    found = {message.topic: bytes(message.payload).decode() for message in reader.messages}
    return {("retained", topic): value.removeprefix("=") for topic, value in found.items() if topic != "state/end"}


def _consumed(channel: Any, queue: str) -> list[list[bytes]]:
    """The messages of a queue as they are delivered: those that somebody had before, and the others."""
    count = channel.queue_declare(queue, passive=True).method.message_count
    fresh: list[bytes] = []
    redelivered: list[bytes] = []
    for _ in range(count):
        method, _, body = next(channel.consume(queue, inactivity_timeout=_SECONDS))
        assert method is not None, f"{queue} announces {count} messages, and {len(fresh) + len(redelivered)} come"
        (redelivered if method.redelivered else fresh).append(body)
    return [redelivered, fresh]


def _streamed(server: Server, stream: str) -> list[bytes]:
    """The messages of a stream from the first one on, whatever protocol they came by."""
    path = f"{server.http_url}/bulk/messages?queue={stream}&columns=payload"
    answer = httpx.get(path, auth=("guest", "guest"), timeout=_SECONDS).raise_for_status()
    found: list[bytes] = pa.ipc.open_stream(answer.content).read_all()["payload"].to_pylist()
    return found

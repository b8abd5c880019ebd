"""A server in memory for nearly all of these tests; each has topics and client identifiers of its own."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.mqtt.clients import Client
from tests.conformance.mqtt.wire import CONNACK, Property, Will, connect
from tests.servers import Server, serving

_numbers = itertools.count(1)


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(Server(tmp_path_factory.mktemp("server"), True)) as running:
        yield running


class Room:
    """Where one test meets its clients."""

    def __init__(self, server: Server, version: int) -> None:
        self._server = server
        self._clients: list[Client] = []
        self._name = f"room{next(_numbers)}"
        self.version = version

    @property
    def websocket_ports(self) -> list[int]:
        """Its own one, and that of HTTP."""
        return [self._server.ports["ws"], self._server.ports["http"]]

    @property
    def server(self) -> Server:
        return self._server

    def name(self, what: str = "client") -> str:
        """A client identifier that no other test has."""
        return f"{self._name}{what}"

    def topic(self, *levels: str) -> str:
        """A topic or a filter that no other test has."""
        return "/".join((self._name, *levels))

    def stranger(self, version: int = 0) -> Client:
        """A connection on which nothing was said yet."""
        client = Client(self._server.ports["mqtt"], version or self.version)
        self._clients.append(client)
        return client

    def client(
        self,
        client_id: str | None = None,
        *,
        clean: bool = True,
        kept_seconds: int = 0,
        keep_alive: int = 60,
        said: tuple[Property, ...] = (),
        will: Will | None = None,
        version: int = 0,
    ) -> Client:
        """A client that is connected. With `kept_seconds` its session outlives the connection."""
        client = self.stranger(version)
        name = self.name(f"c{len(self._clients)}") if client_id is None else client_id
        if kept_seconds and client.version == 5:
            said = (*said, (0x11, kept_seconds))
        elif kept_seconds:
            assert not clean, "a session of MQTT 3 that is kept is not clean"
        client.send(connect(client.version, name, clean=clean, keep_alive=keep_alive, said=said, will=will))
        client.connack = client.expect(CONNACK)
        assert client.connack.reason == 0, client.connack
        return client

    def kept(self, client_id: str = "", **options: object) -> Client:
        """A client whose session is kept, and taken up again when it comes back."""
        return self.client(client_id or self.name("kept"), clean=False, kept_seconds=600, **options)  # type: ignore[arg-type]

    def subscriber(self, *filters: tuple[str, int], **options: object) -> Client:
        """A client that is subscribed."""
        client = self.client(**options)  # type: ignore[arg-type]
        suback = client.subscribe(*filters)
        assert all(reason < 0x80 for reason in suback.reasons), suback
        return client

    def refused(self, data: bytes) -> list[int]:
        """The reasons of all CONNACKs that come until the server has closed the connection."""
        client = self.stranger()
        client.send(data)
        ending = client.expect_end()
        assert all(last.kind == CONNACK and last.session_present == 0 for last in ending), ending
        return [last.reason for last in ending]

    @property
    def malformed(self) -> list[int]:
        """How a CONNECT that breaks a rule is refused: MQTT 3.1.1 [MQTT-3.1.4-1] wants no answer at all."""
        return [0x81] if self.version == 5 else []

    def pass_time(self) -> None:
        """Wait for one and a half seconds, by the server's clock."""
        self.client(keep_alive=1).expect_end()

    def close(self) -> None:
        for client in self._clients:
            client.close()


@pytest.fixture
def room(server: Server, version: int) -> Iterator[Room]:
    made = Room(server, version)
    yield made
    made.close()


@pytest.fixture(scope="package")
def narrow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = "mqtt: {receive_maximum: 10, topic_alias_maximum: 0, max_packet_bytes: 1KiB}\n"
    with serving(_configured(tmp_path_factory.mktemp("narrow"), settings)) as running:
        yield running


@pytest.fixture
def narrow(narrow_server: Server, version: int) -> Iterator[Room]:
    """A room of a server that takes little."""
    made = Room(narrow_server, version)
    yield made
    made.close()


@pytest.fixture
def impatient(tmp_path: Path, version: int) -> Iterator[Room]:
    """A room of a server that wants to hear from everybody every second."""
    with serving(_configured(tmp_path, "mqtt: {max_keep_alive: 1s}\n")) as server:
        made = Room(server, version)
        yield made
        made.close()


def _configured(directory: Path, settings: str) -> Server:
    file = directory / "headrace.yaml"
    file.write_text(settings)
    return Server(directory, True, ["--config", str(file)])

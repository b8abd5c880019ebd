"""A connection of STOMP without a network: logins that are refused, and frames that name another user."""

from typing import cast

from headrace.core.access.users import Limits
from headrace.net.connection import Wire
from headrace.protocols.server import Server
from headrace.protocols.stomp.connection import Connection
from tests.endpoints import access_to, must
from tests.house import House
from tests.wires import FakeWire


class Station:
    """A broker, and connections to it."""

    def __init__(self) -> None:
        self.house = House()
        hosts, self.access = access_to(self.house.broker, clock=self.house.clock)
        self.server = Server(hosts, self.access, "test")

    def connect(self) -> "Peer":
        peer = Peer(self)
        peer.say("CONNECT", "accept-version:1.2", "host:/", "login:guest", "passcode:guest")
        return peer


class Peer:
    """One connection, and all frames that came."""

    def __init__(self, station: Station) -> None:
        self._house = station.house
        self._wire = FakeWire()
        self._connection = Connection(station.server, station.house.clock)
        self._connection.opened(cast("Wire", self._wire))

    def say(self, command: str, *headers: str, body: str = "") -> None:
        self._connection.feed("\n".join([command, *headers, "", f"{body}\0"]).encode())
        self._house.run()
        self._wire.flush()

    @property
    def heard(self) -> str:
        return b"".join(self._wire.sent).decode()

    @property
    def commands(self) -> list[str]:
        return [frame.lstrip("\n").partition("\n")[0] for frame in self.heard.split("\0") if frame.strip("\n")]


def test_a_client_above_its_users_limit_of_connections_hears_so() -> None:
    station = Station()
    station.access.set_limits("guest", Limits(max_connections=1), must)

    first, second = station.connect(), station.connect()

    assert first.commands == ["CONNECTED"]
    assert second.commands == ["ERROR"]
    assert "user 'guest': user connection limit (1) is reached" in second.heard


def test_a_client_above_the_limit_of_its_virtual_host_hears_so() -> None:
    station = Station()
    station.house.broker.administration.put_limits({"max-connections": 1})

    first, second = station.connect(), station.connect()

    assert first.commands == ["CONNECTED"]
    assert second.commands == ["ERROR"]
    assert "access to vhost '/' refused for user 'guest': connection limit (1) is reached" in second.heard


def test_a_message_that_names_another_user_is_refused_except_of_impersonators() -> None:
    station = Station()
    client = station.connect()
    send = "SEND", "destination:/queue/q", "user-id:ann"

    client.say(*send, body="not mine")
    assert client.commands == ["CONNECTED", "ERROR"]

    station.access.put_user("guest", None, ["impersonator"], must)
    client = station.connect()
    client.say(*send, body="in the name of")
    assert client.commands == ["CONNECTED"]
    assert station.house.consume("q").payloads == ["in the name of"]

"""What the sessions of one connection share, and which containers are connected. No decisions."""

from typing import TYPE_CHECKING, final

from headrace.clock import Clock
from headrace.core.access.access import Access
from headrace.core.access.logins import Account
from headrace.core.access.permissions import Rights
from headrace.core.broker import Broker
from headrace.core.flow import Intake
from headrace.core.hosts import Hosts
from headrace.errors import ProtocolError
from headrace.protocols.amqp10.frames import CONTAINER_IN_USE, MIN_FRAME_SIZE
from headrace.protocols.amqp10.suspended import Suspended

if TYPE_CHECKING:
    from headrace.net.connection import Wire


@final
class Containers:
    """The connections of each container id. Sole Connection for Container: the second is refused, the first stays."""

    __slots__ = ("_counts", "_sole")

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._sole: set[str] = set()

    def enter(self, container_id: str, is_sole: bool) -> None:
        """One more connection. Raises ProtocolError (container in use) when it or the one there wants to be alone."""
        count = self._counts.get(container_id, 0)
        if count and (is_sole or container_id in self._sole):
            raise ProtocolError(CONTAINER_IN_USE, f"the container id {container_id[:64]!r} is in use")
        self._counts[container_id] = count + 1
        if is_sole:
            self._sole.add(container_id)

    def leave(self, container_id: str) -> None:
        """One connection less."""
        count = self._counts.pop(container_id) - 1
        if count:
            self._counts[container_id] = count
        else:
            self._sole.discard(container_id)


@final
class Host:
    """A virtual host as this protocol sees it: its broker, who is connected, and the links that may be resumed."""

    __slots__ = ("broker", "containers", "name", "suspended")

    def __init__(self, name: str, broker: Broker, clock: Clock) -> None:
        self.name = name
        self.broker = broker
        self.containers = Containers()
        self.suspended = Suspended(clock, broker)


@final
class Server:
    """What all connections of the server share."""

    __slots__ = ("_clock", "_hosts", "_met", "access", "version")

    def __init__(self, hosts: Hosts, access: Access, clock: Clock, version: str) -> None:
        self._hosts = hosts
        self._clock = clock
        self._met: dict[str, Host] = {}
        self.access = access
        self.version = version
        for name in hosts.names():
            self.find_host(name)  # what was kept is held before anybody else takes it

    @property
    def intake(self) -> Intake:
        """What all connections hold that is not published yet."""
        return self._hosts.intake

    def find_host(self, name: str) -> Host | None:
        """The virtual host of that name, None when there is none."""
        broker = self._hosts.find(name)
        if broker is None:
            return None
        host = self._met.get(name)
        if host is None or host.broker is not broker:
            host = self._met[name] = Host(name, broker, self._clock)
        return host

    def tick(self) -> None:
        """Be done with links that nobody resumed in time."""
        for host in self._met.values():
            host.suspended.sweep()


@final
class ConnectionContext:
    """One connection, seen from its sessions."""

    __slots__ = (
        "account",
        "container_id",
        "frame_max",
        "has_published",
        "held_bytes",
        "host",
        "is_held",
        "now_us",
        "owner",
        "published",
        "rights",
        "wire",
    )

    def __init__(
        self, wire: "Wire", owner: object, host: Host, account: Account, rights: Rights, container_id: str
    ) -> None:
        self.wire = wire
        self.owner = owner
        self.host = host
        self.account = account
        self.rights = rights
        self.container_id = container_id
        self.frame_max = MIN_FRAME_SIZE
        """The largest frame that the peer takes."""
        self.now_us = 0
        self.has_published = False
        self.published = 0
        """How many messages came since this was last looked at; counted for users with limits only."""
        self.held_bytes = 0
        """Memory that messages take which are not whole, not committed, or not settled by their sender."""
        self.is_held = False
        """Whether the peer does not keep up with what it is sent."""

    @property
    def broker(self) -> Broker:
        return self.host.broker

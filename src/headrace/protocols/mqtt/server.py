"""What all MQTT connections share: limits, virtual hosts, who is connected to them. No packets."""

from typing import TYPE_CHECKING, Final, final

from headrace.clock import Clock
from headrace.config.settings import MqttSettings
from headrace.core.access.access import Access
from headrace.core.access.logins import Account
from headrace.core.broker import Broker
from headrace.core.flow import Intake
from headrace.core.hosts import Hosts
from headrace.core.pubsub.session import Grant
from headrace.protocols.mqtt.outlet import Counters, Fan, SharedOutlet, SystemTopics
from headrace.protocols.mqtt.reasons import ADMINISTRATIVE_ACTION

if TYPE_CHECKING:
    from headrace.protocols.mqtt.connection import Connection

_MAX_OUTLETS: Final = 4096


@final
class Host:
    """A virtual host as this protocol sees it."""

    __slots__ = ("_connections", "_outlets", "_publishers", "broker", "counters", "fan", "name", "system")

    def __init__(self, name: str, broker: Broker, version: str, now_us: int) -> None:
        self.name = name
        self.broker = broker
        self.counters = Counters()
        self.system = SystemTopics(self, version, now_us)
        self.fan = Fan(broker, self.counters)
        self._outlets: dict[object, SharedOutlet] = {}
        self._publishers: dict[Connection, None] = {}
        self._connections: dict[Connection, None] = {}
        broker.on_flow[self] = self._on_flow
        broker.on_dissolved[self] = self._on_dissolved

    def outlet(self, version: int, max_packet_bytes: int, grant: Grant) -> SharedOutlet:
        """The one way to all clients of a version that asked for the same, and so are to get the very same bytes."""
        key = (version, max_packet_bytes, grant.key)
        outlet = self._outlets.get(key)
        if outlet is None:
            if len(self._outlets) >= _MAX_OUTLETS:
                self._outlets.clear()
            outlet = self._outlets[key] = SharedOutlet(self.fan, version, max_packet_bytes, grant.identifiers)
        return outlet

    # -- connections -------------------------------------------------------------------------------------------------

    def add(self, connection: "Connection", account: Account) -> None:
        """It is told when the user is removed or the host is deleted."""
        self._connections[connection] = None
        account.on_removed[connection] = lambda why: connection.expel(ADMINISTRATIVE_ACTION, why)

    def add_publisher(self, connection: "Connection") -> None:
        """It is told when publishers must wait."""
        self._publishers[connection] = None
        if self.broker.blocked:
            connection.on_flow(True)

    def remove(self, connection: "Connection", account: Account) -> None:
        self._connections.pop(connection, None)
        account.on_removed.pop(connection, None)
        self._publishers.pop(connection, None)

    def _on_flow(self, is_blocked: bool) -> None:
        for connection in list(self._publishers):
            connection.on_flow(is_blocked)

    def _on_dissolved(self) -> None:
        for connection in list(self._connections):
            connection.expel(ADMINISTRATIVE_ACTION, f"virtual host '{self.name}' is deleted")


@final
class Server:
    """The way in for all connections."""

    __slots__ = ("_hosts", "_met", "_version", "access", "clock", "limits")

    def __init__(
        self, hosts: Hosts, access: Access, clock: Clock, version: str, limits: MqttSettings | None = None
    ) -> None:
        self._hosts = hosts
        self._met: dict[str, Host] = {}
        self._version = version
        self.access = access
        self.clock = clock
        self.limits = limits or MqttSettings()

    @property
    def intake(self) -> Intake:
        """What all connections hold that is not published yet."""
        return self._hosts.intake

    @property
    def max_packet_bytes(self) -> int:
        """The largest packet that a client may send."""
        return min(self.limits.max_packet_bytes, self._hosts.intake.largest_bytes)

    def find_host(self, name: str) -> Host | None:
        """The virtual host of that name, None when there is none."""
        broker = self._hosts.find(name)
        if broker is None:
            return None
        host = self._met.get(name)
        if host is None or host.broker is not broker:
            now_us = self.clock.monotonic_us()
            host = self._met[name] = Host(name, broker, self._version, now_us)
            host.system.tick(now_us)
        return host

    def tick(self) -> None:
        """Do what is due at intervals."""
        now_us = self.clock.monotonic_us()
        for name, host in list(self._met.items()):
            if self._hosts.find(name) is host.broker:
                host.system.tick(now_us)
            else:
                del self._met[name]

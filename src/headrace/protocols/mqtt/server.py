"""State shared by the MQTT connections: limits, virtual hosts, encoded output. No packets."""

from typing import Final, final

from headrace.clock import Clock
from headrace.config.settings import MqttSettings
from headrace.core.access.access import Access
from headrace.core.broker import Broker
from headrace.core.hosts import Hosts
from headrace.core.pubsub.session import Grant
from headrace.protocols import server as protocols
from headrace.protocols.mqtt.outlet import Counters, Fan, SharedOutlet, SystemTopics

_MAX_OUTLETS: Final = 4096


@final
class Host:
    """A virtual host as this protocol sees it."""

    __slots__ = ("_outlets", "broker", "counters", "fan", "name", "system")

    def __init__(self, name: str, broker: Broker, version: str, now_us: int) -> None:
        self.name = name
        self.broker = broker
        self.counters = Counters()
        self.system = SystemTopics(self, version, now_us)
        self.fan = Fan(broker, self.counters)
        self._outlets: dict[object, SharedOutlet] = {}

    def outlet(self, version: int, max_packet_bytes: int, grant: Grant) -> SharedOutlet:
        """The outlet of all clients of a version that asked for the same and get the same bytes."""
        key = (version, max_packet_bytes, grant.key)
        outlet = self._outlets.get(key)
        if outlet is None:
            if len(self._outlets) >= _MAX_OUTLETS:
                self._outlets.clear()
            outlet = self._outlets[key] = SharedOutlet(self.fan, version, max_packet_bytes, grant.identifiers)
        return outlet


@final
class Server(protocols.Server):
    """The state that all connections share."""

    __slots__ = ("_met", "clock", "limits")

    def __init__(
        self, hosts: Hosts, access: Access, clock: Clock, version: str, limits: MqttSettings | None = None
    ) -> None:
        super().__init__(hosts, access, version)
        self._met: dict[str, Host] = {}
        self.clock = clock
        self.limits = limits or MqttSettings()

    @property
    def max_packet_bytes(self) -> int:
        """The largest packet that a client may send."""
        return min(self.limits.max_packet_bytes, self._hosts.intake.largest_bytes)

    def find_host(self, name: str) -> Host | None:
        """The virtual host of that name, or None."""
        broker = self._hosts.find(name)
        if broker is None:
            return None
        host = self._met.get(name)
        if host is None or host.broker is not broker:
            now_us = self.clock.monotonic_us()
            host = self._met[name] = Host(name, broker, self.version, now_us)
            host.system.tick(now_us)
        return host

    def tick(self) -> None:
        """Publish the `$SYS` topics that are due."""
        now_us = self.clock.monotonic_us()
        for name, host in list(self._met.items()):
            if self._hosts.find(name) is host.broker:
                host.system.tick(now_us)
            else:
                del self._met[name]

"""State shared by the connections of any protocol: virtual hosts, users, memory. No bytes, no connections."""

from headrace.core.access.access import Access
from headrace.core.broker import Broker
from headrace.core.flow import Intake
from headrace.core.hosts import Hosts


class Server:
    """The state that all connections share. Protocols that keep more of a virtual host add a `find_host`."""

    __slots__ = ("_hosts", "access", "version")

    def __init__(self, hosts: Hosts, access: Access, version: str) -> None:
        self._hosts = hosts
        self.access = access
        self.version = version

    @property
    def intake(self) -> Intake:
        """The memory of all connections that holds unpublished messages."""
        return self._hosts.intake

    def find_broker(self, host: str) -> Broker | None:
        """The broker of a virtual host, or None."""
        return self._hosts.find(host)

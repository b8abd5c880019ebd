"""The broker as the HTTP room sees it: hosts, access, connections, the visitor. It exists before HTTP is loaded."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, final

from headrace.admin.pipelines import Pipelines
from headrace.admin.sampler import Sampler
from headrace.clock import Clock
from headrace.core.access.access import Access
from headrace.core.access.logins import Account, Login
from headrace.core.access.users import ADMINISTRATOR as ADMINISTRATOR
from headrace.core.hosts import Hosts
from headrace.net.connection import Wire
from headrace.storage.local.staging import StagingArea

ANYBODY: Final = ""
"""No tag: open to every user."""
MANAGEMENT: Final = "management"
MONITORING: Final = "monitoring"
POLICYMAKER: Final = "policymaker"


@final
class Visitor:
    """A user who logged in over HTTP, with the tags."""

    __slots__ = ("account", "name", "tags")

    def __init__(self, account: Account) -> None:
        self.account = account
        self.name = account.name
        self.tags = frozenset(account.user.tags)

    def may(self, tag: str) -> bool:
        """Return True if the visitor may open pages with this tag; each tag includes the lower ones."""
        if tag == ANYBODY:
            return True
        if tag == MANAGEMENT:
            return bool(self.tags & {ADMINISTRATOR, MONITORING, POLICYMAKER, MANAGEMENT})
        if tag == MONITORING:
            return bool(self.tags & {ADMINISTRATOR, MONITORING})
        if tag == POLICYMAKER:
            return bool(self.tags & {ADMINISTRATOR, POLICYMAKER})
        return tag in self.tags


Trouble = Callable[[], str]
"""Returns a sentence on why the program cannot serve; "" if it can."""

Wires = Callable[[], list[Wire]]
"""Returns all open connections."""
TakeOver = Callable[[], asyncio.Protocol]
"""Makes the protocol that takes over a connection."""
Reload = Callable[[], Awaitable[Mapping[str, object]]]
"""Applies the configuration anew and returns the changes. Raises Refused, Unavailable."""
Ports = Callable[[], Mapping[str, int]]
"""Returns the ports of all listeners by name."""


class ClusterStatus(ABC):
    """Status of the broker in its cluster."""

    @property
    @abstractmethod
    def role(self) -> str:
        """Return the role: owner of the store, or standby."""

    @property
    @abstractmethod
    def group(self) -> str:
        """Return the replication group of this node."""

    @property
    @abstractmethod
    def epoch(self) -> int:
        """Return the epoch: the number of owners that the group has had."""

    @abstractmethod
    def may_write(self) -> bool:
        """Return False once another node may own the store; answers may be outdated then."""

    @abstractmethod
    async def status(self) -> Mapping[str, object]:
        """Return the status of all nodes of all groups. Raises Unavailable."""


@final
class Site:
    """The broker as the HTTP room sees it."""

    def __init__(
        self,
        hosts: Hosts,
        access: Access,
        wires: Wires,
        ports: Ports,
        trouble: Trouble,
        clock: Clock,
        version: str,
        staging: StagingArea,
    ) -> None:
        self.hosts = hosts
        self.wires = wires
        self.ports = ports
        self.sampler = Sampler(hosts, clock)
        self.access = access
        self.trouble = trouble
        self.clock = clock
        self.version = version
        self.started_us = clock.now_us()
        self.reload: Reload | None = None
        """Reload of the configuration; None without one."""
        self.cluster: ClusterStatus | None = None
        """Status in a cluster; None for a single broker."""
        self.refused: Callable[[], int] = lambda: 0
        """Number of connections closed at once because there were too many."""
        self.staging = staging
        """Store of bulk writes that are not committed yet."""
        self.pipelines = Pipelines()
        """Reports of Spark's jobs about their pipelines."""
        self.web_sockets: dict[str, TakeOver] = {}
        """Protocols for WebSockets, by path."""

    async def sign_in(self, login: Login) -> Visitor | None:
        """Log a user in; return None for a wrong login."""
        answer: asyncio.Future[Account | None] = asyncio.get_running_loop().create_future()
        self.access.login(login, lambda account: None if answer.done() else answer.set_result(account))
        account = await answer
        return None if account is None else Visitor(account)

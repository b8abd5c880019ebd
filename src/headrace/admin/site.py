"""What the HTTP side knows of the program it is part of. Made at start, before any HTTP is loaded."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Final, final

from headrace.admin.sampler import Sampler
from headrace.clock import Clock
from headrace.core.access.access import Access
from headrace.core.access.logins import Account, Login
from headrace.core.access.users import ADMINISTRATOR as ADMINISTRATOR
from headrace.core.hosts import Hosts
from headrace.net.connection import Wire
from headrace.storage.local.staging import StagingArea

ANYBODY: Final = ""
"""No tag at all: every user may."""
MANAGEMENT: Final = "management"
MONITORING: Final = "monitoring"


@final
class Visitor:
    """A user who logged in over HTTP, and what the tags allow."""

    __slots__ = ("account", "name", "tags")

    def __init__(self, account: Account) -> None:
        self.account = account
        self.name = account.name
        self.tags = frozenset(account.user.tags)

    def may(self, tag: str) -> bool:
        """Whether a page that asks for this tag is open to the visitor: each tag includes the ones below it."""
        if tag == ANYBODY:
            return True
        if tag == MANAGEMENT:
            return bool(self.tags & {ADMINISTRATOR, MONITORING, MANAGEMENT})
        if tag == MONITORING:
            return bool(self.tags & {ADMINISTRATOR, MONITORING})
        return tag in self.tags


Trouble = Callable[[], str]
"""Why the program cannot serve now, in a sentence; "" when it can."""

Wires = Callable[[], list[Wire]]
"""All connections that there are now."""
TakeOver = Callable[[], asyncio.Protocol]
"""Makes the protocol that a connection speaks from now on."""
Reload = Callable[[], Mapping[str, object]]
"""Applies what the configuration says now, and tells what became of it. Raises Refused, Unavailable."""
Ports = Callable[[], Mapping[str, int]]
"""What is listened for, and where."""


class ClusterStanding(ABC):
    """What the broker is in a cluster."""

    @property
    @abstractmethod
    def role(self) -> str:
        """Whether it owns the store, or waits for its turn."""

    @property
    @abstractmethod
    def group(self) -> str:
        """The replication group that it serves, or waits to serve."""

    @property
    @abstractmethod
    def epoch(self) -> int:
        """How often that group has changed hands."""

    @abstractmethod
    def may_write(self) -> bool:
        """Whether what is answered is true: not once another node may own the store."""

    @abstractmethod
    async def status(self) -> Mapping[str, object]:
        """How all nodes of all groups are. Raises Unavailable."""


@final
class Site:
    """The broker as the HTTP side sees it."""

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
        """Reads the configuration again, where there is one to read."""
        self.standing: ClusterStanding | None = None
        """What it is in a cluster; None for a broker on its own."""
        self.refused: Callable[[], int] = lambda: 0
        """How many connections were closed as they came, because there were too many."""
        self.staging = staging
        """Where messages wait that are written in bulk and not committed yet."""
        self.web_sockets: dict[str, TakeOver] = {}
        """Who takes over the connections that ask for a WebSocket, by path; the pages have the others."""

    async def sign_in(self, login: Login) -> Visitor | None:
        """Who that user is; None when the login is wrong."""
        answer: asyncio.Future[Account | None] = asyncio.get_running_loop().create_future()
        self.access.login(login, lambda account: None if answer.done() else answer.set_result(account))
        account = await answer
        return None if account is None else Visitor(account)

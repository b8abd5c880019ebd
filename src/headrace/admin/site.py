"""What the HTTP side knows of the program it is part of. Made at start, before any HTTP is loaded."""

from collections.abc import Awaitable, Callable, Mapping
from typing import final

from headrace.clock import Clock
from headrace.core.broker import Broker

ADMINISTRATOR = "administrator"
MANAGEMENT = "management"
MONITORING = "monitoring"


@final
class Visitor:
    """A user who logged in over HTTP, and what the tags allow."""

    __slots__ = ("name", "tags")

    def __init__(self, name: str, tags: frozenset[str]) -> None:
        self.name = name
        self.tags = tags

    def may(self, tag: str) -> bool:
        """Whether a page that asks for this tag is open to the visitor: each tag includes the ones below it."""
        if tag == MANAGEMENT:
            return bool(self.tags & {ADMINISTRATOR, MONITORING, MANAGEMENT})
        if tag == MONITORING:
            return bool(self.tags & {ADMINISTRATOR, MONITORING})
        return tag in self.tags


SignIn = Callable[[str, bytes, bool], Awaitable[Visitor | None]]
"""Who that user with that password is, coming from this machine or not; None when the login is wrong."""
Trouble = Callable[[], str]
"""Why the program cannot serve now, in a sentence; "" when it can."""


@final
class Site:
    """The broker as the HTTP side sees it."""

    def __init__(
        self, hosts: Mapping[str, Broker], sign_in: SignIn, trouble: Trouble, clock: Clock, version: str
    ) -> None:
        self.hosts = hosts
        self.sign_in = sign_in
        self.trouble = trouble
        self.clock = clock
        self.version = version
        self.started_us = clock.now_us()

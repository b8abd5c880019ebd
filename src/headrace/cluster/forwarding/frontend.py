"""What meets a client that comes to a node of a cluster: the broker, a way to the owner, or a refusal."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Final, final

from headrace.cluster.forwarding.relay import Relay, Upstream, reach
from headrace.cluster.forwarding.wire_protocol import AMQP, MQTT
from headrace.cluster.lease import Node
from headrace.cluster.status import Ownership
from headrace.config.settings import FORWARD
from headrace.errors import Unavailable
from headrace.net.facts import Origin
from headrace.net.handler import Handler
from headrace.net.handover import FindRedirect, Redirect, WireProtocol

_log: Final = logging.getLogger("headrace.cluster")
_TONGUES: Final = {tongue.name: tongue for tongue in (AMQP, MQTT)}
_LEASES: Final = 2
"""A client waits for as many leases: within one another node takes over, and that has to open the store."""

RETRY_SECONDS: Final = 0.5
"""After so long an owner that could not be reached is tried again, or earlier where there is another."""


@final
class Local:
    """The broker of this node, as long as it owns the store."""

    __slots__ = ("handler", "http")

    def __init__(self, handler: Callable[[str], Handler], http: Callable[[Origin], asyncio.Protocol]) -> None:
        self.handler = handler
        """Makes what serves a new connection of one protocol."""
        self.http = http
        """Makes what serves an HTTP connection that was passed on."""


@final
class Frontend:
    """Who is met by whom. Everything happens in the event loop."""

    def __init__(self, node: str, policy: str, lease_ms: int, tls: ssl.SSLContext | None = None) -> None:
        self.node = node
        """What this node is called."""
        self.policy = policy
        self._tls = tls
        self.patience_seconds = _LEASES * lease_ms / 1000
        """How long a client waits for somebody who serves it."""
        self.local: Local | None = None
        """The broker of this node; None while it is not the one that serves."""
        self.ownership: Ownership | None = None
        """Who owns the store; None before that can be known."""
        self._seen = 0
        self._waiting: asyncio.Future[None] | None = None
        self._relays: set[Relay] = set()
        self._said = ""
        self._last_owner: tuple[Node, int] | None = None

    @property
    def owner(self) -> Node | None:
        """Another node that owns the store; None while there is none, or it is this one."""
        ownership = self.ownership
        if ownership is None or ownership.owner is ownership.me:
            return None
        return ownership.owner

    @property
    def passed_on(self) -> int:
        """How many connections are being passed on."""
        return len(self._relays)

    # -- who serves --------------------------------------------------------------------------------------------------

    def follow(self, ownership: Ownership) -> None:
        """Go by what this says from now on."""
        self.ownership = ownership
        ownership.watch(self._changed)
        self._changed()

    def admit(self, local: Local) -> None:
        """This node serves from now on: those who wait get in."""
        self.local = local
        self._tell()

    def _changed(self) -> None:
        assert self.ownership is not None
        owner, epoch = self.ownership.owner, self.ownership.epoch
        if owner is not None and (owner, epoch) != self._last_owner:
            self._last_owner = (owner, epoch)
            self._said = ""
            for relay in list(self._relays):
                relay.part(f"node {owner.name!r} serves from now on; connect again")
        self._tell()

    def _tell(self) -> None:
        self._seen += 1
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def find(self, protocol: int, origin: Origin) -> Upstream | Local:
        """Who serves a client: the owner, reached, or this node itself. Raises Unavailable when nobody does."""
        deadline = asyncio.get_running_loop().time() + self.patience_seconds
        while self.local is None:
            seen, owner, why = self._seen, self.owner, self.elsewhere("").why
            if owner is not None and self.ownership is not None:
                try:
                    upstream = await reach(owner, protocol, origin, self.ownership.secret, self._tls)
                except Unavailable as error:
                    why = str(error)
                    self._say(why)
                else:
                    if owner == self.owner:
                        return upstream
                    upstream.abort()  # it was the owner when it was asked
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                raise Unavailable(why)
            await self._change(seen, min(left, RETRY_SECONDS))
        return self.local

    def _say(self, why: str) -> None:
        """Tell that clients wait, once for all of them and for each reason."""
        if why != self._said:
            self._said = why
            _log.warning("clients wait: the owner cannot be reached: %s", why)

    async def _change(self, seen: int, seconds: float) -> None:
        """Return when something is not as it was then, or after so long."""
        if seen != self._seen:
            return
        if self._waiting is None:
            self._waiting = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._waiting], timeout=seconds)

    # -- who comes ---------------------------------------------------------------------------------------------------

    def handler(self, protocol: str) -> Handler:
        """What meets a new connection while this node does not serve."""
        tongue: WireProtocol = _TONGUES[protocol]
        return Relay(self, tongue) if self.policy == FORWARD else tongue.refuse(self.find_redirect(protocol))

    def find_redirect(self, listener: str) -> FindRedirect:
        """Where clients of a listener would be served, at the time they are told."""
        return lambda is_tls: self.elsewhere(f"{listener}s" if is_tls else listener)

    def elsewhere(self, listener: str) -> Redirect:
        owner = self.owner
        if owner is None:
            return Redirect("no node serves at the moment; try again soon")
        address = owner.listeners.get(listener, "")
        if not address:
            return Redirect(f"node {owner.name!r} serves, but nobody who comes this way")
        return Redirect(f"node {owner.name!r} at {address} serves, not this one", address)

    def remember(self, relay: Relay) -> None:
        self._relays.add(relay)

    def forget(self, relay: Relay) -> None:
        self._relays.discard(relay)

"""First handler of a client at a node of a cluster: the broker, a relay to the owner, or a refusal.

A relay reads the client's first bytes before it contacts the owner, so idle connections cost the owner nothing. While
there is no owner, or it cannot be reached, clients wait; a node that becomes the owner serves its waiting clients.
"""

import asyncio
import logging
import secrets
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, final

from headrace.cluster.forwarding.preamble import (
    HTTP,
    MAX_INTRODUCTION_BYTES,
    NONCE_BYTES,
    NOT_THE_OWNER,
    NUMBERS,
    WELCOME,
    Introduction,
    decode_introduction,
    encode_answer,
    encode_challenge,
    introduction_bytes,
    is_sealed,
)
from headrace.cluster.forwarding.upstream import Sink, Upstream, reach
from headrace.cluster.lease import Node
from headrace.cluster.status import Ownership
from headrace.config.settings import FORWARD
from headrace.errors import Refused, Unavailable
from headrace.net.connection import BY_BROKER, HANDSHAKE_SECONDS, Wire
from headrace.net.facts import ConnectionFacts, Origin
from headrace.net.handler import Handler
from headrace.net.handover import START_BYTES, FindRedirect, Redirect, Tracker, WireProtocol
from headrace.protocols import refusal, tracker

_log: Final = logging.getLogger("headrace.cluster")
_LEASES: Final = 2
"""Leases that a client waits: another node takes over within one and then opens the store."""
RETRY_SECONDS: Final = 0.5
"""Pause before an unreachable owner is tried again; a new owner is tried at once."""
_GOODBYE_SECONDS: Final = 2.0
_TRY_SECONDS: Final = 1.0
"""Limit for the owner to answer a try of `trouble`, and the time that its result counts."""


_PROTOCOLS: Final = {name: WireProtocol(name, partial(tracker, name), partial(refusal, name)) for name in NUMBERS}
_NAMES: Final = {number: name for name, number in NUMBERS.items()}


@dataclass(frozen=True)
class Local:
    """The broker of this node, as long as it owns the store."""

    handler: Callable[[str], Handler]
    """Makes the handler of a new connection, by protocol."""
    http: Callable[[Origin], asyncio.Protocol]
    """Makes the protocol of a forwarded HTTP connection."""


@final
class Frontend:
    """Decides who handles each client. Runs in the event loop only."""

    def __init__(self, node: str, policy: str, lease_ms: int, tls: ssl.SSLContext | None = None) -> None:
        self.node = node
        """Name of this node."""
        self.policy = policy
        self._tls = tls
        self.patience_seconds = _LEASES * lease_ms / 1000
        """Longest wait of a client for a node that serves it."""
        self.local: Local | None = None
        """The broker of this node; None while another node serves."""
        self.ownership: Ownership | None = None
        """Owner of the store; None before the node has joined the cluster."""
        self._changes = 0
        self._waiting: asyncio.Future[None] | None = None
        self.relays: set[Relay] = set()
        """Connections that are relayed to the owner."""
        self._logged = ""
        self._last_owner: tuple[Node, int] | None = None
        self._trial: asyncio.Task[str] | None = None
        self._tried_at = 0.0

    @property
    def owner(self) -> Node | None:
        """The other node that owns the store; None if there is none or it is this one."""
        ownership = self.ownership
        if ownership is None or ownership.owner is ownership.me:
            return None
        return ownership.owner

    @property
    def forwarded(self) -> int:
        return len(self.relays)

    # -- the node that serves ------------------------------------------------------------------------------------------

    def follow(self, ownership: Ownership) -> None:
        """Act on every change of this ownership from now on."""
        self.ownership = ownership
        ownership.watch(self._owner_changed)
        self._owner_changed()

    def admit(self, local: Local) -> None:
        """Serve clients with this node's broker from now on, the waiting ones first."""
        self.local = local
        self._wake()

    def _owner_changed(self) -> None:
        assert self.ownership is not None
        owner, epoch = self.ownership.owner, self.ownership.epoch
        if owner is not None and (owner, epoch) != self._last_owner:
            self._last_owner = (owner, epoch)
            self._logged = ""
            for relay in list(self.relays):
                relay.part(f"node {owner.name!r} serves from now on; connect again")
        self._wake()

    def _wake(self) -> None:
        self._changes += 1
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def find(self, protocol: int, origin: Origin) -> Upstream | Local:
        """Wait for a node that serves the client: a connection to the owner, or this node. Raises Unavailable."""
        deadline = asyncio.get_running_loop().time() + self.patience_seconds
        while self.local is None:
            changes, owner, why = self._changes, self.owner, self.redirect("").why
            if owner is not None and self.ownership is not None:
                try:
                    upstream = await reach(owner, protocol, origin, self.ownership.secret, self._tls)
                except Unavailable as error:
                    why = str(error)
                    self._log_once(why)
                else:
                    if owner == self.owner:
                        return upstream
                    upstream.abort()  # the owner changed meanwhile
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                raise Unavailable(why)
            await self._wait_for_change(changes, min(left, RETRY_SECONDS))
        return self.local

    def _log_once(self, why: str) -> None:
        """Log that clients wait, once per reason."""
        if why != self._logged:
            self._logged = why
            _log.warning("clients wait: the owner cannot be reached: %s", why)

    async def _wait_for_change(self, changes: int, seconds: float) -> None:
        """Return after the next change since `changes` was read, or after `seconds`."""
        if changes != self._changes:
            return
        if self._waiting is None:
            self._waiting = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._waiting], timeout=seconds)

    async def trouble(self) -> str:
        """The reason why clients of this node cannot be served by the owner; "" while they can.

        Concurrent calls share one try.
        """
        loop = asyncio.get_running_loop()
        if self._trial is None or (self._trial.done() and loop.time() >= self._tried_at + _TRY_SECONDS):
            self._trial = loop.create_task(self._try_owner())
        return await asyncio.shield(self._trial)

    async def _try_owner(self) -> str:
        ownership, owner = self.ownership, self.owner
        if ownership is None or owner is None:
            return self.redirect("").why
        here = Origin("127.0.0.1", 0, "", self.node)
        try:
            async with asyncio.timeout(_TRY_SECONDS):
                (await reach(owner, HTTP, here, ownership.secret, self._tls)).abort()
        except TimeoutError:
            return f"node {owner.name!r} at {owner.address} did not answer within {_TRY_SECONDS:g} s"
        except Unavailable as error:
            return str(error)
        finally:
            self._tried_at = asyncio.get_running_loop().time()
        return ""

    # -- new clients ---------------------------------------------------------------------------------------------------

    def handler(self, name: str) -> Handler:
        """Make the handler of a new connection while another node serves."""
        protocol = _PROTOCOLS[name]
        return Relay(self, protocol) if self.policy == FORWARD else protocol.refuse(self.find_redirect(name))

    def find_redirect(self, listener: str) -> FindRedirect:
        """Return a function that names the node for clients of a listener, asked when they are refused."""
        return lambda is_tls: self.redirect(f"{listener}s" if is_tls else listener)

    def redirect(self, listener: str) -> Redirect:
        """The node that serves clients of a listener now."""
        owner = self.owner
        if owner is None:
            return Redirect("no node serves at the moment; try again soon")
        address = owner.listeners.get(listener, "")
        if not address:
            return Redirect(f"node {owner.name!r} serves, but nobody who comes this way")
        return Redirect(f"node {owner.name!r} at {address} serves, not this one", address)


@final
class Relay(Handler, Sink):
    """One client of a node that does not own the store: its bytes go to the owner and back."""

    def __init__(self, frontend: Frontend, protocol: WireProtocol) -> None:
        self._frontend = frontend
        self._protocol = protocol
        self._wire: Wire | None = None
        self._start = b""
        self._held: list[bytes] = []
        """Bytes of the client, until a node serves it."""
        self._search: asyncio.Task[None] | None = None
        self._upstream: Upstream | None = None
        self._tracker: Tracker | None = None
        self._successor: Handler | None = None
        """Handler in this process that serves or refuses the client instead of the owner."""
        self._is_over = False

    # -- calls of net --------------------------------------------------------------------------------------------------

    def opened(self, wire: Wire) -> None:
        self._wire = wire

    def feed(self, data: bytes) -> None:
        if self._successor is not None:
            self._successor.feed(data)
            return
        if len(self._start) < START_BYTES:
            self._start += data[: START_BYTES - len(self._start)]
        if self._upstream is not None:
            self._upstream.write(data)
        elif not self._is_over:
            self._hold(data)
        elif self._wire is not None and self._tracker is not None and self._tracker.is_farewell(data):
            self._wire.close()

    def _hold(self, data: bytes) -> None:
        wire = self._wire
        assert wire is not None
        self._held.append(data)
        if self._search is None:
            wire.pause_reading(BY_BROKER)
            wire.allow(self._frontend.patience_seconds + HANDSHAKE_SECONDS)
            self._search = asyncio.get_running_loop().create_task(self._find_server(wire))

    def hold_output(self, is_held: bool) -> None:
        if self._successor is not None:
            self._successor.hold_output(is_held)
        elif self._upstream is not None:
            self._upstream.pause(is_held)

    def ended(self) -> bool:
        if self._successor is not None:
            return self._successor.ended()
        if self._upstream is None:
            return False
        self._upstream.write_eof()
        return True

    def facts(self) -> ConnectionFacts | None:
        return None if self._successor is None else self._successor.facts()

    def beat(self) -> None:
        if self._successor is not None:
            self._successor.beat()

    def stop(self) -> None:
        if self._successor is not None:
            self._successor.stop()
        else:
            self.part("this node stops; connect to another")

    def lost(self) -> None:
        self._wire = None
        self._is_over = True
        if self._successor is not None:
            self._successor.lost()
            return
        self._frontend.relays.discard(self)
        if self._search is not None:
            self._search.cancel()
        if self._upstream is not None:
            self._upstream.close()
            self._upstream = None

    # -- the way to the owner ------------------------------------------------------------------------------------------

    async def _find_server(self, wire: Wire) -> None:
        """Connect the client to the owner or to this node's broker; refuse it when the wait is over."""
        frontend, name = self._frontend, self._protocol.name
        try:
            found = await frontend.find(NUMBERS[name], wire.origin(frontend.node))
        except Unavailable:
            wire.guarded(lambda: self._hand_over(wire, self._protocol.refuse(frontend.find_redirect(name))))
            return
        if isinstance(found, Upstream):
            self._join(wire, found)
        else:
            wire.guarded(lambda: self._hand_over(wire, found.handler(name)))

    def _join(self, wire: Wire, upstream: Upstream) -> None:
        """Relay bytes in both directions from now on, the held ones first."""
        self._upstream = upstream
        self._frontend.relays.add(self)
        held, self._held = self._held, []
        for data in held:
            upstream.write(data)
        upstream.attach(self)
        wire.resume_reading(BY_BROKER)

    def _hand_over(self, wire: Wire, handler: Handler) -> None:
        """Let a handler of this process treat the client as a new connection."""
        held, self._held = self._held, []
        self._is_over = True
        self._successor = handler
        wire.allow(HANDSHAKE_SECONDS)
        wire.resume_reading(BY_BROKER)
        handler.opened(wire)
        if held:
            handler.feed(b"".join(held))

    # -- the owner's bytes ---------------------------------------------------------------------------------------------

    def arrived(self, data: bytes) -> None:
        wire = self._wire
        if wire is None:
            return
        tracker = self._tracker
        if tracker is None:
            tracker = self._tracker = self._protocol.track(self._start)
        tracker.passed(data)
        wire.send(data)
        if tracker.is_admitted and not wire.is_established:
            wire.watch(0.0, self.stop)

    def hold(self, is_held: bool) -> None:
        if self._wire is None:
            return
        if is_held:
            self._wire.pause_reading(BY_BROKER)
        else:
            self._wire.resume_reading(BY_BROKER)

    def over(self) -> None:
        self._upstream = None
        self.part("the node that served this connection is not there any more; connect again")

    def part(self, why: str) -> None:
        """Close the connection, with a goodbye where the protocol allows one between two frames."""
        wire = self._wire
        if wire is None or self._is_over:
            return
        self._is_over = True
        self._frontend.relays.discard(self)
        if self._search is not None:
            self._search.cancel()
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.abort()
        tracker = self._tracker
        goodbye = tracker.goodbye(why) if tracker is not None else b""
        if goodbye:
            wire.send(goodbye)
        if goodbye and tracker is not None and tracker.awaits_farewell:
            wire.resume_reading(BY_BROKER)
            wire.close(_GOODBYE_SECONDS)
        else:
            wire.close()


@final
class NodeGate(Handler):
    """One connection of another node: the node proves its membership, then its client takes over the connection."""

    def __init__(self, frontend: Frontend, binding: bytes = b"") -> None:
        """`binding` is the hash of the certificate that this side shows; empty without TLS."""
        self._frontend = frontend
        self._binding = binding
        self._secret = b"" if frontend.ownership is None else frontend.ownership.secret
        self._challenge = secrets.token_bytes(NONCE_BYTES)
        self._wire: Wire | None = None
        self._data = b""

    def opened(self, wire: Wire) -> None:
        self._wire = wire
        if self._secret:
            wire.send(encode_challenge(self._challenge))
        else:
            wire.close()  # no secret yet, so no proof

    def feed(self, data: bytes) -> None:
        wire = self._wire
        if wire is None:
            return
        self._data += data
        try:
            introduction = self._read_introduction()
        except Refused as error:
            _log.warning("a connection to the port of the cluster is ended: %s", error, extra={"connection": wire.name})
            wire.close()
            return
        if introduction is not None:
            self._admit(wire, introduction)

    def _read_introduction(self) -> Introduction | None:
        """The proven introduction; None while bytes are missing. Raises Refused."""
        length = introduction_bytes(self._data)
        if len(self._data) > (length or MAX_INTRODUCTION_BYTES):
            raise Refused("it says more than it was asked")
        if not length or len(self._data) < length:
            return None
        introduction = decode_introduction(self._data)
        if not is_sealed(introduction, self._challenge, self._secret, self._binding):
            raise Refused("it does not know the secret of this cluster")
        return introduction

    def _admit(self, wire: Wire, introduction: Introduction) -> None:
        local = self._frontend.local
        status = NOT_THE_OWNER if local is None else WELCOME
        wire.send(encode_answer(status, introduction, self._challenge, self._secret, self._binding))
        if local is None:
            wire.close()
        elif introduction.protocol == HTTP:
            wire.give_away(local.http(introduction.origin))
        else:
            wire.stand_for(introduction.origin)
            handler = local.handler(_NAMES[introduction.protocol])
            wire.hand_over(handler)
            handler.opened(wire)

    def hold_output(self, is_held: bool) -> None:
        return  # a challenge and an answer fit any buffer

    def beat(self) -> None:
        return  # no keepalive before the client takes over

    def stop(self) -> None:
        if self._wire is not None:
            self._wire.close()

    def lost(self) -> None:
        self._wire = None

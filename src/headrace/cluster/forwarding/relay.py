"""A client of a node that does not own the store: its bytes go to the owner and back. No protocol.

The client is heard first: nobody is bothered with those who say nothing. While there is no owner, or it cannot be
reached, the client waits, for a while; a node that becomes the owner itself keeps those who wait.
"""

import asyncio
import hashlib
import secrets
import socket
import ssl
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, cast, final

from headrace.cluster.forwarding.preamble import (
    ANSWER_BYTES,
    CHALLENGE_BYTES,
    NONCE_BYTES,
    WELCOME,
    decode_answer,
    decode_challenge,
    encode_introduction,
)
from headrace.cluster.forwarding.wire_protocol import NUMBERS
from headrace.cluster.lease import Node
from headrace.errors import Refused, Unavailable
from headrace.net.connection import BY_BROKER, HANDSHAKE_SECONDS, Wire
from headrace.net.facts import ConnectionFacts, Origin
from headrace.net.handler import Handler
from headrace.net.handover import START_BYTES, Tracker, WireProtocol

if TYPE_CHECKING:
    from headrace.cluster.forwarding.frontend import Frontend

REACH_SECONDS: Final = 5.0
"""How long it may take to reach a node and to be let in."""
LINGER_SECONDS: Final = 30.0
"""How long the owner may take for what a client has left behind."""
_HIGH_BYTES: Final = 256 << 10
_LOW_BYTES: Final = 64 << 10


class Sink(ABC):
    """Who takes what the owner sends."""

    @abstractmethod
    def arrived(self, data: bytes) -> None:
        """The owner sent this."""

    @abstractmethod
    def hold(self, is_held: bool) -> None:
        """Send the owner nothing more, as it does not keep up; or go on."""

    @abstractmethod
    def over(self) -> None:
        """The owner has ended the connection, or is not there any more. Nothing is called after this."""


@final
class Upstream(asyncio.Protocol):
    """One connection to the owner."""

    def __init__(self, protocol: int, origin: Origin, secret: bytes) -> None:
        self._protocol = protocol
        self._origin = origin
        self._secret = secret
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._sink: Sink | None = None
        self._data = b""
        self._challenge = b""
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._binding = b""
        self._is_over = False
        self._linger: asyncio.TimerHandle | None = None
        self.accepted: asyncio.Future[None] = self._loop.create_future()
        """Done when the owner takes the client; has Unavailable otherwise."""

    # -- what its user calls -----------------------------------------------------------------------------------------

    def attach(self, sink: Sink) -> None:
        """Have this get all that the owner sends from now on."""
        self._sink = sink
        if self._is_over:
            self._loop.call_soon(sink.over)
        elif self._transport is not None:
            self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def write_eof(self) -> None:
        """Say that nothing more comes; with TLS that cannot be said."""
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    def pause(self, is_paused: bool) -> None:
        """Take nothing more from the owner for now, or go on."""
        if self._transport is None or self._transport.is_closing():
            return
        if is_paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def close(self) -> None:
        """End it once the owner has taken what was written, and tell nobody."""
        self._sink = None
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.close()
            self._linger = self._loop.call_later(LINGER_SECONDS, transport.abort)

    def abort(self) -> None:
        self._sink = None
        if self._transport is not None:
            self._transport.abort()

    # -- what the event loop calls -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclasses of it
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(_HIGH_BYTES, _LOW_BYTES)
        secured = transport.get_extra_info("ssl_object")
        if secured is not None:
            self._binding = hashlib.sha256(secured.getpeercert(True) or b"").digest()

    def data_received(self, data: bytes) -> None:
        if self._sink is not None:
            self._sink.arrived(data)
            return
        self._data += data
        try:
            self._introduce()
        except Refused as error:
            self._fail(str(error))

    def _introduce(self) -> None:
        """Answer the owner's challenge, and hear whether the client is taken. Raises Refused."""
        if not self._challenge:
            if len(self._data) < CHALLENGE_BYTES:
                return
            self._challenge, self._data = decode_challenge(self._data[:CHALLENGE_BYTES]), self._data[CHALLENGE_BYTES:]
            self.write(
                encode_introduction(
                    self._protocol, self._origin, self._nonce, self._challenge, self._secret, self._binding
                )
            )
        if len(self._data) < ANSWER_BYTES:
            return
        if len(self._data) > ANSWER_BYTES:
            raise Refused("the owner speaks before the client does")
        status = decode_answer(self._data, self._nonce, self._challenge, self._secret, self._binding)
        if status != WELCOME:
            raise Refused("it does not own the store, or not yet")
        self.pause(True)
        if not self.accepted.done():
            self.accepted.set_result(None)

    def pause_writing(self) -> None:
        if self._sink is not None:
            self._sink.hold(True)

    def resume_writing(self) -> None:
        if self._sink is not None:
            self._sink.hold(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._is_over = True
        if self._linger is not None:
            self._linger.cancel()
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.over()
        self._fail("it ended the connection; do both nodes have the same store?")

    def _fail(self, why: str) -> None:
        if not self.accepted.done():
            self.accepted.set_exception(Unavailable(why))
        self.abort()


async def reach(owner: Node, protocol: int, origin: Origin, secret: bytes, tls: ssl.SSLContext | None) -> Upstream:
    """A connection to the owner on which the client's bytes may follow. Raises Unavailable, naming the node."""
    upstream = Upstream(protocol, origin, secret)
    host, port = owner.internal
    try:
        async with asyncio.timeout(REACH_SECONDS):
            await asyncio.get_running_loop().create_connection(lambda: upstream, host, port, ssl=tls)
            await upstream.accepted
    except TimeoutError as error:
        upstream.abort()
        raise Unavailable(
            f"node {owner.name!r} at {owner.address} did not answer within {REACH_SECONDS:g} s"
        ) from error
    except OSError as error:
        raise Unavailable(f"node {owner.name!r} at {owner.address}: {error.strerror or error}") from error
    except Unavailable as error:
        raise Unavailable(f"node {owner.name!r} at {owner.address}: {error}") from error
    except asyncio.CancelledError:
        upstream.abort()
        raise
    return upstream


_GOODBYE_SECONDS: Final = 2.0


@final
class Relay(Handler, Sink):
    """One client, from its first bytes to the end."""

    def __init__(self, doorway: "Frontend", tongue: WireProtocol) -> None:
        self._doorway = doorway
        self._tongue = tongue
        self._wire: Wire | None = None
        self._start = b""
        self._held: list[bytes] = []
        """What the client said before there was anybody to say it to."""
        self._journey: asyncio.Task[None] | None = None
        self._upstream: Upstream | None = None
        self._tracker: Tracker | None = None
        self._successor: Handler | None = None
        """Somebody in this process who serves or refuses the client, and gets everything that is for it."""
        self._is_over = False

    # -- what net calls ----------------------------------------------------------------------------------------------

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
        if self._journey is None:
            wire.pause_reading(BY_BROKER)
            wire.allow(self._doorway.patience_seconds + HANDSHAKE_SECONDS)
            self._journey = asyncio.get_running_loop().create_task(self._travel(wire))

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
        self._doorway.forget(self)
        if self._journey is not None:
            self._journey.cancel()
        if self._upstream is not None:
            self._upstream.close()
            self._upstream = None

    # -- on the way to the owner -------------------------------------------------------------------------------------

    async def _travel(self, wire: Wire) -> None:
        """Find somebody who takes the client, as long as it may wait."""
        doorway, name = self._doorway, self._tongue.name
        try:
            found = await doorway.find(NUMBERS[name], wire.origin(doorway.node))
        except Unavailable:
            wire.guarded(lambda: self._hand_over(wire, self._tongue.refuse(doorway.find_redirect(name))))
            return
        if isinstance(found, Upstream):
            self._join(wire, found)
        else:
            wire.guarded(lambda: self._hand_over(wire, found.handler(name)))

    def _join(self, wire: Wire, upstream: Upstream) -> None:
        """From here on bytes pass in both directions."""
        self._upstream = upstream
        self._doorway.remember(self)
        held, self._held = self._held, []
        for data in held:
            upstream.write(data)
        upstream.attach(self)
        wire.resume_reading(BY_BROKER)

    def _hand_over(self, wire: Wire, handler: Handler) -> None:
        """Have the client met by somebody in this process, as if it had just come."""
        held, self._held = self._held, []
        self._is_over = True
        self._successor = handler
        wire.allow(HANDSHAKE_SECONDS)
        wire.resume_reading(BY_BROKER)
        handler.opened(wire)
        if held:
            handler.feed(b"".join(held))

    # -- what the owner sends ----------------------------------------------------------------------------------------

    def arrived(self, data: bytes) -> None:
        wire = self._wire
        if wire is None:
            return
        tracker = self._tracker
        if tracker is None:
            tracker = self._tracker = self._tongue.track(self._start)
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
        """Tell the client to go, as far as its protocol has words for that now, and close."""
        wire = self._wire
        if wire is None or self._is_over:
            return
        self._is_over = True
        self._doorway.forget(self)
        if self._journey is not None:
            self._journey.cancel()
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

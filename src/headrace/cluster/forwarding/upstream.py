"""A connection from this node to the owner, with the handshake that proves both belong to the cluster. No protocol.

frontend.py and pages.py pass a client's bytes over it.
"""

import asyncio
import hashlib
import secrets
import socket
import ssl
from abc import ABC, abstractmethod
from typing import Final, cast, final

from headrace.cluster.forwarding.preamble import (
    ANSWER_BYTES,
    CHALLENGE_BYTES,
    NONCE_BYTES,
    WELCOME,
    decode_answer,
    decode_challenge,
    encode_introduction,
)
from headrace.cluster.lease import Node
from headrace.errors import Refused, Unavailable
from headrace.net.facts import Origin

REACH_SECONDS: Final = 5.0
"""Limit for connecting to a node and for its answer to the introduction."""
LINGER_SECONDS: Final = 30.0
"""Limit for the owner to read a closed client's last bytes."""
_HIGH_BYTES: Final = 256 << 10
_LOW_BYTES: Final = 64 << 10


class Sink(ABC):
    """Receiver of the owner's bytes."""

    @abstractmethod
    def arrived(self, data: bytes) -> None:
        """Take bytes of the owner."""

    @abstractmethod
    def hold(self, is_held: bool) -> None:
        """Stop writing to the owner because its buffer is full, or go on."""

    @abstractmethod
    def over(self) -> None:
        """Hear that the owner closed or lost the connection. This is the last call."""


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
        """Result: the owner accepted the client. Exception: Unavailable."""

    # -- calls of the user ---------------------------------------------------------------------------------------------

    def attach(self, sink: Sink) -> None:
        """Give all further bytes of the owner to `sink`."""
        self._sink = sink
        if self._is_over:
            self._loop.call_soon(sink.over)
        elif self._transport is not None:
            self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def write_eof(self) -> None:
        """Close the writing side; TLS has no such half-close."""
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    def pause(self, is_paused: bool) -> None:
        """Pause or resume reading from the owner."""
        if self._transport is None or self._transport.is_closing():
            return
        if is_paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def close(self) -> None:
        """Close once all written bytes have left, without a call to the sink."""
        self._sink = None
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.close()
            self._linger = self._loop.call_later(LINGER_SECONDS, transport.abort)

    def abort(self) -> None:
        self._sink = None
        if self._transport is not None:
            self._transport.abort()

    # -- calls of the event loop ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = self._transport = cast("asyncio.Transport", transport)  # uvloop's transports are no subclasses
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
        """Answer the owner's challenge and read its verdict on the client. Raises Refused."""
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
    """Open a connection on which the owner has accepted the client. Raises Unavailable, naming the node."""
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

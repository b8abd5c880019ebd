"""One TCP connection: it feeds a handler and writes the handler's output once per turn, bounded both ways. No protocol.

The connection collects output and writes it with one call per turn of the event loop. When the peer does not read, the
handler pauses its output; when the peer still sends, the connection stops reading until the output has drained.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar, cast, final
from weakref import WeakKeyDictionary, ref

from headrace.net.facts import ConnectionFacts, Origin
from headrace.net.handler import Envelope, Gone, Handler
from headrace.net.output import LoopTurn, Output


@final
class Seldom:
    """Rate limit for a log line: counts events between two lines."""

    __slots__ = ("_count", "_due", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._count = 0
        self._due = 0.0

    def note(self, now: float) -> int:
        """Count one event; returns the count since the last line, or 0 while a line is too early."""
        self._count += 1
        if now < self._due:
            return 0
        self._due = now + self._seconds
        count, self._count = self._count, 0
        return count


Result = TypeVar("Result")
Told = TypeVar("Told")


async def outcome(start: Callable[[Callable[[Exception | None], None]], Result]) -> Result:
    """Start an operation that reports by callback; returns its result after the report. Raises a reported error."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell(error: Exception | None) -> None:
        if future.done():  # the waiter is gone
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    result = start(tell)
    await future
    return result


async def answer(ask: Callable[[Callable[[Told], None]], None]) -> Told:
    """Call a function that answers by callback; returns the answer."""
    future: asyncio.Future[Told] = asyncio.get_running_loop().create_future()
    ask(lambda told: None if future.done() else future.set_result(told))
    return await future


_log: Final = logging.getLogger("headrace.net")

OUTPUT_HIGH_BYTES: Final = 1 << 20
"""Output size from which the handler pauses deliveries."""
OUTPUT_FULL_BYTES: Final = 8 << 20
"""Output size from which the connection reads no more, because answers would add to it."""
_TRANSPORT_HIGH_BYTES: Final = 256 << 10
_TRANSPORT_LOW_BYTES: Final = 64 << 10
HANDSHAKE_SECONDS: Final = 10.0
CLOSE_SECONDS: Final = 5.0
_SILENT: Final = Seldom(1.0)
"""Rate limit of the log line about missing handshakes, for the whole process."""
_CHECKS: Final = 6
"""Keepalive checks per silence limit."""

# Reasons to pause reading; several may hold at once.
BY_OUTPUT: Final = 1
BY_BROKER: Final = 2
BY_RATE: Final = 4
BY_WITHHELD: Final = 8
BY_ORDER: Final = 16
BY_INTAKE: Final = 32


_GONE: Final = Gone()

Gate = Callable[[], bool]
"""Returns True while the connection may write."""


@final
class Wire(asyncio.Protocol):
    """One connection, as its handler sees it: send, close, pause."""

    def __init__(
        self, handler: Handler, on_end: Callable[["Wire"], None], on_begin: Callable[["Wire"], None] | None = None
    ) -> None:
        self._handler = handler
        self._on_begin = on_begin
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._turn = turn_of(self._loop)
        self._transport: asyncio.Transport | None = None
        self.output = Output(OUTPUT_HIGH_BYTES, self._flush_soon, self._filled)
        """Buffer of the turn, for handlers that send much without the call of `send`."""
        self._withheld_bytes = 0
        self._before: list[Callable[[], None]] = []
        self._is_stuck = False
        self._is_held = False
        self._not_reading = 0
        self._envelope: Envelope | None = None
        self.gate: Gate | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._has_sent = False
        self._has_received = False
        self._silent_beats = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self.opened_at = self._loop.time()
        """Time of opening, on the event loop's clock."""
        self.local = ""
        self._known: dict[str, str] = {}
        self.is_established = False
        """True after the handshake; limits are strict before."""
        self.peer = ""
        self.address = ""
        """The peer's address without its port."""
        self.is_loopback = False
        self.is_tls = False
        self.certificate_name = ""
        """Common name of the client certificate; "" without one."""
        self.node = ""
        """Name of the node that forwarded the client; "" for a direct connection."""

    @property
    def is_closing(self) -> bool:
        return self.output.is_closed

    # -- calls of the handler ------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Write this at the end of the turn, after earlier output; a closed connection drops it."""
        self.output.send(data)

    def withhold(self, more_bytes: int) -> None:
        """Count bytes that the handler holds back; above the limit the connection reads no more."""
        self._withheld_bytes += more_bytes
        if self._withheld_bytes > OUTPUT_HIGH_BYTES:
            self.pause_reading(BY_WITHHELD)
        elif self._not_reading & BY_WITHHELD:
            self.resume_reading(BY_WITHHELD)

    def before_flush(self, call: Callable[[], None]) -> None:
        """Call a function at the end of the turn, before the output is written."""
        if self.output.is_closed:
            return
        self._before.append(call)
        if not self.output.is_due:
            self.output.begin()

    def enclose(self, envelope: Envelope) -> None:
        """Wrap all further output into this envelope."""
        self._envelope = envelope

    def write_between(self, data: bytes) -> None:
        """Write at once and without the envelope, between the outputs of two turns."""
        if self._transport is not None and not self.output.is_closed:
            self._transport.write(data)

    def pause_reading(self, why: int) -> None:
        """Stop reading until `resume_reading` gets the same reason."""
        if not self._not_reading and self._transport is not None:
            self._transport.pause_reading()
        self._not_reading |= why

    def resume_reading(self, why: int) -> None:
        was_paused = self._not_reading
        self._not_reading &= ~why
        if was_paused and not self._not_reading and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def pause_for(self, seconds: float) -> None:
        """Stop reading for a while, because the peer exceeds its rate."""
        if not self._not_reading & BY_RATE:
            self.pause_reading(BY_RATE)
            self._loop.call_later(seconds, self.resume_reading, BY_RATE)

    def hand_over(self, handler: Handler) -> None:
        """Replace the handler. The caller calls the new handler's `opened`."""
        self._handler = handler

    def keep_alive(self, interval_seconds: float, silence_seconds: float = 0.0) -> None:
        """Mark the handshake as done and beat after half an interval without output; 0 = no keepalive.

        A peer is disconnected after two silent intervals, or after `silence_seconds`.
        """
        self._established()
        if interval_seconds:
            half = interval_seconds / 2
            beats = max(2, round(silence_seconds / half)) if silence_seconds else 4
            self._timer = self._loop.call_later(half, self._on_beat, half, beats)

    def watch(self, limit_seconds: float, on_silence: Callable[[], None]) -> None:
        """Mark the handshake as done and call `on_silence` after so many silent seconds, or a sixth more; 0 = never."""
        self._established()
        if limit_seconds:
            self._silent_beats = 0
            period = limit_seconds / _CHECKS
            self._timer = self._loop.call_later(period, self._on_watch, period, on_silence)

    def allow(self, seconds: float) -> None:
        """Limit the rest of the handshake to so many seconds."""
        self._stop_timer()
        self._timer = self._loop.call_later(seconds, self._on_no_handshake, seconds)

    def stand_for(self, origin: Origin) -> None:
        """Take the identity of a client that another node forwards over this connection."""
        self.peer = f"{origin.address}:{origin.port}" if origin.port else origin.address
        self.local = origin.local
        self.address = origin.address
        self.is_loopback = origin.is_loopback
        self.is_tls = origin.is_tls
        self.certificate_name = origin.certificate_name
        self.node = origin.node
        self.allow(HANDSHAKE_SECONDS)

    def origin(self, node: str) -> Origin:
        """The peer as another node sees it; `node` is the name of this node."""
        port = int(self.peer.rpartition(":")[2]) if ":" in self.peer else 0
        return Origin(self.address, port, self.local, node, self.is_tls, self.is_loopback, self.certificate_name)

    def give_away(self, protocol: asyncio.Protocol) -> None:
        """Give the transport to another protocol, without a call to the handler."""
        transport = self._transport
        self._flush()
        self._stop_timer()
        if transport is None or self.output.is_closed:
            return
        self.output.close()
        self._transport = None
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        self._on_end(self)

    def _established(self) -> None:
        self.is_established = True
        self._stop_timer()
        self._loop.call_soon(self._greeted)

    def _greeted(self) -> None:
        """Log the connection once the protocol knows its user."""
        facts = self.facts()
        if facts is not None:
            self._known = {"protocol": facts.protocol, "user": facts.user, "vhost": facts.host}
        _log.info("connected", extra=self._about())

    def _about(self) -> dict[str, str]:
        """Fields of this connection for the log."""
        node = {"node": self.node} if self.node else {}
        return {"connection": self.name, **node, **self._known}

    def close(self, after_seconds: float = 0.0) -> None:
        """Close after all output is written; with `after_seconds`, wait so long for the peer to close first."""
        self._stop_timer()
        if after_seconds:
            self._timer = self._loop.call_later(after_seconds, self.close)
            return
        if self.output.is_closed or self._transport is None:
            return
        self._flush()
        if self._envelope is not None:
            self.write_between(self._envelope.goodbye())
        self.end()

    def finish(self, most_seconds: float) -> None:
        """Close for writing after all output is written. A peer that still sends gets no reset: its bytes are dropped
        until it closes, for so long at most."""
        if self.output.is_closed or self._transport is None or self._envelope is not None:
            self.close()
            return
        if not self._transport.can_write_eof():  # TLS
            self.close(most_seconds)
            return
        self._flush()
        self._stop_timer()
        self.output.close()
        self._transport.write_eof()
        if self._not_reading:
            self._not_reading = 0
            self._transport.resume_reading()
        self._timer = self._loop.call_later(most_seconds, self.abort)

    def end(self) -> None:
        """Close after all written bytes have left; output of this turn is dropped."""
        if self.output.is_closed or self._transport is None:
            return
        self._stop_timer()
        self.output.close()
        self._transport.close()
        self._timer = self._loop.call_later(CLOSE_SECONDS, self.abort)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def name(self) -> str:
        """Both addresses, which identify the connection for people."""
        return f"{self.peer} -> {self.local}"

    @property
    def is_blocked(self) -> bool:
        """True while reading is paused."""
        return bool(self._not_reading)

    def facts(self) -> ConnectionFacts | None:
        """Facts of the login; None before it."""
        return self._handler.facts()

    def stop(self) -> None:
        """Tell the handler that the server stops."""
        self.guarded(self._handler.stop)

    def dismiss(self) -> None:
        """Drop all output, which no longer holds, and say goodbye only."""
        self._forget()
        self.gate = None
        self.stop()
        self._flush()
        self.gate = _shut

    # -- calls of the event loop ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = self._transport = cast("asyncio.Transport", transport)  # uvloop's transports are no subclasses
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        address = transport.get_extra_info("peername")
        host = address[0] if isinstance(address, tuple) else ""
        self.peer = f"{host}:{address[1]}" if host else "local"
        here = transport.get_extra_info("sockname")
        self.local = f"{here[0]}:{here[1]}" if isinstance(here, tuple) else "local"
        self.address = host or "local"
        self.is_loopback = not host or is_loopback(host)
        self.is_tls = transport.get_extra_info("ssl_object") is not None
        self.certificate_name = _common_name(transport.get_extra_info("peercert"))
        transport.set_write_buffer_limits(_TRANSPORT_HIGH_BYTES, _TRANSPORT_LOW_BYTES)
        self.allow(HANDSHAKE_SECONDS)
        if self._on_begin is not None:
            self._on_begin(self)
        self.guarded(lambda: self._handler.opened(self))

    def data_received(self, data: bytes) -> None:
        if self.output.is_closed:
            return
        self._has_received = True
        self.received_bytes += len(data)
        try:
            self._handler.feed(data)
        except Exception:
            self._fail()

    def eof_received(self) -> bool:
        if self.output.is_closed:
            return False
        try:
            stays = self._handler.ended()
        except Exception:
            self._fail()
            return False
        if stays or self.is_tls:  # over TLS the answer True has no effect
            return stays
        endings_of(self._loop).add(self._close_after_peer)
        return True

    def _close_after_peer(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def pause_writing(self) -> None:
        self._is_stuck = True
        if not self._is_held:
            self._hold(True)

    def resume_writing(self) -> None:
        self._is_stuck = False
        self.resume_reading(BY_OUTPUT)
        self._relieve()

    def connection_lost(self, exc: Exception | None) -> None:
        self.output.close()
        self._transport = None
        self._stop_timer()
        self.output.clear()
        self._before.clear()
        endings_of(self._loop).add(self._lost)

    def _lost(self) -> None:
        """Tell the handler and the listener that the connection is gone."""
        try:
            self._handler.lost()
        except Exception:
            _log.exception("ending the connection failed", extra=self._about())
        if self.is_established:
            _log.info("the connection is ended", extra=self._about())
        self._on_end(self)
        # Otherwise all that a client had waits for the collector, which seldom looks at what lives long.
        self._handler = _GONE
        self.output.detach()

    def _flush_soon(self) -> None:
        self._turn.add_output(self._flush)

    def _filled(self) -> None:
        if not self._is_held:
            self._hold(True)

    def _flush(self) -> None:
        self.output.is_due = False
        transport = self._transport
        if transport is None or self.output.is_closed:
            return
        if self.gate is not None and not self.gate():
            self._forget()
            return
        while self._before:
            calls, self._before = self._before, []
            for call in calls:
                self.guarded(call)
        self.output.is_due = False
        if not self.output.size_bytes:
            return
        self.sent_bytes += self.output.size_bytes
        self._has_sent = True
        if self._envelope is not None:
            transport.write(self._envelope.wrap(self.output.take()))
        elif self.output.is_bulky:
            transport.writelines(self.output.take_parts())
        else:
            transport.write(self.output.take())
        if not self._is_stuck:
            self._relieve()
        elif transport.get_write_buffer_size() > OUTPUT_FULL_BYTES:
            self.pause_reading(BY_OUTPUT)

    def _forget(self) -> None:
        """Drop the output and the calls of this turn."""
        self.output.clear()
        self._before.clear()

    def _relieve(self) -> None:
        if self._is_held and self.output.size_bytes < OUTPUT_HIGH_BYTES:
            self._hold(False)

    def _hold(self, is_held: bool) -> None:
        self._is_held = is_held
        self.guarded(lambda: self._handler.hold_output(is_held))

    def _on_beat(self, half_seconds: float, most_beats: int) -> None:
        self._end_period()
        if self._is_silent(most_beats):
            self._report_silence(half_seconds * most_beats)
            self.abort()
            return
        if not self._has_sent:
            self.guarded(self._handler.beat)
        self._has_sent = False
        self._timer = self._loop.call_later(half_seconds, self._on_beat, half_seconds, most_beats)

    def _on_watch(self, period_seconds: float, on_silence: Callable[[], None]) -> None:
        self._end_period()
        if self._is_silent(_CHECKS):
            self._report_silence(period_seconds * _CHECKS)
            self.guarded(on_silence)
        else:
            self._timer = self._loop.call_later(period_seconds, self._on_watch, period_seconds, on_silence)

    def _end_period(self) -> None:
        """Count one more period without input. A paused connection never counts as silent."""
        self._silent_beats = 0 if self._has_received or self._not_reading else self._silent_beats + 1
        self._has_received = False

    def _is_silent(self, most_periods: int) -> bool:
        return self._silent_beats >= most_periods

    def _report_silence(self, seconds: float) -> None:
        _log.warning("nothing came for %g s: the connection is ended", seconds, extra=self._about())

    def _on_no_handshake(self, seconds: float) -> None:
        count = _SILENT.note(self._loop.time())
        if count == 1:
            _log.warning("no handshake within %g s: the connection is ended", seconds, extra=self._about())
        elif count:
            _log.warning("no handshake within %g s: %d connections are ended", seconds, count, extra=self._about())
        self.abort()

    def guarded(self, call: Callable[[], None]) -> None:
        """Call a function of the handler; an error ends this connection and no other."""
        try:
            call()
        except Exception:
            self._fail()

    def _fail(self) -> None:
        _log.exception("the connection is ended by an error of ours", extra=self._about())
        self.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _shut() -> bool:
    return False


def is_loopback(host: str) -> bool:
    """True for addresses that only this machine can reach."""
    return host.startswith(("127.", "::ffff:127.")) or host == "::1"


def _common_name(certificate: object) -> str:
    if not isinstance(certificate, dict):
        return ""
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return str(names[0]) if names else ""


ENDINGS_AT_ONCE: Final = 50
"""Ends of connections in one turn: they are closed, and their handlers hear of it, which takes up to 0.1 ms."""


@final
class Endings:
    """Ends of connections: a few per turn, so that thousands that leave at once delay nobody else."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._room = ENDINGS_AT_ONCE
        """Connections that may still end in this turn."""
        self._is_due = False

    def add(self, end: Callable[[], None]) -> None:
        """Run the end of a connection now, or in a later turn when many are waiting."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._go_on)
        if self._room and not self._waiting:
            self._room -= 1
            end()
        else:
            self._waiting.append(end)

    def _go_on(self) -> None:
        """Run the ends that fit into this turn."""
        count = min(len(self._waiting), ENDINGS_AT_ONCE)
        self._is_due = count > 0
        self._room = ENDINGS_AT_ONCE - count
        if count:
            asyncio.get_running_loop().call_soon(self._go_on)
        for _ in range(count):
            self._waiting.popleft()()


_ENDINGS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Endings]] = WeakKeyDictionary()


_TURNS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, LoopTurn]] = WeakKeyDictionary()


def turn_of(loop: asyncio.AbstractEventLoop) -> LoopTurn:
    """The turns of one event loop."""
    found = _TURNS.get(loop)
    if found is None:
        known = ref(loop)  # the dictionary keeps no loop alive; to ask which loop runs is a system call

        def call_soon(call: Callable[[], None]) -> None:
            running = known()
            if running is not None:
                running.call_soon(call)

        found = _TURNS[loop] = LoopTurn(call_soon, _turn_failed)
    return found


def _turn_failed(error: Exception) -> None:
    asyncio.get_running_loop().call_exception_handler({"message": "a call in a turn failed", "exception": error})


def endings_of(loop: asyncio.AbstractEventLoop) -> Endings:
    """The endings of one event loop."""
    found = _ENDINGS.get(loop)
    if found is None:
        found = _ENDINGS[loop] = Endings()
    return found

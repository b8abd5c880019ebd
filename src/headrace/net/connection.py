"""One TCP connection: input to a handler, output once per turn, bounded both ways. The bytes mean nothing here.

Output is collected and written with one call per turn of the event loop. When the peer does not read, the handler is
told to produce no more; when it goes on sending all the same, it is not read from until its output has drained.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar, cast, final
from weakref import WeakKeyDictionary

from headrace.net.facts import ConnectionFacts, Origin
from headrace.net.handler import Envelope, Handler
from headrace.net.output import Output


@final
class Seldom:
    """Counts until it is time to tell."""

    __slots__ = ("_count", "_due", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._count = 0
        self._due = 0.0

    def note(self, now: float) -> int:
        """It happened once more; returns how often since it was last told, or 0 while it is too early to tell."""
        self._count += 1
        if now < self._due:
            return 0
        self._due = now + self._seconds
        count, self._count = self._count, 0
        return count


Result = TypeVar("Result")
Told = TypeVar("Told")


async def outcome(start: Callable[[Callable[[Exception | None], None]], Result]) -> Result:
    """Start something that tells when it is done; returns then what starting it returned. Raises what it tells."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell(error: Exception | None) -> None:
        if future.done():  # nobody waits any more
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    result = start(tell)
    await future
    return result


async def answer(ask: Callable[[Callable[[Told], None]], None]) -> Told:
    """Ask something that is answered by a callback; returns the answer."""
    future: asyncio.Future[Told] = asyncio.get_running_loop().create_future()
    ask(lambda told: None if future.done() else future.set_result(told))
    return await future


_log: Final = logging.getLogger("headrace.net")

OUTPUT_HIGH_BYTES: Final = 1 << 20
"""From here on the handler is asked to produce nothing more that can wait."""
OUTPUT_FULL_BYTES: Final = 8 << 20
"""From here on nothing is read any more: answers to what is read would add to it."""
_TRANSPORT_HIGH_BYTES: Final = 256 << 10
_TRANSPORT_LOW_BYTES: Final = 64 << 10
HANDSHAKE_SECONDS: Final = 10.0
CLOSE_SECONDS: Final = 5.0
_SILENT: Final = Seldom(1.0)
"""Connections of this process without a handshake: who opens thousands must not fill the log."""
_LOOKS: Final = 6
"""How often it is looked at whether something came, while a peer may be silent."""

# Why a connection is not read from; several may hold at once.
BY_OUTPUT: Final = 1
BY_BROKER: Final = 2
BY_RATE: Final = 4
BY_WITHHELD: Final = 8
BY_ORDER: Final = 16
BY_INTAKE: Final = 32


Gate = Callable[[], bool]
"""Whether anything may be written now."""


@final
class Wire(asyncio.Protocol):
    """The connection as its handler sees it: send, close, hold."""

    def __init__(
        self, handler: Handler, on_end: Callable[["Wire"], None], on_begin: Callable[["Wire"], None] | None = None
    ) -> None:
        self._handler = handler
        self._on_begin = on_begin
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.output = Output(OUTPUT_HIGH_BYTES, self._flush_soon, self._filled)
        """What is sent, for handlers that send much: the same as `send`."""
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
        """When it was opened, in the event loop's time."""
        self.local = ""
        self._known: dict[str, str] = {}
        self.is_established = False
        """Whether the handshake is done: nobody is trusted with much before."""
        self.peer = ""
        self.address = ""
        """The peer's address without its port."""
        self.is_loopback = False
        self.is_tls = False
        self.certificate_name = ""
        """The common name of the certificate that the peer proved to have."""
        self.node = ""
        """The node of the cluster that the peer is connected to, where that is another one."""

    @property
    def is_closing(self) -> bool:
        return self.output.is_closed

    # -- what the handler calls --------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Have this written at the end of the turn, after all that was sent before; nothing when it is closed."""
        self.output.send(data)

    def withhold(self, more_bytes: int) -> None:
        """So many more bytes, or fewer, are kept by the handler to be sent later: too many are waited for."""
        self._withheld_bytes += more_bytes
        if self._withheld_bytes > OUTPUT_HIGH_BYTES:
            self.pause_reading(BY_WITHHELD)
        elif self._not_reading & BY_WITHHELD:
            self.resume_reading(BY_WITHHELD)

    def before_flush(self, call: Callable[[], None]) -> None:
        """Have something called at the end of the turn, before what it sends is written."""
        if self.output.is_closed:
            return
        self._before.append(call)
        self.output.begin()

    def enclose(self, envelope: Envelope) -> None:
        """Have all that is sent from now on put into this."""
        self._envelope = envelope

    def write_between(self, data: bytes) -> None:
        """Write at once, between the turns' output and around the envelope."""
        if self._transport is not None and not self.output.is_closed:
            self._transport.write(data)

    def pause_reading(self, why: int) -> None:
        """Read nothing more from the peer until `resume_reading` for the same reason."""
        if not self._not_reading and self._transport is not None:
            self._transport.pause_reading()
        self._not_reading |= why

    def resume_reading(self, why: int) -> None:
        was_paused = self._not_reading
        self._not_reading &= ~why
        if was_paused and not self._not_reading and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def pause_for(self, seconds: float) -> None:
        """Read nothing more for a while: the peer sends faster than it may."""
        if not self._not_reading & BY_RATE:
            self.pause_reading(BY_RATE)
            self._loop.call_later(seconds, self.resume_reading, BY_RATE)

    def hand_over(self, handler: Handler) -> None:
        """Have another handler take over; it is told nothing, that is the present one's to do."""
        self._handler = handler

    def keep_alive(self, interval_seconds: float, silence_seconds: float = 0.0) -> None:
        """The handshake is done. Beat when nothing is sent for half an interval, 0 for never.

        A peer that is silent for two intervals, or for the silence that is given, is ended.
        """
        self._established()
        if interval_seconds:
            half = interval_seconds / 2
            beats = max(2, round(silence_seconds / half)) if silence_seconds else 4
            self._timer = self._loop.call_later(half, self._on_beat, half, beats)

    def watch(self, limit_seconds: float, on_silence: Callable[[], None]) -> None:
        """The handshake is done. Have it told when nothing comes for so long, or a sixth longer; 0 for never."""
        self._established()
        if limit_seconds:
            self._silent_beats = 0
            period = limit_seconds / _LOOKS
            self._timer = self._loop.call_later(period, self._on_watch, period, on_silence)

    def allow(self, seconds: float) -> None:
        """Give the handshake so much time from now on."""
        self._stop_timer()
        self._timer = self._loop.call_later(seconds, self._on_no_handshake, seconds)

    def stand_for(self, origin: Origin) -> None:
        """Be seen as the connection of somebody who came to another node, and whose bytes these are from now on."""
        self.peer = f"{origin.address}:{origin.port}" if origin.port else origin.address
        self.local = origin.local
        self.address = origin.address
        self.is_loopback = origin.is_loopback
        self.is_tls = origin.is_tls
        self.certificate_name = origin.certificate_name
        self.node = origin.node
        self.allow(HANDSHAKE_SECONDS)

    def origin(self, node: str) -> Origin:
        """Where the peer is, to be told to others; `node` is what we are called."""
        port = int(self.peer.rpartition(":")[2]) if ":" in self.peer else 0
        return Origin(self.address, port, self.local, node, self.is_tls, self.is_loopback, self.certificate_name)

    def give_away(self, protocol: asyncio.Protocol) -> None:
        """Let another protocol have the connection from now on; the handler is told nothing any more."""
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
        """The protocol knows by now who this is."""
        facts = self.facts()
        if facts is not None:
            self._known = {"protocol": facts.protocol, "user": facts.user, "vhost": facts.host}
        _log.info("connected", extra=self._about())

    def _about(self) -> dict[str, str]:
        """Which connection this is, for the log."""
        node = {"node": self.node} if self.node else {}
        return {"connection": self.name, **node, **self._known}

    def close(self, after_seconds: float = 0.0) -> None:
        """End the connection once everything is written, or `after_seconds` if the peer does not end it before."""
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

    def end(self) -> None:
        """End the connection once what was written has left; what was sent this turn is not written any more."""
        if self.output.is_closed or self._transport is None:
            return
        self._stop_timer()
        self.output.close()
        self._transport.close()
        self._timer = self._loop.call_later(CLOSE_SECONDS, self.abort)

    def abort(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def name(self) -> str:
        """Both ends, as people tell connections apart."""
        return f"{self.peer} -> {self.local}"

    @property
    def is_blocked(self) -> bool:
        """Whether it is not read from for now."""
        return bool(self._not_reading)

    def facts(self) -> ConnectionFacts | None:
        """Who this is; None as long as nobody logged in."""
        return self._handler.facts()

    def stop(self) -> None:
        """The server stops."""
        self.guarded(self._handler.stop)

    def dismiss(self) -> None:
        """Say goodbye and nothing else: what was to be sent is not true any more."""
        self._forget()
        self.gate = None
        self.stop()
        self._flush()
        self.gate = _shut

    # -- what the event loop calls -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclasses of it
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
            return self._handler.ended()
        except Exception:
            self._fail()
            return False

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
        """The connection is gone: others hear of it."""
        try:
            self._handler.lost()
        except Exception:
            _log.exception("ending the connection failed", extra=self._about())
        if self.is_established:
            _log.info("the connection is ended", extra=self._about())
        self._on_end(self)

    def _flush_soon(self) -> None:
        self._loop.call_soon(self._flush)

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
        data = self.output.take()
        self.sent_bytes += len(data)
        self._has_sent = True
        transport.write(data if self._envelope is None else self._envelope.wrap(data))
        if not self._is_stuck:
            self._relieve()
        elif transport.get_write_buffer_size() > OUTPUT_FULL_BYTES:
            self.pause_reading(BY_OUTPUT)

    def _forget(self) -> None:
        """Write nothing of what was sent, or was to be, this turn."""
        self.output.clear()
        self._before.clear()

    def _relieve(self) -> None:
        if self._is_held and self.output.size_bytes < OUTPUT_HIGH_BYTES:
            self._hold(False)

    def _hold(self, is_held: bool) -> None:
        self._is_held = is_held
        self.guarded(lambda: self._handler.hold_output(is_held))

    def _on_beat(self, half_seconds: float, most_beats: int) -> None:
        if self._is_silent(half_seconds, most_beats):
            self.abort()
            return
        if not self._has_sent:
            self.guarded(self._handler.beat)
        self._has_sent = False
        self._timer = self._loop.call_later(half_seconds, self._on_beat, half_seconds, most_beats)

    def _on_watch(self, period_seconds: float, on_silence: Callable[[], None]) -> None:
        if self._is_silent(period_seconds, _LOOKS):
            self.guarded(on_silence)
        else:
            self._timer = self._loop.call_later(period_seconds, self._on_watch, period_seconds, on_silence)

    def _is_silent(self, period_seconds: float, most_periods: int) -> bool:
        """Count one more period; True if the peer sent nothing for so many. A peer that is not read from counts not."""
        self._silent_beats = 0 if self._has_received or self._not_reading else self._silent_beats + 1
        self._has_received = False
        if self._silent_beats < most_periods:
            return False
        silence = most_periods * period_seconds
        _log.warning("nothing came for %g s: the connection is ended", silence, extra=self._about())
        return True

    def _on_no_handshake(self, seconds: float) -> None:
        count = _SILENT.note(self._loop.time())
        if count == 1:
            _log.warning("no handshake within %g s: the connection is ended", seconds, extra=self._about())
        elif count:
            _log.warning("no handshake within %g s: %d connections are ended", seconds, count, extra=self._about())
        self.abort()

    def guarded(self, call: Callable[[], None]) -> None:
        """The top of a connection: whatever goes wrong in it ends it, and it alone."""
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
    """Whether an address is one of this machine that no other can reach."""
    return host.startswith(("127.", "::ffff:127.")) or host == "::1"


def _common_name(certificate: object) -> str:
    if not isinstance(certificate, dict):
        return ""
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return str(names[0]) if names else ""


ENDINGS_AT_ONCE: Final = 50
"""How many connections end in one turn: the end of one takes up to 0.1 ms."""


@final
class Endings:
    """What is left to do for connections that were lost, in the order in which they were."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._room = ENDINGS_AT_ONCE
        """How many more may end in this turn."""
        self._is_due = False

    def add(self, end: Callable[[], None]) -> None:
        """Have a connection end: now, or in a later turn when many do."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._go_on)
        if self._room and not self._waiting:
            self._room -= 1
            end()
        else:
            self._waiting.append(end)

    def _go_on(self) -> None:
        """Another turn has begun."""
        count = min(len(self._waiting), ENDINGS_AT_ONCE)
        self._is_due = count > 0
        self._room = ENDINGS_AT_ONCE - count
        if count:
            asyncio.get_running_loop().call_soon(self._go_on)
        for _ in range(count):
            self._waiting.popleft()()


_ENDINGS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Endings]] = WeakKeyDictionary()


def endings_of(loop: asyncio.AbstractEventLoop) -> Endings:
    """Those of all connections of an event loop."""
    found = _ENDINGS.get(loop)
    if found is None:
        found = _ENDINGS[loop] = Endings()
    return found

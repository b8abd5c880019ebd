"""A client of a node that does not own the store: its bytes go to the owner, and the owner's come back. No protocol.

The client is heard first: nobody is bothered with those who say nothing. While there is no owner, or it cannot be
reached, the client waits, for a while; a node that becomes the owner itself keeps those who wait.
"""

import asyncio
from typing import TYPE_CHECKING, Final, final

from headrace.cluster.forwarding.tongues import NUMBERS
from headrace.cluster.forwarding.upstream import Sink, Upstream
from headrace.errors import Unavailable
from headrace.net.connection import BY_BROKER, HANDSHAKE_SECONDS, Wire
from headrace.net.facts import ConnectionFacts
from headrace.net.handler import Handler
from headrace.net.passing import START_BYTES, Tongue, Tracker

if TYPE_CHECKING:
    from headrace.cluster.forwarding.doorway import Doorway

_GOODBYE_SECONDS: Final = 2.0


@final
class Relay(Handler, Sink):
    """One client, from its first bytes to the end."""

    def __init__(self, doorway: "Doorway", tongue: Tongue) -> None:
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
            wire.guarded(lambda: self._hand_over(wire, self._tongue.refuse(doorway.whither(name))))
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

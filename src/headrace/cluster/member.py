"""This node as a member of the cluster: its thread, its place in the list of nodes, and the look at all of them.

What is served while it is the owner, and what is not while it is not, is decided in app.py.
"""

import logging
import secrets
import threading
from collections.abc import Callable
from typing import Final, final

from headrace.clock import Clock
from headrace.cluster.keeper import LeaseKeeper, Tell
from headrace.cluster.lease import SECRET, Node, Presence, Records, decode_presence, node_name
from headrace.cluster.status import Ownership, Status, read_groups, read_status
from headrace.errors import HeadraceError, Refused, Unavailable

_log: Final = logging.getLogger("headrace.cluster")

_SECRET_BYTES: Final = 32
_LEAST_PAUSE_SECONDS: Final = 0.02


@final
class Member:
    """Takes part in the cluster from `start` to `stop`."""

    def __init__(
        self,
        records: Records,
        me: Node,
        lease_ms: int,
        clock: Clock,
        tell: Tell,
        on_double: Callable[[HeadraceError], None],
    ) -> None:
        """Raises Unavailable where the store does not do what a lease takes.

        `on_double` is told, in the event loop's thread, when another process takes part under the same name.
        """
        self._records = records
        self._records.prove_creation()
        self._me = me
        self._lease_ms = lease_ms
        self._clock = clock
        self._tell = tell
        self._on_double = on_double
        self._beaten_us = 0
        self._is_away = False
        self._is_double = False
        self.ownership = Ownership(me, self._find_secret(), clock)
        self._keeper = LeaseKeeper(self._records, self.ownership, lease_ms, clock, tell)
        self._is_ending = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-lease", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Leave: a lease that is held is released, and the node is no longer in the list. Waits for the store."""
        self._is_ending = True
        self._wake.set()
        self._thread.join()
        self._guarded(self._keeper.release)
        if not self._is_double:
            self._guarded(lambda: self._records.delete(node_name(self._me.name)))

    def give_back(self) -> None:
        """The store could not be opened: let others try first."""
        self._keeper.give_back()
        self._wake.set()

    def status(self) -> Status:
        """How this node's group is. Waits for the store. Raises Unavailable and Corrupt."""
        return read_status(self._records, self._clock)

    def groups(self) -> dict[str, Status]:
        """How all groups of the store are, this node's among them. Waits for the store. Raises likewise."""
        found = read_groups(self._records, self._clock)
        return found if self._records.group in found else {**found, self._records.group: self.status()}

    def _find_secret(self) -> bytes:
        mine = secrets.token_bytes(_SECRET_BYTES)
        if self._records.create(SECRET, mine):
            return mine
        stored = self._records.get(SECRET)
        if not stored:
            raise Unavailable(f"{self._records.where(SECRET)} is there, but cannot be read")
        return stored

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_ending:
            self._guarded(self._keeper.step)
            self._guarded(self._keeper.tidy)
            self._guarded(self._beat)
            if self._wake.wait(max(_LEAST_PAUSE_SECONDS, self._keeper.pause_seconds)):
                self._wake.clear()

    def _guarded(self, step: Callable[[], None]) -> None:
        """Try it, and say once that it fails."""
        try:
            step()
        except HeadraceError as error:
            if not self._is_away:
                _log.warning("the cluster cannot be seen to: %s", error)
            self._is_away = True
        else:
            if self._is_away:
                _log.info("the cluster can be seen to again")
            self._is_away = False

    def _beat(self) -> None:
        """Say that this node lives, once in the length of a lease."""
        now_us = self._clock.monotonic_us()
        if self._is_double or (self._beaten_us and now_us - self._beaten_us < self._lease_ms * 1000):
            return
        name = node_name(self._me.name)
        stored = self._records.get(name)
        if (
            stored is not None
            and decode_presence(stored, self._records.where(name)).node.started_us > self._me.started_us
        ):
            self._is_double = True
            error = Refused(
                f"another process takes part in the cluster as {self._me.name!r}; give each a name of its own"
            )
            self._tell(lambda: self._on_double(error))
            return
        self._records.put(name, Presence(self._me, self._clock.now_us(), self._lease_ms).encode())
        self._beaten_us = now_us

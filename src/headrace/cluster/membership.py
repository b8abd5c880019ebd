"""One node's membership in a cluster: its lease thread, its entry in the list of nodes, and its turns as the owner.

lease_keeper.py takes and renews the lease. app.py decides what the node serves during a turn and between two turns.
"""

import asyncio
import contextlib
import logging
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Final, final

from headrace.admin.site import ClusterStatus
from headrace.clock import Clock
from headrace.cluster.lease import SECRET, Node, Presence, Records, decode_presence, node_name
from headrace.cluster.lease_keeper import LeaseKeeper, Tell
from headrace.cluster.status import FOLLOWER, OWNER, Ownership, groups_to_json, read_groups, read_status
from headrace.errors import Fenced, HeadraceError, Refused, Unavailable
from headrace.storage.api import Engine

_log: Final = logging.getLogger("headrace.cluster")
_SECRET_BYTES: Final = 32
_LEAST_PAUSE_SECONDS: Final = 0.02
_POLL_SECONDS: Final = 0.05
_LEAST_TIMEOUT_MS: Final = 1000
_EVERYWHERE: Final = ("0.0.0.0", "::", "")
FOR_NODES: Final = "cluster"
"""Name of the listener for other nodes."""


@final
class Membership(ClusterStatus):
    """This node in the cluster, from `start` to `stop`. `take` and `leave` do the same from the event loop."""

    def __init__(
        self,
        records: Records,
        me: Node,
        lease_ms: int,
        clock: Clock,
        tell: Tell,
        on_double: Callable[[HeadraceError], None],
    ) -> None:
        """Raises Unavailable when the store has no conditional writes.

        `on_double` runs in the event loop's thread when another process joins under the same name.
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
        self._is_ending = False
        self._has_left = False
        self._reading: asyncio.Task[Mapping[str, object]] | None = None
        self.ownership = Ownership(me, self._agree_on_secret(), clock)
        self.is_serving = False
        """True during a turn: from then on nothing may leave this node once its lease has run out."""
        self._keeper = LeaseKeeper(records, self.ownership, lease_ms, clock, tell)
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-lease", daemon=True)

    @staticmethod
    async def take(
        url: str, group: str, me: Node, lease_ms: int, clock: Clock, on_double: Callable[[HeadraceError], None]
    ) -> "Membership":
        """Join a replication group and start the lease thread. Raises Refused and Unavailable."""
        loop = asyncio.get_running_loop()

        def tell(call: Callable[[], None]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(call)

        def join() -> Membership:
            records = Records(url, group, max(_LEAST_TIMEOUT_MS, lease_ms // 2))
            return Membership(records, me, lease_ms, clock, tell, on_double)

        membership = await asyncio.to_thread(join)
        membership.start()
        return membership

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Release the lease and remove the node from the list. Waits for the store."""
        self._is_ending = True
        self._wake.set()
        self._thread.join()
        self._guarded(self._keeper.release)
        if not self._is_double:
            self._guarded(lambda: self._records.delete(node_name(self._me.name)))

    async def leave(self) -> None:
        """Call `stop` once, but wait no longer than one lease for a store that is away."""
        if self._has_left:
            return
        self._has_left = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(self.stop), self._lease_ms / 1000)

    # -- a turn --------------------------------------------------------------------------------------------------------

    async def turn(self, open_store: Callable[[], Engine], stop: asyncio.Event) -> Engine | None:
        """Wait until this node owns the store and open it; returns None when `stop` is set before.

        Raises Corrupt and Refused when the store can never be opened. After Unavailable other nodes may try first.
        """
        while not stop.is_set():
            if self.ownership.mine:
                try:
                    return await asyncio.to_thread(open_store)
                except (Unavailable, Fenced) as error:
                    _log.error("the store cannot be opened, and is left to others: %s", error)
                    self.give_back()
                    while self.ownership.mine and not stop.is_set():
                        await asyncio.sleep(_POLL_SECONDS)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _POLL_SECONDS)
        return None

    def give_back(self) -> None:
        """Let another node open the store first."""
        self._keeper.give_back()
        self._wake.set()

    def may_write(self) -> bool:
        """Return False as soon as another node may own the store that this node serves."""
        return not self.is_serving or self.ownership.mine

    @property
    def is_over(self) -> bool:
        """True if this node serves a store that it no longer owns."""
        return self.is_serving and not self.ownership.mine

    @property
    def role(self) -> str:
        return OWNER if self.is_serving and self.ownership.mine else FOLLOWER

    @property
    def group(self) -> str:
        return self._records.group

    @property
    def epoch(self) -> int:
        return self.ownership.epoch

    async def status(self) -> Mapping[str, object]:
        """This node's group, and all groups of the store. Raises Unavailable and Corrupt.

        Concurrent calls share one read of the store.
        """
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._read_status())
        return await asyncio.shield(self._reading)

    async def _read_status(self) -> Mapping[str, object]:
        found = await asyncio.to_thread(read_groups, self._records, self._clock)
        if self.group not in found:
            found[self.group] = await asyncio.to_thread(read_status, self._records, self._clock)
        return {
            "node": self._me.name,
            "role": self.role,
            "group": self.group,
            **found[self.group].to_json(),
            "groups": [{"own": name == self.group, **each} for name, each in groups_to_json(found).items()],
        }

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _agree_on_secret(self) -> bytes:
        """Create the group's secret, or read the one that another node created."""
        mine = secrets.token_bytes(_SECRET_BYTES)
        if self._records.create(SECRET, mine):
            return mine
        stored = self._records.get(SECRET)
        if not stored:
            raise Unavailable(f"{self._records.where(SECRET)} is there, but cannot be read")
        return stored

    def _run(self) -> None:
        while not self._is_ending:
            self._guarded(self._keeper.step)
            self._guarded(self._keeper.tidy)
            self._guarded(self._beat)
            if self._wake.wait(max(_LEAST_PAUSE_SECONDS, self._keeper.pause_seconds)):
                self._wake.clear()

    def _guarded(self, step: Callable[[], None]) -> None:
        """Run a step; log the first failure of a row and the recovery."""
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
        """Write this node's presence once per lease, unless a younger process has its name."""
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


def describe(name: str, listen: str, advertise: str, ports: dict[str, int], version: str, now_us: int) -> Node:
    """This node as other nodes see it. `ports` are the open ports by listener; `cluster` is the one for nodes."""
    host = advertise or listen.rpartition(":")[0]
    if host.strip("[]") in _EVERYWHERE:
        host = socket.gethostname()
    listeners = {kind: f"{host}:{port}" for kind, port in ports.items() if kind != FOR_NODES}
    return Node(name, f"{host}:{ports[FOR_NODES]}", version, now_us, listeners)

"""This process's place in the cluster: it waits for its turn, opens the store, and knows when the turn is over."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Mapping
from typing import Final, final

from headrace.admin.site import ClusterStanding
from headrace.clock import Clock
from headrace.cluster.lease import Node, Records
from headrace.cluster.member import Member
from headrace.cluster.status import FOLLOWER, OWNER, Ownership, groups_to_json
from headrace.errors import Fenced, HeadraceError, Unavailable
from headrace.storage.api import Engine

_log: Final = logging.getLogger("headrace.cluster")
_LOOK_SECONDS: Final = 0.05
_LEAST_TIMEOUT_MS: Final = 1000
_EVERYWHERE: Final = ("0.0.0.0", "::", "")
FOR_NODES: Final = "cluster"
"""What the listener for other nodes is called."""


@final
class Membership(ClusterStanding):
    """Made by `take`, before anybody is served; left with `leave`."""

    def __init__(self, member: Member, group: str, lease_ms: int) -> None:
        self._member = member
        self._group = group
        self._reading: asyncio.Task[Mapping[str, object]] | None = None
        self._lease_ms = lease_ms
        self._has_left = False
        self.ownership: Ownership = member.ownership
        self.is_serving = False
        """Whether clients are served by this node: then nothing may leave it once its lease has run out."""

    @staticmethod
    async def take(
        url: str, group: str, me: Node, lease_ms: int, clock: Clock, on_double: Callable[[HeadraceError], None]
    ) -> "Membership":
        """Be a node of a group. Raises Refused and Unavailable.

        `on_double` is told when another process takes part under the same name.
        """
        loop = asyncio.get_running_loop()

        def tell(call: Callable[[], None]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, nobody wants to know
                loop.call_soon_threadsafe(call)

        def join() -> Member:
            records = Records(url, group, max(_LEAST_TIMEOUT_MS, lease_ms // 2))
            return Member(records, me, lease_ms, clock, tell, on_double)

        member = await asyncio.to_thread(join)
        member.start()
        return Membership(member, group, lease_ms)

    async def turn(self, open_store: Callable[[], Engine], stop: asyncio.Event) -> Engine | None:
        """Wait until the store is this node's, and open it; None when `stop` is set before.

        Raises Corrupt and Refused when it cannot be opened at all. When it cannot be opened now, others may try first.
        """
        while not stop.is_set():
            if self.ownership.mine:
                try:
                    return await asyncio.to_thread(open_store)
                except (Unavailable, Fenced) as error:
                    _log.error("the store cannot be opened, and is left to others: %s", error)
                    self._member.give_back()
                    while self.ownership.mine and not stop.is_set():
                        await asyncio.sleep(_LOOK_SECONDS)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _LOOK_SECONDS)
        return None

    def may_write(self) -> bool:
        """Whether what clients are sent is true: not once another node may own the store."""
        return not self.is_serving or self.ownership.mine

    @property
    def is_over(self) -> bool:
        """Whether clients are served though the store is not this node's any more."""
        return self.is_serving and not self.ownership.mine

    @property
    def role(self) -> str:
        return OWNER if self.is_serving and self.ownership.mine else FOLLOWER

    @property
    def group(self) -> str:
        return self._group

    @property
    def epoch(self) -> int:
        return self.ownership.epoch

    async def status(self) -> Mapping[str, object]:
        """How this node's group is, and all others of the store. Raises Unavailable and Corrupt.

        Many who ask at once have the store asked once.
        """
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._read_status())
        return await asyncio.shield(self._reading)

    async def _read_status(self) -> Mapping[str, object]:
        found = await asyncio.to_thread(self._member.groups)
        return {
            "node": self.ownership.me.name,
            "role": self.role,
            "group": self._group,
            **found[self._group].to_json(),
            "groups": [{"own": name == self._group, **each} for name, each in groups_to_json(found).items()],
        }

    async def leave(self) -> None:
        """Leave the cluster, and its store to the next node at once; a store that is away is not waited for long."""
        if self._has_left:
            return
        self._has_left = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(self._member.stop), self._lease_ms / 1000)


def describe(name: str, listen: str, advertise: str, ports: dict[str, int], version: str, now_us: int) -> Node:
    """This node as others are told about it. Its ports are those that are listened on; `cluster` is for the others."""
    host = advertise or listen.rpartition(":")[0]
    if host.strip("[]") in _EVERYWHERE:
        host = socket.gethostname()
    listeners = {kind: f"{host}:{port}" for kind, port in ports.items() if kind != FOR_NODES}
    return Node(name, f"{host}:{ports[FOR_NODES]}", version, now_us, listeners)

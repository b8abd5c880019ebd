"""Status of a cluster: its owner in this node's memory, and all nodes as the store shows them. No broker."""

from collections.abc import Callable, Iterator
from typing import Final, TypeVar, final

from headrace.clock import Clock
from headrace.cluster.lease import (
    EPOCHS,
    HELD,
    LEASES,
    NODES,
    Lease,
    Node,
    Presence,
    Records,
    Takeover,
    decode_lease,
    decode_presence,
    decode_takeover,
    epoch_name,
    lease_name,
    node_name,
    numbers,
)

Changed = Callable[[], None]
_Record = TypeVar("_Record")


@final
class Ownership:
    """The owner of one replication group, in memory. It never waits for the store."""

    def __init__(self, me: Node, secret: bytes, clock: Clock) -> None:
        self.me = me
        self.secret = secret
        """Secret of the group, which proves a node's membership to another."""
        self.owner: Node | None = None
        """The owner; None while there is none or its lease has expired."""
        self.epoch = 0
        """Rises with every change of owner."""
        self._clock = clock
        self._until_us = 0
        self._watchers: list[Changed] = []

    @property
    def mine(self) -> bool:
        """True while this node owns the store; False from the moment its lease expires."""
        return self.owner is self.me and self._clock.monotonic_us() < self._until_us

    def watch(self, changed: Changed) -> None:
        """Call a function after every change of `owner` or `epoch`."""
        self._watchers.append(changed)

    def renewed(self, until_us: int) -> None:
        """Extend this node's ownership, on the monotonic clock."""
        self._until_us = until_us

    def became(self, owner: Node | None, epoch: int, until_us: int = 0) -> None:
        """Set the owner, None for no owner. `until_us` is the end of the lease if the owner is `me`."""
        if until_us:
            self._until_us = until_us
        if owner == self.owner and epoch == self.epoch:
            return
        self.owner, self.epoch = owner, epoch
        for changed in list(self._watchers):
            changed()


OWNER: Final = "owner"
FOLLOWER: Final = "follower"
GONE: Final = "gone"
NONE: Final = "none"
SILENT: Final = "silent"
"""The owner has not renewed its lease in time."""
_BEATS: Final = 3
"""Missed signs of life before a node counts as gone."""
_SHOWN_TAKEOVERS: Final = 10


@final
class Status:
    """A snapshot of the store. Ages compare wall clocks of several machines: for people only."""

    def __init__(self, lease: Lease | None, nodes: list[Presence], takeovers: list[Takeover], now_us: int) -> None:
        self.lease = lease
        self.nodes = nodes
        self.takeovers = takeovers
        """Last takeovers, latest first."""
        self._now_us = now_us

    @property
    def lease_state(self) -> str:
        lease = self.lease
        if lease is None:
            return NONE
        if lease.state == HELD and self._age_ms(lease.at_us) > lease.duration_ms:
            return SILENT
        return lease.state

    @property
    def owner(self) -> str:
        """Name of the owner; "" if there is none."""
        return self.lease.node.name if self.lease is not None and self.lease_state == HELD else ""

    def role(self, presence: Presence) -> str:
        if presence.node.name == self.owner:
            return OWNER
        return GONE if self._age_ms(presence.at_us) > _BEATS * presence.interval_ms else FOLLOWER

    def to_json(self) -> dict[str, object]:
        lease = self.lease
        return {
            "owner": self.owner,
            "epoch": 0 if lease is None else lease.epoch,
            "lease": {
                "state": self.lease_state,
                "number": 0 if lease is None else lease.number,
                "age_ms": 0 if lease is None else self._age_ms(lease.at_us),
                "duration_ms": 0 if lease is None else lease.duration_ms,
            },
            "nodes": [
                {**each.node.to_json(), "role": self.role(each), "seen_ms": self._age_ms(each.at_us)}
                for each in self.nodes
            ],
            "takeovers": [
                {"epoch": each.epoch, "node": each.node.name, "at_us": each.at_us, "cause": each.cause}
                for each in self.takeovers
            ],
        }

    def _age_ms(self, at_us: int) -> int:
        return max(0, self._now_us - at_us) // 1000


def read_status(records: Records, clock: Clock) -> Status:
    """Raises Unavailable and Corrupt."""
    leases = [lease_name(number) for number in reversed(numbers(records.names(LEASES)))]
    lease = next(_read_all(records, leases, decode_lease), None)
    nodes = _read_all(records, [node_name(name) for name in records.names(NODES)], decode_presence)
    epochs = [epoch_name(epoch) for epoch in numbers(records.names(EPOCHS))[-_SHOWN_TAKEOVERS:]]
    takeovers = [*_read_all(records, epochs, decode_takeover)]
    return Status(lease, [*nodes], takeovers[::-1], clock.now_us())


def _read_all(records: Records, names: list[str], decode: Callable[[bytes, str], _Record]) -> Iterator[_Record]:
    """Decode the objects that still exist, one after another."""
    for name in names:
        data = records.get(name)
        if data is not None:
            yield decode(data, records.where(name))


def read_groups(records: Records, clock: Clock) -> dict[str, Status]:
    """Status of all groups, in order. Raises Unavailable and Corrupt."""
    return {group: read_status(records.of(group), clock) for group in records.groups()}


def groups_to_json(found: dict[str, Status]) -> dict[str, dict[str, object]]:
    """Groups as JSON by name, each with its name inside."""
    return {name: {"group": name, **found[name].to_json()} for name in sorted(found)}

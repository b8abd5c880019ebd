"""A lease as it stands in the store: numbered objects of which the highest counts. Who makes them is in keeper.py.

    {URL}/cluster/{group}/lease/{number, 20 digits}    one lease: who has the store, since when, for how long
    {URL}/cluster/{group}/epochs/{epoch, 20 digits}    one takeover: who, when, after what
    {URL}/cluster/{group}/nodes/{name}                 one node, written again and again while it lives
    {URL}/cluster/{group}/secret                       what nodes know each other by

An object is made only where there is none, so of two nodes that want the next number one gets it.
"""

import json
from typing import Final, final

from headrace.cluster.node import Node, read_json
from headrace.errors import Corrupt

VERSION: Final = 1
LEASES: Final = "lease"
EPOCHS: Final = "epochs"
NODES: Final = "nodes"
SECRET: Final = "secret"
_DIGITS: Final = 20

HELD: Final = "held"
RELEASED: Final = "released"
"""The owner went away of its own accord: somebody else may have the store at once."""

# Why a store changed hands.
NEW: Final = "new"
RELEASE: Final = "release"
EXPIRY: Final = "expiry"


def lease_name(number: int) -> str:
    return f"{LEASES}/{number:0{_DIGITS}}"


def epoch_name(epoch: int) -> str:
    return f"{EPOCHS}/{epoch:0{_DIGITS}}"


def node_name(name: str) -> str:
    return f"{NODES}/{name}"


def numbers(names: list[str]) -> list[int]:
    """The numbers among the names of objects, in order; whatever else lies there is not looked at."""
    return [int(name) for name in names if len(name) == _DIGITS and name.isascii() and name.isdecimal()]


@final
class Lease:
    """Who has the store."""

    __slots__ = ("at_us", "duration_ms", "epoch", "node", "number", "state")

    def __init__(self, number: int, epoch: int, node: Node, duration_ms: int, at_us: int, state: str = HELD) -> None:
        self.number = number
        self.epoch = epoch
        """Rises with every owner."""
        self.node = node
        self.duration_ms = duration_ms
        """How long it counts from when it is first seen, unless another follows."""
        self.at_us = at_us
        """When it was made, by its maker's wall clock: for people only."""
        self.state = state

    def encode(self) -> bytes:
        values = {
            "version": VERSION,
            "number": self.number,
            "epoch": self.epoch,
            "state": self.state,
            "duration_ms": self.duration_ms,
            "at_us": self.at_us,
            "node": self.node.to_json(),
        }
        return json.dumps(values).encode()


def decode_lease(data: bytes, where: str) -> Lease:
    """Raises Corrupt."""
    values = read_json(data, where)
    number, epoch, duration_ms, at_us = (
        _number(values, key, where) for key in ("number", "epoch", "duration_ms", "at_us")
    )
    state = values.get("state")
    if state not in (HELD, RELEASED):
        raise Corrupt(where, 0, f"state is {state!r}, neither {HELD} nor {RELEASED}")
    return Lease(number, epoch, Node.from_json(values.get("node"), where), duration_ms, at_us, str(state))


@final
class Takeover:
    """How the store came to an owner."""

    __slots__ = ("at_us", "cause", "epoch", "node")

    def __init__(self, epoch: int, node: Node, at_us: int, cause: str) -> None:
        self.epoch = epoch
        self.node = node
        self.at_us = at_us
        self.cause = cause

    def encode(self) -> bytes:
        values = {
            "version": VERSION,
            "epoch": self.epoch,
            "at_us": self.at_us,
            "cause": self.cause,
            "node": self.node.to_json(),
        }
        return json.dumps(values).encode()


def decode_takeover(data: bytes, where: str) -> Takeover:
    """Raises Corrupt."""
    values = read_json(data, where)
    epoch, at_us = _number(values, "epoch", where), _number(values, "at_us", where)
    return Takeover(epoch, Node.from_json(values.get("node"), where), at_us, str(values.get("cause")))


@final
class Presence:
    """A node that said lately that it lives."""

    __slots__ = ("at_us", "interval_ms", "node")

    def __init__(self, node: Node, at_us: int, interval_ms: int) -> None:
        self.node = node
        self.at_us = at_us
        self.interval_ms = interval_ms
        """How often it says so."""

    def encode(self) -> bytes:
        values = {
            "version": VERSION,
            "at_us": self.at_us,
            "interval_ms": self.interval_ms,
            "node": self.node.to_json(),
        }
        return json.dumps(values).encode()


def decode_presence(data: bytes, where: str) -> Presence:
    """Raises Corrupt."""
    values = read_json(data, where)
    at_us, interval_ms = _number(values, "at_us", where), _number(values, "interval_ms", where)
    return Presence(Node.from_json(values.get("node"), where), at_us, interval_ms)


def _number(values: dict[str, object], key: str, where: str) -> int:
    """Raises Corrupt also for a version that is not ours."""
    if values.get("version") != VERSION:
        raise Corrupt(where, 0, f"version {values.get('version')!r}; this release reads version {VERSION}")
    value = values.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Corrupt(where, 0, f"{key} is {value!r}, not a number")
    return value

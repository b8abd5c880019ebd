"""Leases and nodes as objects in the store, numbered or overwritten. lease_keeper.py takes and renews leases.

    {URL}/cluster/{group}/lease/{number, 20 digits}    one lease: owner, start, duration
    {URL}/cluster/{group}/epochs/{epoch, 20 digits}    one takeover: owner, time, cause
    {URL}/cluster/{group}/nodes/{name}                 one node, rewritten while it lives
    {URL}/cluster/{group}/secret                       shared secret of the nodes

A conditional write creates each object, so of two nodes that want the next number one gets it.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict, dataclass, field
from typing import Final, final
from urllib.parse import urlsplit
from uuid import uuid4

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError

from headrace.config.replication import is_name
from headrace.errors import Corrupt, Refused, Unavailable
from headrace.storage.objects.location import VARIABLES, folders, groups_in, open_bucket


@dataclass(frozen=True)
class Node:
    """One broker process: its name and its addresses."""

    name: str
    address: str
    """Address for other nodes, as host:port."""
    version: str
    started_us: int
    listeners: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Addresses for clients, as host:port, by listener: amqp, amqps, mqtt, mqtts, ws, http, https, coap."""

    def __repr__(self) -> str:
        return f"Node({self.name!r} at {self.address})"

    @property
    def internal(self) -> tuple[str, int]:
        """Host and port for other nodes."""
        host, _, port = self.address.rpartition(":")
        return host.strip("[]"), int(port)

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @staticmethod
    def from_json(values: object, where: str) -> "Node":
        """Raises Corrupt, naming the object `where`."""
        if not isinstance(values, dict):
            raise Corrupt(where, 0, "a node is a JSON object")
        name, address, version = values.get("name"), values.get("address"), values.get("version")
        started_us, listeners = values.get("started_us"), values.get("listeners", {})
        if not (isinstance(name, str) and isinstance(address, str) and isinstance(version, str)):
            raise Corrupt(where, 0, "a node has name, address and version, as texts")
        if not isinstance(started_us, int) or not isinstance(listeners, dict):
            raise Corrupt(where, 0, "a node has the number started_us, and listeners by name")
        host, colon, port = address.rpartition(":")
        if not (host and colon and port.isascii() and port.isdecimal() and int(port) < 65_536):
            raise Corrupt(where, 0, f"{address!r} is not host:port")
        return Node(name, address, version, started_us, {str(key): str(value) for key, value in listeners.items()})


def read_json(data: bytes, where: str) -> dict[str, object]:
    """Raises Corrupt unless the bytes are a JSON object."""
    try:
        values = json.loads(data)
    except ValueError as error:
        raise Corrupt(where, 0, f"not JSON: {error}") from error
    if not isinstance(values, dict):
        raise Corrupt(where, 0, "not a JSON object")
    return values


_ROOM: Final = "cluster"
SCHEMES: Final = (*VARIABLES, "file")


@final
class Records:
    """The objects of one replication group. Every call waits for the store, up to the timeout.

    All calls raise Unavailable when the store fails.
    """

    def __init__(self, url: str, group: str, timeout_ms: int, create: bool = True) -> None:
        """With `create`, make a missing directory.

        Raises Refused unless nodes can share a store of this URL.
        """
        scheme = urlsplit(url).scheme
        if scheme == "memory":
            raise Refused(f"the nodes of a cluster share a store, and {url} is this process's alone; use another")
        if scheme not in SCHEMES:
            raise Refused(f"{url!r} is not the URL of a store: it begins with {', '.join(f'{s}://' for s in SCHEMES)}")
        self.url = url.rstrip("/")
        self._enter(group)
        with self._translated("opening"):
            self._store = open_bucket(self.url, timeout_ms, create)

    def _enter(self, group: str) -> None:
        self.group = group
        self._folder = f"{_ROOM}/{group}"
        self._place = f"{self.url}/{self._folder}"

    def of(self, group: str) -> "Records":
        """The objects of another group of the same store."""
        other = copy(self)
        other._enter(group)
        return other

    def groups(self) -> list[str]:
        """All groups of the store, in order: those with a database and those with a node."""
        with self._translated("reading"):
            started = [name for name in folders(self._store, _ROOM) if is_name(name)]
            return sorted({*started, *groups_in(self._store)})

    def create(self, name: str, data: bytes) -> bool:
        """Create an object; False if one of this name holds other bytes.

        The bytes must be unique: a store may write them and lose its answer.
        """
        with self._translated("writing"):
            try:
                obstore.put(self._store, self._path(name), data, mode="create")
            except AlreadyExistsError:
                return self.get(name) == data
            return True

    def put(self, name: str, data: bytes) -> None:
        """Write or overwrite an object."""
        with self._translated("writing"):
            obstore.put(self._store, self._path(name), data)

    def get(self, name: str) -> bytes | None:
        with self._translated("reading"):
            try:
                return bytes(obstore.get(self._store, self._path(name)).bytes())
            except (FileNotFoundError, NotFoundError):
                return None

    def names(self, folder: str) -> list[str]:
        """Names of all objects in a folder, without the folder, in order."""
        prefix = self._path(folder) + "/"
        with self._translated("reading"):
            found = [meta["path"] for batch in obstore.list(self._store, prefix) for meta in batch]
        return sorted(path[path.rindex("/") + 1 :] for path in found)

    def delete(self, name: str) -> None:
        """Remove an object, if it exists."""
        with self._translated("deleting"):
            try:
                obstore.delete(self._store, self._path(name))
            except (FileNotFoundError, NotFoundError):
                return

    def where(self, name: str) -> str:
        """Name of an object for messages."""
        return f"{self._place}/{name}"

    def prove_creation(self) -> None:
        """Raise Unavailable unless the store refuses to create an object twice: otherwise two nodes could own it."""
        name = f"probe-{uuid4().hex}"  # in no folder of its own, because directories stay
        first = self.create(name, b"first")
        second = self.create(name, b"second")
        self.delete(name)
        if not first or second:
            raise Unavailable(
                f"the store {self.url} does not honour conditional writes (if there is nothing yet), so nothing would "
                f"keep two nodes from owning it at once; use a store that does"
            )

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise Unavailable(f"{doing} in {self._place} failed: {reason}") from error


VERSION: Final = 1
LEASES: Final = "lease"
EPOCHS: Final = "epochs"
NODES: Final = "nodes"
SECRET: Final = "secret"
_DIGITS: Final = 20

HELD: Final = "held"
RELEASED: Final = "released"
"""The owner released the store; another node may take it at once."""

# Causes of a takeover.
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
    """Numbers among the names of objects, in order; other names are ignored."""
    return [int(name) for name in names if len(name) == _DIGITS and name.isascii() and name.isdecimal()]


class _Record:
    """An object of the store: the fields of its class in JSON, with a version."""

    node: Node

    def encode(self) -> bytes:
        return json.dumps({"version": VERSION, **vars(self), "node": self.node.to_json()}).encode()


@dataclass(frozen=True)
class Lease(_Record):
    """Ownership of the store for a while."""

    number: int
    epoch: int
    """Rises with every owner."""
    node: Node
    duration_ms: int
    """Validity from the first sight of it, unless another lease follows."""
    at_us: int
    """Time of writing, by the writer's wall clock: for people only."""
    state: str = HELD


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


@dataclass(frozen=True)
class Takeover(_Record):
    """A change of owner."""

    epoch: int
    node: Node
    at_us: int
    cause: str


def decode_takeover(data: bytes, where: str) -> Takeover:
    """Raises Corrupt."""
    values = read_json(data, where)
    epoch, at_us = _number(values, "epoch", where), _number(values, "at_us", where)
    return Takeover(epoch, Node.from_json(values.get("node"), where), at_us, str(values.get("cause")))


@dataclass(frozen=True)
class Presence(_Record):
    """A node's last sign of life."""

    node: Node
    at_us: int
    interval_ms: int
    """Interval between two signs of life."""


def decode_presence(data: bytes, where: str) -> Presence:
    """Raises Corrupt."""
    values = read_json(data, where)
    at_us, interval_ms = _number(values, "at_us", where), _number(values, "interval_ms", where)
    return Presence(Node.from_json(values.get("node"), where), at_us, interval_ms)


def _number(values: dict[str, object], key: str, where: str) -> int:
    """Raises Corrupt, also for an unknown version."""
    if values.get("version") != VERSION:
        raise Corrupt(where, 0, f"version {values.get('version')!r}; this release reads version {VERSION}")
    value = values.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Corrupt(where, 0, f"{key} is {value!r}, not a number")
    return value

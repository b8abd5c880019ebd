"""The state that all connections share: virtual hosts, connected containers, durable sources. No frames.

A durable source is stored as keyed state, so that a receiver finds it again by the name of its link. A key is the
letter `s`, then the container id and the link's name, each behind its length (u32, big-endian). A value is the version
1, then an AMQP list of the source, its queue and its group. docs/formats/termini.md has the bytes.
"""

import logging
from collections.abc import Callable
from typing import Final, final

from headrace.clock import Clock
from headrace.core.access.access import Access
from headrace.core.broker import Broker
from headrace.core.hosts import Hosts
from headrace.core.ledger import ProtocolStore
from headrace.errors import ProtocolError
from headrace.protocols import server as protocols
from headrace.protocols.amqp10.frames import CONTAINER_IN_USE, RESOURCE_LIMIT
from headrace.protocols.amqp10.performatives import NEVER, Source, source_of
from headrace.wire.amqp10_values import Reader, encode_value
from headrace.wire.types import Described

_log: Final = logging.getLogger("headrace.amqp10")
_VERSION: Final = b"\x01"
_SOURCE: Final = b"s"
_FORMER_KEYS: Final = (b"t", b"d")
"""Keys of targets and delivery tags: earlier versions, which resumed deliveries, stored them."""
_MAX_STORED: Final = 4096
_MAX_NAME_BYTES: Final = 512
_MAX_VALUE_BYTES: Final = 16 << 10

Key = tuple[str, str]
"""A container's id and a link's name."""
Place = tuple[str, str]
"""A queue and a group."""


@final
class Containers:
    """The connections of each container id. Sole Connection for Container: the second is refused, the first stays."""

    __slots__ = ("_counts", "_sole")

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._sole: set[str] = set()

    def enter(self, container_id: str, is_sole: bool) -> None:
        """Count one more connection. Raises ProtocolError (container in use) if it or the first wants to be alone."""
        count = self._counts.get(container_id, 0)
        if count and (is_sole or container_id in self._sole):
            raise ProtocolError(CONTAINER_IN_USE, f"the container id {container_id[:64]!r} is in use")
        self._counts[container_id] = count + 1
        if is_sole:
            self._sole.add(container_id)

    def leave(self, container_id: str) -> None:
        """Count one connection less."""
        count = self._counts.pop(container_id) - 1
        if count:
            self._counts[container_id] = count
        else:
            self._sole.discard(container_id)


@final
class DurableSources:
    """The durable sources of one virtual host, and the attached links whose sources outlive their connections."""

    def __init__(self, clock: Clock, store: ProtocolStore) -> None:
        self._clock = clock
        self._store = store
        self._sources: dict[Key, Source] = {}
        self._expiry_us: dict[Key, int] = {}
        """The time at which a detached source expires."""
        self._steal: dict[Key, Callable[[], None]] = {}
        """Detaches the link of a lasting source, so that another connection can take its name."""
        for key, value in store.items():
            self._load(key, value)

    def find(self, key: Key) -> Source | None:
        return self._sources.get(key)

    def make_way(self, key: Key) -> None:
        """Detach the link that has this name, before another one is attached."""
        steal = self._steal.pop(key, None)
        if steal is not None:
            steal()

    def attached(self, key: Key, source: Source, place: Place | None, steal: Callable[[], None]) -> None:
        """Store the source of a link, or delete the former one if there is no place. Raises ProtocolError."""
        if place is None:
            self.forget(key)
        else:
            self._put(key, source, place)
        self._expiry_us.pop(key, None)
        if source.lasts:
            self._steal[key] = steal

    def _put(self, key: Key, source: Source, place: Place) -> None:
        raw_key, raw = _encode_key(key), _VERSION + encode_value([source.described(), *place])
        if len(raw_key) > _MAX_NAME_BYTES or len(raw) > _MAX_VALUE_BYTES:
            raise ProtocolError(
                RESOURCE_LIMIT,
                f"a durable terminus may have {_MAX_NAME_BYTES} bytes of names and {_MAX_VALUE_BYTES} of its own",
            )
        if key not in self._sources and len(self._sources) >= _MAX_STORED:
            raise ProtocolError(RESOURCE_LIMIT, f"{_MAX_STORED} durable termini are kept already")
        self._sources[key] = source
        self._store.put(raw_key, raw)

    def detached(self, key: Key) -> None:
        """Let the source expire as its timeout says, counted from the detach for all expiry policies."""
        self._steal.pop(key, None)
        source = self._sources.get(key)
        if source is not None and source.expiry_policy != NEVER:
            self._expiry_us[key] = self._clock.now_us() + source.timeout * 1_000_000

    def forget(self, key: Key) -> None:
        """Delete the source: its link was closed, or has another source now."""
        self._steal.pop(key, None)
        self._expiry_us.pop(key, None)
        if self._sources.pop(key, None) is not None:
            self._store.delete(_encode_key(key))

    def sweep(self) -> None:
        """Delete expired sources."""
        now_us = self._clock.now_us()
        for key in [key for key, at_us in self._expiry_us.items() if at_us <= now_us]:
            self.forget(key)

    def _load(self, raw_key: bytes, value: bytes) -> None:
        """Read one entry. A source that cannot be read is left out, and the log tells of it."""
        try:
            if raw_key[:1] in _FORMER_KEYS:
                self._store.delete(raw_key)
                return
            key = _decode_key(raw_key)
            self._sources[key] = _decode_source(value)
            self.detached(key)
        except (ValueError, IndexError, ProtocolError) as error:
            _log.error("a kept terminus is left out: %r: %s", raw_key, error)


def _encode_key(key: Key) -> bytes:
    return _SOURCE + b"".join([len(name.encode()).to_bytes(4) + name.encode() for name in key])


def _decode_key(raw: bytes) -> Key:
    """Raises ValueError."""
    if raw[:1] != _SOURCE:
        raise ValueError("it is no source")
    at = 1
    names: list[str] = []
    for _ in range(2):
        end = at + 4 + int.from_bytes(raw[at : at + 4])
        if end > len(raw):
            raise ValueError("the key is cut short")
        names.append(raw[at + 4 : end].decode())
        at = end
    return names[0], names[1]


def _decode_source(value: bytes) -> Source:
    """Raises ValueError, ProtocolError."""
    if value[:1] != _VERSION:
        raise ValueError(f"the version {value[:1].hex()} is not known")
    found = Reader(value[1:]).value()
    described = found[0] if isinstance(found, list) and len(found) == 3 else None
    source = source_of(described if isinstance(described, Described) else None)
    if source is None:
        raise ValueError("it is no source")
    return source


@final
class Host:
    """A virtual host as this protocol sees it: its broker, connected containers and durable sources."""

    __slots__ = ("broker", "containers", "name", "sources")

    def __init__(self, name: str, broker: Broker, clock: Clock) -> None:
        self.name = name
        self.broker = broker
        self.containers = Containers()
        self.sources = DurableSources(clock, broker.protocol_store)


@final
class Server(protocols.Server):
    """The state that all connections share."""

    __slots__ = ("_clock", "_met")

    def __init__(self, hosts: Hosts, access: Access, clock: Clock, version: str) -> None:
        super().__init__(hosts, access, version)
        self._clock = clock
        self._met: dict[str, Host] = {}
        for name in hosts.names():
            self.find_host(name)  # durable sources expire from now on

    def find_host(self, name: str) -> Host | None:
        """Return the virtual host of that name, None if there is none."""
        broker = self._hosts.find(name)
        if broker is None:
            return None
        host = self._met.get(name)
        if host is None or host.broker is not broker:
            host = self._met[name] = Host(name, broker, self._clock)
        return host

    def tick(self) -> None:
        """Delete durable sources whose time is over."""
        for host in self._met.values():
            host.sources.sweep()

"""Termini that outlive the broker's process, and delivery tags with them, as keyed state. When they end: suspended.py.

A key is a letter, the container id with its length (u32, big-endian) before it, and the link's name the same way:

    s  the source of a link to a receiver: the version 1, then an AMQP list of the source, its queue and its group
    t  the target of a link from a sender: the version 1, then the target
    d  and a delivery tag behind: a message that was accepted on such a link, and that its sender has not settled
"""

import logging
from typing import TYPE_CHECKING, Final, final

from headrace.errors import ProtocolError
from headrace.protocols.amqp10.frames import RESOURCE_LIMIT
from headrace.protocols.amqp10.reading import Reader
from headrace.protocols.amqp10.termini import Source, Target, source_of, target_of
from headrace.protocols.amqp10.types import Described
from headrace.protocols.amqp10.writing import encode_value

if TYPE_CHECKING:
    from headrace.core.kept import Kept

_log: Final = logging.getLogger("headrace.amqp10")
_VERSION: Final = b"\x01"
_SOURCE: Final = b"s"
_TARGET: Final = b"t"
_TAG: Final = b"d"
_MAX_STORED: Final = 4096
_MAX_NAME_BYTES: Final = 512
_MAX_VALUE_BYTES: Final = 16 << 10

Key = tuple[str, str]
"""A container's id and a link's name."""


@final
class StoredSource:
    """A source, and whose messages its receiver held."""

    __slots__ = ("group", "queue", "source")

    def __init__(self, source: Source, queue: str, group: str) -> None:
        self.source = source
        self.queue = queue
        self.group = group


@final
class StoredTarget:
    """A target, and the tags of what was accepted for it."""

    __slots__ = ("tags", "target")

    def __init__(self, target: Target) -> None:
        self.target = target
        self.tags: list[bytes] = []


@final
class TerminusStore:
    """The termini of one virtual host; so many and so large at most."""

    def __init__(self, kept: "Kept") -> None:
        self._kept = kept
        self._keys: set[bytes] = set()
        """The termini that are stored, for their number."""
        self.sources: dict[Key, StoredSource] = {}
        """Those that were there at the start; whoever restores them takes them out."""
        self.targets: dict[Key, StoredTarget] = {}
        self._load()

    def put_source(self, key: Key, stored: StoredSource) -> None:
        """Raises ProtocolError (resource limit)."""
        self._put(_SOURCE + _encode_key(key), [stored.source.described(), stored.queue, stored.group])

    def put_target(self, key: Key, target: Target) -> None:
        """Raises ProtocolError (resource limit)."""
        self._put(_TARGET + _encode_key(key), target.described())

    def delete_source(self, key: Key) -> None:
        self._delete(_SOURCE + _encode_key(key))

    def delete_target(self, key: Key) -> None:
        """Tags are the caller's to forget."""
        self._delete(_TARGET + _encode_key(key))

    def accept(self, key: Key, tag: bytes) -> None:
        """The message that was just published is the one of this tag: that is stored if the message is."""
        self._kept.prove(_TAG + _encode_key(key) + tag)

    def forget(self, key: Key, tag: bytes) -> None:
        """Nobody will ask for this tag again."""
        self._kept.delete(_TAG + _encode_key(key) + tag)

    def _put(self, key: bytes, value: object) -> None:
        raw = _VERSION + encode_value(value)
        if len(key) > _MAX_NAME_BYTES or len(raw) > _MAX_VALUE_BYTES:
            raise ProtocolError(
                RESOURCE_LIMIT,
                f"a durable terminus may have {_MAX_NAME_BYTES} bytes of names and {_MAX_VALUE_BYTES} of its own",
            )
        if key not in self._keys and len(self._keys) >= _MAX_STORED:
            raise ProtocolError(RESOURCE_LIMIT, f"{_MAX_STORED} durable termini are kept already")
        self._keys.add(key)
        self._kept.put(key, raw)

    def _delete(self, key: bytes) -> None:
        if key in self._keys:
            self._keys.discard(key)
            self._kept.delete(key)

    def _load(self) -> None:
        """What cannot be read is left out, and the log says so."""
        for key, value in sorted(self._kept.items(), key=lambda item: item[0][:1] == _TAG):
            try:
                self._read(key, value)
            except (ValueError, IndexError, ProtocolError) as error:
                _log.error("a kept terminus is left out: %r: %s", key, error)

    def _read(self, raw: bytes, value: bytes) -> None:
        kind, key, rest = _decode_key(raw)
        if kind == _TAG:
            if key in self.targets:
                self.targets[key].tags.append(rest)
            else:
                self._kept.delete(raw)  # its terminus is gone
            return
        if value[:1] != _VERSION or kind not in (_SOURCE, _TARGET):
            raise ValueError(f"the version {value[:1].hex()} is not known")
        self._keys.add(raw)
        found = Reader(value[1:]).value()
        if kind == _TARGET:
            target = target_of(found if isinstance(found, Described) else None)
            if not isinstance(target, Target):
                raise ValueError("it is no target")
            self.targets[key] = StoredTarget(target)
        else:
            self.sources[key] = _stored_source(found)


def _stored_source(found: object) -> StoredSource:
    described, queue, group = found if isinstance(found, list) and len(found) == 3 else (None, "", "")
    source = source_of(described if isinstance(described, Described) else None)
    if source is None:
        raise ValueError("it is no source")
    return StoredSource(source, str(queue), str(group))


def _encode_key(key: Key) -> bytes:
    return b"".join([len(name.encode()).to_bytes(4) + name.encode() for name in key])


def _decode_key(raw: bytes) -> tuple[bytes, Key, bytes]:
    """The letter, the key, and what is behind it. Raises ValueError."""
    at = 1
    names: list[str] = []
    for _ in range(2):
        end = at + 4 + int.from_bytes(raw[at : at + 4])
        if end > len(raw):
            raise ValueError("the key is cut short")
        names.append(raw[at + 4 : end].decode())
        at = end
    return raw[:1], (names[0], names[1]), raw[at:]

"""The options of `.option(...)`, read and checked; an error says exactly what is wrong. No I/O.

`Values` reads single values; everything else here is about options.
"""

import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, final
from urllib.parse import unquote, urlsplit

from headrace.config.replication import MAIN, is_name, meant
from headrace.errors import Refused

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

DEFAULT_PARTITION_BYTES: Final = 128 << 20
DEFAULT_LEASE_SECONDS: Final = 60
LOG_MODE: Final = "log"
WORK_MODE: Final = "work"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

_STORES: Final = ("s3", "gs", "az")
"""Stores that other processes than the broker can read, besides directories."""

_COMMON: Final = ("url", "vhost", "user", "password", "path", "paths")
_READ: Final = (
    *_COMMON,
    "startingOffsets",
    "endingOffsets",
    "includeHeaders",
    "minPartitions",
    "maxBytesPerPartition",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "failOnDataLoss",
    "consumerGroup",
    "group",
    "mode",
    "leaseSeconds",
    "claim",
)
_NOT_FOR_WORK: Final = ("startingOffsets", "endingOffsets", "maxBytesPerTrigger", "failOnDataLoss")
_ONLY_FOR_WORK: Final = ("leaseSeconds", "claim")
_WRITE: Final = (*_COMMON, "exchange", "topic", "transactionId", "replaceBefore")
_SPARK: Final = frozenset({"checkpointlocation", "queryname", "outputmode"})
"""Options that Spark itself adds."""


@dataclass(frozen=True)
class Server:
    """A broker's HTTP address and the login."""

    host: str
    port: int
    tls: bool
    user: str
    password: str
    vhost: str


@dataclass(frozen=True)
class Position:
    """Start or end of a read: earliest, latest, an offset, or a time in microseconds."""

    word: str = ""
    offset: int = -1
    time_us: int = -1


@dataclass(frozen=True)
class ReadOptions:
    """The options of a read. `server` is None when a directory or a store is read without a broker."""

    server: Server | None
    directory: str
    """A data directory, or the directory of a store; its files tell which."""
    store: str
    """The URL of a store with another scheme than file."""
    vhost: str
    queues: tuple[str, ...]
    starting: Position
    ending: Position
    include_headers: bool
    min_partitions: int
    partition_bytes: int
    trigger_offsets: int
    trigger_bytes: int
    fail_on_data_loss: bool
    consumer_group: str
    is_work: bool = False
    """True if messages are claimed from the group and acknowledged, instead of read from the log."""
    lease_seconds: int = 0
    claim: str = ""
    """The claim that a batch reads, as JSON."""
    replication_group: str = MAIN
    """The group of a store to read."""


@dataclass(frozen=True)
class WriteOptions:
    """The options of a write. One of queue, exchange and topic is the target; the others are None."""

    server: Server
    queue: str | None
    exchange: str | None
    topic: str | None
    transaction_id: str
    replace_before: int = -1
    """The write replaces the messages of the queue below this offset; -1 for none."""


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Read the options of a read. Raises Refused when one is unknown, missing or invalid."""
    values = Values(given, _READ)
    server, directory, store = _place(values)
    group = values.get("consumerGroup", "")
    is_work = values.choice("mode", (LOG_MODE, WORK_MODE)) == WORK_MODE
    if server is None and (group or is_work):
        raise Refused(
            f"option {'mode=work' if is_work else 'consumerGroup'} needs a broker: a data directory or a store is "
            f"only read. "
            f"Set url to the broker's HTTP address, such as http://localhost:15672"
        )
    replication_group = values.get("group", "")
    if replication_group and server is not None:
        raise Refused("option group is for stores: a broker serves one group, that of its address; leave it out")
    if not is_name(replication_group):
        raise Refused(f"option group is {replication_group!r}; a group's name has letters, digits, - and _ only")
    for name in _NOT_FOR_WORK if is_work else _ONLY_FOR_WORK:
        if name in values:
            raise Refused(f"option {name} means nothing {'with' if is_work else 'without'} mode=work; leave it out")
    return ReadOptions(
        server,
        directory,
        store,
        values.get("vhost", "/"),
        _queues(values),
        values.position("startingOffsets", EARLIEST),
        values.position("endingOffsets", LATEST),
        values.truth("includeHeaders", False),
        values.number("minPartitions", 1),
        values.size("maxBytesPerPartition", DEFAULT_PARTITION_BYTES),
        values.number("maxOffsetsPerTrigger", 0),
        values.size("maxBytesPerTrigger", 0),
        values.truth("failOnDataLoss", True),
        group,
        is_work,
        values.number("leaseSeconds", DEFAULT_LEASE_SECONDS),
        values.get("claim", ""),
        meant(replication_group),
    )


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Read the options of a write. Raises Refused when one is unknown, missing or invalid."""
    values = Values(given, _WRITE)
    server, directory, store = _place(values)
    if server is None:
        raise Refused(
            f"{directory or store} cannot be written to directly: messages go through a broker. "
            f"Set option url to its HTTP address, such as http://localhost:15672"
        )
    targets = [values.get(name, "") if name in values else None for name in ("path", "exchange", "topic")]
    if sum(target is not None for target in targets) != 1:
        raise Refused(
            'say where to write, once: a queue with .save("orders") or .start("orders"), '
            'or option("exchange", ...), or option("topic", ...)'
        )
    queue, exchange, topic = targets
    before = values.offset("replaceBefore")
    if before >= 0 and queue is None:
        raise Refused("option replaceBefore is for one stream: name it with .save(...)")
    return WriteOptions(server, queue, exchange, topic, values.get("transactionId", ""), before)


def _place(values: "Values") -> tuple[Server | None, str, str]:
    """Return a broker, a directory, or the URL of a store."""
    url = values.get("url", os.environ.get("HEADRACE_URL", ""))
    if not url:
        raise Refused(
            "option url is missing: http://host:15672 for a broker, the path of a data directory, "
            "or the URL of a store (the environment variable HEADRACE_URL serves as a default)"
        )
    parts = urlsplit(url)
    if parts.scheme in ("http", "https"):
        try:
            port = parts.port or (15671 if parts.scheme == "https" else 15672)
        except ValueError as error:
            raise Refused(f"option url {_without_password(url)!r} has no valid port: {error}") from error
        user = values.get("user", "") or unquote(parts.username or "guest")
        password = values.get("password", "") or unquote(parts.password or "guest")
        if not parts.hostname:
            raise Refused(f"option url {_without_password(url)!r} names no host")
        server = Server(parts.hostname, port, parts.scheme == "https", user, password, values.get("vhost", "/"))
        return server, "", ""
    if parts.scheme == "file":
        return None, unquote(parts.path), ""
    if parts.scheme in _STORES:
        return None, "", url
    if parts.scheme and "://" in url:
        raise Refused(
            f"option url {_without_password(url)!r}: {parts.scheme}:// cannot be read; use http:// or https:// for a "
            f"broker, file:// or a path for a data directory, or s3://, gs:// or az:// for a store"
        )
    return None, url, ""


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return url.replace(f":{parts.password}@", ":***@") if parts.password else url


def _queues(values: "Values") -> tuple[str, ...]:
    if "paths" in values:
        names = [str(name) for name in json.loads(values.get("paths", ""))]
    else:
        names = [name.strip() for name in values.get("path", "").split(",")]
    names = [name for name in names if name]
    if not names:
        raise Refused('name the queues to read: .load("orders"), .load("orders,returns") or .load("sensor-*")')
    return tuple(dict.fromkeys(names))


@final
class Values:
    """Options as texts, read as types. Every method raises Refused for a text that is no such value."""

    def __init__(self, given: Mapping[str, str], allowed: tuple[str, ...]) -> None:
        """Raises Refused for an option that is not allowed. Spark makes no difference between cases."""
        known = {name.lower(): name for name in allowed}
        self._texts = {name.lower(): text for name, text in given.items() if name.lower() not in _SPARK}
        for name in self._texts:
            if name not in known:
                close = difflib.get_close_matches(name, known, 1)
                advice = f"did you mean {known[close[0]]}?" if close else f"there are: {', '.join(sorted(allowed))}"
                raise Refused(f"there is no option {name!r}; {advice}")

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._texts

    def get(self, name: str, default: str) -> str:
        return self._texts.get(name.lower(), default)

    def truth(self, name: str, default: bool) -> bool:
        text = self.get(name, str(default)).lower()
        if text not in ("true", "false"):
            raise Refused(f"option {name} is {text!r}; it may be true or false")
        return text == "true"

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of the choices; the first is the default."""
        text = self.get(name, choices[0])
        if text not in choices:
            raise Refused(f"option {name} is {text!r}; it may be {' or '.join(choices)}")
        return text

    def offset(self, name: str) -> int:
        """Return an offset; -1 without the option."""
        text = self.get(name, "")
        if text and not _is_number(text):
            raise Refused(f"option {name} is {text!r}; it must be an offset such as 4200")
        return int(text) if text else -1

    def number(self, name: str, default: int) -> int:
        if name not in self:
            return default
        text = self.get(name, "")
        if not _is_number(text) or not int(text):
            raise Refused(f"option {name} is {text!r}; it must be a whole number of at least 1")
        return int(text)

    def size(self, name: str, default: int) -> int:
        if name not in self:
            return default
        text = self.get(name, "")
        number = text.lower().rstrip("bkmg")
        unit = text.lower()[len(number) :]
        factor = _UNITS.get(unit[:1]) if len(unit) < 2 or unit[1:] == "b" else None
        if factor is None or not (_is_number(number, 15) and int(number)):
            raise Refused(f"option {name} is {text!r}; it must be a size such as 33554432, 32m or 1g")
        return int(number) * factor

    def position(self, name: str, default: str) -> Position:
        text = self.get(name, default).strip()
        if text.lower() in (EARLIEST, LATEST):
            return Position(word=text.lower())
        if text.isascii() and text.isdecimal():
            if not _is_number(text):
                raise Refused(f"option {name} is {text}: no offset is that large")
            return Position(offset=int(text))
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            raise Refused(
                f"option {name} is {text!r}; it may be earliest, latest, an offset such as 4200, "
                f"or a time such as 2026-01-31T12:00:00Z"
            ) from None
        aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        return Position(time_us=(aware - _EPOCH) // timedelta(microseconds=1))


def _is_number(text: str, most_digits: int = 18) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= most_digits

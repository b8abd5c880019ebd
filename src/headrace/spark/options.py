"""What `.option(...)` may say, read and checked. Says exactly what is wrong with what it may not say. No I/O."""

import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
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
"""Stores that other processes than the broker's can read, besides directories."""

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
"""What Spark itself puts among the options."""


@dataclass(frozen=True)
class Server:
    """A broker's HTTP address and who asks."""

    host: str
    port: int
    tls: bool
    user: str
    password: str
    vhost: str


@dataclass(frozen=True)
class Position:
    """Where reading starts or ends: earliest, latest, an offset, or a time in microseconds."""

    word: str = ""
    offset: int = -1
    time_us: int = -1


@dataclass(frozen=True)
class ReadOptions:
    """What a read was asked for. `server` is None when a directory or a store is read without a broker."""

    server: Server | None
    directory: str
    """A data directory, or the directory of a store: what is there tells which."""
    store: str
    """The URL of a store, where it can be nothing else."""
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
    """Whether messages are claimed from the group and acknowledged, rather than read from the log."""
    lease_seconds: int = 0
    claim: str = ""
    """What a batch reads of claimed messages, as JSON."""
    replication_group: str = MAIN
    """Which of a store's groups is read."""


@dataclass(frozen=True)
class WriteOptions:
    """What a write was asked for: to one of a queue, an exchange or a topic; the others are None."""

    server: Server
    queue: str | None
    exchange: str | None
    topic: str | None
    transaction_id: str
    replace_before: int = -1
    """All that the queue has below this offset gives way to what is written; -1 for nothing."""


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Raises Refused when an option is unknown, missing, or makes no sense."""
    options = _checked(given, _READ)
    server, directory, store = _place(options)
    group = options.get("consumergroup", "")
    is_work = _choice(options, "mode", (LOG_MODE, WORK_MODE)) == WORK_MODE
    if server is None and (group or is_work):
        raise Refused(
            f"option {'mode=work' if is_work else 'consumerGroup'} needs a broker: a data directory or a store is "
            f"only read. "
            f"Set url to the broker's HTTP address, such as http://localhost:15672"
        )
    replication_group = options.get("group", "")
    if replication_group and server is not None:
        raise Refused("option group is for stores: a broker serves one group, that of its address; leave it out")
    if not is_name(replication_group):
        raise Refused(f"option group is {replication_group!r}; a group's name has letters, digits, - and _ only")
    for name in _NOT_FOR_WORK if is_work else _ONLY_FOR_WORK:
        if name.lower() in options:
            raise Refused(f"option {name} means nothing {'with' if is_work else 'without'} mode=work; leave it out")
    return ReadOptions(
        server,
        directory,
        store,
        options.get("vhost", "/"),
        _queues(options),
        _position(options, "startingOffsets", EARLIEST),
        _position(options, "endingOffsets", LATEST),
        _truth(options, "includeHeaders", False),
        _number(options, "minPartitions", 1),
        _size(options, "maxBytesPerPartition", DEFAULT_PARTITION_BYTES),
        _number(options, "maxOffsetsPerTrigger", 0),
        _size(options, "maxBytesPerTrigger", 0),
        _truth(options, "failOnDataLoss", True),
        group,
        is_work,
        _number(options, "leaseSeconds", DEFAULT_LEASE_SECONDS),
        options.get("claim", ""),
        meant(replication_group),
    )


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Raises Refused when an option is unknown, missing, or makes no sense."""
    options = _checked(given, _WRITE)
    server, directory, store = _place(options)
    if server is None:
        raise Refused(
            f"{directory or store} cannot be written to directly: messages go through a broker. "
            f"Set option url to its HTTP address, such as http://localhost:15672"
        )
    queue, exchange, topic = options.get("path"), options.get("exchange"), options.get("topic")
    given_targets = [name for name in (queue, exchange, topic) if name is not None]
    if len(given_targets) != 1:
        raise Refused(
            'say where to write, once: a queue with .save("orders") or .start("orders"), '
            'or option("exchange", ...), or option("topic", ...)'
        )
    before = _offset(options, "replaceBefore")
    if before >= 0 and queue is None:
        raise Refused("option replaceBefore is for one stream: name it with .save(...)")
    return WriteOptions(server, queue, exchange, topic, options.get("transactionid", ""), before)


def _checked(given: Mapping[str, str], allowed: tuple[str, ...]) -> dict[str, str]:
    known = {name.lower(): name for name in allowed}
    options = {name.lower(): value for name, value in given.items() if name.lower() not in _SPARK}
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            advice = f"did you mean {known[close[0]]}?" if close else f"there are: {', '.join(sorted(allowed))}"
            raise Refused(f"there is no option {name!r}; {advice}")
    return options


def _place(options: Mapping[str, str]) -> tuple[Server | None, str, str]:
    """A broker, or a directory, or a store."""
    url = options.get("url", os.environ.get("HEADRACE_URL", ""))
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
        user = options.get("user") or unquote(parts.username or "guest")
        password = options.get("password") or unquote(parts.password or "guest")
        if not parts.hostname:
            raise Refused(f"option url {_without_password(url)!r} names no host")
        server = Server(parts.hostname, port, parts.scheme == "https", user, password, options.get("vhost", "/"))
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


def _queues(options: Mapping[str, str]) -> tuple[str, ...]:
    if "paths" in options:
        names = [str(name) for name in json.loads(options["paths"])]
    else:
        names = [name.strip() for name in options.get("path", "").split(",")]
    names = [name for name in names if name]
    if not names:
        raise Refused('name the queues to read: .load("orders"), .load("orders,returns") or .load("sensor-*")')
    return tuple(dict.fromkeys(names))


def _position(options: Mapping[str, str], name: str, default: str) -> Position:
    text = options.get(name.lower(), default).strip()
    if text.lower() in (EARLIEST, LATEST):
        return Position(word=text.lower())
    if text.isascii() and text.isdecimal():
        if len(text) > 18:
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


def _truth(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise Refused(f"option {name} is {text!r}; it may be true or false")
    return text == "true"


def _choice(options: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    text = options.get(name.lower(), choices[0])
    if text not in choices:
        raise Refused(f"option {name} is {text!r}; it may be {' or '.join(choices)}")
    return text


def _offset(options: Mapping[str, str], name: str) -> int:
    text = options.get(name.lower(), "")
    if text and not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise Refused(f"option {name} is {text!r}; it must be an offset such as 4200")
    return int(text) if text else -1


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name.lower())
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and 0 < len(text) < 19 and int(text)):
        raise Refused(f"option {name} is {text!r}; it must be a whole number of at least 1")
    return int(text)


def _size(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name.lower())
    if text is None:
        return default
    number = text.lower().rstrip("bkmg")
    unit = text.lower()[len(number) :]
    factor = _UNITS.get(unit[:1]) if len(unit) < 2 or unit[1:] == "b" else None
    if factor is None or not (number.isascii() and number.isdecimal() and len(number) < 16 and int(number)):
        raise Refused(f"option {name} is {text!r}; it must be a size such as 33554432, 32m or 1g")
    return int(number) * factor

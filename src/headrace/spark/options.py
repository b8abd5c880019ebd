"""The options of `.option(...)`, read and checked; an error says exactly what is wrong. No I/O."""

import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, final
from urllib.parse import SplitResult, unquote, urlsplit

from headrace.config.kinds import Choice, Flag, Kind, Number, Text, Unfit
from headrace.config.replication import MAIN, is_name, meant
from headrace.errors import Refused

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

DEFAULT_PARTITION_BYTES: Final = 128 << 20
DEFAULT_LEASE_SECONDS: Final = 60
DEFAULT_DELAY_MS: Final = 15 * 60_000
RAW_PROPERTIES: Final = "raw"
TYPED: Final = "typed"
LOG_MODE: Final = "log"
WORK_MODE: Final = "work"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAX: Final = 10**18 - 1
"""Largest number of an option: 18 digits."""
_SIZE: Final = re.compile(r"([0-9]{1,15})([kmg]?)b?")
_DELAY: Final = re.compile(r"([0-9]{1,12})\s*(ms|s|m|h|d)")
_SPANS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

_STORES: Final = ("s3", "gs", "az")
"""Stores that other processes than the broker can read, besides directories."""

_SPARK: Final = frozenset({"checkpointlocation", "queryname", "outputmode"})
"""Options that Spark itself adds."""


@dataclass(frozen=True)
class Server:
    """A broker's HTTP address and the login. Secrets may be in files, which every process reads where it runs."""

    host: str
    port: int
    tls: bool
    user: str
    password: str = field(repr=False)
    vhost: str
    token: str = field(default="", repr=False)
    """A token to log in with, instead of a name and a password."""
    password_file: str = ""
    token_file: str = ""
    ca: str = ""
    """A file with the certificates of authorities to trust; "" for the machine's."""
    certificate: str = ""
    """A file with the client's own certificate, and `key` with its key, "" if that is in the same file."""
    key: str = ""


@dataclass(frozen=True)
class Position:
    """Start or end of a read: earliest, latest, an offset, or a time in microseconds; single queues may have others."""

    word: str = ""
    offset: int = -1
    time_us: int = -1
    queues: tuple[tuple[str, "Position"], ...] = ()

    def of(self, queue: str) -> "Position":
        """Return the position of a queue."""
        return dict(self.queues).get(queue, self)


@final
class _PositionKind(Kind):
    """A position, or positions by queue as JSON, as Kafka's source has them: -2 is earliest and -1 latest."""

    noun = "position"

    def __init__(self, word: str) -> None:
        self._default = Position(word=word)

    def read(self, value: object) -> object:
        text = str(value).strip()
        if not text.startswith("{"):
            return self._read(text)
        try:
            document = json.loads(text)
        except ValueError as error:
            raise Unfit(f"must be JSON where it begins with a brace: {error}") from None
        found = [(name, self._of_queue(name, given)) for name, given in sorted(document.items())]
        return replace(self._default, queues=tuple(found))

    def _of_queue(self, name: str, given: object) -> Position:
        if isinstance(given, dict):  # offsets by partition; a queue has one
            if list(given) != ["0"]:
                raise Unfit(f"may have offsets of partition 0 only, for queue {name!r}: a queue has one partition")
            given = given["0"]
        if given in (-1, -2) and not isinstance(given, bool):
            return Position(word=LATEST if given == -1 else EARLIEST)
        return self._read(str(given))

    def _read(self, text: str) -> Position:
        if text.lower() in (EARLIEST, LATEST):
            return Position(word=text.lower())
        if text.isascii() and text.isdecimal():
            if len(text) > len(str(_MAX)):
                raise Unfit("must be smaller: no offset is that large")
            return Position(offset=int(text))
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            raise Unfit(
                "may be earliest, latest, an offset such as 4200, a time such as 2026-01-31T12:00:00Z, or one of "
                'these by queue, such as {"orders": 4200}'
            ) from None
        aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        return Position(time_us=(aware - _EPOCH) // timedelta(microseconds=1))


@final
class _DelayKind(Kind):
    """A time span as Spark writes it, such as 15m, in milliseconds."""

    noun = "time span"

    def read(self, value: object) -> object:
        match = _DELAY.fullmatch(str(value).strip().lower())
        if not match:
            raise Unfit("must be a time span such as 500ms, 30s, 15m or 1h")
        return int(match.group(1)) * _SPANS_MS[match.group(2)]


@final
class _SizeKind(Kind):
    """A size as Spark writes it, such as 32m."""

    noun = "size"

    def read(self, value: object) -> object:
        match = _SIZE.fullmatch(str(value).lower())
        size = int(match.group(1)) * _UNITS[match.group(2)] if match else 0
        if not size:
            raise Unfit("must be a size such as 33554432, 32m or 1g")
        return size


@final
class _WordKind(Kind):
    """One of a few words, in any case."""

    noun = "word"

    def __init__(self, *words: str) -> None:
        self._words = words

    def read(self, value: object) -> object:
        word = str(value).strip().lower()
        if word not in self._words:
            raise Unfit(f"may be {', '.join(self._words[:-1])} or {self._words[-1]}")
        return word


_Options = Mapping[str, tuple[Kind, object]]
"""The kind and the default of each option."""
_TEXT: Final = Text()
_FLAG: Final = Flag(ignores_case=True)
_COUNT: Final = Number(1, _MAX, "must be a whole number of at least 1")
_COMMON: Final[_Options] = {
    "url": (_TEXT, None),
    "vhost": (_TEXT, "/"),
    "user": (_TEXT, ""),
    "password": (_TEXT, ""),
    "passwordFile": (_TEXT, ""),
    "token": (_TEXT, ""),
    "tokenFile": (_TEXT, ""),
    "tlsCa": (_TEXT, ""),
    "tlsCertificate": (_TEXT, ""),
    "tlsKey": (_TEXT, ""),
    "path": (_TEXT, None),
    "paths": (_TEXT, None),
}
_READ: Final[_Options] = {
    **_COMMON,
    "subscribe": (_TEXT, None),
    "subscribePattern": (_TEXT, ""),
    "startingOffsets": (_PositionKind(EARLIEST), Position(word=EARLIEST)),
    "endingOffsets": (_PositionKind(LATEST), Position(word=LATEST)),
    "includeHeaders": (_WordKind("false", "true", TYPED), "false"),
    "includeProperties": (_WordKind("false", "true", RAW_PROPERTIES), "false"),
    "minPartitions": (_COUNT, 1),
    "maxBytesPerPartition": (_SizeKind(), DEFAULT_PARTITION_BYTES),
    "maxOffsetsPerTrigger": (_COUNT, 0),
    "maxBytesPerTrigger": (_SizeKind(), 0),
    "minOffsetsPerTrigger": (_COUNT, 0),
    "maxTriggerDelay": (_DelayKind(), DEFAULT_DELAY_MS),
    "failOnDataLoss": (_FLAG, True),
    "consumerGroup": (_TEXT, ""),
    "group": (_TEXT, ""),
    "mode": (Choice(LOG_MODE, WORK_MODE, expected=f"may be {LOG_MODE} or {WORK_MODE}"), LOG_MODE),
    "leaseSeconds": (_COUNT, DEFAULT_LEASE_SECONDS),
    "claim": (_TEXT, ""),
}
_NOT_FOR_WORK: Final = (
    "startingOffsets", "endingOffsets", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
    "failOnDataLoss",
)  # fmt: skip
_ONLY_FOR_WORK: Final = ("leaseSeconds", "claim")
_WRITE: Final[_Options] = {
    **_COMMON,
    "exchange": (_TEXT, None),
    "topic": (_TEXT, None),
    "transactionId": (_TEXT, ""),
}


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
    headers: str
    """Headers of rows: false for none, true for texts, or typed."""
    properties: str
    """Properties of rows: false for none, true for all of them, or raw as they are stored."""
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
    pattern: str = ""
    """A regular expression of names of queues; "" where `queues` names them."""
    least_offsets: int = 0
    """The messages that a micro-batch waits for, until `delay_ms` after the last one."""
    delay_ms: int = DEFAULT_DELAY_MS


@dataclass(frozen=True)
class WriteOptions:
    """The options of a write. One of queue, exchange and topic is the target; without any, rows name their own."""

    server: Server
    queue: str | None
    exchange: str | None
    topic: str | None
    transaction_id: str


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Read the options of a read. Raises Refused when one is unknown, missing or invalid."""
    values = _read(given, _READ)
    server, directory, store = _place(values)
    group = values["consumerGroup"]
    is_work = values["mode"] == WORK_MODE
    if server is None and (group or is_work):
        raise Refused(
            f"option {'mode=work' if is_work else 'consumerGroup'} needs a broker: a data directory or a store is "
            f"only read. "
            f"Set url to the broker's HTTP address, such as http://localhost:15672"
        )
    replication_group = values["group"]
    if replication_group and server is not None:
        raise Refused("option group is for stores: a broker serves one group, that of its address; leave it out")
    if not is_name(replication_group):
        raise Refused(f"option group is {replication_group!r}; a group's name has letters, digits, - and _ only")
    named = {name.lower() for name in given}
    for name in _NOT_FOR_WORK if is_work else _ONLY_FOR_WORK:
        if name.lower() in named:
            raise Refused(f"option {name} means nothing {'with' if is_work else 'without'} mode=work; leave it out")
    return ReadOptions(
        server,
        directory,
        store,
        values["vhost"],
        _queues(values),
        values["startingOffsets"],
        values["endingOffsets"],
        values["includeHeaders"],
        values["includeProperties"],
        values["minPartitions"],
        values["maxBytesPerPartition"],
        values["maxOffsetsPerTrigger"],
        values["maxBytesPerTrigger"],
        values["failOnDataLoss"],
        group,
        is_work,
        values["leaseSeconds"],
        values["claim"],
        meant(replication_group),
        _pattern(values),
        values["minOffsetsPerTrigger"],
        values["maxTriggerDelay"],
    )


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Read the options of a write. Raises Refused when one is unknown, missing or invalid."""
    values = _read(given, _WRITE)
    server, directory, store = _place(values)
    if server is None:
        raise Refused(
            f"{directory or store} cannot be written to directly: messages go through a broker. "
            f"Set option url to its HTTP address, such as http://localhost:15672"
        )
    queue, exchange, topic = values["path"], values["exchange"], values["topic"]
    if sum(target is not None for target in (queue, exchange, topic)) > 1:
        raise Refused(
            'say where to write, once: a queue with .save("orders") or .start("orders"), '
            'or option("exchange", ...), or option("topic", ...)'
        )
    return WriteOptions(server, queue, exchange, topic, values["transactionId"])


def _read(given: Mapping[str, str], options: _Options) -> dict[str, Any]:
    """Return every option with its value or default. Spark makes no difference between cases.

    Raises Refused for an option that is unknown or not of its kind.
    """
    known = {name.lower(): name for name in options}
    values: dict[str, Any] = {name: default for name, (_, default) in options.items()}
    for each, text in given.items():
        if each.lower() in _SPARK:
            continue
        if each.lower() not in known:
            close = difflib.get_close_matches(each.lower(), known, 1)
            advice = f"did you mean {known[close[0]]}?" if close else f"there are: {', '.join(sorted(options))}"
            raise Refused(f"there is no option {each.lower()!r}; {advice}")
        name = known[each.lower()]
        try:
            values[name] = options[name][0].parse(text)
        except Unfit as error:
            raise Refused(f"option {name} is {text!r}; it {error}") from error
    return values


def _place(values: Mapping[str, Any]) -> tuple[Server | None, str, str]:
    """Return a broker, a directory, or the URL of a store."""
    url = values["url"] if values["url"] is not None else os.environ.get("HEADRACE_URL", "")
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
        if not parts.hostname:
            raise Refused(f"option url {_without_password(url)!r} names no host")
        return _server(values, parts, parts.hostname, port), "", ""
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


def _server(values: Mapping[str, Any], parts: SplitResult, host: str, port: int) -> Server:
    is_tls = parts.scheme == "https"
    for name in ("tlsCa", "tlsCertificate", "tlsKey"):
        if values[name] and not is_tls:
            raise Refused(f"option {name} is for https://; option url is http://{host}:{port}")
    if values["tlsKey"] and not values["tlsCertificate"]:
        raise Refused("option tlsKey needs the certificate that it belongs to: option tlsCertificate")
    secrets = [name for name in ("password", "passwordFile", "token", "tokenFile") if values[name]]
    if len(secrets) > 1:
        raise Refused(f"give one of the options {' and '.join(secrets)}: each of them is a way to log in")
    return Server(
        host,
        port,
        is_tls,
        values["user"] or unquote(parts.username or "guest"),
        values["password"] or unquote(parts.password or "guest"),
        values["vhost"],
        values["token"],
        values["passwordFile"],
        values["tokenFile"],
        values["tlsCa"],
        values["tlsCertificate"],
        values["tlsKey"],
    )


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return url.replace(f":{parts.password}@", ":***@") if parts.password else url


def _queues(values: Mapping[str, Any]) -> tuple[str, ...]:
    given = [name for name in ("path", "subscribe", "subscribePattern") if values[name]]
    if len(given) > 1:
        raise Refused(f"name the queues once: {' and '.join(given)} do")
    if values["paths"] is not None:
        names = [str(name) for name in json.loads(values["paths"])]
    else:
        names = [name.strip() for name in (values["path"] or values["subscribe"] or "").split(",")]
    names = [name for name in names if name]
    if not names and not values["subscribePattern"]:
        raise Refused('name the queues to read: .load("orders"), .load("orders,returns") or .load("sensor-*")')
    return tuple(dict.fromkeys(names))


def _pattern(values: Mapping[str, Any]) -> str:
    pattern: str = values["subscribePattern"]
    try:
        re.compile(pattern)
    except re.error as error:
        raise Refused(f"option subscribePattern is {pattern!r}; it is no regular expression: {error}") from error
    return pattern

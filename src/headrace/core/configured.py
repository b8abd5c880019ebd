"""A queue as the configuration file describes it, with the names FluxMQ uses. What it comes to is a QueueDefinition.

Defaults are the same: a lease of 30 s, 10 retries with backoff, dead letters to `$dlq/<queue>`, messages that live
168 h, 100,000 of them at most. A full queue refuses what is published (`reject-publish`): the publisher is told, and
nothing that was confirmed is lost; `overflow: drop-head` must be asked for.
"""

from collections.abc import Mapping
from typing import Any, Final, final

from headrace.core.address import dead_letter_queue
from headrace.core.definition import (
    CLASSIC,
    DEFAULT_LEASE_MS,
    DEFAULT_MAX_MESSAGE_BYTES,
    DURABILITIES,
    EPHEMERAL,
    FSYNC,
    KINDS,
    MAX_NAME_BYTES,
    OVERFLOWS,
    QUORUM,
    QUORUM_DELIVERY_LIMIT,
    REJECT_PUBLISH,
    STREAM,
    QueueDefinition,
    Retention,
    Retry,
)
from headrace.core.durations import parse_duration_ms
from headrace.core.topics import check_filter
from headrace.errors import Refused
from headrace.selector import parse

DEFAULT_MAX_DEPTH: Final = 100_000
DEFAULT_TTL_MS: Final = 168 * 3_600_000
_MAX: Final = 1 << 53
_REPLICATION_MODES: Final = ("sync", "async")


def configured(values: Mapping[str, object]) -> QueueDefinition:
    """The definition that an entry of `queues` in the configuration stands for. Raises Refused, naming the key."""
    name = values.get("name")
    if not isinstance(name, str) or not name or len(name.encode(errors="replace")) > MAX_NAME_BYTES:
        raise Refused(f"queues[]: 'name' must be a text of 1 to {MAX_NAME_BYTES} bytes, not {name!r}")
    section = Section(f"queue '{name}'", values)
    section.get("name")
    kind = section.choice("type", KINDS, CLASSIC)
    common: dict[str, Any] = {
        "name": name,
        "kind": kind,
        "durable": kind != EPHEMERAL,
        "topics": _topics(section),
        "reserved": section.flag("reserved", False),
        "capture": section.flag("capture", False),
        "filter": _filter(section),
        "primary_group": section.text("primary_group", ""),
        "ack_durability": section.choice("ack_durability", DURABILITIES, FSYNC),
        "replication": _replication(section.section("replication")),
        "expires_ms": section.duration_ms("expires", 0),
        "lease_ms": section.duration_ms("visibility_timeout", DEFAULT_LEASE_MS) or DEFAULT_LEASE_MS,
        "max_priority": section.number("max_priority", 0, most=255),
        "single_active": section.flag("single_active_consumer", False),
        "history_ms": section.duration_ms("history", 0),
        **_limits(section, kind),
    }
    retry, dlq = _retry(section.section("retry"), kind), _dead_letter_queue(name, section.section("dlq"), kind)
    section.check_all_read()
    return QueueDefinition(**common, **retry, dead_letter_queue=dlq)


@final
class Section:
    """One table of the configuration: reads its keys, says what is wrong with them, knows which nobody read."""

    def __init__(self, where: str, values: Mapping[str, object]) -> None:
        self._where = where
        self._values = values
        self._read: list[str] = []
        self._sections: list[Section] = []

    def check_all_read(self) -> None:
        """Raises Refused when there is a key that means nothing."""
        for name in self._values:
            if name not in self._read:
                known = ", ".join(sorted(set(self._read)))
                raise Refused(f"{self._where}: there is no key {name!r}; known are {known}")
        for section in self._sections:
            section.check_all_read()

    @property
    def is_empty(self) -> bool:
        return not self._values

    def get(self, name: str) -> object:
        self._read.append(name)
        return self._values.get(name)

    def section(self, name: str) -> "Section":
        value = self.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise self.bad(name, value, "must be a table")
        section = Section(f"{self._where}, {name}", value or {})
        self._sections.append(section)
        return section

    def text(self, name: str, default: str) -> str:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.bad(name, value, "must be a text")
        return value

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        value = self.text(name, default)
        if value not in choices:
            raise self.bad(name, value, f"must be one of {', '.join(choices)}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.bad(name, value, "must be true or false")
        return value

    def number(self, name: str, default: int, least: int = 0, most: int = _MAX) -> int:
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.bad(name, value, f"must be a whole number from {least} to {most}")
        return value

    def factor(self, name: str, default: float) -> float:
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 1000:
            raise self.bad(name, value, "must be a number from 1 to 1000")
        return float(value)

    def duration_ms(self, name: str, default: int) -> int:
        value = self.get(name)
        return default if value is None else parse_duration_ms(value, f"{self._where}: {name!r}")

    def bad(self, name: str, value: object, what: str) -> Refused:
        return Refused(f"{self._where}: {name!r} {what}, not {value!r}")


def _topics(section: Section) -> tuple[str, ...]:
    value = section.get("topics")
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(topic, str) for topic in value):
        raise section.bad("topics", value, "must be a list of topic patterns")
    for topic in value:
        try:
            check_filter(topic)
        except Refused as error:
            raise section.bad("topics", topic, f"has a bad pattern ({error})") from error
    return tuple(value)


def _filter(section: Section) -> str:
    text = section.text("filter", "")
    if text:
        try:
            parse(text)
        except Refused as error:
            raise section.bad("filter", text, f"cannot be read: {error}") from error
    return text


def _limits(section: Section, kind: str) -> dict[str, Any]:
    """Limits and retention. A stream has no limits but retention, so what is said of the one counts for the other."""
    limits, retention = section.section("limits"), section.section("retention")
    is_stream = kind == STREAM
    depth = limits.number("max_depth", 0 if is_stream else DEFAULT_MAX_DEPTH)
    ttl_ms = limits.duration_ms("message_ttl", 0 if is_stream else DEFAULT_TTL_MS)
    max_bytes = limits.number("max_depth_bytes", 0)
    kept = Retention(
        retention.duration_ms("max_age", 0),
        retention.number("max_length_bytes", 0),
        retention.number("max_length_messages", 0),
    )
    values: dict[str, Any] = {
        "max_message_bytes": limits.number("max_message_size", DEFAULT_MAX_MESSAGE_BYTES) or _MAX,
        "overflow": section.choice("overflow", OVERFLOWS, REJECT_PUBLISH),
    }
    if is_stream:
        values["retention"] = Retention(
            kept.max_age_ms or ttl_ms, kept.max_bytes or max_bytes, kept.max_messages or depth
        )
    else:
        values["retention"] = kept
        values["max_length"] = depth or None
        values["max_length_bytes"] = max_bytes or None
        values["message_ttl_ms"] = ttl_ms or None
    return values


def _retry(section: Section, kind: str) -> dict[str, Any]:
    default = Retry()
    retry = Retry(
        section.number("max_retries", QUORUM_DELIVERY_LIMIT if kind == QUORUM else default.max_retries),
        section.duration_ms("initial_backoff", default.initial_backoff_ms),
        section.duration_ms("max_backoff", default.max_backoff_ms),
        section.factor("multiplier", default.multiplier),
    )
    return {} if kind in (STREAM, EPHEMERAL) else {"retry": retry}


def _dead_letter_queue(name: str, section: Section, kind: str) -> str:
    """Streams and ephemeral queues track no failures, so they have dead letters only where that is asked for."""
    enabled = section.flag("enabled", kind not in (STREAM, EPHEMERAL))
    topic = section.text("topic", "") or dead_letter_queue(name)
    return topic if enabled else ""


def _replication(section: Section) -> dict[str, object]:
    """Checked and kept as it is: one broker replicates to nobody."""
    values: dict[str, object] = {
        "enabled": section.flag("enabled", False),
        "group": section.text("group", ""),
        "mode": section.choice("mode", _REPLICATION_MODES, "sync"),
        "ack_timeout_ms": section.duration_ms("ack_timeout", 5_000),
        "replication_factor": section.number("replication_factor", 3, least=1),
        "min_in_sync_replicas": section.number("min_in_sync_replicas", 2, least=1),
    }
    return {} if section.is_empty else values

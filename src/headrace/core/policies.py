"""Policies: settings for queues and exchanges by a pattern of their names, as RabbitMQ has them. Nothing is stored.

One policy and one operator policy at most apply to a queue or an exchange: of those that match, the one with the
highest priority. A policy with a setting that a type of queue cannot have does not apply to queues of this type.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast, final

from headrace.config.kinds import MAX_MS, MAX_NUMBER, Choice, Duration, Number, Object, Text, Unchecked
from headrace.config.settings import ALL, APPLY_TO, EXCHANGES, QUEUES
from headrace.config.table import Fault, Key, Table
from headrace.core.queue.definition import (
    CLASSIC,
    HISTORY_PREFIX,
    INNER_PREFIXES,
    OVERFLOWS,
    QUORUM,
    STREAM,
    QueueDefinition,
    Retention,
)
from headrace.core.routing.exchange import ALTERNATE, Exchange
from headrace.errors import Refused

_KINDS: Final = {"classic_queues": CLASSIC, "quorum_queues": QUORUM, "streams": STREAM}

MESSAGE_TTL: Final = "message-ttl"
EXPIRES: Final = "expires"
MAX_LENGTH: Final = "max-length"
MAX_LENGTH_BYTES: Final = "max-length-bytes"
MAX_AGE: Final = "max-age"
DELIVERY_LIMIT: Final = "delivery-limit"
CONSUMER_TIMEOUT: Final = "consumer-timeout"
OVERFLOW: Final = "overflow"
DEAD_LETTER_EXCHANGE: Final = "dead-letter-exchange"
DEAD_LETTER_KEY: Final = "dead-letter-routing-key"
_OPERATOR: Final = (
    EXPIRES,
    MESSAGE_TTL,
    MAX_LENGTH,
    MAX_LENGTH_BYTES,
    DELIVERY_LIMIT,
    CONSUMER_TIMEOUT,
    "max-in-memory-length",
    "max-in-memory-bytes",
)
"""Settings of operator policies: limits, of which the stricter one counts."""

VALIDATION: Final = "Validation failed\n\n"
"""RabbitMQ's beginning of a refusal."""
_TEXT: Final = Text()
_ANY: Final = Unchecked()
_WITHOUT_EFFECT: Final = (
    Key("dead-letter-strategy", Choice("at-most-once", "at-least-once"), None, "Dead letters are never lost."),
    Key("max-in-memory-length", Number(), None, "Messages are on the disk."),
    Key("max-in-memory-bytes", Number(), None, "Messages are on the disk."),
    Key("queue-mode", Choice("default", "lazy"), None, "Messages are on the disk."),
    Key("queue-version", Number(1, 2), None, "There is one version."),
    Key("stream-max-segment-size-bytes", Number(), None, "`storage.segment_bytes` is the size of segments."),
    Key("stream-filter-size-bytes", Number(), None, "Nothing is filtered by it."),
    *[
        Key(name, _ANY, None, "A store makes the copies: queues have no replicas of their own.")
        for name in (
            "ha-mode",
            "ha-params",
            "ha-sync-mode",
            "ha-sync-batch-size",
            "ha-promote-on-shutdown",
            "ha-promote-on-failure",
            "queue-master-locator",
            "queue-leader-locator",
            "initial-cluster-size",
            "target-group-size",
        )
    ],
    *[
        Key(name, _ANY, None, "There is no federation: a shovel moves messages.")
        for name in ("federation-upstream", "federation-upstream-set", "federation-upstream-pattern")
    ],
)
SETTINGS: Final = Table(
    Key(MESSAGE_TTL, Number(0, MAX_MS), None, "Time in milliseconds for which a message may wait."),
    Key(EXPIRES, Number(1, MAX_MS), None, "Time in milliseconds after which an unused queue is deleted."),
    Key(MAX_LENGTH, Number(), None, "Messages that may wait."),
    Key(MAX_LENGTH_BYTES, Number(), None, "Bytes that may wait, or that a stream keeps."),
    Key(OVERFLOW, Choice(*OVERFLOWS), None, "Reaction of a full queue to a new message."),
    Key(DEAD_LETTER_EXCHANGE, _TEXT, None, "Exchange for dead letters."),
    Key(DEAD_LETTER_KEY, _TEXT, None, "Routing key of dead letters."),
    Key(DELIVERY_LIMIT, Number(-1), None, "Deliveries of a message after the first; -1 for any number."),
    Key(CONSUMER_TIMEOUT, Number(1), None, "Time in milliseconds for which a consumer may hold a message."),
    Key(MAX_AGE, Duration(), None, "Greatest age of a message in a stream, such as 7D."),
    Key(ALTERNATE, _TEXT, None, "Exchange for messages that cannot be routed."),
    *_WITHOUT_EFFECT,
)
"""Settings that a policy may have."""
IDLE: Final = {key.name: key.help for key in _WITHOUT_EFFECT}
"""Settings that change nothing here, and why."""

_REPLICAS: Final = (
    "ha-mode",
    "ha-params",
    "ha-sync-mode",
    "ha-promote-on-shutdown",
    "ha-promote-on-failure",
    "queue-master-locator",
)
_NOT_CLASSIC: Final = frozenset(
    {MAX_AGE, DELIVERY_LIMIT, "stream-max-segment-size-bytes", "queue-leader-locator", "initial-cluster-size",
     "dead-letter-strategy"}
)  # fmt: skip
_NOT_QUORUM: Final = frozenset(
    {MAX_AGE, "stream-max-segment-size-bytes", "initial-cluster-size", "queue-mode", *_REPLICAS}
)
_NOT_STREAM: Final = frozenset(
    {EXPIRES, MESSAGE_TTL, DEAD_LETTER_EXCHANGE, DEAD_LETTER_KEY, MAX_LENGTH, "max-in-memory-length",
     "max-in-memory-bytes", DELIVERY_LIMIT, "dead-letter-strategy", OVERFLOW, "queue-mode", *_REPLICAS}
)  # fmt: skip

POLICY: Final = Table(
    Key("pattern", Text(), "", "Regular expression that names must match anywhere."),
    Key("definition", Object(), None, "Settings."),
    Key(
        "priority", Number(-MAX_NUMBER, expected="must be a whole number"), 0, "The highest of those that match counts."
    ),
    Key("apply-to", Choice(*APPLY_TO), ALL, "Things that the policy is for."),
    required=("pattern", "definition"),
)
"""A policy over HTTP, and as it is stored."""


@final
@dataclass(frozen=True)
class Policy:
    """One policy. Operators limit what others may set: theirs are apart, and the stricter limit counts."""

    name: str
    pattern: str
    definition: Mapping[str, object] = field(default_factory=dict)
    apply_to: str = ALL
    priority: int = 0
    is_operator: bool = False

    def check(self) -> None:
        """Raises Refused for a pattern or a setting that cannot be used."""
        _compiled(self.pattern)
        if not self.definition:
            raise Refused(f"{VALIDATION}no policy provided")
        unknown = sorted(set(self.definition) - set(SETTINGS.keys))
        if unknown:
            raise Refused(
                f"{VALIDATION}{', '.join([repr(name) for name in unknown])} are not recognised policy "
                f"settings; known are {', '.join(SETTINGS.keys)}"
            )
        others = sorted(set(self.definition) - set(_OPERATOR)) if self.is_operator else []
        if others:
            raise Refused(
                f"{VALIDATION}{', '.join([repr(name) for name in others])} are not recognised operator "
                f"policy settings; known are {', '.join(_OPERATOR)}"
            )
        try:
            SETTINGS.read(self.definition)
        except Fault as fault:
            raise Refused(f"{VALIDATION}{fault}") from fault

    @property
    def idle(self) -> list[str]:
        """Settings of the policy that change nothing here."""
        return [name for name in self.definition if name in IDLE]

    def to_json(self) -> dict[str, object]:
        """Return the policy without its name, by RabbitMQ's keys."""
        return {
            "pattern": self.pattern,
            "apply-to": self.apply_to,
            "definition": dict(self.definition),
            "priority": self.priority,
        }

    @staticmethod
    def from_json(name: str, values: object, is_operator: bool) -> "Policy":
        """Read what `to_json` wrote, or a client: numbers may be texts. Raises Fault, Refused."""
        read: dict[str, Any] = POLICY.read(values, f"policy '{name}'", is_lenient=True)
        return Policy(name, read["pattern"], read["definition"], read["apply-to"], read["priority"], is_operator)


_CLASS: Final = re.compile(r"\[:([a-z]+):\]")
_CLASSES: Final = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "digit": "0-9",
    "lower": "a-z",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\s",
    "upper": "A-Z",
    "word": r"\w",
    "xdigit": "0-9A-Fa-f",
}
"""Classes of POSIX, which RabbitMQ's expressions have in brackets and Python's do not."""


def _class(found: re.Match[str]) -> str:
    """Raises Refused for an unknown class: without it the pattern would match other names."""
    if found[1] not in _CLASSES:
        raise Refused(f"{VALIDATION}not a regular expression: there is no class {found[0]!r}")
    return _CLASSES[found[1]]


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(_CLASS.sub(_class, pattern))
    except (re.error, OverflowError, RecursionError) as error:
        raise Refused(f"{VALIDATION}not a regular expression: {pattern[:128]!r}: {error}") from error


def wanted_policies(entries: Sequence[Mapping[str, Any]]) -> list[tuple[str, Policy]]:
    """Return the policies of a configuration with their virtual hosts. Raises Fault, with the path in the file."""
    found: list[tuple[str, Policy]] = []
    for at, entry in enumerate(entries):
        name, pattern, definition = entry["name"], entry["pattern"], entry["definition"]
        policy = Policy(name, pattern, definition, entry["apply_to"], entry["priority"], entry["operator"])
        try:
            policy.check()
        except Refused as error:
            raise Fault(("policies", at), f"policy {name!r}", str(error).removeprefix(VALIDATION)) from error
        found.append((entry["vhost"], policy))
    return found


@final
class _Rule:
    """A policy with its compiled pattern and the kinds of things that it fits."""

    __slots__ = ("kinds", "pattern", "policy")

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.pattern = _compiled(policy.pattern)
        self.kinds: set[str] = set()
        """Types of queues, and EXCHANGES."""
        named = set(policy.definition)
        for kind, never in ((CLASSIC, _NOT_CLASSIC), (QUORUM, _NOT_QUORUM), (STREAM, _NOT_STREAM)):
            is_meant = policy.apply_to in (QUEUES, ALL) or _KINDS.get(policy.apply_to) == kind
            if is_meant and not named & never:
                self.kinds.add(kind)
        if policy.apply_to in (EXCHANGES, ALL):
            self.kinds.add(EXCHANGES)


@final
class Governed:
    """The policies of one queue or exchange, and the settings that follow from them."""

    __slots__ = ("operator", "policy", "settings")

    def __init__(self, policy: Policy | None, operator: Policy | None) -> None:
        self.policy = policy.name if policy is not None else None
        self.operator = operator.name if operator is not None else None
        self.settings: dict[str, object] = dict(operator.definition) if operator is not None else {}
        for name, value in policy.definition.items() if policy is not None else ():
            limit = self.settings.get(name)
            self.settings[name] = value if limit is None else _stricter(name, cast("int", value), cast("int", limit))


_NOTHING: Final = Governed(None, None)
_OURS: Final = (HISTORY_PREFIX, *INNER_PREFIXES)


def _stricter(name: str, one: int, other: int) -> int:
    if name == DELIVERY_LIMIT and min(one, other) < 0:  # -1 = unlimited
        return max(one, other)
    return min(one, other)


@final
class Policies:
    """All policies of one virtual host, in order of their rank."""

    def __init__(self) -> None:
        self._policies: dict[tuple[bool, str], Policy] = {}
        self._rules: list[_Rule] = []
        self._operators: list[_Rule] = []

    def all(self, is_operator: bool) -> list[Policy]:
        """Policies, or operator policies, by name."""
        found = [policy for policy in self._policies.values() if policy.is_operator == is_operator]
        return sorted(found, key=_name)

    def find(self, name: str, is_operator: bool) -> Policy | None:
        return self._policies.get((is_operator, name))

    def put(self, policy: Policy) -> None:
        self._policies[policy.is_operator, policy.name] = policy
        self._rank()

    def remove(self, name: str, is_operator: bool) -> None:
        del self._policies[is_operator, name]
        self._rank()

    def _rank(self) -> None:
        ranked = [_Rule(policy) for policy in sorted(self._policies.values(), key=_rank)]
        self._rules = [rule for rule in ranked if not rule.policy.is_operator]
        self._operators = [rule for rule in ranked if rule.policy.is_operator]

    def of_queue(self, definition: QueueDefinition) -> Governed:
        """Return the policies of a queue as it was declared; the broker's own queues have none."""
        if definition.name.startswith(_OURS):
            return _NOTHING
        kind = definition.kind if definition.kind in (QUORUM, STREAM) else CLASSIC
        return self._of(kind, definition.name)

    def of_exchange(self, name: str) -> Governed:
        return self._of(EXCHANGES, name)

    def _of(self, kind: str, name: str) -> Governed:
        if not self._rules and not self._operators:
            return _NOTHING
        policy, operator = _first(self._rules, kind, name), _first(self._operators, kind, name)
        return _NOTHING if policy is None and operator is None else Governed(policy, operator)

    def govern(self, declared: QueueDefinition) -> QueueDefinition:
        """Return the definition that counts for a queue declared like this: the same one without policies.

        Of two numbers the lower counts. Of other settings the queue's own counts, but a quorum queue takes `overflow`
        from the policy.
        """
        settings = self.of_queue(declared).settings
        if not settings:
            return declared
        found: dict[str, Any] = {}
        for name, merge in _MERGES.items():
            if name in settings:
                found.update(merge(declared, settings[name]))
        return replace(declared, **found) if found else declared

    def alternate_of(self, exchange: Exchange) -> str | None:
        """Return the exchange for messages that another cannot route: its own, else that of its policy."""
        if exchange.alternate is not None or not exchange.name:
            return exchange.alternate
        found = self.of_exchange(exchange.name).settings.get(ALTERNATE)
        return found if isinstance(found, str) else None


def _name(policy: Policy) -> str:
    return policy.name


def _rank(policy: Policy) -> tuple[int, str]:
    return -policy.priority, policy.name


def _first(rules: Iterable[_Rule], kind: str, name: str) -> Policy | None:
    for rule in rules:
        if kind in rule.kinds and rule.pattern.search(name) is not None:
            return rule.policy
    return None


# -- how settings join the queue's own -------------------------------------------------------------------------------

_Changes = dict[str, object]


def _lower(own: int | None, value: object) -> object:
    return value if own is None else min(own, cast("int", value))


def _ttl(declared: QueueDefinition, value: object) -> _Changes:
    return {"message_ttl_ms": _lower(declared.message_ttl_ms, value)}


def _expires(declared: QueueDefinition, value: object) -> _Changes:
    return {"expires_ms": _lower(declared.expires_ms or None, value)}


def _length(declared: QueueDefinition, value: object) -> _Changes:
    return {"max_length": _lower(declared.max_length, value)}


def _bytes(declared: QueueDefinition, value: object) -> _Changes:
    if declared.is_stream:
        return _kept(declared, max_bytes=_lower(declared.retention.max_bytes or None, value))
    return {"max_length_bytes": _lower(declared.max_length_bytes, value)}


def _age(declared: QueueDefinition, value: object) -> _Changes:
    return _kept(declared, max_age_ms=_lower(declared.retention.max_age_ms or None, Duration().read(value)))


def _kept(declared: QueueDefinition, **values: Any) -> _Changes:
    retention: Retention = replace(declared.retention, **values)
    return {"retention": retention}


def _overflow(declared: QueueDefinition, value: object) -> _Changes:
    is_own = "x-overflow" in declared.arguments or declared.overflow != OVERFLOWS[0]
    return {} if is_own and declared.kind != QUORUM else {"overflow": value}


def _letters(declared: QueueDefinition, value: object) -> _Changes:
    return {} if declared.has_dead_letters else {"dead_letter_exchange": value}


def _letter_key(declared: QueueDefinition, value: object) -> _Changes:
    return {} if declared.dead_letter_key is not None or declared.dead_letter_queue else {"dead_letter_key": value}


def _deliveries(declared: QueueDefinition, value: object) -> _Changes:
    own = declared.arguments.get("x-delivery-limit")
    if not isinstance(own, int):
        own = declared.retry.max_retries if declared.retry is not None else None
    limit = cast("int", value) if own is None else _stricter(DELIVERY_LIMIT, own, cast("int", value))
    return {"delivery_limit": None if limit < 0 else limit}


def _timeout(declared: QueueDefinition, value: object) -> _Changes:
    return {"lease_ms": min(declared.lease_ms, cast("int", value))} if declared.has_consumer_timeout else {}


_MERGES: Final[dict[str, Callable[[QueueDefinition, object], _Changes]]] = {
    MESSAGE_TTL: _ttl,
    EXPIRES: _expires,
    MAX_LENGTH: _length,
    MAX_LENGTH_BYTES: _bytes,
    MAX_AGE: _age,
    OVERFLOW: _overflow,
    DEAD_LETTER_EXCHANGE: _letters,
    DEAD_LETTER_KEY: _letter_key,
    DELIVERY_LIMIT: _deliveries,
    CONSUMER_TIMEOUT: _timeout,
}

"""A queue by the `x-` arguments that users of RabbitMQ know. configured.py has the keys of the configuration."""

from collections.abc import Mapping
from dataclasses import replace

from headrace.config.durations import parse_duration_ms
from headrace.core.definition import (
    CLASSIC,
    DEFAULT_CONSUMER_TIMEOUT_MS,
    DROP_HEAD,
    EPHEMERAL,
    KINDS,
    OVERFLOWS,
    QUORUM,
    QUORUM_DELIVERY_LIMIT,
    STREAM,
    QueueDefinition,
    Retention,
)
from headrace.core.position import position_text
from headrace.errors import BadExpression, PreconditionFailed, Refused
from headrace.selector import parse


def declared(
    name: str,
    durable: bool = False,
    exclusive: bool = False,
    auto_delete: bool = False,
    arguments: Mapping[str, object] | None = None,
) -> QueueDefinition:
    """A queue declared with `x-` arguments, as RabbitMQ's users know them. Raises PreconditionFailed."""
    given = dict(arguments or {})
    reader = _Arguments(name, given)
    kind = reader.choice("x-queue-type", KINDS, CLASSIC)
    definition = QueueDefinition(
        name,
        kind,
        durable and kind != EPHEMERAL,
        exclusive,
        auto_delete,
        expires_ms=reader.number("x-expires", least=1) or 0,
        max_message_bytes=128 << 20,
        max_length=reader.number("x-max-length"),
        max_length_bytes=reader.number("x-max-length-bytes"),
        overflow=reader.choice("x-overflow", OVERFLOWS, DROP_HEAD),
        message_ttl_ms=reader.number("x-message-ttl"),
        max_priority=reader.number("x-max-priority", most=255) or 0,
        single_active=reader.flag("x-single-active-consumer"),
        lease_ms=reader.number("x-consumer-timeout", least=1) or DEFAULT_CONSUMER_TIMEOUT_MS,
        delivery_limit=_limit(reader.number("x-delivery-limit", least=-1), kind),
        dead_letter_exchange=reader.text("x-dead-letter-exchange"),
        dead_letter_key=reader.text("x-dead-letter-routing-key"),
        filter=reader.expression("x-filter"),
        source=reader.text("x-source") or "",
        source_from=reader.position("x-source-from"),
        arguments=given,
    )
    if definition.source_from and not definition.source:
        raise PreconditionFailed(f"invalid arg 'x-source-from' for queue '{name}': 'x-source' is missing")
    if definition.dead_letter_key is not None and definition.dead_letter_exchange is None:
        raise PreconditionFailed(
            f"invalid arg 'x-dead-letter-routing-key' for queue '{name}': 'x-dead-letter-exchange' is missing"
        )
    if kind == QUORUM:
        _refuse(definition, "quorum", durable=True, exclusive=False, auto_delete=False, max_priority=0)
    return _stream(definition) if kind == STREAM else definition


def _limit(limit: int | None, kind: str) -> int | None:
    """How often a message may be delivered again; -1 says that there is no limit."""
    if limit is None:
        return QUORUM_DELIVERY_LIMIT if kind == QUORUM else None
    return None if limit < 0 else limit


def _stream(definition: QueueDefinition) -> QueueDefinition:
    _refuse(definition, "stream", durable=True, exclusive=False, auto_delete=False, max_priority=0)
    _refuse(definition, "stream", dead_letter_exchange=None, message_ttl_ms=None, delivery_limit=None, expires_ms=0)
    age = definition.arguments.get("x-max-age")
    try:
        max_age_ms = parse_duration_ms(age, "x-max-age") if age is not None else 0
    except Refused as error:
        raise PreconditionFailed(f"invalid arg 'x-max-age' for queue '{definition.name}': {error}") from error
    retention = Retention(max_age_ms, definition.max_length_bytes or 0, definition.max_length or 0)
    return replace(definition, retention=retention, max_length=None, max_length_bytes=None)


def _refuse(definition: QueueDefinition, kind: str, **required: object) -> None:
    for name, value in required.items():
        if getattr(definition, name) != value:
            raise PreconditionFailed(f"invalid property '{name}' for {kind} queue '{definition.name}'")


class _Arguments:
    """Reads `x-` arguments and says what is wrong with them."""

    def __init__(self, queue: str, values: Mapping[str, object]) -> None:
        self._queue = queue
        self._values = values

    def number(self, name: str, least: int = 0, most: int = (1 << 53)) -> int | None:
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._invalid(name, f"expected a whole number, received {value!r}")
        if not least <= value <= most:
            raise self._invalid(name, f"{value} is not between {least} and {most}")
        return value

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        if value is None or isinstance(value, str):
            return value
        raise self._invalid(name, f"expected a string, received {value!r}")

    def expression(self, name: str) -> str:
        text = self.text(name) or ""
        try:
            if text:
                parse(text)
        except BadExpression as error:
            raise self._invalid(name, str(error)) from error
        return text

    def position(self, name: str) -> str:
        value = self._values.get(name)
        try:
            return position_text(value)
        except Refused as error:
            raise self._invalid(name, str(error)) from error

    def flag(self, name: str) -> bool:
        value = self._values.get(name, False)
        if isinstance(value, bool):
            return value
        raise self._invalid(name, f"expected true or false, received {value!r}")

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        value = self.text(name)
        if value is None:
            return default
        if value not in choices:
            raise self._invalid(name, f"{value!r} is none of {', '.join(choices)}")
        return value

    def _invalid(self, name: str, why: str) -> PreconditionFailed:
        return PreconditionFailed(f"invalid arg '{name}' for queue '{self._queue}': {why}")

"""What a receiver wants of its source: group, position, selector, from properties and filters of its attach."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final, final

from headrace.errors import ProtocolError
from headrace.protocols.amqp10.frames import INVALID_FIELD
from headrace.protocols.amqp10.neutral import to_neutral
from headrace.protocols.amqp10.performatives import Attach
from headrace.protocols.amqp10.termini import Source
from headrace.protocols.amqp10.types import Described, Map
from headrace.selector import Selector, parse

# Filters are known by their descriptors; the key under which one stands is the receiver's own affair.
_SELECTORS: Final = ("apache.org:selector-filter:string", 0x0000468C00000004, "amqp:sql-filter", "jms-selector")
_OFFSETS: Final = ("rabbitmq:stream-offset-spec",)
_NO_LOCAL: Final = ("apache.org:no-local-filter:list", 0x0000468C00000003)


@final
class Wanted:
    """What a receiver asks for besides an address."""

    __slots__ = ("applied", "auto_commit", "group", "mode", "no_local", "position", "priority", "selector")

    def __init__(self) -> None:
        self.group = ""
        self.mode = ""
        """In which the group is to be joined; "" for as it is."""
        self.position: str | int | datetime | None = None
        self.auto_commit = True
        self.priority = 0
        self.selector: Selector | None = None
        self.no_local = False
        """Whether what its own container publishes is not for it; on topics."""
        self.applied = Map()
        """The filters that are in force: what the answer says."""


def wanted_of(attach: Attach, source: Source) -> Wanted:
    """Raises ProtocolError (invalid field) for values that make no sense, BadExpression for a selector."""
    wanted = Wanted()
    properties = attach.properties.texts()
    wanted.group = _text(properties, "consumer-group")
    wanted.mode = _text(properties, "group-mode")
    cursor = properties.get("cursor")
    if cursor is not None:
        wanted.position = _position("cursor", cursor)
    wanted.auto_commit = _flag(properties, "auto-commit")
    priority = properties.get("rabbitmq:priority", 0)
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise ProtocolError(INVALID_FIELD, f"the property 'rabbitmq:priority' must be a number, not {priority!r}")
    wanted.priority = int(priority)
    for key, value in source.filter.pairs:
        if _apply(wanted, key, value):
            wanted.applied.pairs.append((key, value))
    return wanted


def _apply(wanted: Wanted, key: object, value: object) -> bool:
    """Have a filter in force; False when it is none that is known here, as the answer then tells."""
    descriptor, content = (value.descriptor, value.value) if isinstance(value, Described) else (key, value)
    if descriptor in _SELECTORS:
        if not isinstance(content, str):
            raise ProtocolError(INVALID_FIELD, "a selector filter must be a string")
        wanted.selector = parse(content) if content.strip() else None
        return True
    if descriptor in _NO_LOCAL:
        wanted.no_local = True
        return True
    if descriptor in _OFFSETS:
        wanted.position = _position("rabbitmq:stream-offset-spec", content)
        return True
    return False


def _position(name: str, value: object) -> str | int | datetime:
    plain = to_neutral(value)
    if isinstance(plain, str | int | datetime) and not isinstance(plain, bool):
        return plain
    raise ProtocolError(INVALID_FIELD, f"{name!r} must be a name, a number or a time, not {plain!r}")


def _text(properties: Mapping[str, object], name: str) -> str:
    value = properties.get(name, "")
    if not isinstance(value, str):
        raise ProtocolError(INVALID_FIELD, f"the property {name!r} must be a string, not {value!r}")
    return str(value)


def _flag(properties: Mapping[str, object], name: str) -> bool:
    value = properties.get(name, True)
    if isinstance(value, str):
        return value.lower() not in ("false", "0", "no")
    if not isinstance(value, bool):
        raise ProtocolError(INVALID_FIELD, f"the property {name!r} must be true or false, not {value!r}")
    return value

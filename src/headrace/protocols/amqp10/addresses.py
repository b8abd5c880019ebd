"""Addresses and filters of termini, parsed. context.py looks up what they name."""

from datetime import datetime
from typing import Final, final
from urllib.parse import quote, unquote_to_bytes

from headrace.core.client import ConsumeRequest, request_table
from headrace.core.queue.filter_values import read_values
from headrace.core.routing.address import is_address
from headrace.errors import PreconditionFailed, ProtocolError, Refused
from headrace.protocols.amqp10.filters import PROPERTY_FILTERS, selector_of_properties
from headrace.protocols.amqp10.frames import INVALID_FIELD
from headrace.protocols.amqp10.performatives import Attach, Source
from headrace.selector import Selector, parse, parse_plain, selector_of
from headrace.selector.tree import AllOf, Condition
from headrace.wire.amqp10 import to_neutral
from headrace.wire.types import Described, Map

QUEUE: Final = 1
"""A queue by its name."""
ADDRESS: Final = 2
"""`$queue/<name>/<key>`: all queues that match."""
EXCHANGE: Final = 3
"""An exchange, with a key or with each message's subject for a key."""
TOPIC: Final = 4
"""A plain topic."""
ANONYMOUS: Final = 5
"""No address: each message has its own."""
MANAGEMENT: Final = 6
PATHS: Final = 7
"""Management as in RabbitMQ 4, with paths and verbs."""

MANAGEMENT_ADDRESS: Final = "$management"
PATHS_ADDRESS: Final = "/management"


@final
class Node:
    """The node that an address means. `name` is the queue, the address, the exchange or the topic."""

    __slots__ = ("key", "kind", "name")

    def __init__(self, kind: int, name: str = "", key: str | None = None) -> None:
        self.kind = kind
        self.name = name
        self.key = key

    def __repr__(self) -> str:
        return f"Node({self.kind}, {self.name!r}, {self.key!r})"


def parse_node(address: str | None, capabilities: list[str]) -> Node:
    """Parse an address. Raises ProtocolError (invalid field).

    A plain name is a queue's, and a name with levels or wildcards is a topic's, unless the capability `queue` or
    `topic` decides.
    """
    if not address:
        return Node(ANONYMOUS)
    if address == MANAGEMENT_ADDRESS:
        return Node(MANAGEMENT)
    if address == PATHS_ADDRESS:
        return Node(PATHS)
    if is_address(address):
        return Node(ADDRESS, address)
    if address.startswith("/"):
        return _by_path(address)
    scheme, colon, name = address.partition("://")
    if colon and scheme in ("queue", "topic") and name:
        return Node(QUEUE if scheme == "queue" else TOPIC, name)
    if "queue" in capabilities:
        return Node(QUEUE, address)
    if (
        "topic" in capabilities
        or "temporary-topic" in capabilities
        or "/" in address
        or "+" in address
        or "#" in address
    ):
        return Node(TOPIC, address)
    return Node(QUEUE, address)


def _by_path(address: str) -> Node:
    """Parse the forms of RabbitMQ 4, and of its older plugin."""
    parts = address[1:].split("/")
    first, rest = parts[0], parts[1:]
    if first == "queues" and len(rest) == 1 and rest[0]:
        return Node(QUEUE, _plain(rest[0], address))
    if first == "exchanges" and 1 <= len(rest) <= 2 and rest[0]:
        return Node(EXCHANGE, _plain(rest[0], address), _plain(rest[1], address) if len(rest) == 2 else None)
    if first == "queue" and rest and address[7:]:
        return Node(QUEUE, address[7:])
    if first == "amq" and len(rest) > 1 and rest[0] == "queue" and address[11:]:
        return Node(QUEUE, address[11:])
    if first == "exchange" and 1 <= len(rest) <= 2 and rest[0]:
        return Node(EXCHANGE, rest[0], rest[1] if len(rest) == 2 else None)
    if first == "topic" and rest and address[7:]:
        return Node(EXCHANGE, "amq.topic", address[7:])
    raise ProtocolError(
        INVALID_FIELD,
        f"the address {address[:128]!r} is none of: a queue's name, $queue/<name>/<key>, /queues/<name>, "
        f"/exchanges/<name>/<key>, a topic with levels, {MANAGEMENT_ADDRESS}, {PATHS_ADDRESS}",
    )


def queue_path(name: str) -> str:
    """Return the address of a queue of any name."""
    return "/queues/" + quote(name, safe="")


def _plain(part: str, address: str) -> str:
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(INVALID_FIELD, f"the address {address[:128]!r} is not UTF-8 with %HH in it") from error


_PROPERTIES: Final = request_table("consumer-group", "group-mode", "cursor", "auto-commit", "rabbitmq:priority")
# Descriptors name filters. The receiver chooses the keys.
_SELECTORS: Final = ("apache.org:selector-filter:string", 0x0000468C00000004, "jms-selector")
_SQL: Final = ("amqp:sql-filter", 0x120)
_OFFSETS: Final = ("rabbitmq:stream-offset-spec",)
_FILTER: Final = "rabbitmq:stream-filter"
_OTHERS: Final = "rabbitmq:stream-match-unfiltered"
_NO_LOCAL: Final = ("apache.org:no-local-filter:list", 0x0000468C00000003)


def request_of(node: Node, attach: Attach, source: Source) -> ConsumeRequest:
    """Read the wishes of an attach. The source keeps the filters in force, for the answer.

    Raises ProtocolError (invalid field), or BadExpression for a selector.
    """
    request = ConsumeRequest(node.name, node.kind == ADDRESS)
    properties = {name: to_neutral(value) for name, value in attach.properties.texts().items()}
    try:
        request.read(_PROPERTIES, properties)
    except PreconditionFailed as error:
        raise ProtocolError(INVALID_FIELD, str(error)) from error
    conditions: list[Condition] = []
    source.filter = Map([(key, value) for key, value in source.filter.pairs if _apply(request, conditions, key, value)])
    if len(conditions) > 1:
        request.selector = selector_of(AllOf(tuple(conditions)))
    return request


def has_no_local(source: Source) -> bool:
    """Return True if messages of its own container are not for the receiver."""
    return any([_parts_of(key, value)[0] in _NO_LOCAL for key, value in source.filter.pairs])


def _parts_of(key: object, value: object) -> tuple[object, object]:
    """Return the descriptor and the content of a filter."""
    return (value.descriptor, value.value) if isinstance(value, Described) else (key, value)


def _apply(request: ConsumeRequest, conditions: list[Condition], key: object, value: object) -> bool:
    """Put a filter in force. Return False for an unknown one, which the answer leaves out."""
    descriptor, content = _parts_of(key, value)
    selector: Selector | None
    if descriptor in _SELECTORS or descriptor in _SQL:
        if not isinstance(content, str):
            raise ProtocolError(INVALID_FIELD, "a selector filter must be a string")
        read = parse if descriptor in _SELECTORS else parse_plain
        selector = read(content) if content.strip() else None
    elif descriptor in PROPERTY_FILTERS:
        selector = selector_of_properties(descriptor, content)
        if selector is None:
            return False
    else:
        return _apply_position(request, descriptor, content)
    if selector is not None:
        conditions.append(selector.tree)
        request.selector = selector
    return True


def _apply_position(request: ConsumeRequest, descriptor: object, content: object) -> bool:
    """Put a filter that only streams have in force."""
    if descriptor in _OFFSETS:
        request.position = _position("rabbitmq:stream-offset-spec", content)
        return True
    if descriptor == _FILTER:
        try:
            request.filter_values = read_values(to_neutral(content))
        except Refused as error:
            raise ProtocolError(INVALID_FIELD, f"the filter {_FILTER!r} {error}") from error
        return True
    if descriptor == _OTHERS:
        if not isinstance(content, bool):
            raise ProtocolError(INVALID_FIELD, f"the filter {_OTHERS!r} must be true or false")
        request.admits_others = content
        return True
    return descriptor in _NO_LOCAL


def _position(name: str, value: object) -> str | int | datetime:
    plain = to_neutral(value)
    if isinstance(plain, str | int | datetime) and not isinstance(plain, bool):
        return plain
    raise ProtocolError(INVALID_FIELD, f"{name!r} must be a name, a number or a time, not {plain!r}")

"""What the address of a terminus, or of a single message, means. Nothing is looked up: see publishing and consuming."""

from typing import Final, final
from urllib.parse import quote, unquote_to_bytes

from headrace.core.address import is_address
from headrace.errors import ProtocolError
from headrace.protocols.amqp10.frames import INVALID_FIELD

QUEUE: Final = 1
"""The queue of that name."""
ADDRESS: Final = 2
"""`$queue/<name>/<key>`, for all queues that match."""
EXCHANGE: Final = 3
"""An exchange, with a key or with each message's subject for one."""
TOPIC: Final = 4
"""A plain topic."""
ANONYMOUS: Final = 5
"""Each message says where it goes."""
MANAGEMENT: Final = 6
PATHS: Final = 7
"""The management of RabbitMQ 4: requests are paths and verbs."""

MANAGEMENT_ADDRESS: Final = "$management"
PATHS_ADDRESS: Final = "/management"


@final
class Node:
    """Where a link leads. `name` is the queue, the address, the exchange or the topic."""

    __slots__ = ("key", "kind", "name")

    def __init__(self, kind: int, name: str = "", key: str | None = None) -> None:
        self.kind = kind
        self.name = name
        self.key = key

    def __repr__(self) -> str:
        return f"Node({self.kind}, {self.name!r}, {self.key!r})"


def parse_node(address: str | None, capabilities: list[str]) -> Node:
    """Raises ProtocolError (invalid field) for an address that is none of the forms.

    A plain name is a queue's; one with levels or wildcards is a topic. The capabilities `queue` and `topic` decide
    where they are given.
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
    """The forms of RabbitMQ 4, and those of its plugin before."""
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
    """The address of a queue, whatever its name is."""
    return "/queues/" + quote(name, safe="")


def _plain(part: str, address: str) -> str:
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(INVALID_FIELD, f"the address {address[:128]!r} is not UTF-8 with %HH in it") from error

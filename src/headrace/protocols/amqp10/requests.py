"""A request to a management node and the reply to it. Values; how they are sent is in management.py."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, final

from headrace.errors import (
    AccessRefused,
    HeadraceError,
    NotFound,
    PreconditionFailed,
    ProtocolError,
    ResourceLocked,
    Unavailable,
)
from headrace.protocols.amqp10.properties import from_neutral, to_neutral
from headrace.protocols.amqp10.sections import SUBJECT, TO, Head
from headrace.protocols.amqp10.types import Int, Map, UInt, ULong

if TYPE_CHECKING:
    from headrace.core.queue.queue import Queue
    from headrace.protocols.amqp10.context import ConnectionContext

OK: Final = 200
CREATED: Final = 201
NO_CONTENT: Final = 204
BAD_REQUEST: Final = 400
FORBIDDEN: Final = 403
MISSING: Final = 404
NOT_ALLOWED: Final = 405
CONFLICT: Final = 409
UNAVAILABLE: Final = 503

# The first kind that fits counts.
_STATUS: Final[tuple[tuple[type[HeadraceError], int], ...]] = (
    (NotFound, MISSING),
    (AccessRefused, FORBIDDEN),
    (ResourceLocked, CONFLICT),
    (PreconditionFailed, CONFLICT),
    (Unavailable, UNAVAILABLE),
    (HeadraceError, BAD_REQUEST),
)


@final
class Request:
    """What is asked for: a message's head and its body in Python's own types."""

    __slots__ = ("_head", "body", "peer")

    def __init__(self, peer: "ConnectionContext", head: Head, body: object) -> None:
        self.peer = peer
        self._head = head
        self.body = body

    @property
    def to(self) -> str:
        value = self._head.property_field(TO)
        return str(value) if isinstance(value, str) else ""

    @property
    def subject(self) -> str:
        value = self._head.property_field(SUBJECT)
        return str(value) if isinstance(value, str) else ""

    def property(self, name: str) -> object:
        """An application property, in Python's own types."""
        return to_neutral((self._head.application or Map()).get(name))

    def text(self, name: str) -> str:
        value = self.property(name)
        return value if isinstance(value, str) else ""

    def table(self) -> dict[str, object]:
        """The body as a map. Raises ProtocolError when it is something else."""
        if self.body is None:
            return {}
        if not isinstance(self.body, dict):
            raise ProtocolError(BAD_REQUEST, "the body must be a map")
        return self.body


@final
class Reply:
    """What is answered; `body` is a value of AMQP 1.0."""

    __slots__ = ("body", "description", "status")

    def __init__(self, status: int, body: object = None, description: str = "") -> None:
        self.status = status
        self.body = body
        self.description = description

    def said(self, is_by_path: bool) -> list[tuple[object, object]]:
        """The application properties of the reply."""
        if is_by_path:
            return [("http:response", "1.1")]
        return [("statusCode", Int(self.status)), ("statusDescription", self.description)]


def refusal(error: HeadraceError, is_by_path: bool) -> Reply:
    """The reply that says what went wrong."""
    status = BAD_REQUEST
    for kind, code in _STATUS:
        if isinstance(error, kind):
            status = code
            break
    return Reply(status, str(error) if is_by_path else None, str(error))


def described_queue(peer: "ConnectionContext", queue: "Queue") -> Map:
    """What there is to say of a queue."""
    definition = queue.definition
    arguments = {"x-queue-type": definition.kind, **definition.arguments}
    return Map(
        [
            ("name", queue.name),
            ("vhost", peer.host.name),
            ("type", definition.kind),
            ("durable", definition.durable),
            ("auto_delete", definition.auto_delete),
            ("exclusive", definition.exclusive),
            ("message_count", ULong(queue.messages)),
            ("consumer_count", UInt(queue.consumers)),
            ("leader", "headrace"),
            ("replicas", ["headrace"]),
            ("arguments", from_neutral(arguments)),
        ]
    )


def flag(values: Mapping[str, object], name: str, default: bool) -> bool:
    """Raises ProtocolError when it is neither true nor false."""
    value = values.get(name, default)
    if not isinstance(value, bool):
        raise ProtocolError(BAD_REQUEST, f"{name!r} must be true or false, not {value!r}")
    return value


def text(values: Mapping[str, object], name: str, default: str = "") -> str:
    """Raises ProtocolError when it is no string."""
    value = values.get(name, default)
    if not isinstance(value, str):
        raise ProtocolError(BAD_REQUEST, f"{name!r} must be a string, not {value!r}")
    return value


def arguments(values: Mapping[str, object]) -> dict[str, object]:
    """The table `arguments`. Raises ProtocolError when it is something else."""
    value = values.get("arguments")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ProtocolError(BAD_REQUEST, f"'arguments' must be a map, not {value!r}")
    return value

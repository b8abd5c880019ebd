"""The management nodes: requests come in as messages, replies go out as messages.

`$management` takes CREATE, READ, QUERY and DELETE of queues, as FluxMQ names them: the application properties
`operation`, `type` and `name`, and a body of attributes. `/management` takes the verbs and paths that clients of
RabbitMQ 4 declare with:

PUT, GET, DELETE  /queues/<name>          DELETE  /queues/<name>/messages
PUT, DELETE       /exchanges/<name>       POST, GET  /bindings       DELETE  /bindings/src=..;dstq=..;key=..;args=..

`args` of a binding's path is empty for a binding without arguments, else a checksum of them. GET returns the path of
each binding as its `location`, so clients need not know the checksum.
"""

import hashlib
import json
from base64 import urlsafe_b64encode
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, final
from urllib.parse import parse_qs, quote, unquote

from headrace.core.access import permissions
from headrace.core.access.permissions import CONFIGURE, READ
from headrace.core.queue.configured import configured
from headrace.core.queue.definition import QueueDefinition, declared
from headrace.core.queue.dispatch import Delivery
from headrace.core.queue.queue import Queue
from headrace.core.routing.exchange import Binding, Exchange
from headrace.errors import (
    AccessRefused,
    HeadraceError,
    NotFound,
    PreconditionFailed,
    ProtocolError,
    Refused,
    ResourceLocked,
    Unavailable,
)
from headrace.model import AMQP10, Message, Source
from headrace.protocols.amqp10.addresses import EXCHANGE, QUEUE, parse_node
from headrace.protocols.amqp10.context import NODE, PROTOCOL, ConnectionContext
from headrace.protocols.amqp10.frames import RESOURCE_LIMIT
from headrace.protocols.amqp10.performatives import ACCEPTED, Outcome, Rejected, Target, error_for
from headrace.protocols.amqp10.session import Incoming, IncomingLink, Origin, OutgoingLink, Session, Sink
from headrace.wire.amqp10 import (
    CORRELATION_ID,
    MESSAGE_ID,
    REPLY_TO,
    SUBJECT,
    TO,
    VALUE,
    Head,
    decode_head,
    from_neutral,
    joined,
    parts,
    split,
    to_neutral,
)
from headrace.wire.amqp10_values import STR8, Reader, encode_value
from headrace.wire.properties import table_to_json
from headrace.wire.types import Array, Described, Int, Map, UInt, ULong

_MAX_REPLIES: Final = 1024

# -- requests and replies ---------------------------------------------------------------------------------------------

OK: Final = 200
CREATED: Final = 201
NO_CONTENT: Final = 204
BAD_REQUEST: Final = 400
FORBIDDEN: Final = 403
MISSING: Final = 404
NOT_ALLOWED: Final = 405
CONFLICT: Final = 409
UNAVAILABLE: Final = 503

# The first kind that matches counts.
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
    """The head of a message, and its body in Python's own types."""

    __slots__ = ("_head", "body", "context", "subject", "to")

    def __init__(self, context: ConnectionContext, head: Head, body: object) -> None:
        self.context = context
        self._head = head
        self.to, self.subject = _text_of(head, TO), _text_of(head, SUBJECT)
        self.body = body

    def property(self, name: str) -> object:
        """Return an application property, in Python's own types."""
        return to_neutral((self._head.application or Map()).get(name))

    def text(self, name: str) -> str:
        value = self.property(name)
        return value if isinstance(value, str) else ""

    def table(self) -> dict[str, object]:
        """Return the body as a map. Raises ProtocolError if it is something else."""
        if self.body is None:
            return {}
        if not isinstance(self.body, dict):
            raise ProtocolError(BAD_REQUEST, "the body must be a map")
        return self.body


@final
class Reply:
    """The answer to a request. `body` is a value of AMQP 1.0."""

    __slots__ = ("body", "description", "status")

    def __init__(self, status: int, body: object = None, description: str = "") -> None:
        self.status = status
        self.body = body
        self.description = description


def refusal(error: HeadraceError, is_by_path: bool) -> Reply:
    """Return the reply with an error."""
    status = next(code for kind, code in _STATUS if isinstance(error, kind))
    return Reply(status, str(error) if is_by_path else None, str(error))


def described_queue(context: ConnectionContext, queue: Queue) -> Map:
    """Return the attributes of a queue."""
    definition = queue.definition
    arguments = {"x-queue-type": definition.kind, **definition.arguments}
    return Map(
        [
            ("name", queue.name),
            ("vhost", context.host.name),
            ("type", definition.kind),
            ("durable", definition.durable),
            ("auto_delete", definition.auto_delete),
            ("exclusive", definition.exclusive),
            ("message_count", ULong(queue.messages)),
            ("consumer_count", UInt(queue.consumers)),
            ("leader", NODE),
            ("replicas", Array(STR8, [NODE])),
            ("arguments", from_neutral(arguments)),
        ]
    )


def flag(values: Mapping[str, object], name: str, default: bool) -> bool:
    """Raises ProtocolError unless it is true or false."""
    value = values.get(name, default)
    if not isinstance(value, bool):
        raise ProtocolError(BAD_REQUEST, f"{name!r} must be true or false, not {value!r}")
    return value


def text(values: Mapping[str, object], name: str, default: str = "") -> str:
    """Raises ProtocolError unless it is a string."""
    value = values.get(name, default)
    if not isinstance(value, str):
        raise ProtocolError(BAD_REQUEST, f"{name!r} must be a string, not {value!r}")
    return value


def arguments(values: Mapping[str, object]) -> dict[str, object]:
    """Return the table `arguments`. Raises ProtocolError if it is something else."""
    value = values.get("arguments")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ProtocolError(BAD_REQUEST, f"'arguments' must be a map, not {value!r}")
    return value


# -- $management ------------------------------------------------------------------------------------------------------

_TYPES: Final = ("queue", "queues", "org.amqp.queue")
_MAX_RESULTS: Final = 1000
_BY_ARGUMENTS: Final = ("durable", "exclusive", "auto_delete", "arguments")


def answer_entity(request: Request) -> Reply:
    """Do the operation of a request to `$management`."""
    operation = request.text("operation").upper()
    try:
        kind = request.text("type") or request.text("entityType")  # clients of the working draft have the latter
        if kind not in _TYPES and not (operation == "QUERY" and not kind):
            raise ProtocolError(BAD_REQUEST, f"there are entities of the type 'queue', not {kind[:64]!r}")
        if operation == "CREATE":
            return _create(request)
        if operation == "READ":
            queue = request.context.broker.queue(_name(request), request.context.client.owner)
            return Reply(OK, described_queue(request.context, queue), "OK")
        if operation == "DELETE":
            request.context.client.rights.check(CONFIGURE, permissions.QUEUE, _name(request))
            count = request.context.broker.delete(_name(request), owner=request.context.client.owner)
            return Reply(NO_CONTENT, Map([("message_count", count)]), "deleted")
        if operation == "QUERY":
            return _query(request)
        raise ProtocolError(BAD_REQUEST, f"the operations are CREATE, READ, QUERY and DELETE, not {operation[:64]!r}")
    except HeadraceError as error:
        return refusal(error, False)


def _name(request: Request) -> str:
    name = request.text("name") or request.text("identity")
    if not name:
        raise ProtocolError(BAD_REQUEST, "the application property 'name' says which queue")
    return name


def _create(request: Request) -> Reply:
    """Declare a queue by AMQP's arguments if the body has them, else by the keys of the configuration."""
    body = request.table()
    name = _name(request)
    context = request.context
    if any([key in body for key in _BY_ARGUMENTS]):
        unknown = [key for key in body if key not in _BY_ARGUMENTS and key not in ("name", "type")]
        if unknown:
            raise Refused(f"unknown attribute {unknown[0][:64]!r} of queue {name!r}")
        table = arguments(body)
        if "type" in body:
            table = {"x-queue-type": body["type"], **table}
        is_durable = flag(body, "durable", True)
        definition = declared(name, is_durable, flag(body, "exclusive", False), flag(body, "auto_delete", False), table)
    else:
        definition = configured({**body, "name": name})
    return _declare(context, definition)


def _declare(context: ConnectionContext, definition: QueueDefinition) -> Reply:
    broker = context.broker
    was_there = definition.name in broker.topology.queues
    queue = context.client.declare(definition)
    return Reply(OK if was_there else CREATED, described_queue(context, queue), "exists" if was_there else "created")


def _query(request: Request) -> Reply:
    """Return attributes of all queues that this connection may see, in order of their names."""
    body = request.table()
    names = body.get("attributeNames") or ["name", "type", "message_count", "consumer_count"]
    if not isinstance(names, list) or not all([isinstance(name, str) for name in names]):
        raise ProtocolError(BAD_REQUEST, "'attributeNames' must be a list of strings")
    offset, count = _number(request, "offset", 0), _number(request, "count", _MAX_RESULTS)
    context = request.context
    results: list[object] = []
    for name in sorted(context.broker.topology.queues)[offset : offset + min(count, _MAX_RESULTS)]:
        try:
            described = described_queue(context, context.broker.queue(name, context.client.owner))
        except (NotFound, Refused):
            continue  # another connection has it exclusively
        results.append([described.get(str(attribute)) for attribute in names])
    return Reply(OK, Map([("attributeNames", [str(name) for name in names]), ("results", results)]), "OK")


def _number(request: Request, name: str, default: int) -> int:
    value = request.property(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ProtocolError(BAD_REQUEST, f"{name!r} must be a number from 0 on")
    return value


# -- /management ------------------------------------------------------------------------------------------------------


def answer_path(request: Request) -> Reply:
    """Do the verb of a request to `/management`: `subject` has the verb, `to` the path."""
    path, _, query = request.to.partition("?")
    parts = [unquote(part) for part in path.split("/")[1:]]
    try:
        match parts:
            case ["queues", name]:
                return _queue(request, name)
            case ["queues", name, "messages"] if request.subject == "DELETE":
                request.context.client.rights.check(READ, permissions.QUEUE, name)
                count = request.context.broker.purge(name, request.context.client.owner)
                return Reply(OK, Map([("message_count", ULong(count))]))
            case ["exchanges", name]:
                return _exchange(request, name)
            case ["bindings"]:
                return _bindings(request, query)
            case ["bindings", _] if request.subject == "DELETE":
                return _unbind(request, path.rpartition("/")[2])
    except HeadraceError as error:
        return refusal(error, True)
    return Reply(MISSING, f"there is nothing at {request.to[:128]!r}")


def _queue(request: Request, name: str) -> Reply:
    context, broker = request.context, request.context.broker
    if request.subject == "GET":
        return Reply(OK, described_queue(context, broker.queue(name, context.client.owner)))
    if request.subject == "DELETE":
        context.client.rights.check(CONFIGURE, permissions.QUEUE, name)
        try:
            count = broker.delete(name, owner=context.client.owner)
        except NotFound:
            count = 0  # as RabbitMQ does
        return Reply(OK, Map([("message_count", ULong(count))]))
    if request.subject != "PUT":
        return _no_such_verb(request)
    body = request.table()
    is_durable, is_exclusive = flag(body, "durable", True), flag(body, "exclusive", False)
    definition = declared(name, is_durable, is_exclusive, flag(body, "auto_delete", False), arguments(body))
    return _declare(context, definition)


def _exchange(request: Request, name: str) -> Reply:
    broker = request.context.broker
    if request.subject == "DELETE":
        request.context.client.rights.check(CONFIGURE, permissions.EXCHANGE, name)
        with suppress(NotFound):  # as RabbitMQ does
            broker.delete_exchange(name)
        return Reply(NO_CONTENT)
    if request.subject != "PUT":
        return _no_such_verb(request)
    body = request.table()
    exchange = Exchange(
        name,
        text(body, "type", "direct"),
        flag(body, "durable", True),
        flag(body, "auto_delete", False),
        flag(body, "internal", False),
        arguments(body),
    )
    request.context.client.rights.check_declare_exchange(exchange)
    broker.declare_exchange(exchange)
    return Reply(NO_CONTENT)


def _bindings(request: Request, query: str) -> Reply:
    context = request.context
    if request.subject == "POST":
        binding = _binding(request.table())
        context.client.rights.check_bind(binding)
        context.broker.bind(binding, context.client.owner)
        return Reply(NO_CONTENT)
    if request.subject != "GET":
        return _no_such_verb(request)
    wanted = {name: values[0] for name, values in parse_qs(query, keep_blank_values=True).items()}
    to_exchange = "dste" in wanted
    destination = wanted.get("dste", wanted.get("dstq", ""))
    found = [
        binding
        for binding in context.broker.topology.exchanges.bindings_to(destination, to_exchange)
        if binding.source == wanted.get("src", "") and binding.key == wanted.get("key", binding.key)
    ]
    return Reply(OK, [_described(context.host.name, binding) for binding in found])


def _binding(body: dict[str, object]) -> Binding:
    to_exchange = "destination_exchange" in body
    destination = text(body, "destination_exchange" if to_exchange else "destination_queue")
    return Binding(text(body, "source"), destination, text(body, "binding_key"), arguments(body), to_exchange)


def _unbind(request: Request, path: str) -> Reply:
    """Delete the binding of a path. It need not exist."""
    parts = dict(part.partition("=")[::2] for part in path.split(";"))
    if not {"src", "key", "args"} <= parts.keys() or not {"dstq", "dste"} & parts.keys():
        raise ProtocolError(BAD_REQUEST, f"the path of a binding is src=..;dstq=..;key=..;args=.., not {path[:128]!r}")
    plain = {name: unquote(value) for name, value in parts.items()}
    to_exchange = "dste" in plain
    destination = plain["dste"] if to_exchange else plain["dstq"]
    context = request.context
    context.client.rights.check_bind(Binding(plain["src"], destination, plain["key"], {}, to_exchange))
    for binding in context.broker.topology.exchanges.bindings_to(destination, to_exchange):
        if (binding.source, binding.key, _checksum(binding)) == (plain["src"], plain["key"], plain["args"]):
            context.broker.unbind(binding, context.client.owner)
    return Reply(NO_CONTENT)


def _location(binding: Binding) -> str:
    """Return the path that deletes a binding."""
    kind = "dste" if binding.to_exchange else "dstq"
    source, destination, key = [quote(text, safe="") for text in (binding.source, binding.destination, binding.key)]
    return f"/bindings/src={source};{kind}={destination};key={key};args={_checksum(binding)}"


def _checksum(binding: Binding) -> str:
    """Return a checksum of the arguments; "" for none."""
    if not binding.arguments:
        return ""
    text = json.dumps(table_to_json(binding.arguments), sort_keys=True)
    return urlsafe_b64encode(hashlib.blake2b(text.encode(), digest_size=6).digest()).decode()


def _described(host: str, binding: Binding) -> Map:
    destination = "destination_exchange" if binding.to_exchange else "destination_queue"
    return Map(
        [
            ("vhost", host),
            ("source", binding.source),
            (destination, binding.destination),
            ("binding_key", binding.key),
            ("arguments", from_neutral(binding.arguments)),
            ("location", _location(binding)),
        ]
    )


def _no_such_verb(request: Request) -> Reply:
    return Reply(NOT_ALLOWED, f"{request.subject[:16]!r} is not for {request.to[:128]!r}")


# -- links -------------------------------------------------------------------------------------------------------------


@final
class Replies(Origin):
    """The replies of a management node to one link, which wait for credit."""

    def __init__(self) -> None:
        self._link: OutgoingLink | None = None
        self._waiting: deque[bytes] = deque()
        self._allowed = 0

    def open(self, link: OutgoingLink) -> None:
        self._link = link

    def say(self, message: bytes) -> None:
        """Raises ProtocolError (resource limit) when too many replies wait already."""
        if len(self._waiting) >= _MAX_REPLIES:
            raise ProtocolError(RESOURCE_LIMIT, f"{_MAX_REPLIES} replies wait for credit")
        self._waiting.append(message)
        self._send()

    def allow(self, count: int) -> None:
        self._allowed = count
        self._send()

    def _send(self) -> None:
        link = self._link
        while self._waiting and self._allowed and link is not None and not link.is_over:
            self._allowed -= 1
            link.send([self._waiting.popleft()], None)

    def settled(self, delivery: Delivery, outcome: Outcome) -> None:
        return

    def end(self, is_closed: bool) -> None:
        self._waiting.clear()


@final
class ManagementSink(Sink):
    """Takes requests, and answers each once its changes are durable."""

    def __init__(self, session: Session, is_by_path: bool) -> None:
        self._session = session
        self._is_by_path = is_by_path

    def take(self, link: IncomingLink, delivery: Incoming) -> None:
        try:
            request, reply_to, correlation = _read(delivery.message, link)
        except HeadraceError as error:
            _refuse(link, delivery, error)
            return
        is_by_path = self._is_by_path
        reply = answer_path(request) if is_by_path else answer_entity(request)

        def kept(error: HeadraceError | None) -> None:
            answer = reply if error is None else refusal(error, is_by_path)
            try:
                self._send(link, reply_to, _written(answer, reply_to, correlation, is_by_path))
            except HeadraceError as refused:
                _refuse(link, delivery, refused)
                return
            if not delivery.settled:
                link.done(delivery.number, ACCEPTED)

        if not link.context.broker.when_kept(kept):
            kept(None)

    def _send(self, link: IncomingLink, reply_to: str, message: bytes) -> None:
        """Send a reply to the link paired with the request's, to the one of that address, or publish it there."""
        found = [
            (other, other.origin)
            for other in self._session.links()
            if isinstance(other, OutgoingLink) and isinstance(other.origin, Replies)
        ]
        for other, replies in found:
            if other.name == link.name or (reply_to and _target(other) == reply_to):
                replies.say(message)
                return
        if found and reply_to in ("", "$me"):
            found[0][1].say(message)
        elif reply_to:
            self._publish(reply_to, message)

    def _publish(self, reply_to: str, message: bytes) -> None:
        node = parse_node(reply_to, [])
        exchange, topic = (node.name, node.key or "") if node.kind == EXCHANGE else ("", node.name)
        context = self._session.context
        source = Source(topic, exchange, context.container_id, PROTOCOL, AMQP10)
        properties, payload = split(message)
        reply = Message(source, payload, context.now_us, properties)
        if node.kind in (EXCHANGE, QUEUE):
            context.client.check_publish(exchange, topic, len(message))
            context.broker.publish(reply)
        else:
            context.client.check_publish_topic(topic, len(message))
            context.broker.publish_topic(reply)

    def end(self) -> None:
        return


def _refuse(link: IncomingLink, delivery: Incoming, error: HeadraceError) -> None:
    """Reject a request, or detach its link if the request is settled."""
    if delivery.settled:
        link.detach(error)
    else:
        link.done(delivery.number, Rejected(error_for(error)))


def _target(link: OutgoingLink) -> str:
    target = link.attach.target
    return (target.address or "") if isinstance(target, Target) else ""


def _read(message: bytes, link: IncomingLink) -> tuple[Request, str, object]:
    """Return the request, the address of its reply, and the correlation id. Raises ProtocolError."""
    properties, payload = split(message)
    head = decode_head(parts(properties)[0])
    body = joined(bytes([properties[0] & 0x7F]), payload)
    value = Reader(body).value() if body else None
    content = value.value if isinstance(value, Described) else None
    request = Request(link.context, head, to_neutral(content))
    correlation = head.property_field(CORRELATION_ID)
    if correlation is None:
        correlation = head.property_field(MESSAGE_ID)
    return request, _text_of(head, REPLY_TO), correlation


def _text_of(head: Head, field: int) -> str:
    value = head.property_field(field)
    return str(value) if isinstance(value, str) else ""


def _written(reply: Reply, reply_to: str, correlation: object, is_by_path: bool) -> bytes:
    head = Head()
    subject = str(reply.status) if is_by_path else None
    head.properties = [None, None, reply_to or None, subject, None, correlation]
    status: list[tuple[object, object]] = [("statusCode", Int(reply.status)), ("statusDescription", reply.description)]
    head.application = Map([("http:response", "1.1")] if is_by_path else status)
    return head.encode() + bytes((0x00, 0x53, VALUE)) + encode_value(reply.body)

"""What `$management` does: CREATE, READ, QUERY and DELETE of queues, as FluxMQ names them. Links: management.py."""

from typing import Final

from headrace.core.access.permissions import CONFIGURE, QUEUE
from headrace.core.queue.configured import configured
from headrace.core.queue.definition import declared
from headrace.errors import HeadraceError, NotFound, ProtocolError, Refused
from headrace.protocols.amqp10.requests import (
    BAD_REQUEST,
    CREATED,
    NO_CONTENT,
    OK,
    Reply,
    Request,
    arguments,
    described_queue,
    flag,
    refusal,
)
from headrace.protocols.amqp10.types import Map

_TYPES: Final = ("queue", "queues", "org.amqp.queue")
_MAX_RESULTS: Final = 1000
_BY_ARGUMENTS: Final = ("durable", "exclusive", "auto_delete", "arguments")


def answer_entity(request: Request) -> Reply:
    """Do what the application properties `operation`, `type` and `name` say; the body has attributes."""
    operation = request.text("operation").upper()
    try:
        kind = request.text("type") or text_type(request)
        if kind not in _TYPES and not (operation == "QUERY" and not kind):
            raise ProtocolError(BAD_REQUEST, f"there are entities of the type 'queue', not {kind[:64]!r}")
        if operation == "CREATE":
            return _create(request)
        if operation == "READ":
            queue = request.peer.broker.queue(_name(request), request.peer.owner)
            return Reply(OK, described_queue(request.peer, queue), "OK")
        if operation == "DELETE":
            request.peer.rights.check(CONFIGURE, QUEUE, _name(request))
            count = request.peer.broker.delete(_name(request), owner=request.peer.owner)
            return Reply(NO_CONTENT, Map([("message_count", count)]), "deleted")
        if operation == "QUERY":
            return _query(request)
        raise ProtocolError(BAD_REQUEST, f"the operations are CREATE, READ, QUERY and DELETE, not {operation[:64]!r}")
    except HeadraceError as error:
        return refusal(error, False)


def text_type(request: Request) -> str:
    """The type where clients of the working draft put it: `entityType`."""
    return request.text("entityType")


def _name(request: Request) -> str:
    name = request.text("name") or request.text("identity")
    if not name:
        raise ProtocolError(BAD_REQUEST, "the application property 'name' says which queue")
    return name


def _create(request: Request) -> Reply:
    """A queue by AMQP's arguments where the body has such, else by the names of the configuration."""
    body = request.table()
    name = _name(request)
    peer = request.peer
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
    peer.rights.check_declare_queue(definition)
    was_there = name in peer.broker.topology.queues
    queue = peer.broker.declare(definition, peer.owner)
    return Reply(OK if was_there else CREATED, described_queue(peer, queue), "exists" if was_there else "created")


def _query(request: Request) -> Reply:
    """Attributes of all queues that this connection may see, in order of their names."""
    body = request.table()
    names = body.get("attributeNames") or ["name", "type", "message_count", "consumer_count"]
    if not isinstance(names, list) or not all([isinstance(name, str) for name in names]):
        raise ProtocolError(BAD_REQUEST, "'attributeNames' must be a list of strings")
    offset, count = _number(request, "offset", 0), _number(request, "count", _MAX_RESULTS)
    peer = request.peer
    results: list[object] = []
    for name in sorted(peer.broker.topology.queues)[offset : offset + min(count, _MAX_RESULTS)]:
        try:
            described = described_queue(peer, peer.broker.queue(name, peer.owner))
        except (NotFound, Refused):
            continue  # another connection has it for itself
        results.append([described.get(str(attribute)) for attribute in names])
    return Reply(OK, Map([("attributeNames", [str(name) for name in names]), ("results", results)]), "OK")


def _number(request: Request, name: str, default: int) -> int:
    value = request.property(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ProtocolError(BAD_REQUEST, f"{name!r} must be a number from 0 on")
    return value

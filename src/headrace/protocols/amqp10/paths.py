"""What `/management` does: the paths and verbs that clients of RabbitMQ 4 declare with. Links: management.py.

PUT, GET, DELETE  /queues/<name>          DELETE  /queues/<name>/messages
PUT, DELETE       /exchanges/<name>       POST, GET  /bindings       DELETE  /bindings/src=..;dstq=..;key=..;args=..
"""

from urllib.parse import parse_qs, unquote

from headrace.core.definition import declared
from headrace.core.exchange import Binding, Exchange
from headrace.core.rights import CONFIGURE, EXCHANGE, QUEUE, READ
from headrace.errors import HeadraceError, NotFound, ProtocolError
from headrace.protocols.amqp10.neutral import from_neutral
from headrace.protocols.amqp10.requests import (
    BAD_REQUEST,
    CREATED,
    MISSING,
    NO_CONTENT,
    NOT_ALLOWED,
    OK,
    Reply,
    Request,
    arguments,
    described_queue,
    flag,
    refusal,
    text,
)
from headrace.protocols.amqp10.types import Map, ULong


def answer_path(request: Request) -> Reply:
    """Do what the verb in `subject` says to the path in `to`."""
    path, _, query = request.to.partition("?")
    parts = [unquote(part) for part in path.split("/")[1:]]
    try:
        match parts:
            case ["queues", name]:
                return _queue(request, name)
            case ["queues", name, "messages"] if request.subject == "DELETE":
                request.peer.rights.check(READ, QUEUE, name)
                count = request.peer.broker.purge(name, request.peer.owner)
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
    peer, broker = request.peer, request.peer.broker
    if request.subject == "GET":
        return Reply(OK, described_queue(peer, broker.queue(name, peer.owner)))
    if request.subject == "DELETE":
        peer.rights.check(CONFIGURE, QUEUE, name)
        try:
            count = broker.delete(name, owner=peer.owner)
        except NotFound:
            count = 0  # as RabbitMQ does
        return Reply(OK, Map([("message_count", ULong(count))]))
    if request.subject != "PUT":
        return _no_such_verb(request)
    body = request.table()
    is_durable, is_exclusive = flag(body, "durable", True), flag(body, "exclusive", False)
    definition = declared(name, is_durable, is_exclusive, flag(body, "auto_delete", False), arguments(body))
    peer.rights.check_declare_queue(definition)
    was_there = name in broker.topology.queues
    queue = broker.declare(definition, peer.owner)
    return Reply(OK if was_there else CREATED, described_queue(peer, queue))


def _exchange(request: Request, name: str) -> Reply:
    broker = request.peer.broker
    if request.subject == "DELETE":
        request.peer.rights.check(CONFIGURE, EXCHANGE, name)
        try:
            broker.delete_exchange(name)
        except NotFound:
            return Reply(NO_CONTENT)  # as RabbitMQ does
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
    request.peer.rights.check_declare_exchange(exchange)
    broker.declare_exchange(exchange)
    return Reply(NO_CONTENT)


def _bindings(request: Request, query: str) -> Reply:
    peer = request.peer
    if request.subject == "POST":
        binding = _binding(request.table())
        peer.rights.check_bind(binding)
        peer.broker.bind(binding, peer.owner)
        return Reply(NO_CONTENT)
    if request.subject != "GET":
        return _no_such_verb(request)
    wanted = {name: values[0] for name, values in parse_qs(query, keep_blank_values=True).items()}
    to_exchange = "dste" in wanted
    destination = wanted.get("dste", wanted.get("dstq", ""))
    found = [
        binding
        for binding in peer.broker.topology.exchanges.bindings_to(destination, to_exchange)
        if binding.source == wanted.get("src", "") and binding.key == wanted.get("key", binding.key)
    ]
    return Reply(OK, [_described(peer.host.name, binding) for binding in found])


def _binding(body: dict[str, object]) -> Binding:
    to_exchange = "destination_exchange" in body
    destination = text(body, "destination_exchange" if to_exchange else "destination_queue")
    return Binding(text(body, "source"), destination, text(body, "binding_key"), arguments(body), to_exchange)


def _unbind(request: Request, path: str) -> Reply:
    """By the parts of the path; `args` is empty for a binding without arguments."""
    parts = dict(part.partition("=")[::2] for part in path.split(";"))
    plain = {name: unquote(value) for name, value in parts.items()}
    if plain.get("args"):
        raise ProtocolError(BAD_REQUEST, "a binding with arguments is not known by this path")
    to_exchange = "dste" in plain
    destination = plain.get("dste", plain.get("dstq", ""))
    peer = request.peer
    binding = Binding(plain.get("src", ""), destination, plain.get("key", ""), {}, to_exchange)
    peer.rights.check_bind(binding)
    peer.broker.unbind(binding, peer.owner)
    return Reply(NO_CONTENT)


def _described(host: str, binding: Binding) -> Map:
    destination = "destination_exchange" if binding.to_exchange else "destination_queue"
    return Map(
        [
            ("vhost", host),
            ("source", binding.source),
            (destination, binding.destination),
            ("binding_key", binding.key),
            ("arguments", from_neutral(binding.arguments)),
        ]
    )


def _no_such_verb(request: Request) -> Reply:
    return Reply(NOT_ALLOWED, f"{request.subject[:16]!r} is not for {request.to[:128]!r}")

"""What `/management` does: the paths and verbs that clients of RabbitMQ 4 declare with. Links: management.py.

PUT, GET, DELETE  /queues/<name>          DELETE  /queues/<name>/messages
PUT, DELETE       /exchanges/<name>       POST, GET  /bindings       DELETE  /bindings/src=..;dstq=..;key=..;args=..

`args` of a binding's path is empty for one without arguments, else a checksum of them. A client need not know how it
is made: GET says the path of each binding as its `location`.
"""

import hashlib
import json
from base64 import urlsafe_b64encode
from urllib.parse import parse_qs, quote, unquote

from headrace.core.access.permissions import CONFIGURE, EXCHANGE, QUEUE, READ
from headrace.core.properties import table_to_json
from headrace.core.queue.definition import declared
from headrace.core.routing.exchange import Binding, Exchange
from headrace.errors import HeadraceError, NotFound, ProtocolError
from headrace.protocols.amqp10.properties import from_neutral
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
    """By the parts of the path; one that is not there is no error."""
    parts = dict(part.partition("=")[::2] for part in path.split(";"))
    if not {"src", "key", "args"} <= parts.keys() or not {"dstq", "dste"} & parts.keys():
        raise ProtocolError(BAD_REQUEST, f"the path of a binding is src=..;dstq=..;key=..;args=.., not {path[:128]!r}")
    plain = {name: unquote(value) for name, value in parts.items()}
    to_exchange = "dste" in plain
    destination = plain["dste"] if to_exchange else plain["dstq"]
    peer = request.peer
    peer.rights.check_bind(Binding(plain["src"], destination, plain["key"], {}, to_exchange))
    for binding in peer.broker.topology.exchanges.bindings_to(destination, to_exchange):
        if (binding.source, binding.key, _checksum(binding)) == (plain["src"], plain["key"], plain["args"]):
            peer.broker.unbind(binding, peer.owner)
    return Reply(NO_CONTENT)


def _location(binding: Binding) -> str:
    """The path by which a binding is deleted."""
    kind = "dste" if binding.to_exchange else "dstq"
    source, destination, key = [quote(text, safe="") for text in (binding.source, binding.destination, binding.key)]
    return f"/bindings/src={source};{kind}={destination};key={key};args={_checksum(binding)}"


def _checksum(binding: Binding) -> str:
    """What tells arguments from others; "" for none."""
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

"""Commands about streams, super streams, stored offsets and publishers' numbers: as calls of core, and answers."""

import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Final, final

from headrace.core.access.permissions import CONFIGURE, EXCHANGE, QUEUE, READ
from headrace.core.queue.definition import QueueDefinition, declared
from headrace.core.queue.stream import StreamGroup
from headrace.core.routing.topology import Topology
from headrace.errors import HeadraceError, NotFound, PreconditionFailed, ProtocolError
from headrace.protocols.streams.codec import Request, frame, ranges, respond, text, texts
from headrace.protocols.streams.frames import (
    CREATE,
    CREATE_SUPER_STREAM,
    DELETE,
    DELETE_SUPER_STREAM,
    DELIVER,
    EXCHANGE_COMMAND_VERSIONS,
    METADATA,
    NO_OFFSET,
    OK,
    PARTITIONS,
    QUERY_OFFSET,
    QUERY_PUBLISHER_SEQUENCE,
    RESPONSE,
    ROUTE,
    STORE_OFFSET,
    STREAM_DOES_NOT_EXIST,
    STREAM_EXISTS,
    STREAM_NOT_AVAILABLE,
    STREAM_STATS,
    VERSIONS,
)
from headrace.protocols.streams.partitions import partition_binding, partitions_of, route_of, super_exchange
from headrace.protocols.streams.server import ConnectionContext

_NUMBERS: Final = {
    "max-length-bytes": "x-max-length-bytes",
    "stream-max-segment-size-bytes": "x-stream-max-segment-size-bytes",
    "stream-filter-size-bytes": "x-stream-filter-size-bytes",
    "initial-cluster-size": "x-initial-cluster-size",
}
_TEXTS: Final = {"max-age": "x-max-age", "queue-leader-locator": "x-queue-leader-locator"}
"""The arguments of streams, by the names that this protocol has for them."""
_MAX_DIGITS: Final = 18
_NO_LEADER: Final = 0xFFFF
_US: Final = 0
"""The number of this broker in an answer about where streams are."""


def definition_of(name: str, arguments: dict[str, str]) -> QueueDefinition:
    """The definition of a stream. Raises PreconditionFailed."""
    if not name:
        raise PreconditionFailed("a stream has a name")
    given: dict[str, object] = {"x-queue-type": "stream"}
    for key, value in arguments.items():
        if key in _NUMBERS and value.isascii() and value.isdecimal() and len(value) <= _MAX_DIGITS:
            given[_NUMBERS[key]] = int(value)
        elif key in _TEXTS:
            given[_TEXTS[key]] = value
        else:
            raise PreconditionFailed(f"invalid arg '{key[:64]}' for stream '{name}': {value[:64]!r}")
    return declared(name, durable=True, arguments=given)


def _has_exchange(topology: Topology, name: str) -> bool:
    try:
        topology.exchanges.get(name)
    except NotFound:
        return False
    return True


@final
class Management:
    """Carries out commands of one connection that are neither publishes nor subscriptions."""

    def __init__(self, context: ConnectionContext) -> None:
        self._context = context
        self._client = context.client
        self._broker = context.broker
        self._answers = context.answers

    def handle(self, request: Request) -> bool:
        """Carry out a command and answer it; False for a command that is not one of these. Raises HeadraceError."""
        handler = _HANDLERS.get(request.key)
        if handler is None:
            return False
        handler(self, request)
        return True

    def _answer(self, request: Request, code: int = OK, body: bytes = b"") -> None:
        self._answers.send(respond(request, code, body))

    def _answer_kept(self, request: Request) -> None:
        """Confirm a declaration or a deletion once it is durable."""
        self._answers.hold()
        self._answer(request)

    # -- streams -----------------------------------------------------------------------------------------------------

    def create(self, request: Request) -> None:
        definition = definition_of(request.text(0), request.table(1))
        exists = definition.name in self._broker.topology.queues
        self._client.declare(definition)
        if exists:
            raise ProtocolError(STREAM_EXISTS, f"stream '{definition.name}' exists already")
        self._answer_kept(request)

    def delete(self, request: Request) -> None:
        queue = self._client.stream(CONFIGURE, request.text(0))
        self._broker.delete(queue.name, owner=self._client.owner)
        self._answer_kept(request)

    def metadata(self, request: Request) -> None:
        """Tell of each stream that this broker has it."""
        host, _, port = self._context.wire.local.rpartition(":")
        parts = [struct.pack(">II", request.correlation, 1)]
        parts.append(struct.pack(">H", _US) + text(host.strip("[]")) + struct.pack(">I", int(port or 0)))
        names = request.texts(0)
        parts.append(struct.pack(">I", len(names)))
        for name in names:
            code = self._code_of(name)
            parts.append(text(name) + struct.pack(">HHI", code, _US if code == OK else _NO_LEADER, 0))
        self._answers.send(frame(METADATA | RESPONSE, b"".join(parts)))

    def _code_of(self, name: str) -> int:
        queue = self._broker.topology.queues.get(name)
        if queue is None or not queue.is_stream:
            return STREAM_DOES_NOT_EXIST
        return OK if queue.refusal is None else STREAM_NOT_AVAILABLE

    def stats(self, request: Request) -> None:
        queue = self._client.stream(READ, request.text(0))
        first, last = queue.first_offset, queue.safe_offset - 1
        if last < first:
            first = last = -1
        numbers = {"first_chunk_id": first, "committed_chunk_id": last, "committed_offset": last}
        parts = [text(name) + struct.pack(">q", number) for name, number in numbers.items()]
        self._answer(request, OK, struct.pack(">I", len(numbers)) + b"".join(parts))

    def exchange_versions(self, request: Request) -> None:
        value = request.values[0]
        assert isinstance(value, list)
        for each in value:
            if isinstance(each, tuple) and each[0] == DELIVER:
                self._context.deliver_version = max(1, min(each[2], VERSIONS[DELIVER][1]))
        self._answer(request, OK, ranges(VERSIONS))

    # -- offsets and numbers -------------------------------------------------------------------------------------------

    def store_offset(self, request: Request) -> None:
        """Store how far a reader is, as the progress of a group; nothing answers this command."""
        name, stream, offset = request.text(0), request.text(1), request.number(2)
        with suppress(HeadraceError):
            queue = self._client.stream(READ, stream)
            self._broker.groups.report(queue.name, name, min(offset, queue.safe_offset) + 1)

    def query_offset(self, request: Request) -> None:
        group = self._client.stream(READ, request.text(1)).groups.get(request.text(0))
        stored = group.state.committed if isinstance(group, StreamGroup) else 0
        if stored:
            self._answer(request, OK, struct.pack(">Q", stored - 1))
        else:
            self._answer(request, NO_OFFSET, struct.pack(">Q", 0))

    def query_sequence(self, request: Request) -> None:
        queue = self._client.stream(READ, request.text(1))
        self._broker.tell_number(queue, request.text(0), lambda last: self._tell_sequence(request, last))

    def _tell_sequence(self, request: Request, last: int) -> None:
        if self._client.is_connected:
            self._answer(request, OK, struct.pack(">Q", last))

    # -- super streams -----------------------------------------------------------------------------------------------

    def create_super_stream(self, request: Request) -> None:
        """Declare a super stream with all of its partitions and bindings, or nothing."""
        name, streams, keys = request.text(0), request.texts(1), request.texts(2)
        if not name or not streams or len(streams) != len(keys) or len(set(streams)) < len(streams):
            raise PreconditionFailed("a super stream has a name, and partitions that differ, each with a binding key")
        definitions = [definition_of(stream, request.table(3)) for stream in streams]
        exchange = super_exchange(name)
        bindings = [
            partition_binding(name, stream, key, order)
            for order, (stream, key) in enumerate(zip(streams, keys, strict=True))
        ]
        rights = self._client.rights
        rights.check_declare_exchange(exchange)
        for definition, binding in zip(definitions, bindings, strict=True):
            rights.check_declare_queue(definition)
            rights.check_bind(binding)
        topology = self._broker.topology
        if any([stream in topology.queues for stream in streams]) or _has_exchange(topology, name):
            raise ProtocolError(STREAM_EXISTS, f"super stream '{name}' or one of its partitions exists already")
        self._broker.declare_exchange(exchange)
        for definition, binding in zip(definitions, bindings, strict=True):
            self._broker.declare(definition, self._client.owner)
            self._broker.bind(binding, self._client.owner)
        self._answer_kept(request)

    def delete_super_stream(self, request: Request) -> None:
        """Delete a super stream with its partitions."""
        name = request.text(0)
        rights = self._client.rights
        rights.check(CONFIGURE, EXCHANGE, name)
        streams = partitions_of(self._broker, name)
        for stream in streams:
            rights.check(CONFIGURE, QUEUE, stream)
        self._broker.delete_exchange(name)
        for stream in streams:
            self._broker.delete(stream, owner=self._client.owner)
        self._answer_kept(request)

    def route(self, request: Request) -> None:
        self._answer(request, OK, texts(route_of(self._broker, request.text(1), request.text(0))))

    def partitions(self, request: Request) -> None:
        self._answer(request, OK, texts(partitions_of(self._broker, request.text(0))))


_HANDLERS: Final[dict[int, Callable[[Management, Request], None]]] = {
    CREATE: Management.create,
    DELETE: Management.delete,
    METADATA: Management.metadata,
    STREAM_STATS: Management.stats,
    EXCHANGE_COMMAND_VERSIONS: Management.exchange_versions,
    STORE_OFFSET: Management.store_offset,
    QUERY_OFFSET: Management.query_offset,
    QUERY_PUBLISHER_SEQUENCE: Management.query_sequence,
    CREATE_SUPER_STREAM: Management.create_super_stream,
    DELETE_SUPER_STREAM: Management.delete_super_stream,
    ROUTE: Management.route,
    PARTITIONS: Management.partitions,
}

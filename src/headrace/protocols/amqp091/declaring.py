"""The methods of exchange and queue: declare, delete, bind, unbind, purge, to the core's calls of the same names."""

from typing import final

from pamqp import commands

from headrace.core.access.permissions import CONFIGURE, EXCHANGE, QUEUE, READ
from headrace.core.queue.definition import declared
from headrace.core.queue.queue import Queue
from headrace.core.routing.address import is_address, parse_address
from headrace.core.routing.exchange import KINDS, Binding, Exchange
from headrace.errors import NotFound, ProtocolError
from headrace.protocols.amqp091.context import ConnectionContext
from headrace.protocols.amqp091.frames import COMMAND_INVALID
from headrace.protocols.amqp091.publishing import REPLY_TO


@final
class Declarations:
    """The declaring side of a channel; it remembers the queue that was declared last."""

    def __init__(self, context: ConnectionContext) -> None:
        self._context = context
        self._last_queue = ""

    def queue_name(self, given: str) -> str:
        """The queue a method means: none given means the one declared last on the channel. Raises NotFound."""
        if given:
            return given
        if not self._last_queue:
            raise NotFound("no previously declared queue")
        return self._last_queue

    # -- exchanges ---------------------------------------------------------------------------------------------------

    def declare_exchange(self, method: commands.Exchange.Declare) -> None:
        kind = method.exchange_type
        if not method.passive and kind not in KINDS:
            raise ProtocolError(COMMAND_INVALID, f"unknown exchange type '{kind[:64]}'")
        exchange = Exchange(
            method.exchange, kind, method.durable, method.auto_delete, method.internal, dict(method.arguments or {})
        )
        if not method.passive:
            self._context.rights.check_declare_exchange(exchange)
        self._context.broker.declare_exchange(exchange, method.passive)

    def delete_exchange(self, method: commands.Exchange.Delete) -> None:
        """As RabbitMQ does, one that is not there is deleted too."""
        self._context.rights.check(CONFIGURE, EXCHANGE, method.exchange)
        try:
            self._context.broker.delete_exchange(method.exchange, method.if_unused)
        except NotFound:
            return

    def bind_exchange(self, method: commands.Exchange.Bind) -> None:
        binding = Binding(method.source, method.destination, method.routing_key, dict(method.arguments or {}), True)
        self._context.rights.check_bind(binding)
        self._context.broker.bind(binding)

    def unbind_exchange(self, method: commands.Exchange.Unbind) -> None:
        binding = Binding(method.source, method.destination, method.routing_key, dict(method.arguments or {}), True)
        self._unbind(binding)

    # -- queues ------------------------------------------------------------------------------------------------------

    def declare_queue(self, method: commands.Queue.Declare) -> tuple[str, int, int]:
        """The name, the messages that wait, the consumers."""
        name = method.queue
        if name.startswith(REPLY_TO):
            return self._declare_reply_queue(name)
        if method.passive:
            name = self.queue_name(name)
        name = _plain(name)
        owner = self._context.owner
        definition = declared(
            name, method.durable, method.exclusive, method.auto_delete, {} if method.passive else method.arguments
        )
        if not method.passive:
            self._context.rights.check_declare_queue(definition)
        queue: Queue = self._context.broker.declare(definition, owner, method.passive)
        self._last_queue = queue.name
        return queue.name, queue.messages, queue.consumers

    def _declare_reply_queue(self, name: str) -> tuple[str, int, int]:
        if name != REPLY_TO and name not in self._context.host.replies:
            raise NotFound(f"no queue '{name}' in vhost '{self._context.host.name}'")
        return name, 0, 1

    def delete_queue(self, method: commands.Queue.Delete) -> int:
        name = _plain(self.queue_name(method.queue))
        self._context.rights.check(CONFIGURE, QUEUE, name)
        try:
            return self._context.broker.delete(name, method.if_unused, method.if_empty, self._context.owner)
        except NotFound:
            return 0  # as RabbitMQ does

    def purge_queue(self, method: commands.Queue.Purge) -> int:
        name = _plain(self.queue_name(method.queue))
        self._context.rights.check(READ, QUEUE, name)
        return self._context.broker.purge(name, self._context.owner)

    def bind_queue(self, method: commands.Queue.Bind) -> None:
        binding = self._binding(method.queue, method.exchange, method.routing_key, dict(method.arguments or {}))
        self._context.rights.check_bind(binding)
        self._context.broker.bind(binding, self._context.owner)

    def unbind_queue(self, method: commands.Queue.Unbind) -> None:
        self._unbind(self._binding(method.queue, method.exchange, method.routing_key, dict(method.arguments or {})))

    def _unbind(self, binding: Binding) -> None:
        """As RabbitMQ does, what is bound to or from an exchange that is not there is unbound already."""
        self._context.rights.check_bind(binding)
        try:
            self._context.broker.unbind(binding, self._context.owner)
        except NotFound:
            return

    def _binding(self, given: str, exchange: str, key: str, arguments: dict[str, object]) -> Binding:
        name = _plain(self.queue_name(given))
        if not given and not key:
            key = name  # 0-9-1: an empty key means the name where the queue is the one declared last
        return Binding(exchange, name, key, arguments)


def _plain(name: str) -> str:
    """The name of a queue that may be given as an address."""
    return parse_address(name).queue if is_address(name) else name

"""One channel: handles every method of channel, exchange, queue, basic, tx and confirm. Publishes and deliveries have
files of their own."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, final

from pamqp import base, commands

from headrace.core.access.permissions import CONFIGURE, EXCHANGE, QUEUE, READ
from headrace.core.queue.definition import QueueDefinition, declared
from headrace.core.queue.queues import check_new_name
from headrace.core.routing.address import is_address, parse_address
from headrace.core.routing.exchange import KINDS, Binding, Exchange, routed_as
from headrace.errors import HeadraceError, NotFound, PreconditionFailed, ProtocolError
from headrace.net.facts import ChannelFacts
from headrace.protocols.amqp091.frames import COMMAND_INVALID, NOT_IMPLEMENTED
from headrace.protocols.amqp091.methods import encode_method
from headrace.protocols.amqp091.publishing import REPLY_TO, Publisher, Staged
from headrace.protocols.amqp091.server import ConnectionContext, close_fields, ends_channel_only
from headrace.protocols.amqp091.subscriptions import Subscriptions
from headrace.protocols.answers import Answers


@final
class Channel:
    """The state of one channel. Calls raise Refused kinds to end the channel, ProtocolError to end the connection."""

    def __init__(self, context: ConnectionContext, number: int) -> None:
        self._context = context
        self._client = context.client
        self._broker = context.broker
        self.number = number
        self.answers = Answers(context.wire, context.broker, self._answers_changed, self.end)
        self.publisher = Publisher(context, number, self.answers)
        self.subscriptions = Subscriptions(context, number, self.publisher, self.answers)
        self.subscriptions.end_channel = self.end
        self._last_queue = ""
        """The queue that was declared last: methods that name no queue mean it."""
        self.is_closing = False
        """True after our close, until the client answers it."""

    def handle(self, method: base.Frame) -> None:
        """Carry out a method and answer it."""
        handler = _HANDLERS.get(type(method))
        if handler is None:
            raise ProtocolError(COMMAND_INVALID, f"{method.name} is not for a server, or not for a channel")
        handler(self, method)

    def must_wait(self, method: base.Frame, resume: Callable[[], None]) -> bool:
        """True if a method looks into a queue that earlier publishes of this channel may not have reached yet.

        `resume` runs once they have.
        """
        if not self.publisher.is_ahead or type(method) not in _ASKING:
            return False
        self.publisher.is_ahead = False
        return self._broker.when_entered(resume)

    def close(self) -> None:
        """End the channel with its consumers and its transaction; unsettled messages go back to their queues."""
        self._broker.in_steps(self.leave())

    def leave(self) -> Iterator[None]:
        """The same, with the long part in steps."""
        self.publisher.close()
        return self.subscriptions.close()

    def detach(self) -> None:
        """Tell the connection nothing more: no reference cycle is left."""
        self.answers.detach()
        self.subscriptions.detach()

    def facts(self) -> ChannelFacts:
        """The channel's state, for operators."""
        return ChannelFacts(
            self.number,
            self.subscriptions.prefetch,
            self.subscriptions.unsettled,
            is_confirming=self.publisher.is_confirming,
            is_transactional=self.publisher.staged is not None,
            consumers=self.subscriptions.consumers,
        )

    def send(self, kind: type[base.Frame], fields: Mapping[str, object]) -> None:
        """Send a method behind all earlier answers."""
        self.answers.send(encode_method(self.number, kind, fields))

    def _reply(self, kind: type[base.Frame], **fields: object) -> None:
        self.send(kind, fields)

    def _reply_kept(self, nowait: bool, kind: type[base.Frame], **fields: object) -> None:
        """Confirm a declaration, deletion or purge once it is durable."""
        if not nowait:
            self.answers.hold()
            self.send(kind, fields)

    def _answers_changed(self) -> None:
        """Stop deliveries while answers wait."""
        self.subscriptions.refresh()

    # -- channel, confirm, tx ----------------------------------------------------------------------------------------

    def flow(self, method: commands.Channel.Flow) -> None:
        """Refuse to stop, as RabbitMQ does: basic.qos is for that."""
        if not method.active:
            raise ProtocolError(NOT_IMPLEMENTED, "active=false")
        self._reply(commands.Channel.FlowOk, active=True)

    def confirm_select(self, method: commands.Confirm.Select) -> None:
        if self.publisher.staged is not None:
            raise PreconditionFailed("cannot switch from tx to confirm mode")
        self.publisher.is_confirming = True
        if not method.nowait:
            self._reply(commands.Confirm.SelectOk)

    def tx_select(self, method: commands.Tx.Select) -> None:
        if self.publisher.is_confirming:
            raise PreconditionFailed("cannot switch from confirm to tx mode")
        if self.publisher.staged is None:
            self._begin()
        self._reply(commands.Tx.SelectOk)

    def tx_commit(self, method: commands.Tx.Commit) -> None:
        """Publish and settle all that was staged; answer once it is durable."""
        staged = self._require_transaction()
        settlements = self.subscriptions.staged_settlements()
        counts = self._broker.transaction([publish for publish, _ in staged], settlements, self._committed)
        self._begin()
        for (publish, route), count in zip(staged, counts, strict=True):
            if not count and route.mandatory:
                self.publisher.send_return(route, publish.message)

    def _committed(self, error: HeadraceError | None) -> None:
        if self.publisher.is_closed:
            return
        if error is None:
            self._reply(commands.Tx.CommitOk)
            return
        self.end(error)

    def end(self, error: HeadraceError) -> None:
        """Close the channel because of an error, or the connection if the error is not the channel's alone."""
        if not ends_channel_only(error):
            self._context.end(error)
            return
        self.answers.drop()
        self.send(commands.Channel.Close, close_fields(error))
        self.is_closing = True
        self.close()

    def tx_rollback(self, method: commands.Tx.Rollback) -> None:
        """Forget staged publishes; staged settlements are unsettled again."""
        self._require_transaction()
        self.subscriptions.unstage()
        self._begin()
        self._reply(commands.Tx.RollbackOk)

    def _begin(self) -> None:
        self.publisher.begin()
        self.subscriptions.staged = []

    def _require_transaction(self) -> list[Staged]:
        if self.publisher.staged is None:
            raise PreconditionFailed("channel is not transactional")
        return self.publisher.staged

    # -- exchange ----------------------------------------------------------------------------------------------------

    def exchange_declare(self, method: commands.Exchange.Declare) -> None:
        kind = method.exchange_type
        arguments = dict(method.arguments or {})
        for each in () if method.passive else (kind, routed_as(kind, arguments)):
            if each not in KINDS:
                raise ProtocolError(COMMAND_INVALID, f"unknown exchange type '{each[:64]}'")
        exchange = Exchange(method.exchange, kind, method.durable, method.auto_delete, method.internal, arguments)
        if not method.passive:
            self._client.rights.check_declare_exchange(exchange)
        self._broker.declare_exchange(exchange, method.passive)
        self._reply_kept(method.nowait, commands.Exchange.DeclareOk)

    def exchange_delete(self, method: commands.Exchange.Delete) -> None:
        """Delete an exchange; one that does not exist counts as deleted, as in RabbitMQ."""
        self._client.rights.check(CONFIGURE, EXCHANGE, method.exchange)
        with suppress(NotFound):
            self._broker.delete_exchange(method.exchange, method.if_unused)
        self._reply_kept(method.nowait, commands.Exchange.DeleteOk)

    def exchange_bind(self, method: commands.Exchange.Bind) -> None:
        self._bind(_exchange_binding(method))
        self._reply_kept(method.nowait, commands.Exchange.BindOk)

    def exchange_unbind(self, method: commands.Exchange.Unbind) -> None:
        self._unbind(_exchange_binding(method))
        self._reply_kept(method.nowait, commands.Exchange.UnbindOk)

    # -- queue -------------------------------------------------------------------------------------------------------

    def queue_declare(self, method: commands.Queue.Declare) -> None:
        name = method.queue
        messages, consumers = 0, 1
        if not name.startswith(REPLY_TO):
            name = _plain(name)
            # RabbitMQ, too, takes an exclusive queue for a transient one, whatever it is declared as.
            flags = method.durable and not method.exclusive, method.exclusive, method.auto_delete
            if method.passive or name in self._broker.topology.queues:
                definition = QueueDefinition.repeated(name, *flags, method.arguments)
            else:
                check_new_name(name)
                definition = declared(name, *flags, method.arguments, self._context.host.name)
            if method.passive:
                queue = self._broker.declare(definition, self._client.owner, passive=True)
            else:
                queue = self._client.declare(definition)
            self._last_queue = name = queue.name
            messages, consumers = queue.messages, queue.consumers
        elif name != REPLY_TO and name not in self._context.host.replies:
            raise NotFound(f"no queue '{name}' in vhost '{self._context.host.name}'")
        self._reply_kept(
            method.nowait, commands.Queue.DeclareOk, queue=name, message_count=messages, consumer_count=consumers
        )

    def queue_bind(self, method: commands.Queue.Bind) -> None:
        self._bind(self._binding(method))
        self._reply_kept(method.nowait, commands.Queue.BindOk)

    def queue_unbind(self, method: commands.Queue.Unbind) -> None:
        self._unbind(self._binding(method))
        self._reply_kept(False, commands.Queue.UnbindOk)

    def queue_purge(self, method: commands.Queue.Purge) -> None:
        name = _plain(self._queue_name(method.queue))
        self._client.rights.check(READ, QUEUE, name)
        count = self.subscriptions.purge(name)
        self._reply_kept(method.nowait, commands.Queue.PurgeOk, message_count=count)

    def queue_delete(self, method: commands.Queue.Delete) -> None:
        """Delete a queue; one that does not exist counts as deleted, as in RabbitMQ."""
        name = _plain(self._queue_name(method.queue))
        self._client.rights.check(CONFIGURE, QUEUE, name)
        count = 0
        with suppress(NotFound):
            count = self._broker.delete(name, method.if_unused, method.if_empty, self._client.owner)
        self._reply_kept(method.nowait, commands.Queue.DeleteOk, message_count=count)

    def _queue_name(self, given: str) -> str:
        """The queue that a method means: the one declared last if it names none. Raises NotFound."""
        if not given and not self._last_queue:
            raise NotFound("no previously declared queue")
        return given or self._last_queue

    def _binding(self, method: commands.Queue.Bind | commands.Queue.Unbind) -> Binding:
        name, key = _plain(self._queue_name(method.queue)), method.routing_key
        if not method.queue and not key:
            key = name  # 0-9-1: an empty key means the name where the queue is the one declared last
        return Binding(method.exchange, name, key, dict(method.arguments or {}))

    def _bind(self, binding: Binding) -> None:
        self._client.rights.check_bind(binding)
        self._broker.bind(binding, self._client.owner)

    def _unbind(self, binding: Binding) -> None:
        """Remove a binding; one of an exchange that does not exist counts as removed, as in RabbitMQ."""
        self._client.rights.check_bind(binding)
        with suppress(NotFound):
            self._broker.unbind(binding, self._client.owner)

    # -- basic -------------------------------------------------------------------------------------------------------

    def basic_qos(self, method: commands.Basic.Qos) -> None:
        self.subscriptions.qos(method)
        self._reply(commands.Basic.QosOk)

    def basic_consume(self, method: commands.Basic.Consume) -> None:
        tag = self.subscriptions.consume(method, self._queue_name(method.queue))
        if not method.nowait:
            self._reply(commands.Basic.ConsumeOk, consumer_tag=tag)

    def basic_cancel(self, method: commands.Basic.Cancel) -> None:
        self.subscriptions.cancel(method.consumer_tag or "")
        self._reply_kept(method.nowait, commands.Basic.CancelOk, consumer_tag=method.consumer_tag)  # its queue may go

    def basic_get(self, method: commands.Basic.Get) -> None:
        self.subscriptions.get(method, self._queue_name(method.queue))

    def basic_nack(self, method: commands.Basic.Nack) -> None:
        self.subscriptions.nack(method.delivery_tag or 0, method.multiple, method.requeue)

    def basic_reject(self, method: commands.Basic.Reject) -> None:
        self.subscriptions.nack(method.delivery_tag or 0, False, method.requeue)

    def basic_recover(self, method: commands.Basic.Recover) -> None:
        self._recover(method.requeue)
        self._reply(commands.Basic.RecoverOk)

    def basic_recover_async(self, method: commands.Basic.RecoverAsync) -> None:
        self._recover(method.requeue)

    def _recover(self, requeue: bool) -> None:
        if not requeue:
            raise ProtocolError(NOT_IMPLEMENTED, "requeue=false")
        self.subscriptions.recover()


def _exchange_binding(method: commands.Exchange.Bind | commands.Exchange.Unbind) -> Binding:
    return Binding(method.source, method.destination, method.routing_key, dict(method.arguments or {}), True)


def _plain(name: str) -> str:
    """The name of a queue that may be given as an address."""
    return parse_address(name).queue if is_address(name) else name


_ASKING: Final = frozenset(
    {commands.Basic.Get, commands.Queue.Declare, commands.Queue.Purge, commands.Queue.Delete},
)
"""Methods that report, take or drop messages of a queue."""

# Each handler takes the method beside it.
_HANDLERS: Final[dict[type[base.Frame], Callable[[Channel, Any], None]]] = {
    commands.Channel.Flow: Channel.flow,
    commands.Channel.FlowOk: lambda channel, method: None,
    commands.Confirm.Select: Channel.confirm_select,
    commands.Tx.Select: Channel.tx_select,
    commands.Tx.Commit: Channel.tx_commit,
    commands.Tx.Rollback: Channel.tx_rollback,
    commands.Exchange.Declare: Channel.exchange_declare,
    commands.Exchange.Delete: Channel.exchange_delete,
    commands.Exchange.Bind: Channel.exchange_bind,
    commands.Exchange.Unbind: Channel.exchange_unbind,
    commands.Queue.Declare: Channel.queue_declare,
    commands.Queue.Bind: Channel.queue_bind,
    commands.Queue.Unbind: Channel.queue_unbind,
    commands.Queue.Purge: Channel.queue_purge,
    commands.Queue.Delete: Channel.queue_delete,
    commands.Basic.Qos: Channel.basic_qos,
    commands.Basic.Consume: Channel.basic_consume,
    commands.Basic.Cancel: Channel.basic_cancel,
    commands.Basic.CancelOk: lambda channel, method: None,
    commands.Basic.Get: Channel.basic_get,
    commands.Basic.Nack: Channel.basic_nack,
    commands.Basic.Reject: Channel.basic_reject,
    commands.Basic.Recover: Channel.basic_recover,
    commands.Basic.RecoverAsync: Channel.basic_recover_async,
}

"""One channel: every method of channel, exchange, queue, basic, tx and confirm finds its way from here."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, final

from pamqp import base, commands

from headrace.errors import HeadraceError, PreconditionFailed, ProtocolError
from headrace.net.facts import ChannelFacts
from headrace.protocols.amqp091.codec import Publish
from headrace.protocols.amqp091.context import ConnectionContext, code_of, ends_channel_only, reply_text
from headrace.protocols.amqp091.declaring import Declarations
from headrace.protocols.amqp091.frames import COMMAND_INVALID, NOT_IMPLEMENTED
from headrace.protocols.amqp091.methods import encode_method
from headrace.protocols.amqp091.publishing import Publisher, Staged
from headrace.protocols.amqp091.subscriptions import Subscriptions
from headrace.protocols.answers import Answers


@final
class Channel:
    """The state of one channel. Calls raise Refused kinds to end the channel, ProtocolError to end the connection."""

    def __init__(self, context: ConnectionContext, number: int) -> None:
        self._context = context
        self.number = number
        self.answers = Answers(context.wire, context.broker, self._answers_changed, self.end)
        self.publisher = Publisher(context, number, self.answers)
        self.subscriptions = Subscriptions(context, number, self.publisher, self.answers)
        self.subscriptions.end_channel = self.end
        self._declarations = Declarations(context)
        self.is_closing = False
        """Whether we closed it and wait for the client to say that it knows."""

    def publish(self, event: Publish) -> None:
        self.publisher.publish(event)

    def ack(self, first: int, tag: int, multiple: bool) -> None:
        self.subscriptions.ack(first, tag, multiple)

    def handle(self, method: base.Frame) -> None:
        """Do what a method asks and answer it."""
        handler = _HANDLERS.get(type(method))
        if handler is None:
            raise ProtocolError(COMMAND_INVALID, f"{method.name} is not for a server, or not for a channel")
        handler(self, method)

    def must_wait(self, method: base.Frame, resume: Callable[[], None]) -> bool:
        """Whether a method asks what is in a queue while what was published here may not be there yet.

        If so, `resume` is called when it is: for what a channel asks, all that it published before has arrived.
        """
        if not self.publisher.is_ahead or type(method) not in _ASKING:
            return False
        self.publisher.is_ahead = False
        return self._context.broker.when_entered(resume)

    def close(self) -> None:
        """The channel is over: consumers, transactions and what was not settled go with it."""
        self._context.broker.in_steps(self.leave())

    def leave(self) -> Iterator[None]:
        """The same, with what is long of it in steps."""
        self.publisher.close()
        return self.subscriptions.close()

    def facts(self) -> ChannelFacts:
        """What goes on here, for those who look after the broker."""
        return ChannelFacts(
            self.number,
            self.subscriptions.prefetch,
            self.subscriptions.unsettled,
            is_confirming=self.publisher.is_confirming,
            is_transactional=self.publisher.staged is not None,
            consumers=self.subscriptions.consumers,
        )

    def send(self, kind: type[base.Frame], fields: Mapping[str, object]) -> None:
        """Send a method, after all that was sent before."""
        self.answers.send(encode_method(self.number, kind, fields))

    def _reply(self, kind: type[base.Frame], **fields: object) -> None:
        self.send(kind, fields)

    def _reply_kept(self, nowait: bool, kind: type[base.Frame], **fields: object) -> None:
        """Say that something was declared, deleted or purged, once that would survive a crash."""
        if not nowait:
            self.answers.hold()
            self.send(kind, fields)

    def _answers_changed(self) -> None:
        """Deliveries wait as long as answers do."""
        self.subscriptions.refresh()

    # -- channel, confirm, tx ----------------------------------------------------------------------------------------

    def flow(self, method: commands.Channel.Flow) -> None:
        self.subscriptions.flow(bool(method.active))
        self._reply(commands.Channel.FlowOk, active=method.active)

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
        """All that was published and settled happens now; the answer comes when it is safe."""
        staged = self._require_transaction()
        settlements = self.subscriptions.staged_settlements()
        counts = self._context.broker.transaction([publish for publish, _ in staged], settlements, self._committed)
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
        """Close the channel for what is wrong with it, or the connection where it is more than that."""
        if not ends_channel_only(error):
            self._context.end(error)
            return
        code = code_of(error)
        self.answers.drop()
        self._reply(commands.Channel.Close, reply_code=code, reply_text=reply_text(code, str(error)))
        self.is_closing = True
        self.close()

    def tx_rollback(self, method: commands.Tx.Rollback) -> None:
        """What was published is forgotten; what was settled is unsettled again."""
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
        self._declarations.declare_exchange(method)
        self._reply_kept(method.nowait, commands.Exchange.DeclareOk)

    def exchange_delete(self, method: commands.Exchange.Delete) -> None:
        self._declarations.delete_exchange(method)
        self._reply_kept(method.nowait, commands.Exchange.DeleteOk)

    def exchange_bind(self, method: commands.Exchange.Bind) -> None:
        self._declarations.bind_exchange(method)
        self._reply_kept(method.nowait, commands.Exchange.BindOk)

    def exchange_unbind(self, method: commands.Exchange.Unbind) -> None:
        self._declarations.unbind_exchange(method)
        self._reply_kept(method.nowait, commands.Exchange.UnbindOk)

    # -- queue -------------------------------------------------------------------------------------------------------

    def queue_declare(self, method: commands.Queue.Declare) -> None:
        name, messages, consumers = self._declarations.declare_queue(method)
        self._reply_kept(
            method.nowait, commands.Queue.DeclareOk, queue=name, message_count=messages, consumer_count=consumers
        )

    def queue_bind(self, method: commands.Queue.Bind) -> None:
        self._declarations.bind_queue(method)
        self._reply_kept(method.nowait, commands.Queue.BindOk)

    def queue_unbind(self, method: commands.Queue.Unbind) -> None:
        self._declarations.unbind_queue(method)
        self._reply_kept(False, commands.Queue.UnbindOk)

    def queue_purge(self, method: commands.Queue.Purge) -> None:
        count = self._declarations.purge_queue(method)
        self._reply_kept(method.nowait, commands.Queue.PurgeOk, message_count=count)

    def queue_delete(self, method: commands.Queue.Delete) -> None:
        count = self._declarations.delete_queue(method)
        self._reply_kept(method.nowait, commands.Queue.DeleteOk, message_count=count)

    # -- basic -------------------------------------------------------------------------------------------------------

    def basic_qos(self, method: commands.Basic.Qos) -> None:
        self.subscriptions.qos(method)
        self._reply(commands.Basic.QosOk)

    def basic_consume(self, method: commands.Basic.Consume) -> None:
        tag = self.subscriptions.consume(method, self._declarations.queue_name(method.queue))
        if not method.nowait:
            self._reply(commands.Basic.ConsumeOk, consumer_tag=tag)

    def basic_cancel(self, method: commands.Basic.Cancel) -> None:
        self.subscriptions.cancel(method.consumer_tag or "")
        self._reply_kept(method.nowait, commands.Basic.CancelOk, consumer_tag=method.consumer_tag)  # its queue may go

    def basic_get(self, method: commands.Basic.Get) -> None:
        self.subscriptions.get(method, self._declarations.queue_name(method.queue))

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


_ASKING: Final = frozenset(
    {commands.Basic.Get, commands.Queue.Declare, commands.Queue.Purge, commands.Queue.Delete},
)
"""What tells, takes or drops what is in a queue."""

# Each takes the method it stands beside; the type of that is in its signature.
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

"""The methods that a server of AMQP 0-9-1 sends."""

import ast

from pamqp import commands
from pika.adapters.blocking_connection import BlockingChannel

from headrace.protocols.amqp091 import channel as channels
from headrace.protocols.amqp091.codec import encode_content
from tests.answers.decisions import Answers, NotPromised, Place, Request, Synced
from tests.answers.sources import calls
from tests.bare import Bare


def in_the_code() -> set[str]:
    """Methods that senders are given, and the answer of each method that is handled."""
    found = {"Basic.Ack", "Basic.Deliver"}  # written by encoders of their own
    for call in calls("protocols/amqp091"):
        if isinstance(call.func, ast.Name) and call.func.id == "isinstance":
            continue
        found |= {name for argument in call.args if (name := _method(argument))}
    for method in channels._HANDLERS:
        found |= set(method.valid_responses if method.synchronous else [])
    return found


def _method(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
        owner = node.value
        if isinstance(owner.value, ast.Name) and owner.value.id == "commands":
            return str(getattr(getattr(commands, owner.attr), node.attr).name)
    return ""


def _declare(place: Place) -> Request:
    channel, name = place.channel(), place.name()
    return lambda: channel.queue_declare(name, durable=True)


def _bind(place: Place) -> Request:
    channel, name = place.channel(), place.declare()
    return lambda: channel.queue_bind(name, "amq.topic", "key")


def _unbind(place: Place) -> Request:
    channel, name = place.channel(), place.declare()
    channel.queue_bind(name, "amq.topic", "key")
    return lambda: channel.queue_unbind(name, "amq.topic", "key")


def _purge(place: Place) -> Request:
    channel, name = place.channel(), place.filled()
    return lambda: channel.queue_purge(name)


def _delete(place: Place) -> Request:
    channel, name = place.channel(), place.filled()
    return lambda: channel.queue_delete(name)


def _exchange(place: Place) -> tuple[BlockingChannel, str]:
    channel, name = place.channel(), place.name()
    channel.exchange_declare(name, durable=True)
    return channel, name


def _declare_exchange(place: Place) -> Request:
    channel, name = place.channel(), place.name()
    return lambda: channel.exchange_declare(name, durable=True)


def _delete_exchange(place: Place) -> Request:
    channel, name = _exchange(place)
    return lambda: channel.exchange_delete(name)


def _bind_exchange(place: Place) -> Request:
    channel, name = _exchange(place)
    return lambda: channel.exchange_bind(name, "amq.topic", "key")


def _unbind_exchange(place: Place) -> Request:
    channel, name = _exchange(place)
    channel.exchange_bind(name, "amq.topic", "key")
    return lambda: channel.exchange_unbind(name, "amq.topic", "key")


def _confirm(place: Place) -> Request:
    channel, name = place.channel(), place.declare()
    channel.confirm_delivery()
    return lambda: channel.basic_publish("", name, b"x")


def _confirm_in_order(place: Place) -> Request:
    """A message that needs no disk, behind one that does: its confirm must not be taken for the other's."""
    queue, transient = place.declare(), place.name()
    place.put(f"/api/queues/%2F/{transient}", {"durable": False})
    client = Bare(place.server)
    place.on_close(client.socket.close)
    client.open()
    client.send(1, commands.Confirm.Select)
    assert client.method().method.name == "Confirm.SelectOk"

    def request() -> None:
        _publish(client, queue)
        client.send(1, commands.Basic.Qos, prefetch_count=1)
        assert client.method().method.name == "Basic.QosOk"  # the first one is on its way to the disk
        _publish(client, transient)
        assert client.socket.recv(1)

    return request


def _publish(client: Bare, queue: str) -> None:
    client.send(1, commands.Basic.Publish, exchange="", routing_key=queue)
    client.socket.sendall(encode_content(1, b"\0\0", b"x", 4096))


def _commit(place: Place) -> Request:
    channel, name = place.channel(), place.declare()
    channel.tx_select()
    channel.basic_publish("", name, b"x")
    return lambda: channel.tx_commit()


def _commit_ack(place: Place) -> Request:
    channel, name = place.channel(), place.filled()
    channel.tx_select()
    method, _, _ = channel.basic_get(name)
    channel.basic_ack(method.delivery_tag)
    return lambda: channel.tx_commit()


def _cancel(place: Place) -> Request:
    channel, name = place.channel(), place.name()
    channel.queue_declare(name, durable=True, auto_delete=True)
    tag = channel.basic_consume(name, lambda *_: None)
    return lambda: channel.basic_cancel(tag)


def _roll_back(place: Place) -> Request:
    channel, name = place.channel(), place.declare()
    channel.tx_select()
    channel.basic_publish("", name, b"x")
    return lambda: channel.tx_rollback()


def _consume(place: Place) -> Request:
    channel, name = place.channel(), place.filled()
    return lambda: channel.basic_consume(name, lambda *_: None)


def _get(place: Place) -> Request:
    channel, name = place.channel(), place.filled()
    return lambda: channel.basic_get(name)


_CONNECTION = NotPromised("it is about the connection, which no crash survives")
_CHANNEL = NotPromised("it is about the channel, which no crash survives")
_DELIVERY = "a delivery that is not settled comes again"

ANSWERS: Answers = {
    "Queue.DeclareOk": Synced(_declare),
    "Queue.BindOk": Synced(_bind),
    "Queue.UnbindOk": Synced(_unbind),
    "Queue.PurgeOk": Synced(_purge),
    "Queue.DeleteOk": Synced(_delete),
    "Exchange.DeclareOk": Synced(_declare_exchange),
    "Exchange.DeleteOk": Synced(_delete_exchange),
    "Exchange.BindOk": Synced(_bind_exchange),
    "Exchange.UnbindOk": Synced(_unbind_exchange),
    "Basic.Ack": Synced(_confirm),
    "Basic.Ack of a message behind another": Synced(_confirm_in_order),
    "Tx.CommitOk": Synced(_commit),
    "Tx.CommitOk of an acknowledgement": Synced(_commit_ack),
    "Basic.CancelOk": Synced(_cancel),
    "Basic.Nack": NotPromised("it says that the message is not stored"),
    "Basic.Return": NotPromised("it says that no queue has the message"),
    "Basic.Deliver": NotPromised(_DELIVERY),
    "Basic.GetOk": NotPromised(_DELIVERY, _get),
    "Basic.GetEmpty": NotPromised("it says what was so a moment ago"),
    "Basic.ConsumeOk": NotPromised(
        "a consumer goes with its connection; a group is stored before all that is confirmed after it was made",
        _consume,
    ),
    "Basic.Cancel": NotPromised("it says that a queue is going; who deleted it is told when it is gone for good"),
    "Basic.QosOk": _CHANNEL,
    "Basic.RecoverOk": NotPromised("what goes back in line goes back after a crash, too"),
    "Tx.SelectOk": _CHANNEL,
    "Tx.RollbackOk": NotPromised("it says that nothing happened", _roll_back),
    "Confirm.SelectOk": _CHANNEL,
    "Channel.OpenOk": _CHANNEL,
    "Channel.Close": NotPromised("it says what was refused"),
    "Channel.CloseOk": _CHANNEL,
    "Channel.FlowOk": _CHANNEL,
    "Connection.Start": _CONNECTION,
    "Connection.Tune": _CONNECTION,
    "Connection.OpenOk": _CONNECTION,
    "Connection.Close": _CONNECTION,
    "Connection.CloseOk": _CONNECTION,
    "Connection.Blocked": _CONNECTION,
    "Connection.Unblocked": _CONNECTION,
    "Connection.UpdateSecretOk": _CONNECTION,
}

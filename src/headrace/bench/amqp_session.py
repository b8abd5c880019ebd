"""AMQP 0-9-1 as a client before and after a measurement: logging in, declaring, asking. Nothing here is measured."""

import struct
from typing import Final, TypeVar, final

from pamqp import base, commands, common, frame

from headrace.bench.load import PREFIX, Endpoint, Load, Unsupported
from headrace.bench.wire import Wire

_HEADER: Final = b"AMQP\0\0\x09\x01"
_ENVELOPE: Final = struct.Struct(">BHI")

Answer = TypeVar("Answer", bound=base.Frame)


@final
class AmqpSession:
    """A connection with channel 1 open."""

    __slots__ = ("frame_max", "version", "wire")

    def __init__(self, endpoint: Endpoint) -> None:
        self.wire = Wire(endpoint)
        self.wire.send(_HEADER)
        start = self._expect(commands.Connection.Start)
        self.version = _text((start.server_properties or {}).get("version", "?"))
        login = f"\0{endpoint.user or 'guest'}\0{endpoint.password or 'guest'}"
        self._cast(commands.Connection.StartOk({"product": PREFIX}, "PLAIN", login, "en_US"), 0)
        tune = self._expect(commands.Connection.Tune)
        self.frame_max = tune.frame_max or 131072
        self._cast(commands.Connection.TuneOk(tune.channel_max, self.frame_max, 0), 0)
        self._cast(commands.Connection.Open(endpoint.vhost), 0)
        self._expect(commands.Connection.OpenOk)
        self.call(commands.Channel.Open(), commands.Channel.OpenOk)

    def call(self, command: base.Frame, answer: type[Answer]) -> Answer:
        """Ask on channel 1 and wait for the answer. Raises Unsupported with what the broker says when it refuses."""
        self._cast(command, 1)
        return self._expect(answer)

    def cast(self, command: base.Frame) -> None:
        self._cast(command, 1)

    def _cast(self, command: base.Frame, channel: int) -> None:
        self.wire.send(frame.marshal(command, channel))

    def _expect(self, answer: type[Answer]) -> Answer:
        while True:
            head = self.wire.exactly(_ENVELOPE.size)
            raw = head + self.wire.exactly(_ENVELOPE.unpack(head)[2] + 1)
            if raw[0] != 1:
                continue
            found = frame.unmarshal(raw)[2]
            if isinstance(found, answer):
                return found
            if isinstance(found, commands.Connection.Close | commands.Channel.Close):
                raise Unsupported(f"the broker refuses: {_text(found.reply_text)}")

    def close(self) -> None:
        self.wire.close()


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


# -- before and after --------------------------------------------------------------------------------------------------


def exchange_name(load: Load) -> str:
    return f"{PREFIX}.{load.exchange}" if load.exchange else ""


def prepare(endpoint: Endpoint, load: Load) -> None:
    """Queues, exchange and bindings, all durable and empty."""
    clear(endpoint, load)
    session = AmqpSession(endpoint)
    arguments: common.FieldTable = {"x-queue-type": "stream"} if load.is_stream else {}
    for name in load.queue_names():
        session.call(commands.Queue.Declare(queue=name, durable=True, arguments=arguments), commands.Queue.DeclareOk)
    if load.exchange:
        _bind(session, load)
    session.close()


def _bind(session: AmqpSession, load: Load) -> None:
    name = exchange_name(load)
    declare = commands.Exchange.Declare(exchange=name, exchange_type=load.exchange, durable=True)
    session.call(declare, commands.Exchange.DeclareOk)
    names = load.queue_names()
    if load.exchange == "fanout":
        for queue in names:
            session.call(commands.Queue.Bind(queue=queue, exchange=name), commands.Queue.BindOk)
        return
    for key in load.routing_keys():
        session.cast(commands.Queue.Bind(queue=names[0], exchange=name, routing_key=key, nowait=True))
    session.call(commands.Queue.Declare(queue=names[0], passive=True), commands.Queue.DeclareOk)


def clear(endpoint: Endpoint, load: Load) -> None:
    session = AmqpSession(endpoint)
    for queue in load.queue_names():
        session.call(commands.Queue.Delete(queue=queue), commands.Queue.DeleteOk)
    if load.exchange:
        session.call(commands.Exchange.Delete(exchange=exchange_name(load)), commands.Exchange.DeleteOk)
    session.close()


def depth(endpoint: Endpoint, load: Load) -> int:
    """How many messages are ready in all queues together."""
    session = AmqpSession(endpoint)
    total = 0
    for queue in load.queue_names():
        total += (
            session.call(commands.Queue.Declare(queue=queue, passive=True), commands.Queue.DeclareOk).message_count or 0
        )
    session.close()
    return total

"""AMQP 0-9-1 as a client before and after a measurement: logging in, declaring, asking. Nothing here is measured."""

import struct
from collections.abc import Sequence
from typing import Final, TypeVar, final

from pamqp import base, commands, common, frame

from bench.compare.load import PREFIX, Endpoint, Load, Unsupported
from bench.compare.wire import Wire

_HEADER: Final = b"AMQP\0\0\x09\x01"
_AT_ONCE: Final = 500
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

    def call_all(self, asked: Sequence[base.Frame], answer: type[Answer]) -> list[Answer]:
        """Ask many things without waiting for each; the answers, in the same order."""
        found: list[Answer] = []
        for start in range(0, len(asked), _AT_ONCE):
            some = asked[start : start + _AT_ONCE]
            self.wire.send(b"".join([frame.marshal(command, 1) for command in some]))
            found += [self._expect(answer) for _ in some]
        return found

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
    session.call_all(
        [commands.Queue.Declare(queue=name, durable=True, arguments=arguments) for name in load.queue_names()],
        commands.Queue.DeclareOk,
    )
    if load.exchange:
        _bind(session, load)
    session.close()


def _bind(session: AmqpSession, load: Load) -> None:
    name = exchange_name(load)
    declare = commands.Exchange.Declare(exchange=name, exchange_type=load.exchange, durable=True)
    session.call(declare, commands.Exchange.DeclareOk)
    pairs = [(queue, key) for queue in load.queue_names() for key in load.binding_keys() or [""]]
    session.call_all(
        [commands.Queue.Bind(queue=queue, exchange=name, routing_key=key) for queue, key in pairs],
        commands.Queue.BindOk,
    )


def clear(endpoint: Endpoint, load: Load) -> None:
    session = AmqpSession(endpoint)
    session.call_all([commands.Queue.Delete(queue=name) for name in load.queue_names()], commands.Queue.DeleteOk)
    if load.exchange:
        session.call(commands.Exchange.Delete(exchange=exchange_name(load)), commands.Exchange.DeleteOk)
    session.close()


def depth(endpoint: Endpoint, load: Load) -> int:
    """Number of ready messages in all queues together."""
    session = AmqpSession(endpoint)
    asked = [commands.Queue.Declare(queue=name, passive=True) for name in load.queue_names()]
    found = session.call_all(asked, commands.Queue.DeclareOk)
    session.close()
    return sum(each.message_count or 0 for each in found)

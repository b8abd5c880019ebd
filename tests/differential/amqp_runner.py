"""Runs programs of AMQP 0-9-1 on one broker and writes down what a client sees after each step.

After each step all that it caused has happened: the channel answered a later method, every queue was asked, and so was
every channel. So a transcript does not depend on how fast a broker is.
"""

import re
import time
from contextlib import suppress
from typing import Any, Final

from pamqp import commands

from headrace.wire.properties import Properties
from tests.differential.amqp_client import AmqpClient, Frame, Gone
from tests.differential.amqp_programs import CLASSIC, EXCHANGES, QUEUES, QUORUM, STREAM, Step

_PATIENCE_SECONDS: Final = 0.5
_CLEANINGS: Final = 3
_OBSERVER: Final = 9
"""The channel that asks queues."""
_SILENT: Final = ("basic.publish", "basic.ack", "basic.nack", "basic.reject", "basic.recoverasync")
_ANSWERS: Final = {"basic.get": ("Basic.GetOk", "Basic.GetEmpty")}
_WHY: Final = re.compile(r"(?<=^PRECONDITION_FAILED - invalid arg ')([^']*' for queue '[^']*' in vhost '/'): .*")
"""The end of a text that explains: each broker has words of its own for that."""
_STREAM_OFFSET: Final = "x-stream-offset"
_NAME: Final = re.compile(r"^[QXG]\d$")


class Channel:
    """What a client knows of a channel."""

    def __init__(self) -> None:
        self.unsettled: list[int] = []
        self.no_ack: set[str] = set()
        self.is_confirming = False
        self.is_transactional = False
        self.published = 0
        self.confirmed: set[int] = set()
        self.staged: list[int] = []


class AmqpRunner:
    """One broker, and the connections to it. Programs run one after the other, each with names of its own."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connections: dict[int, AmqpClient] = {}
        self._channels: dict[tuple[int, int], Channel] = {}
        self._prefix = ""
        self._generated: list[str] = []
        self._tags: list[str] = []
        self._queues: dict[str, int] = {}
        """Queues that exist, and the connection that may ask them."""
        self._types: dict[str, str] = {}
        """The types of queues, also of some that are gone. See `_counts`."""
        self._has_dead_letters = False
        self._seen: list[str] = []
        self._gone: list[str] = []
        """Queues of which this step has shown that they are gone."""
        self._hoped: list[str] | None = None

    def run(self, program: list[Step], prefix: str, hoped: list[list[str]] | None = None) -> list[list[str]]:
        """Run a program; returns what was seen after each step and at the end.

        A channel that ended gives its messages back a moment later: queues are asked again until they show what is
        hoped for, or for a while.
        """
        self._prefix = prefix
        self._generated, self._tags, self._queues, self._types = [], [], {}, {}
        self._has_dead_letters = False
        transcript: list[list[str]] = []
        for at, step in enumerate(program):
            self._seen, self._gone, self._hoped = [], [], None if hoped is None else hoped[at]
            self._step(step)
            transcript.append(self._arranged(self._seen))
        self._seen = []
        self._end()
        transcript.append(self._arranged(self._seen))
        self._clean()
        return transcript

    def close(self) -> None:
        for client in self._connections.values():
            client.close()

    # -- one step ----------------------------------------------------------------------------------------------------

    def _step(self, step: Step) -> None:
        if step.name == "connection.close":
            self._close_connection(step.place[0])
        else:
            client = self._client(step.place[0])
            try:
                self._open(step.place)
                self._do(client, step)
                self._barrier(step.place)
            except Gone:
                self._collect()  # it tells why
        self._settle_down()

    def _do(self, client: AmqpClient, step: Step) -> None:
        channel = step.place[1]
        state = self._channels[step.place]
        fields = {name: self._real(value) for name, value in step.fields.items()}
        if "x-dead-letter-exchange" in step.fields.get("arguments", {}):
            self._has_dead_letters = True
        if step.name == "basic.publish":
            self._publish(client, channel, state, fields)
            return
        if step.name in ("basic.ack", "basic.nack", "basic.reject"):
            fields["delivery_tag"] = self._settled(state, fields)
        if step.name == "channel.close":
            client.send(channel, commands.Channel.Close, reply_code=200)
            client.wait(channel, "Channel.CloseOk")
            self._channels.pop(step.place, None)
            return
        kind = _kind(step.name)
        client.send(channel, kind, **fields)
        if step.name not in _SILENT and not fields.get("nowait"):
            frame = self._answer(step.place, *_ANSWERS.get(step.name, (f"{kind.name}Ok",)))
            if frame is not None:
                self._learn(step, state, frame, fields)

    def _answer(self, place: tuple[int, int], *names: str) -> Frame | None:
        """Wait for one of these; None if the channel ends instead."""
        frame = self._connections[place[0]].wait(place[1], *names, "Channel.Close")
        if frame.name != "Channel.Close":
            return frame
        self._channels.pop(place, None)
        return None

    def _learn(self, step: Step, state: Channel, frame: Frame, fields: dict[str, Any]) -> None:
        """Remember what later steps depend on."""
        if frame.name == "Queue.DeclareOk":
            self._meet(frame.method.queue)  # type: ignore[attr-defined]
            self._queues.setdefault(frame.method.queue, step.place[0])  # type: ignore[attr-defined]
            if not fields.get("passive"):
                kind = (fields.get("arguments") or {}).get("x-queue-type", CLASSIC)
                self._types[frame.method.queue] = kind  # type: ignore[attr-defined]
            if fields.get("exclusive"):
                self._queues[frame.method.queue] = step.place[0]  # type: ignore[attr-defined]
        elif frame.name == "Basic.ConsumeOk" and fields.get("no_ack"):
            state.no_ack.add(frame.method.consumer_tag)  # type: ignore[attr-defined]
        elif frame.name == "Basic.ConsumeOk":
            state.no_ack.discard(frame.method.consumer_tag)  # type: ignore[attr-defined]
        elif frame.name == "Basic.GetOk" and not fields.get("no_ack"):
            state.unsettled.append(frame.method.delivery_tag)  # type: ignore[attr-defined]
        elif frame.name == "Confirm.SelectOk":
            state.is_confirming = True
        elif frame.name == "Tx.SelectOk":
            state.is_transactional = True
        elif frame.name == "Tx.RollbackOk":
            state.unsettled = sorted(state.unsettled + state.staged)
            state.staged = []
        elif frame.name == "Tx.CommitOk":
            state.staged = []

    def _publish(self, client: AmqpClient, channel: int, state: Channel, fields: dict[str, Any]) -> None:
        properties = Properties()
        for name, value in fields.pop("properties").items():
            setattr(properties, name, value)
        body = fields.pop("body").encode()
        state.published += state.is_confirming
        client.publish(channel, properties, body, **fields)

    def _settled(self, state: Channel, fields: dict[str, Any]) -> int:
        """The tag that a step means; it is unsettled no more."""
        tag = fields["delivery_tag"]
        if isinstance(tag, tuple):
            at = tag[1]
            tag = state.unsettled[at] if -len(state.unsettled) <= at < len(state.unsettled) else 1000
        gone = [each for each in state.unsettled if each <= tag or not tag] if fields.get("multiple") else [tag]
        if state.is_transactional:
            state.staged += [each for each in gone if each in state.unsettled]
        state.unsettled = [each for each in state.unsettled if each not in gone]
        return int(tag)

    # -- until all has happened --------------------------------------------------------------------------------------

    def _barrier(self, place: tuple[int, int]) -> None:
        """Wait until the channel has handled all that was sent on it, and confirmed it."""
        state = self._channels.get(place)
        if state is None:
            return
        self._connections[place[0]].send(place[1], commands.Queue.Delete, queue="none-of-these")
        frame = self._answer(place, "Queue.DeleteOk")
        if frame is None:
            return
        frame.is_hidden = True
        while len(state.confirmed) < state.published:
            frame = self._answer(place, "Basic.Ack", "Basic.Nack")
            if frame is None:
                return
            frame.is_hidden = True
            self._confirm(place, state, frame)

    def _confirm(self, place: tuple[int, int], state: Channel, frame: Frame) -> None:
        """Note confirms one by one: how many one frame tells is a matter of time."""
        method: Any = frame.method
        told = range(1, method.delivery_tag + 1) if method.multiple else [method.delivery_tag]
        for tag in told:
            if tag not in state.confirmed:
                state.confirmed.add(tag)
                self._note(place, f"{frame.name} {tag}")

    def _settle_down(self) -> None:
        """Ask every queue, then every channel; write down what came."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            counts = self._look()
            is_hoped = self._hoped is None or self._arranged(self._seen + counts) == self._hoped
            if is_hoped or time.monotonic() > deadline:
                self._seen += counts
                return

    def _look(self) -> list[str]:
        for _ in range(3 if self._has_dead_letters else 1):
            counts = self._ask()
        for place in list(self._channels):
            if place[1] != _OBSERVER:
                with suppress(Gone):
                    self._barrier(place)
        self._collect()
        return counts

    def _ask(self) -> list[str]:
        found: list[str] = list(self._gone)
        for name, number in list(self._queues.items()):
            place = (number, _OBSERVER)
            try:
                client = self._client(number)
                self._open(place)
                client.send(_OBSERVER, commands.Queue.Declare, queue=name, passive=True)
                frame = client.wait(_OBSERVER, "Queue.DeclareOk", "Channel.Close")
            except Gone:
                continue
            frame.is_hidden = True
            method: Any = frame.method
            if frame.name == "Channel.Close":
                self._channels.pop(place, None)
                del self._queues[name]
                self._gone.append(f"{self._short(name)} is gone: {method.reply_code}")
                found.append(self._gone[-1])
            else:
                found.append(f"{self._short(name)}: {self._counts(name, method)}")
        return found

    def _arranged(self, lines: list[str]) -> list[str]:
        """Order lines by channel, and deliveries of streams by consumer, where queues work beside the channels."""
        if not {QUORUM, STREAM} & set(self._types.values()):
            return lines
        late = [line for line in lines if _STREAM_OFFSET in line]
        return sorted([line for line in lines if line not in late], key=_place_of) + sorted(late, key=_consumer_of)

    def _counts(self, name: str, method: Any) -> str:
        """What a queue shows of itself, as far as RabbitMQ tells it at once.

        It counts what is in a stream every five seconds, and among the consumers of a quorum queue those that left and
        hold messages.
        """
        kind = self._types.get(name, "")
        if kind == STREAM:
            return "a stream"
        ready = f"{method.message_count} ready"
        return ready if kind == QUORUM else f"{ready}, {method.consumer_count} consumers"

    def _open(self, place: tuple[int, int]) -> None:
        if place not in self._channels:
            client = self._client(place[0])
            client.send(place[1], commands.Channel.Open)
            client.wait(place[1], "Channel.OpenOk").is_hidden = True
            self._channels[place] = Channel()

    def _collect(self) -> None:
        """Write down all that came, by connection and channel."""
        for number, client in sorted(self._connections.items()):
            for frame in sorted(client.take(), key=lambda frame: frame.channel):
                if not frame.is_hidden:
                    self._show(number, frame)
            if client.is_gone:
                self._lose(number)

    def _end(self) -> None:
        """Close all channels, then take what is in the queues."""
        for place in list(self._channels):
            self._close_channel(place)
        self._collect()
        for _ in range(3):
            counts = self._ask()
        self._seen += counts
        for name, number in list(self._queues.items()):
            with suppress(Gone):  # both brokers end the connection that gets from a stream
                self._drain(name, (number, _OBSERVER))
        self._collect()

    def _close_channel(self, place: tuple[int, int]) -> None:
        if place in self._channels:
            client = self._connections[place[0]]
            client.send(place[1], commands.Channel.Close, reply_code=200)
            with suppress(Gone):
                client.wait(place[1], "Channel.CloseOk").is_hidden = True
            self._channels.pop(place, None)

    def _drain(self, name: str, place: tuple[int, int]) -> None:
        self._open(place)
        while True:
            self._connections[place[0]].send(place[1], commands.Basic.Get, queue=name, no_ack=True)
            frame = self._answer(place, "Basic.GetOk", "Basic.GetEmpty")
            if frame is None or frame.name == "Basic.GetEmpty":
                return
            frame.method.message_count = 0  # type: ignore[attr-defined]  # expired messages may still count

    def _clean(self) -> None:
        """Leave nothing of the program, also where a broker ends a connection later than it might."""
        for _ in range(_CLEANINGS):
            with suppress(Gone):
                self._clean_once()
                return

    def _clean_once(self) -> None:
        names = [f"{self._prefix}{name}" for name in QUEUES] + self._generated
        for number in sorted({1, *self._queues.values()}):
            place = (number, _OBSERVER)
            self._open(place)
            client = self._connections[number]
            for name in names:
                if self._queues.get(name, 1) == number:
                    client.send(_OBSERVER, commands.Queue.Delete, queue=name)
                    client.wait(_OBSERVER, "Queue.DeleteOk")
            for name in EXCHANGES:
                client.send(_OBSERVER, commands.Exchange.Delete, exchange=f"{self._prefix}{name}")
                client.wait(_OBSERVER, "Exchange.DeleteOk")
        for place in list(self._channels):
            self._close_channel(place)
        for client in self._connections.values():
            client.take()

    # -- connections -------------------------------------------------------------------------------------------------

    def _client(self, number: int) -> AmqpClient:
        client = self._connections.get(number)
        if client is None or client.is_gone:
            self._lose(number)
            client = self._connections[number] = AmqpClient(self._port)
        return client

    def _close_connection(self, number: int) -> None:
        client = self._client(number)
        try:
            client.send(0, commands.Connection.Close, reply_code=200)
            client.wait(0, "Connection.CloseOk")
            self._collect()
        except Gone:
            self._note((number, 0), "lost")
        client.close()
        self._lose(number)

    def _lose(self, number: int) -> None:
        """Forget a connection that is gone."""
        client = self._connections.pop(number, None)
        if client is not None:
            client.close()
        for place in [place for place in self._channels if place[0] == number]:
            self._channels.pop(place, None)

    # -- what is seen ------------------------------------------------------------------------------------------------

    def _show(self, number: int, frame: Frame) -> None:
        """Write a frame down, and remember what it brings."""
        place = (number, frame.channel)
        method: Any = frame.method
        state = self._channels.get(place)
        if frame.name == "Basic.Deliver" and state is not None and method.consumer_tag not in state.no_ack:
            state.unsettled.append(method.delivery_tag)
        if frame.name == "Channel.Close":
            self._channels.pop(place, None)
        fields = {name: getattr(method, name) for name in method.attributes()}
        queue, tag = fields.get("queue", ""), fields.get("consumer_tag", "")
        if frame.name == "Queue.DeclareOk" and self._types.get(queue or "") in (QUORUM, STREAM):
            fields["consumer_count"] = None
        if self._types.get(queue or "") == STREAM or (
            frame.name == "Queue.DeleteOk" and STREAM in self._types.values()
        ):
            fields["message_count"] = None
        if _STREAM_OFFSET in frame.properties.headers:
            fields["delivery_tag"] = None
        self._meet(queue or "")
        if tag and tag.startswith("amq.ctag-") and tag not in self._tags:
            self._tags.append(tag)
        if fields.get("reply_text"):
            fields["reply_text"] = _WHY.sub(r"\1", fields["reply_text"])
        words = " ".join(f"{name}={value!r}" for name, value in fields.items() if value not in (None, "", False))
        text = f"{frame.name} {words}"
        if frame.size >= 0:
            text += f" {_shown(frame.properties)} {_brief(frame.body)}"
        self._note(place, text)

    def _meet(self, queue: str) -> None:
        """Remember a name that the broker made."""
        if queue.startswith("amq.gen-") and queue not in self._generated:
            self._generated.append(queue)

    def _note(self, place: tuple[int, int], text: str) -> None:
        self._seen.append(f"{place[0]}/{place[1]} {self._short(text)}".rstrip())

    def _short(self, text: str) -> str:
        for at, name in enumerate(self._generated, 1):
            text = text.replace(name, f"G{at}")
        for at, name in enumerate(self._tags, 1):
            text = text.replace(name, f"ctag{at}")
        return text.replace(self._prefix, "")

    def _real(self, value: Any) -> Any:
        """The value with the names that only this program has."""
        if isinstance(value, str) and _NAME.match(value):
            return self._prefix + value
        if isinstance(value, dict):
            return {name: self._real(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self._real(item) for item in value]
        return value


def _place_of(line: str) -> str:
    """The channel of a line; those about queues come last."""
    place = line.partition(" ")[0]
    return place if "/" in place else "~"


def _consumer_of(line: str) -> list[str]:
    return line.split()[:3]


def _kind(name: str) -> Any:
    group, method = name.split(".")
    return getattr(getattr(commands, group.capitalize()), method.capitalize())


def _brief(body: bytes) -> str:
    return repr(body.decode(errors="replace")) if len(body) < 100 else f"{len(body)} bytes"


def _shown(properties: Properties) -> str:
    found = {name: getattr(properties, name) for name in Properties.__slots__}
    default = Properties()
    parts: list[str] = []
    for name, value in found.items():
        if value != getattr(default, name):
            parts.append(f"{name}={_ordered(value)}")
    return "{" + " ".join(parts) + "}"


def _ordered(value: object) -> str:
    """A value with its type; tables by name, times as a word."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_ordered(value[name])}" for name in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_ordered(item) for item in value) + "]"
    if type(value).__name__ == "datetime":
        return "a time"
    return f"{type(value).__name__} {value!r}" if not isinstance(value, str | None) else repr(value)

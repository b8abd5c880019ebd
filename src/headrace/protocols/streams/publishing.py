"""Publishers of a connection: their messages to core's publish, confirms and refusals by publishing id."""

from collections import deque
from typing import Final, final

from headrace.core.access.permissions import WRITE
from headrace.core.batch import ConfirmAll
from headrace.core.publishing import Entries
from headrace.core.queue.publishers import Publisher as NumberedPublisher
from headrace.core.queue.queue import Queue
from headrace.errors import HeadraceError, PreconditionFailed, ProtocolError, Refused
from headrace.model import AMQP10, Message, Source
from headrace.net.connection import BY_ORDER
from headrace.protocols.streams.chunks import Splitter, named_user, with_filter
from headrace.protocols.streams.codec import UNREADABLE_BATCH, Publish, encode_confirm, encode_errors
from headrace.protocols.streams.frames import ACCESS_REFUSED, INTERNAL_ERROR, PUBLISHER_DOES_NOT_EXIST
from headrace.protocols.streams.server import PROTOCOL, ConnectionContext, code_of

_MOST_UNCONFIRMED: Final = 100_000
"""Unconfirmed entries from which a connection is not read: each takes some bytes, whatever its message has."""
_FEW_UNCONFIRMED: Final = _MOST_UNCONFIRMED // 2
_FRAME_BYTES: Final = 16
_ID_BYTES: Final = 8
_ERROR_BYTES: Final = 10


@final
class Publisher:
    """One declared publisher."""

    __slots__ = (
        "_acked",
        "_awaiting",
        "_context",
        "_id",
        "_is_due",
        "_publishers",
        "_refused",
        "_source",
        "_splitter",
        "is_closed",
        "numbered",
        "queue",
        "tell",
    )

    def __init__(self, publishers: "Publishers", number: int, queue: Queue, numbered: NumberedPublisher | None) -> None:
        self._publishers = publishers
        self._context = publishers.context
        self._id = number
        self.queue = queue
        self.numbered = numbered
        """Set if the publisher has a name, by which its messages are stored once."""
        self._source = Source(queue.name, "", self._context.client.client_id, PROTOCOL, AMQP10)
        self._splitter = Splitter()
        self._awaiting: deque[int] = deque()
        """Publishing ids of entries that are not confirmed, in order."""
        self._acked: list[int] = []
        self._refused: list[tuple[int, int]] = []
        self._is_due = False
        self.is_closed = False
        self.tell: ConfirmAll = self._confirmed
        """Always the same object, so that core confirms a row of publishes in one call."""

    def publish(self, event: Publish) -> None:
        context, client = self._context, self._context.client
        for number in event.refused:
            if self.numbered is not None:
                self.numbered.refuse_one(number)
            self.refuse([number], UNREADABLE_BATCH)
        if not event.ids:
            return
        source, now_us = self._source, context.now_us
        messages: list[Message] = []
        split = self._splitter.split
        checked = b""
        try:
            for raw in event.messages:
                properties, payload = split(raw)
                if properties is not checked:
                    client.check_user_id(named_user(properties))
                    checked = properties
                messages.append(Message(source, payload, now_us, properties))
            if client.account.is_metered:
                client.charge(max([len(message.payload) for message in messages]), len(messages))
        except Refused as error:
            self._refuse_all(event.ids, error)
            return
        if event.filters is not None:
            self._add_filters(messages, event)
        self._awaiting.extend(event.ids)
        self._publishers.count(len(event.ids))
        context.broker.publish_entries(self.queue, self.numbered, Entries(event.ids, messages, event.counts), self.tell)

    def _add_filters(self, messages: list[Message], event: Publish) -> None:
        """Give the messages of each entry its filter value, if it has one."""
        at = 0
        for index, value in enumerate(event.filters or []):
            count = 1 if event.counts is None else event.counts[index]
            for place in range(at, at + count) if value else ():
                message = messages[place]
                properties = with_filter(message.properties, value)
                messages[place] = Message(self._source, message.payload, message.timestamp_us, properties)
            at += count

    def _refuse_all(self, ids: list[int], error: HeadraceError) -> None:
        for number in ids:
            if self.numbered is not None:
                self.numbered.refuse_one(number)
        self.refuse(ids, code_of(error))

    def refuse(self, ids: list[int], code: int) -> None:
        """Tell the client that these were refused."""
        self._refused += [(number, code) for number in ids]
        self._send_soon()

    def _confirmed(self, count: int, error: HeadraceError | None) -> None:
        """Note that the next `count` entries are durable, or refused. Core tells in the order of the publishes."""
        awaiting = self._awaiting
        self._publishers.count(-count)
        if self.is_closed:
            return
        refused = self.numbered.refused if self.numbered is not None and self.numbered.refused.size else None
        for _ in range(count):
            number = awaiting.popleft()
            if error is not None:
                self._refused.append((number, code_of(error)))
            elif refused is not None and number in refused:
                self._refused.append((number, INTERNAL_ERROR))  # the second of two, of which storage refused the first
            else:
                self._acked.append(number)
        self._send_soon()

    def _send_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._context.wire.before_flush(self._send)

    def _send(self) -> None:
        """Send confirms and refusals, in as few frames as possible."""
        self._is_due = False
        acked, self._acked = self._acked, []
        refused, self._refused = self._refused, []
        if self.is_closed:
            return
        answers, room = self._context.answers, self._context.frame_max - _FRAME_BYTES
        for at in range(0, len(acked), room // _ID_BYTES):
            answers.send(encode_confirm(self._id, acked[at : at + room // _ID_BYTES]))
        for at in range(0, len(refused), room // _ERROR_BYTES):
            answers.send(encode_errors(self._id, refused[at : at + room // _ERROR_BYTES]))


@final
class Publishers:
    """All publishers of a connection, by the ids that the client gave them."""

    def __init__(self, context: ConnectionContext) -> None:
        self.context = context
        self._by_id: dict[int, Publisher] = {}
        self._unconfirmed = 0
        self._is_full = False

    def declare(self, number: int, name: str, stream: str) -> Queue:
        """Add a publisher; returns its stream. Raises Refused kinds."""
        context = self.context
        queue = context.client.stream(WRITE, stream)
        if number in self._by_id:
            raise PreconditionFailed(f"publisher {number} exists already")
        if name and any([each.queue is queue and _name(each) == name for each in self._by_id.values()]):
            raise PreconditionFailed(f"publisher {name!r} of stream {stream!r} exists already on this connection")
        numbered = context.broker.publisher(queue, name) if name else None
        context.client.begin_publishing()
        self._by_id[number] = Publisher(self, number, queue, numbered)
        return queue

    def delete(self, number: int) -> Queue:
        """Remove a publisher; returns its stream. Raises ProtocolError if there is none."""
        publisher = self._by_id.pop(number, None)
        if publisher is None:
            raise ProtocolError(PUBLISHER_DOES_NOT_EXIST, f"there is no publisher {number}")
        publisher.is_closed = True
        return publisher.queue

    def publish(self, event: Publish) -> None:
        publisher = self._by_id.get(event.publisher)
        if publisher is not None and publisher.queue.name in self.context.client.rights.writable:
            publisher.publish(event)
            return
        code = PUBLISHER_DOES_NOT_EXIST
        if publisher is not None:
            if self.context.client.rights.may(WRITE, publisher.queue.name):
                self.context.client.stream(WRITE, publisher.queue.name)
                publisher.publish(event)
                return
            code = ACCESS_REFUSED
        errors = [(number, code) for number in [*event.ids, *event.refused]]
        self.context.answers.send(encode_errors(event.publisher, errors))

    def use(self, queue: Queue) -> bool:
        """True if one of them publishes to this stream."""
        return any([publisher.queue is queue for publisher in self._by_id.values()])

    def forget(self, queue: Queue) -> None:
        """Remove the publishers of a stream that is gone."""
        for number, publisher in list(self._by_id.items()):
            if publisher.queue is queue:
                self.delete(number)

    def count(self, more: int) -> None:
        """Count unconfirmed entries; above a limit the connection is not read."""
        self._unconfirmed += more
        wire = self.context.wire
        if self._unconfirmed > _MOST_UNCONFIRMED and not self._is_full:
            self._is_full = True
            wire.pause_reading(BY_ORDER)
        elif self._is_full and self._unconfirmed < _FEW_UNCONFIRMED:
            self._is_full = False
            wire.resume_reading(BY_ORDER)

    def close(self) -> None:
        """End all of them with the connection. Their messages still get to the disk."""
        for publisher in self._by_id.values():
            publisher.is_closed = True
        self._by_id.clear()


def _name(publisher: Publisher) -> str:
    return "" if publisher.numbered is None else publisher.numbered.name

"""Clients of the stream protocol: a publisher that sends many numbers twice, a reader, streams that come and go."""

import random
import struct
from collections.abc import Callable
from typing import Final

from headrace.protocols.streams import frames
from tests.crash.kills.message import body_of, uid_of
from tests.crash.kills.part import Part
from tests.servers import Server
from tests.stream_client import Frame, StreamClient, batch, command, entry, position, publish, subscription, table, text

_STREAM: Final = "numbered"
_NAME: Final = "kills"
_AT_ONCE: Final = 20
_WINDOW: Final = 200
_AGAIN: Final = 30
"""Confirmed messages that a publisher sends again when it comes back."""
_KEPT: Final = 6
_FRAME_BYTES: Final = 512 << 10


class Streams(Part):
    """The log must have each number once, in order, and every number that was confirmed."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._sent: list[bytes] = []
        """Every message that was sent; its place is its number."""
        self._confirmed = -1
        """The highest number that was confirmed: all before it were."""
        self._checked = 0
        """The number of messages of the log that were checked, which is the next offset."""
        self._read: dict[int, bytes] = {}
        """What the reader of this round got, by offset."""
        self._counts = {"numbered confirmed": 0, "sent twice": 0, "numbered read": 0, "streams made": 0}

    def set_up(self) -> None:
        client = self._client()
        client.ask(frames.CREATE, text(_STREAM) + table())
        client.close()

    def work(self) -> list[Callable[[], None]]:
        return [self._publish, self._follow, self._declare]

    def counts(self) -> dict[str, int]:
        return self._counts

    def _client(self) -> StreamClient:
        return StreamClient(self.server.ports["stream"])

    # -- until the kill

    def _publish(self) -> None:
        with self._client() as client:
            self._publish_with(client)

    def _publish_with(self, client: StreamClient) -> None:
        client.ask(frames.DECLARE_PUBLISHER, b"\0" + text(_NAME) + text(_STREAM))
        number = max(0, self._confirmed - _AGAIN)
        self._counts["sent twice"] += len(self._sent) - number
        under_way = 0
        while True:
            stop = self._end_of_frame(number)
            times = random.choice((1, 1, 1, 2))
            for _ in range(times):
                client.send(self._frame(number, stop))
                under_way += stop - number
            self._counts["sent twice"] += times - 1
            number = stop
            while under_way > _WINDOW or (under_way and random.random() < 0.5):
                under_way -= self._told(client.expect(frames.PUBLISH_CONFIRM))

    def _end_of_frame(self, start: int) -> int:
        """The number behind the last message of a frame that begins with this one."""
        size_bytes = 0
        for number in range(start, start + random.randint(1, _AT_ONCE)):
            if number == len(self._sent):
                uid = uid_of("numbered", number)
                self._sent.append(uid.encode() + b" " + body_of(uid))
            size_bytes += len(self._sent[number])
            if number > start and size_bytes > _FRAME_BYTES:
                return number
        return number + 1

    def _frame(self, start: int, stop: int) -> bytes:
        if random.random() < 0.2:
            return publish(0, *[batch(number, [self._sent[number]]) for number in range(start, stop)])
        return publish(0, *[entry(number, self._sent[number]) for number in range(start, stop)])

    def _told(self, confirm: Frame) -> int:
        """The number of entries that are confirmed."""
        self._confirmed = max(self._confirmed, *confirm.ids)
        self._counts["numbered confirmed"] += len(confirm.ids)
        return len(confirm.ids)

    def _follow(self) -> None:
        with self._client() as client:
            self._follow_with(client)

    def _follow_with(self, client: StreamClient) -> None:
        client.ask(frames.SUBSCRIBE, subscription(0, _STREAM, position(frames.OFFSET, self._checked)))
        while True:
            frame = client.expect(frames.DELIVER)
            for offset, message in enumerate(frame.messages, frame.first_offset):
                self._read[offset] = message
            self._counts["numbered read"] += len(frame.messages)
            client.send(command(frames.CREDIT, b"\0\0\1"))

    def _declare(self) -> None:
        with self._client() as client:
            self._declare_with(client)

    def _declare_with(self, client: StreamClient) -> None:
        for number in range(1 << 30):
            name = f"stream{self.round}.{number}"
            self._fact(client, frames.CREATE, name, True)
            self._counts["streams made"] += 1
            if number >= _KEPT:
                self._fact(client, frames.DELETE, f"stream{self.round}.{number - _KEPT}", False)

    def _fact(self, client: StreamClient, key: int, name: str, is_there: bool) -> None:
        self.facts.asking(f"queue {name}", is_there)
        client.ask(key, text(name) + (table() if is_there else b""))
        self.facts.told(f"queue {name}", is_there)

    # -- after the kill

    def check(self, killed_at: float) -> list[str]:
        client = self._client()
        stats = client.ask(frames.STREAM_STATS, text(_STREAM)).fields
        at = stats.index(b"committed_offset") + len("committed_offset")
        (last,) = struct.unpack_from(">q", stats, at)
        problems: list[str] = []
        if last < self._confirmed:
            problems.append(f"{_STREAM}: {last + 1} to {self._confirmed} are LOST, and were confirmed")
        stored = client.ask(frames.QUERY_PUBLISHER_SEQUENCE, text(_NAME) + text(_STREAM)).fields
        if stored != struct.pack(">Q", max(0, last)):
            problems.append(f"{_STREAM}: the last number is said to be {int.from_bytes(stored)}, and is {last}")
        if last >= self._checked:
            client.ask(frames.SUBSCRIBE, subscription(0, _STREAM, position(frames.OFFSET, self._checked)))
        while self._checked <= last:
            frame = client.expect(frames.DELIVER)
            problems += self._wrong_in(frame)
            self._checked = frame.first_offset + len(frame.messages)
            client.send(command(frames.CREDIT, b"\0\0\1"))
        client.close()
        self._read.clear()
        return problems[:5]

    def _wrong_in(self, frame: Frame) -> list[str]:
        """Messages that are not the ones of their numbers, or not the ones that a reader had before."""
        found = enumerate(frame.messages, frame.first_offset)
        return [
            f"{_STREAM}: offset {offset} has {message[:40]!r}"
            for offset, message in found
            if message != self._sent[offset] or self._read.get(offset, message) != message
        ]

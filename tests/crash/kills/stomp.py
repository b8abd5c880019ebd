"""Clients of STOMP 1.2, by stomp.py: messages with receipts, transactions, cumulative and single acknowledgements."""

import threading
from collections.abc import Callable
from typing import Any, final

import stomp  # type: ignore[import-untyped]

from tests.crash.kills.book import Book
from tests.crash.kills.message import body_of, uid_of
from tests.crash.kills.part import Part, drained
from tests.servers import Server

_SECONDS = 60.0
_WINDOW = 20
_EACH_TRANSACTION = 5


class Lost(Exception):
    """The connection is gone."""


class Line(stomp.ConnectionListener):  # type: ignore[misc]
    """A connection, and the receipts and messages that came."""

    def __init__(self, server: Server) -> None:
        self._changed = threading.Condition()
        self._receipts: set[str] = set()
        self._messages: list[Any] = []
        self._is_gone = False
        self.client = stomp.StompConnection12(
            [("127.0.0.1", server.ports["stomp"])], reconnect_attempts_max=1, auto_decode=False
        )
        self.client.set_listener("", self)
        self.client.connect("guest", "guest", wait=True)

    def on_receipt(self, frame: Any) -> None:
        with self._changed:
            self._receipts.add(frame.headers["receipt-id"])
            self._changed.notify_all()

    def on_message(self, frame: Any) -> None:
        with self._changed:
            self._messages.append(frame)
            self._changed.notify_all()

    def on_disconnected(self) -> None:
        with self._changed:
            self._is_gone = True
            self._changed.notify_all()

    def receipt(self, name: str) -> None:
        """Wait for a receipt. Raises Lost."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_gone or name in self._receipts, _SECONDS)
            if name not in self._receipts:
                raise Lost
            self._receipts.discard(name)

    def messages(self) -> list[Any]:
        """The messages that came, one at least. Raises Lost."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_gone or bool(self._messages), _SECONDS)
            if not self._messages:
                raise Lost
            found, self._messages = self._messages, []
            return found


@final
class Stomp(Part):
    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.jobs = Book("stomp.jobs")
        self.batches = Book("stomp.batches")

    def set_up(self) -> None:
        line = Line(self.server)
        for book in (self.jobs, self.batches):
            line.client.subscribe(f"/queue/{book.name}", id=book.name, headers={"receipt": book.name})
            line.receipt(book.name)
        line.client.disconnect()

    def counts(self) -> dict[str, int]:
        return {
            "stomp confirmed": self.jobs.confirmed,
            "stomp settled": self.jobs.settled,
            "stomp in transactions": self.batches.confirmed,
        }

    def work(self) -> list[Callable[[], None]]:
        return [self._publish, self._publish_together, self._consume]

    def _publish(self) -> None:
        line, publisher = Line(self.server), self.publisher("stomp")
        sent: list[str] = []
        for number in range(1 << 30):
            uid = uid_of(publisher, number)
            self.jobs.sending(uid)
            headers = {"receipt": uid, "uid": uid, "persistent": "true"}
            line.client.send(f"/queue/{self.jobs.name}", body_of(uid), headers=headers)
            sent.append(uid)
            if len(sent) >= _WINDOW:
                first = sent.pop(0)
                line.receipt(first)
                self.jobs.told(first)

    def _publish_together(self) -> None:
        line, publisher = Line(self.server), self.publisher("stomptx")
        for number in range(0, 1 << 30, _EACH_TRANSACTION):
            name = line.client.begin()
            uids = [uid_of(publisher, number + each) for each in range(_EACH_TRANSACTION)]
            for uid in uids:
                self.batches.sending(uid)
                line.client.send(f"/queue/{self.batches.name}", body_of(uid), headers={"uid": uid}, transaction=name)
            line.client.commit(name, headers={"receipt": uids[0]})
            line.receipt(uids[0])
            for uid in uids:
                self.batches.told(uid)

    def _consume(self) -> None:
        line = Line(self.server)
        headers = {"prefetch-count": str(_WINDOW)}
        line.client.subscribe(f"/queue/{self.jobs.name}", id="jobs", ack="client", headers=headers)
        number = 0
        while True:
            found = line.messages()
            uids = [str(frame.headers["uid"]) for frame in found]
            for uid in uids:
                self.jobs.given(uid)
                self.jobs.settling(uid)
            number += 1
            line.client.ack(found[-1].headers["ack"], receipt=f"ack{number}")
            line.receipt(f"ack{number}")
            self.jobs.ended(uids, is_answered=True)

    def check(self, killed_at: float) -> list[str]:
        problems: list[str] = []
        for book in (self.jobs, self.batches):
            found = drained(self.server, book.name)
            problems += book.check(found, killed_at)
            book.drained(found)
        return problems

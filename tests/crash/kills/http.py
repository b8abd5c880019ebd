"""Clients of the HTTP API, by httpx: queues declared, deleted and purged, messages published and settled."""

import base64
from collections.abc import Callable

import httpx

from tests.crash.kills.book import Book
from tests.crash.kills.message import body_of, uid_of
from tests.crash.kills.part import GUEST, Part, drained
from tests.servers import Server

_KEPT_THINGS = 4


class Http(Part):
    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.jobs = Book("http.jobs")
        self.purged = Book("http.purged", is_watched=False)
        self._is_asking = False
        """Whether a request to consume has no answer: it may have settled any message."""

    def set_up(self) -> None:
        with self._client() as client:
            for name in ("http.jobs", "http.purged"):
                client.put(f"/api/v1/queues/%2F/{name}", json={}).raise_for_status()

    def counts(self) -> dict[str, int]:
        return {
            "http confirmed": self.jobs.confirmed,
            "http settled": self.jobs.settled,
            "http purged": self.purged.settled,
            "http facts": self.facts.count,
        }

    def work(self) -> list[Callable[[], None]]:
        return [self._publish, self._consume, self._declare]

    def _client(self) -> httpx.Client:
        return httpx.Client(base_url=self.server.http_url, auth=GUEST, timeout=60)

    def _send(self, client: httpx.Client, queue: str, uid: str) -> None:
        client.post(
            "/api/v1/publish/%2F",
            json={
                "routing_key": queue,
                "payload": base64.b64encode(body_of(uid)).decode(),
                "payload_encoding": "base64",
                "properties": {"message_id": uid, "headers": {"uid": uid}},
            },
        ).raise_for_status()

    def _publish(self) -> None:
        publisher = self.publisher("http")
        with self._client() as client:
            for number in range(1 << 30):
                uid = uid_of(publisher, number)
                self.jobs.sending(uid)
                if number % 4 == 0:
                    client.post(
                        "/publish",
                        json={
                            "topic": f"$queue/http.jobs/{uid}",
                            "payload": base64.b64encode(body_of(uid)).decode(),
                            "message_id": uid,
                            "headers": {"uid": uid},
                            "qos": 1,
                        },
                    ).raise_for_status()
                else:
                    self._send(client, "http.jobs", uid)
                self.jobs.told(uid)

    def _consume(self) -> None:
        with self._client() as client:
            while not self.over.is_set():
                self._is_asking = True
                answer = client.post(
                    "/api/v1/queues/%2F/http.jobs/consume", json={"limit": 5, "then": "ack", "wait_ms": 50}
                )
                items = answer.raise_for_status().json()["items"]
                uids = [str(item["properties"]["headers"]["uid"]) for item in items]
                for uid in uids:
                    self.jobs.settling(uid)
                self.jobs.ended(uids, is_answered=True)
                self._is_asking = False

    def _declare(self) -> None:
        with self._client() as client:
            publisher = self.publisher("purge")
            number = 0
            while True:
                number += 1
                name = f"h{self.round}.{number}"
                self.facts.asking(f"queue {name}", True)
                client.put(f"/api/v1/queues/%2F/{name}", json={}).raise_for_status()
                self.facts.told(f"queue {name}", True)
                uid = uid_of(publisher, number)
                self.purged.sending(uid)
                self._send(client, "http.purged", uid)
                self.purged.told(uid)
                if number % 5 == 0:
                    uids = list(self.purged.entries)
                    for uid in uids:
                        self.purged.settling(uid)
                    client.post("/api/v1/queues/%2F/http.purged/purge").raise_for_status()
                    self.purged.ended(uids, is_answered=True)
                if number > _KEPT_THINGS:
                    old = f"h{self.round}.{number - _KEPT_THINGS}"
                    self.facts.asking(f"queue {old}", False)
                    client.delete(f"/api/v1/queues/%2F/{old}").raise_for_status()
                    self.facts.told(f"queue {old}", False)

    def check(self, killed_at: float) -> list[str]:
        problems: list[str] = []
        if self._is_asking:
            for uid, entry in self.jobs.entries.items():
                if not entry.settling_at:
                    self.jobs.settling(uid)
        self._is_asking = False
        for book in (self.jobs, self.purged):
            found = drained(self.server, book.name)
            problems += book.check(found, killed_at)
            book.drained(found)
        return problems

"""The status of a job: told to the brokers of its pipelines, in a thread of its own. No runs; see job.py."""

import contextlib
import json
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final
from urllib.parse import quote

from headrace.errors import HeadraceError, NotFound
from headrace.spark.client import Client
from headrace.spark.options import read_options
from headrace.spark.pipelines.endpoint import Endpoint
from headrace.spark.place import Place, open_place

WAITING: Final = "waiting"
RUNNING: Final = "running"
RESTARTING: Final = "restarting"
FAILED: Final = "failed"
OVER: Final = "over"
EVERY_SECONDS: Final = 2.0
_PATIENCE_SECONDS: Final = 1.0
_LAST_SECONDS: Final = 5.0
"""The longest wait for the last report, when the job ends."""
_MOST_REASON: Final = 1000
_log: Final = logging.getLogger("headrace.spark")


@dataclass(frozen=True)
class Status:
    """State of one pipeline of a job."""

    name: str
    type: str
    state: str
    messages: int
    batches: int
    reached: Mapping[str, int]
    """The next offset of each queue that a stream reads; empty where it is not known."""
    behind: int | None
    restarts: int
    schedule: str = ""
    due: str = ""
    """The time of its next run, in UTC."""
    reason: str = ""
    """The last failure; "" when the last run went well."""


@final
class Reporter:
    """Tells every broker the status of the pipelines that work there, every two seconds, and counts what waits.

    A broker that does not answer misses some reports and holds up nothing.
    """

    def __init__(self, job: str, endpoints: Mapping[str, Endpoint]) -> None:
        self._job = job
        self._endpoints = endpoints
        self._statuses: tuple[Status, ...] = ()
        self._behind: dict[str, int] = {}
        self._places: dict[str, tuple[str, Place]] = {}
        """By pipeline: the names of the queues that it reads, and their place."""
        self._refused: set[Endpoint] = set()
        """Brokers whose refusal was logged."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="status", daemon=True)
        self._thread.start()

    def tell(self, statuses: Sequence[Status]) -> None:
        """Report these from now on."""
        self._statuses = tuple(statuses)

    def behind(self, name: str) -> int | None:
        """Return how many messages wait for a stream, as of the last look; None where that is not known."""
        return self._behind.get(name)

    def close(self, statuses: Sequence[Status]) -> None:
        """Report these for the last time."""
        self._statuses = tuple(statuses)
        self._ended.set()
        self._thread.join(_LAST_SECONDS)

    def _work(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._ended.wait(EVERY_SECONDS)
            for status in self._statuses:
                self._look(status)
            by_endpoint: dict[Endpoint, list[Status]] = {}
            for status in self._statuses:
                endpoint = self._endpoints[status.name]
                if endpoint.is_broker:
                    by_endpoint.setdefault(endpoint, []).append(status)
            for endpoint, found in by_endpoint.items():
                self._report(endpoint, found)
        for _, place in self._places.values():
            place.close()

    def _look(self, status: Status) -> None:
        """Count the messages behind the position of a stream. Without an answer the last count stays."""
        if not status.reached or status.state != RUNNING:
            return
        names = ",".join(sorted(status.reached))
        with contextlib.suppress(HeadraceError, OSError):
            known, place = self._places.get(status.name, ("", None))
            if place is None or known != names:
                if place is not None:
                    place.close()
                place = open_place(read_options({**self._endpoints[status.name].options, "path": names}))
                self._places[status.name] = names, place
            place.refresh()
            total = 0
            for queue, reached in status.reached.items():
                with contextlib.suppress(NotFound):  # deleted meanwhile
                    total += max(0, place.bounds(queue)[1] - reached)
            self._behind[status.name] = total

    def _report(self, endpoint: Endpoint, statuses: Sequence[Status]) -> None:
        server = read_options({**endpoint.options, "path": "*"}).server
        assert server is not None
        client = Client(server, _PATIENCE_SECONDS)
        try:
            path = f"/api/v1/pipelines/{quote(endpoint.vhost, safe='')}/{quote(self._job, safe='')}"
            client.send("PUT", path, {}, _body(statuses))
        except HeadraceError as error:
            if endpoint not in self._refused:
                self._refused.add(endpoint)
                _log.warning("the broker does not take the status of job %s: %s", self._job, error)
        finally:
            client.close()


def _body(statuses: Sequence[Status]) -> bytes:
    shown = [
        {
            "name": each.name,
            "type": each.type,
            "state": each.state,
            "messages": each.messages,
            "batches": each.batches,
            "behind": each.behind,
            "restarts": each.restarts,
            "schedule": each.schedule,
            "due": each.due,
            "reason": each.reason[:_MOST_REASON],
        }
        for each in statuses
    ]
    return json.dumps({"pipelines": shown}).encode()

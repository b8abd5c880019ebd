"""A store of the first version opens with all that it held, and is used on. Its records are in store-v1."""

import json
from pathlib import Path

import pytest

from headrace.clock import SystemClock
from headrace.config.replication import MAIN
from headrace.errors import HeadraceError
from headrace.model import Message, Source
from headrace.storage.api import Commit
from headrace.storage.group_state import Pending
from headrace.storage.objects import keys
from headrace.storage.objects.columns import ColumnReader
from headrace.storage.objects.database import Database, Tuning
from headrace.storage.objects.engine import ObjectEngine, ObjectSettings
from headrace.storage.objects.location import Location
from headrace.storage.objects.view import View
from tests.waiting import eventually

BIG = b"big" * 500
ORDERS = [*[b"o-%d.xxxxxxxxxx" % number for number in range(1, 8)], b"shared-0.xxxxxxxxxx", b"shared-1.xxxxxxxxxx"]
INVOICES = [b"shared-0.xxxxxxxxxx", b"shared-1.xxxxxxxxxx", BIG]
PENDING = {2: Pending(1, 99, "c1"), 3: Pending(2, 111, "c2"), 4: Pending(1, 88, ""), 5: Pending(1, 99, "c1")}


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A new database with the old records."""
    rows = json.loads((Path(__file__).parent / "store-v1" / "records.json").read_text())
    url = f"file://{tmp_path}/store"
    database = Database(Location(url), MAIN, Tuning(1), SystemClock())
    database.store([(bytes.fromhex(key), bytes.fromhex(value)) for key, value in rows.items()])
    database.close()
    return url


def opened(url: str) -> ObjectEngine:
    return ObjectEngine(url, settings=ObjectSettings(flush_interval_ms=1))


def commit(engine: ObjectEngine, commit: Commit) -> None:
    outcomes: list[HeadraceError | None] = []
    engine.commit(commit, outcomes.append)
    engine.sync()
    assert outcomes == [None]


def payloads(engine: ObjectEngine, name: str) -> list[bytes]:
    log = engine.log(name)
    return [message.payload for message in log.read(log.first_offset, 99)]


def test_messages_groups_and_tables_are_there(url: str) -> None:
    engine = opened(url)
    assert {name: payloads(engine, name) for name in engine.logs()} == {
        "orders": ORDERS,
        "invoices": INVOICES,
        "copies": [BIG],
    }
    (third,) = engine.log("orders").read(3, 1)
    assert (repr(third.source), third.properties, third.priority, third.expires_us, third.timestamp_us) == (
        repr(Source("orders/eu", "amq.topic", "publisher-1", "amqp091", 1)),
        b"p3",
        3,
        5000,
        1003,
    )
    workers, stream = engine.log("orders").groups["workers"], engine.log("orders").groups["stream"]
    assert (workers.filter, workers.cursor, workers.committed, list(workers.settled)) == ("eu.#", 7, 2, [(6, 7)])
    assert workers.pending == PENDING
    assert (stream.cursor, stream.committed) == (5, 5)
    assert list(engine.items("queues")) == [(b"orders", b'{"name":"orders","delivery_limit":3}')]
    engine.close()


def test_it_is_used_on_and_opened_again(url: str) -> None:
    engine = opened(url)
    change = Commit()
    change.append("orders", [Message(Source("new"), b"new-1", 2000), Message(Source("new"), b"new-2", 2000)])
    change.requeue("orders", "workers", 2, 3, 200)
    change.claim("orders", "workers", 4, 5, "c3", 300)
    change.ack("orders", "workers", 3, 4)
    commit(engine, change)
    engine.close()

    engine = opened(url)
    workers = engine.log("orders").groups["workers"]
    assert workers.pending == {2: Pending(1, 200, ""), 4: Pending(2, 300, "c3"), 5: Pending(1, 99, "c1")}
    assert payloads(engine, "orders") == [*ORDERS, b"new-1", b"new-2"]
    view = View(Location(url), MAIN, 30_000, SystemClock())
    log_id, state = view.logs()["orders"]
    batches = ColumnReader(view, MAIN, log_id).batches(state.first_offset, state.next_offset)
    found = [payload for batch in batches for payload in batch.column("payload").to_pylist()]
    assert found == [*ORDERS, b"new-1", b"new-2"]
    view.close()

    change = Commit()
    change.drop("orders")
    change.drop("invoices")
    commit(engine, change)
    eventually(lambda: not dict(engine._database.scan_prefix(keys.DROPPED_LOG)))
    assert payloads(engine, "copies") == [BIG]
    change = Commit()
    change.drop("copies")
    commit(engine, change)
    eventually(lambda: not dict(engine._database.scan_prefix(keys.DROPPED_LOG)))
    eventually(lambda: not dict(engine._database.scan_prefix(keys.DROPPED_QUEUE)))
    kept = {keys.SEQUENCE, keys.INSTANCE, keys.LOG_SEGMENT}
    left = {key for key in dict(engine._database.scan_prefix(b"")) if not key.startswith(keys.TABLE)}
    assert left == kept
    engine.close()


def test_an_older_release_does_not_open_it_any_more(url: str) -> None:
    opened(url).close()

    view = View(Location(url), MAIN, 30_000, SystemClock())
    assert view.get(keys.INSTANCE) == b"\x02\x04\x00main"
    view.close()

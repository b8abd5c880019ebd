"""The engine over a real HTTP S3: reopening, taking over, and a store that is away for a while."""

from pathlib import Path

import obstore
import pytest

from headrace.clock import SystemClock
from headrace.cluster.lease import Records
from headrace.errors import Fenced, HeadraceError, Unavailable
from headrace.model import Message, Source
from headrace.storage.api import RETAINED, Commit
from headrace.storage.group_state import WORK
from headrace.storage.objects.database import prove_fencing
from headrace.storage.objects.engine import ObjectEngine, ObjectSettings
from headrace.storage.objects.keys import PAYLOAD
from headrace.storage.objects.location import open_bucket
from tests.contents import contents
from tests.stores import S3
from tests.waiting import eventually

QUICK = ObjectSettings(flush_interval_ms=5)
IMPATIENT = ObjectSettings(flush_interval_ms=5, timeout_ms=5000)
SOURCE = Source("orders/eu")


def appended(*payloads: bytes) -> Commit:
    commit = Commit()
    commit.append("orders", [Message(SOURCE, payload, 1) for payload in payloads])
    return commit


def committed(engine: ObjectEngine, commit: Commit) -> HeadraceError | None:
    """What became of a commit."""
    outcomes: list[HeadraceError | None] = []
    engine.commit(commit, outcomes.append)
    engine.sync()
    return outcomes[0]


def payloads(engine: ObjectEngine) -> list[bytes]:
    log = engine.log("orders")
    return [message.payload for message in log.read(log.first_offset, 1000)]


def test_what_was_committed_is_there_when_the_store_is_opened_again(s3: S3) -> None:
    engine = ObjectEngine(s3.url, settings=QUICK)
    commit = appended(b"one", b"two")
    commit.create_group("orders", "workers", WORK)
    commit.claim("orders", "workers", 0, 1, "consumer", 77)
    commit.put(RETAINED, b"key", b"value")
    assert committed(engine, commit) is None
    before = contents(engine)
    engine.close()

    again = ObjectEngine(s3.url, settings=QUICK)

    assert contents(again) == before
    assert payloads(again) == [b"one", b"two"]
    again.close()


def test_a_second_opener_fences_the_first_whose_commits_fail_and_nothing_confirmed_is_lost(s3: S3) -> None:
    first = ObjectEngine(s3.url, settings=QUICK)
    assert committed(first, appended(b"one")) is None

    second = ObjectEngine(s3.url, settings=QUICK)
    assert committed(second, appended(b"two")) is None
    outcomes: list[HeadraceError | None] = []
    first.commit(appended(b"lost"), outcomes.append)
    with pytest.raises(Fenced, match="another process"):
        first.sync()

    assert isinstance(outcomes[0], Fenced)
    with pytest.raises(Fenced):
        first.commit(appended(b"lost too"), outcomes.append)
    first.close()
    second.close()
    third = ObjectEngine(s3.url, settings=QUICK)
    assert payloads(third) == [b"one", b"two"]
    third.close()


def test_an_idle_engine_learns_by_itself_that_another_has_taken_over(s3: S3) -> None:
    first = ObjectEngine(s3.url, settings=QUICK)
    second = ObjectEngine(s3.url, settings=QUICK)

    def is_fenced() -> bool:
        try:
            first.poll()
        except Fenced:
            return True
        return False

    eventually(is_fenced)
    first.close()
    second.close()


def test_while_the_store_is_away_commits_are_refused_and_it_goes_on_when_it_is_back(s3: S3) -> None:
    engine = ObjectEngine(s3.url, settings=IMPATIENT)
    first = appended(b"one", b"two")
    first.create_group("orders", "workers", WORK)
    first.claim("orders", "workers", 0, 1, "consumer", 77)
    first.put(RETAINED, b"key", b"value")
    assert committed(engine, first) is None
    before = contents(engine)

    s3.shut()
    commit = appended(b"refused")
    commit.append("other", [Message(SOURCE, b"refused", 1)])
    commit.ack("orders", "workers", 0, 1)
    commit.claim("orders", "workers", 1, 2, "other", 78)
    commit.create_group("orders", "more", WORK)
    commit.put(RETAINED, b"key", b"other value")
    commit.put(RETAINED, b"new", b"value")
    commit.truncate("orders", 1)
    refused = committed(engine, commit)
    assert isinstance(refused, Unavailable)
    assert "does not answer" in str(refused)
    with pytest.raises(Unavailable, match="does not answer"):
        engine.commit(appended(b"refused as well"), lambda error: None)
    assert contents(engine) == before
    assert "does not answer" in engine.trouble

    s3.open()
    taken: list[HeadraceError | None] = []

    def is_back() -> bool:
        engine.poll()
        try:
            engine.commit(appended(b"three"), taken.append)
        except Unavailable:
            return False
        engine.sync()
        return taken[-1] is None

    eventually(is_back)
    assert engine.trouble == ""
    last = Commit()
    last.requeue("orders", "workers", 0, 1, 99)
    assert committed(engine, last) is None

    assert payloads(engine) == [b"one", b"two", b"three"]
    after = contents(engine)
    engine.close()
    again = ObjectEngine(s3.url, settings=QUICK)
    assert contents(again) == after
    assert again.log("orders").groups["workers"].pending[0].attempts == 1
    assert again.get(RETAINED, b"key") == b"value"
    assert "other" not in again.logs()
    assert list(again.log("orders").groups) == ["workers"]
    again.close()


def test_a_store_that_honours_conditional_writes_is_proven_to_and_nothing_stays_of_the_proof(s3: S3) -> None:
    prove_fencing(s3.url, SystemClock(), 30_000)
    prove_fencing(s3.url, SystemClock(), 30_000)

    bucket = open_bucket(s3.url, 30_000, create=False)
    assert [meta["path"] for batch in obstore.list(bucket) for meta in batch] == []


def test_nothing_stays_of_proofs_in_a_directory(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"

    prove_fencing(store, SystemClock(), 30_000)
    Records(store, "main", 30_000).prove_creation()

    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == [
        "store",
        "store/cluster",
        "store/cluster/main",
    ]


@pytest.mark.parametrize("seconds", [0, 0.1], ids=["quick", "slow"])
def test_a_store_that_ignores_conditional_writes_is_refused(s3_port: int, seconds: float) -> None:
    forgetful = S3(s3_port, forgetful=True)
    forgetful.slow_down(seconds)

    with forgetful.here(), pytest.raises(Unavailable, match="does not honour conditional writes"):
        prove_fencing(forgetful.url, SystemClock(), 30_000)
    forgetful.close()


def test_who_does_not_wait_for_the_store_is_told_before_it_is_stored_and_it_is_when_the_store_is_back(s3: S3) -> None:
    engine = ObjectEngine(s3.url, settings=IMPATIENT)
    assert committed(engine, appended(b"one")) is None
    s3.shut()
    outcomes: list[HeadraceError | None] = []
    engine.commit(appended(b"two"), outcomes.append, durable=False)
    engine.sync()
    before = list(outcomes)
    seen = payloads(engine)
    s3.open()
    assert committed(engine, appended(b"three")) is None
    engine.close()

    assert before == [None]
    assert seen == [b"one", b"two"]
    again = ObjectEngine(s3.url, settings=QUICK)
    assert payloads(again) == [b"one", b"two", b"three"]
    again.close()


def test_who_waits_for_all_before_is_told_when_the_store_has_it_though_there_is_nothing_more_to_store(s3: S3) -> None:
    engine = ObjectEngine(s3.url, settings=QUICK)
    assert committed(engine, appended(b"one")) is None
    s3.shut()
    outcomes: list[HeadraceError | None] = []
    engine.commit(appended(b"two"), lambda error: None, durable=False)
    engine.sync()
    engine.commit(Commit(), outcomes.append)
    engine.poll()
    before = list(outcomes)
    s3.open()
    engine.sync()
    engine.close()

    assert (before, outcomes) == ([], [None])


def test_what_goes_to_several_queues_with_a_time_to_live_is_in_the_bucket_once(s3: S3) -> None:
    engine = ObjectEngine(s3.url, settings=QUICK)
    payload = b"espresso" * 1000
    commit = Commit()
    for number in range(5):
        commit.append(f"queue-{number}", [Message(SOURCE, payload, 1, expires_us=1000 + number)])

    assert committed(engine, commit) is None

    assert list(dict(engine._database.scan_prefix(PAYLOAD)).values()) == [payload]
    engine.close()

"""The engine over an object store: the records that it puts there, removes and reads."""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from headrace.clock import ManualClock, SystemClock
from headrace.config.replication import MAIN
from headrace.errors import Corrupt, HeadraceError, Refused, Truncated, Unavailable
from headrace.model import Message, Source
from headrace.storage.api import QUEUES, RETAINED, Commit, Origin
from headrace.storage.group_state import WORK
from headrace.storage.local.encoding import encode_block
from headrace.storage.local.staging import encoded
from headrace.storage.objects import engine as engine_module
from headrace.storage.objects import keys
from headrace.storage.objects.columns import ColumnReader
from headrace.storage.objects.database import Change, Database, Tuning, Writing
from headrace.storage.objects.engine import ObjectEngine, ObjectSettings
from headrace.storage.objects.location import Call, Location
from headrace.storage.objects.records import (
    Spec,
    decode_active,
    decode_attempts,
    decode_consumer,
    decode_entry,
    decode_payloads,
    decode_settled,
    decode_spec,
)
from headrace.storage.objects.view import View
from tests.waiting import eventually
from tests.workbench import append_encoded

QUICK = ObjectSettings(flush_interval_ms=1)
SOURCE = Source("orders/eu", "amq.topic")
Records = dict[bytes, bytes]


class House:
    """An engine over a directory, and a look at what is in it."""

    def __init__(self, directory: Path) -> None:
        self.url = f"file://{directory}/store"
        self.clock = ManualClock()
        self.engine = self.open(QUICK)

    def open(self, settings: ObjectSettings) -> ObjectEngine:
        self.engine = ObjectEngine(self.url, settings=settings, clock=self.clock)
        return self.engine

    def commit(self, *changes: Callable[[Commit], object]) -> None:
        """One commit with these changes, durable."""
        commit = Commit()
        for change in changes:
            change(commit)
        outcomes: list[HeadraceError | None] = []
        self.engine.commit(commit, outcomes.append)
        self.engine.sync()
        assert outcomes == [None]

    def records(self, kind: bytes) -> Records:
        return dict(self.engine._database.scan_prefix(kind))


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.engine.close()


def messages(*payloads: bytes, time_us: int = 1) -> list[Message]:
    return [Message(SOURCE, payload, time_us) for payload in payloads]


def append(log: str, *payloads: bytes, time_us: int = 1) -> Callable[[Commit], object]:
    return lambda commit: commit.append(log, messages(*payloads, time_us=time_us))


def group(log: str = "orders", name: str = "workers", start: int = 0) -> Callable[[Commit], object]:
    return lambda commit: commit.create_group(log, name, WORK, "eu.#", start)


def claim(start: int, stop: int, consumer: str = "c1", due_us: int = 99) -> Callable[[Commit], object]:
    return lambda commit: commit.claim("orders", "workers", start, stop, consumer, due_us)


def ack(start: int, stop: int, log: str = "orders") -> Callable[[Commit], object]:
    return lambda commit: commit.ack(log, "workers", start, stop)


def test_the_messages_of_a_commit_are_a_record_of_payloads_and_an_entry_of_the_metadata_log(house: House) -> None:
    house.commit(append("orders", b"one", b"two"))

    ((payloads_key, value),) = house.records(keys.PAYLOADS).items()
    assert decode_payloads(value, "payloads") == [b"one", b"two"]
    assert not house.records(keys.PAYLOAD)
    log_id = house.engine._catalog.log("orders").id
    prefix = keys.entry_prefix(f"opendata-queue/main/messages/metadata/{log_id}".encode())
    ((key, value),) = house.records(prefix).items()
    assert keys.decode_entry_key(key, prefix) == 0
    ids, metadata = decode_entry(value, "entry")
    assert ids == [ids[0], ids[0] + 1]
    assert payloads_key == keys.payloads_key(ids[0])
    assert all(b"orders/eu" in about for about in metadata)


def test_a_group_begins_with_its_specification_and_empty_buckets(house: House) -> None:
    house.commit(group(start=304))

    (spec,) = house.records(keys.SPEC).values()
    assert decode_spec(spec, "spec") == ("eu.#", 0, 3600, 2, "workers of orders", "")
    for kind, empty in ((keys.ACTIVE, bytes(4)), (keys.DONE, bytes(2)), (keys.FAILED, bytes(2))):
        ((key, value),) = house.records(kind).items()
        assert (keys.decode_queue_key(key).number, value) == (keys.bucket_id(2, 304), empty)


DEFINITION = {"name": "orders", "filter": "amount > 100", "delivery_limit": None, "retry": {"max_retries": 4}}


def define(**values: object) -> Callable[[Commit], object]:
    definition = json.dumps({**DEFINITION, **values}).encode()
    return lambda commit: commit.put(QUEUES, b"orders", definition)


def spec_of(house: House) -> Spec:
    (spec,) = house.records(keys.SPEC).values()
    return decode_spec(spec, "spec")


def test_the_specification_of_a_group_says_what_its_queue_is_defined_to_be(house: House) -> None:
    house.commit(define(description="what was ordered"), group())
    assert spec_of(house) == ("eu.#", 5, 3600, 2, "what was ordered", "amount > 100")

    house.commit(define(delivery_limit=1))
    assert spec_of(house) == ("eu.#", 2, 3600, 2, "workers of orders", "amount > 100")

    house.commit(define(filter="", retry=None))
    assert spec_of(house) == ("eu.#", 0, 3600, 2, "workers of orders", "")
    assert reopened(house).engine.log("orders").groups["workers"].filter == "eu.#"


def test_a_specification_of_an_earlier_release_is_read_and_completed(house: House) -> None:
    house.commit(define(), group())
    (key,) = house.records(keys.SPEC)
    house.engine._database.store([(key, bytes.fromhex("01 04 00 65 75 2e 23 00 00 10 0e 00 00 02 00 00"))])
    assert spec_of(house) == ("eu.#", 0, 3600, 2, "", "")

    reopened(house).engine.sync()

    assert house.engine.log("orders").groups["workers"].filter == "eu.#"
    assert spec_of(house) == ("eu.#", 5, 3600, 2, "workers of orders", "amount > 100")


def test_a_text_that_has_no_room_in_a_specification_keeps_no_queue_from_being_stored(house: House) -> None:
    house.commit(define(filter="x" * 70_000, description="\u00fc" * 70_000), group())

    spec = spec_of(house)
    assert (spec.expression, spec.description) == ("", "\u00fc" * 32_767)


def test_a_group_without_its_progress_is_found_when_the_store_is_opened(house: House) -> None:
    house.commit(append("orders", b"one"), group())
    (progress,) = house.records(keys.PROGRESS)
    house.engine._database.store([(progress, None)])
    house.engine.close()

    with pytest.raises(Corrupt, match="has no progress"):
        house.open(QUICK)
    house.engine._database.close()


def test_a_claimed_message_is_in_flight_with_its_attempt_until_it_is_done(house: House) -> None:
    house.commit(append("orders", b"one", b"two", b"three"), group())
    house.commit(claim(0, 3, "c1", 99))
    claimed_us = house.clock.now_us()

    (bucket,) = house.records(keys.ACTIVE).values()
    _, in_flight = decode_active(bucket, "active")
    assert [(each.claimed_at_us, each.lease_deadline_us, each.attempts) for each in in_flight] == [
        (claimed_us, 99, 1)
    ] * 3
    assert [keys.number_of(each.claim_id) for each in in_flight] == [0, 1, 2]
    assert [decode_consumer(each.metadata, "in flight") for each in in_flight] == ["c1"] * 3
    assert not house.records(keys.ATTEMPTS)  # the bucket has all of a first attempt

    house.clock.advance(1)
    house.commit(ack(0, 2), lambda commit: commit.bury("orders", "workers", 2, 3))

    assert decode_active(next(iter(house.records(keys.ACTIVE).values()), bytes(4)), "active") == ([], [])
    assert not house.records(keys.ATTEMPTS)
    ((done_key, done),) = house.records(keys.DONE).items()
    ((failed_key, failed),) = house.records(keys.FAILED).items()
    assert [(each.at_us, each.attempts) for each in decode_settled(done, "done")] == [(house.clock.now_us(), 1)] * 2
    assert [each.claim_id for each in decode_settled(failed, "failed")] == [keys.claim_id(2, 2)]
    assert keys.decode_queue_key(done_key).number == keys.decode_queue_key(failed_key).number == keys.bucket_id(2, 0)


def test_a_message_given_back_is_available_from_its_time_on_and_remembers_its_attempts(house: House) -> None:
    house.commit(append("orders", b"one"), group())
    house.commit(claim(0, 1, "c1"))
    house.commit(lambda commit: commit.requeue("orders", "workers", 0, 1, 500))

    (bucket,) = house.records(keys.ACTIVE).values()
    ((_, claim_id, attempts, _),), in_flight = decode_active(bucket, "active")
    assert (claim_id, attempts, in_flight) == (keys.claim_id(2, 0), 1, [])
    house.engine.close()
    pending = house.open(QUICK).log("orders").groups["workers"].pending[0]
    assert (pending.attempts, pending.due_us, pending.consumer) == (1, 500, "")

    house.commit(claim(0, 1, "c2", 700))

    (record,) = house.records(keys.ATTEMPTS).values()
    assert [each.consumer for each in decode_attempts(record, "attempts")] == ["c1", "c2"]
    house.commit(ack(0, 1))
    assert not house.records(keys.ATTEMPTS)


def test_a_message_in_several_logs_has_one_payload_that_goes_with_the_last_of_them(house: House) -> None:
    (message,) = messages(b"shared")

    def fan_out(commit: Commit) -> None:
        commit.append("one", [message])
        commit.append("two", [*messages(b"own"), message])

    house.commit(fan_out)
    assert payloads(house) == [b"own", b"shared"]
    assert len(house.records(keys.REFERENCE)) == 2

    house.commit(lambda commit: commit.truncate("two", 2))
    eventually(lambda: payloads(house) == [b"shared"])
    assert [found.payload for found in house.engine.log("one").read(0, 9)] == [b"shared"]

    house.commit(lambda commit: commit.drop("one"))
    eventually(lambda: not payloads(house) and not house.records(keys.REFERENCE))


def test_copies_of_a_message_that_expire_at_different_times_have_one_payload(house: House) -> None:
    (message,) = messages(b"shared")

    def copied(expires_us: int, payload: bytes = message.payload) -> Message:
        return Message(message.source, payload, 1, b"", 0, expires_us)

    def fan_out(commit: Commit) -> None:
        commit.append("one", [copied(1000), copied(1001), copied(1002, b"x")])
        commit.append("two", [copied(2000), copied(2001), copied(2002, b"x")])
        commit.append("three", [Message(Source("elsewhere"), b"x", 1)])

    house.commit(fan_out)

    assert payloads(house) == [b"shared", b"shared", b"x", b"x"]
    house.commit(lambda commit: commit.truncate("two", 3))
    eventually(lambda: _collected(house, "two") == 3)
    found = reopened(house).engine.log("one").read(0, 9)
    assert [(each.payload, each.expires_us) for each in found] == [(b"shared", 1000), (b"shared", 1001), (b"x", 1002)]
    house.commit(lambda commit: commit.drop("one"), lambda commit: commit.drop("three"))
    eventually(lambda: not payloads(house) and not house.records(keys.REFERENCE))


def test_what_is_published_in_bulk_to_several_logs_has_one_payload_each(house: House) -> None:
    rows = encoded(encode_block(0, messages(b"first", b"second")))

    def fan_out(commit: Commit) -> None:
        append_encoded(commit, "one", rows)
        append_encoded(commit, "two", rows.expiring(1000, 1))
        append_encoded(commit, "three", rows.take([1]))

    house.commit(fan_out)

    assert payloads(house) == [b"first", b"second"]
    assert contents(reopened(house), "three") == [b"second"]
    assert contents(house, "two") == contents(house, "one") == [b"first", b"second"]


def copy(source: str, offsets: list[int], *targets: str) -> Callable[[House], None]:
    """Have messages of a log go to others as well, in one commit."""

    def make(house: House) -> None:
        found = [house.engine.log(source).read(offset, 1)[0] for offset in offsets]

        def build(commit: Commit) -> None:
            for target in targets:
                commit.append(target, found, Origin(source, offsets))

        house.commit(build)

    return make


LARGE = b"large" * 1000


def contents(house: House, log: str) -> list[bytes]:
    found = house.engine.log(log)
    return [message.payload for message in found.read(found.first_offset, 99)]


def reopened(house: House) -> House:
    house.engine.close()
    house.open(QUICK)
    return house


def payloads(house: House) -> list[bytes]:
    packed = [each for value in house.records(keys.PAYLOADS).values() for each in decode_payloads(value, "payloads")]
    return sorted([*house.records(keys.PAYLOAD).values(), *packed])


@pytest.mark.parametrize("order", [("papers", "one", "two"), ("one", "papers", "two"), ("two", "one", "papers")])
def test_a_message_that_later_commits_copy_has_one_payload_that_goes_with_the_last_log(
    house: House, order: tuple[str, ...]
) -> None:
    house.commit(append("papers", b"small", LARGE))
    copy("papers", [0, 1], "one", "two")(house)
    assert payloads(house) == [LARGE, b"small"]

    left = set(order)
    for log in order:
        house.commit(lambda commit, log=log: commit.truncate(log, 2))  # type: ignore[misc]
        left.discard(log)
        eventually(lambda log=log: _collected(house, log) == 2)  # type: ignore[misc]
        reopened(house)
        assert [contents(house, each) for each in sorted(left)] == [[b"small", LARGE]] * len(left)
        assert payloads(house) == ([LARGE, b"small"] if left else [])
    assert not house.records(keys.REFERENCE)


def _collected(house: House, log: str) -> int:
    stored = house.records(keys.COLLECTED + keys.u64(house.engine._catalog.logs[log].id))
    return int.from_bytes(next(iter(stored.values()), b""), "little")


def test_a_small_payload_that_one_log_copies_is_stored_again_and_a_large_one_is_not(house: House) -> None:
    house.commit(append("papers", b"small", LARGE))
    copy("papers", [0, 1], "one")(house)
    assert payloads(house) == [LARGE, b"small", b"small"]
    assert contents(reopened(house), "one") == [b"small", LARGE]


def test_copies_of_copies_outlive_both_and_leave_nothing_behind(house: House) -> None:
    house.commit(append("papers", LARGE, b"never copied"))
    copy("papers", [0], "one")(house)
    copy("one", [0], "two")(house)
    copy("papers", [0], "one")(house)
    assert payloads(house) == [LARGE, b"never copied"]
    assert not house.records(keys.PAYLOAD)

    house.commit(lambda commit: commit.truncate("one", 1))
    eventually(lambda: _collected(house, "one") == 1)
    assert contents(reopened(house), "one") == [LARGE]
    house.commit(lambda commit: commit.drop("papers"), lambda commit: commit.drop("one"))
    eventually(lambda: payloads(house) == [LARGE])
    eventually(lambda: not house.records(keys.DROPPED_LOG))
    assert contents(reopened(house), "two") == [LARGE]
    house.commit(lambda commit: commit.drop("two"))

    kept = {keys.SEQUENCE, keys.INSTANCE, keys.LOG_SEGMENT}
    eventually(lambda: {key for key in house.records(b"") if key not in kept} == set())


def test_a_copy_of_what_is_gone_by_now_is_stored_by_itself(house: House) -> None:
    house.commit(append("papers", LARGE))
    house.commit(append("papers", b"left"))
    found = house.engine.log("papers").read(0, 1)
    house.commit(lambda commit: commit.truncate("papers", 1))
    house.commit(lambda commit: commit.append("one", found, Origin("papers", [0])))
    eventually(lambda: payloads(house) == [LARGE, b"left"])
    assert contents(reopened(house), "one") == [LARGE]


def test_a_log_that_gets_a_message_twice_has_it_twice(house: House) -> None:
    (message,) = messages(b"twice")

    def both(commit: Commit) -> None:
        commit.append("one", [message, message])
        commit.append("two", [message])
        commit.append("one", [message])

    house.commit(both)
    house.commit(lambda commit: commit.truncate("one", 2))
    house.engine.close()
    house.open(QUICK)

    eventually(lambda: len(house.records(keys.REFERENCE)) <= 2)
    assert [found.payload for found in house.engine.log("one").read(2, 9)] == [b"twice"]
    assert [found.payload for found in house.engine.log("two").read(0, 9)] == [b"twice"]


def test_nothing_stays_of_a_log_that_was_dropped_with_its_groups(house: House) -> None:
    house.commit(append("orders", *[b"%d" % number for number in range(3000)]), group())
    house.commit(append("orders", b"later", time_us=5), claim(0, 10), ack(0, 5))
    house.commit(lambda commit: commit.drop("orders"))

    kept = {keys.SEQUENCE, keys.INSTANCE, keys.LOG_SEGMENT}
    eventually(lambda: {key for key in house.records(b"") if key not in kept} == set())


def test_what_one_process_leaves_uncollected_the_next_one_collects(house: House) -> None:
    house.commit(append("orders", b"one", b"two"), append("gone", b"three"))
    house.engine._collector.stop()
    house.commit(lambda commit: commit.truncate("orders", 2), lambda commit: commit.drop("gone"))
    assert payloads(house) == [b"one", b"three", b"two"]
    house.engine._writer.stop()
    house.engine._database.close()

    house.open(QUICK)

    eventually(lambda: not payloads(house))
    assert house.engine.log("orders").next_offset == 2


def test_done_messages_are_kept_for_the_retention_and_then_removed(house: House) -> None:
    house.commit(append("orders", *[b"%d" % number for number in range(250)]), group())
    house.commit(claim(0, 250), ack(0, 250))
    assert len(house.records(keys.DONE)) == 3

    house.clock.advance(3000)
    house.engine.poll()
    house.commit(append("orders", b"more"))
    assert len(house.records(keys.DONE)) == 3

    house.clock.advance(700)
    house.engine.poll()

    eventually(lambda: len(house.records(keys.DONE)) == 1)  # the bucket that is still added to stays


def settled(house: House, kind: bytes) -> int:
    return sum(len(decode_settled(value, "settled")) for value in house.records(kind).values())


@pytest.mark.parametrize("restarts", [False, True], ids=["in one process", "over a restart"])
def test_what_was_done_last_is_removed_after_the_retention_though_nothing_follows(house: House, restarts: bool) -> None:
    house.commit(append("orders", *[b"%d" % number for number in range(5)]), group())
    house.commit(claim(0, 4), ack(0, 2), lambda commit: commit.bury("orders", "workers", 2, 3))
    house.clock.advance(1800)
    house.commit(ack(3, 4))
    assert (settled(house, keys.DONE), settled(house, keys.FAILED)) == (3, 1)
    if restarts:
        reopened(house)

    house.clock.advance(1900)
    house.engine.sync()
    assert (settled(house, keys.DONE), settled(house, keys.FAILED)) == (1, 0)

    house.clock.advance(1900)
    house.engine.sync()
    assert (settled(house, keys.DONE), settled(house, keys.FAILED)) == (0, 0)
    assert reopened(house).engine.log("orders").groups["workers"].committed == 4
    house.commit(claim(4, 5), ack(4, 5))
    assert settled(house, keys.DONE) == 1


def test_groups_forget_what_they_did_a_few_at_a_time(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_HISTORY_GROUPS", 2)
    names = [f"log-{number}" for number in range(5)]

    def fill(commit: Commit) -> None:
        for name in names:
            commit.append(name, messages(b"one"))
            commit.create_group(name, "workers", WORK)
            commit.claim(name, "workers", 0, 1, "c1", 99)

    house.commit(fill)
    house.commit(*[ack(0, 1, name) for name in names])
    house.clock.advance(4000)

    left = []
    for _ in range(3):
        house.engine.poll()
        while house.engine._catalog.staged:
            house.engine._take(house.engine._results.get())
        left.append(settled(house, keys.DONE))
    assert left == [3, 1, 0]


def test_logs_are_found_by_time_though_most_of_them_is_not_in_memory(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.engine.close()
    house.open(ObjectSettings(flush_interval_ms=1, tail_bytes=4096, cache_bytes=4096))
    for batch in range(60):
        house.commit(append("orders", *[b"x"] * 100, time_us=1000 + batch * 10))

    log = house.engine.log("orders")
    assert len(house.records(keys.TIME)) > 3
    for batch in (0, 1, 17, 35, 59):
        assert log.find(1000 + batch * 10) == batch * 100
        assert log.find(1000 + batch * 10 - 9) == batch * 100
    assert log.find(1591) == log.next_offset == 6000
    house.commit(lambda commit: commit.truncate("orders", 1750))
    assert log.find(0) == 1750
    with pytest.raises(Truncated, match="the log starts at 1750"):
        log.read(1749, 1)
    house.engine.close()


def test_memory_is_bounded_however_long_a_log_is(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.engine.close()
    house.open(ObjectSettings(flush_interval_ms=1, tail_bytes=20_000, cache_bytes=10_000))
    for batch in range(30):
        house.commit(append("orders", *[b"%d" % (batch * 100 + row) for row in range(100)]))

    log = house.engine.log("orders")
    found = [message.payload for at in range(0, 3000, 50) for message in log.read(at, 50)]

    assert found == [b"%d" % number for number in range(3000)]
    around = house.engine._catalog._context
    largest = 512 * 500  # what is read from the store at once may be held until the next
    assert around.recent.bytes <= 20_000 + 256 * 500
    assert around.kept.bytes <= 10_000 + largest
    house.engine.close()


def test_a_large_append_is_cut_into_entries_that_are_good_to_read(house: House) -> None:
    house.commit(append("orders", *[b"%d" % number for number in range(2500)]))

    prefix = keys.entry_prefix(keys.log_name(MAIN, house.engine._catalog.log("orders").id))
    assert [keys.decode_entry_key(key, prefix) for key in house.records(prefix)] == [0, 1000, 2000]
    house.engine.close()
    log = house.open(QUICK).log("orders")
    assert [message.payload for message in log.read(990, 20)] == [b"%d" % number for number in range(990, 1010)]


def test_logs_that_are_appended_to_in_turns_are_read_from_records_apart_from_each_other(house: House) -> None:
    names = ["one", "two", "three"]
    for turn in range(40):
        house.commit(*[append(name, *[b"%s-%d-%d" % (name.encode(), turn, row) for row in range(9)]) for name in names])
    reopened(house)

    for name in names:
        expected = [b"%s-%d-%d" % (name.encode(), turn, row) for turn in range(40) for row in range(9)]
        assert [message.payload for message in house.engine.log(name).read(0, 999)] == expected


def test_keys_that_are_looked_up_together_are_found_or_not_in_their_order(house: House) -> None:
    database = house.engine._database
    wanted = [b"%03d" % number for number in range(250)]
    database.store([(key, key * 3) for key in wanted[::2]])

    found = database.get_all(wanted)

    assert found == [key * 3 if at % 2 == 0 else None for at, key in enumerate(wanted)]
    assert database.get_all([]) == []
    with (
        pytest.raises(Unavailable, match="does not answer: reading"),
        mock.patch.object(Call, "wait", return_value=False),
    ):
        database.get_all(wanted)


def test_a_payload_that_is_missing_makes_its_log_corrupt_and_no_other(house: House) -> None:
    house.commit(append("orders", b"one"), append("other", b"two"))
    payload = next(key for key, value in house.records(keys.PAYLOADS).items() if value.endswith(b"one"))
    house.engine._database.store([(payload, None)])
    house.engine.close()
    engine = house.open(QUICK)

    with pytest.raises(Corrupt, match="the payload is missing"):
        engine.log("orders").read(0, 1)
    assert [message.payload for message in engine.log("other").read(0, 1)] == [b"two"]


def test_a_message_whose_topic_is_too_long_is_refused_and_nothing_else_is_harmed(house: House) -> None:
    commit = Commit()
    commit.append("orders", [Message(Source("x" * 70_000), b"", 1)])
    with pytest.raises(Refused, match="too long"):
        house.engine.commit(commit, lambda error: None)

    house.commit(append("orders", b"fine"))
    assert house.engine.log("orders").next_offset == 1


def test_commits_that_arrive_while_one_is_written_are_written_one_by_one_and_waited_for_together(house: House) -> None:
    order: list[int] = []
    with writes(house) as written:
        for number in range(20):
            commit = Commit()
            commit.append("orders", messages(b"%d" % number))
            house.engine.commit(commit, lambda error, number=number: order.append(number))  # type: ignore[misc]
        house.engine.sync()

    assert order == list(range(20))
    assert len(written) == 20
    assert sum(writing.waits for writing in written) < 20
    prefix = keys.entry_prefix(keys.log_name(MAIN, house.engine._catalog.log("orders").id))
    assert len(house.records(prefix)) == 20
    assert house.engine.staged_bytes == 0


class Watched:
    """A write that counts how often it is waited for; a late one has not come through the first time."""

    def __init__(self, writing: Writing, is_late: bool) -> None:
        self._writing = writing
        self._is_late = is_late
        self.waits = 0

    def wait(self, timeout_ms: int) -> bool:
        self.waits += 1
        return (self.waits > 1 or not self._is_late) and self._writing.wait(timeout_ms)

    def wait_taken(self, timeout_ms: int) -> bool:
        return self._writing.wait_taken(timeout_ms)


@contextlib.contextmanager
def writes(house: House, are_late: bool = False) -> Iterator[list[Watched]]:
    """All writes of the engine, in order."""
    found: list[Watched] = []
    database = house.engine._writer._database
    write = database.write

    def watched(changes: Iterable[Change]) -> Watched:
        found.append(Watched(write(changes), are_late))
        return found[-1]

    with mock.patch.object(database, "write", watched):
        yield found


def answers(house: House) -> bool:
    """True if the engine takes commits again."""
    house.engine.poll()
    return not house.engine.trouble


def test_a_late_write_takes_along_all_commits_behind_it_and_nothing_of_them_stays(house: House) -> None:
    house.commit(append("orders", b"one", b"two"), group(), claim(0, 2))
    before = house.records(b"")
    outcomes: list[HeadraceError | None] = []
    with writes(house, are_late=True):
        for number in range(5):
            commit = Commit()
            commit.append("orders", messages(b"late"))
            commit.append(f"new-{number}", messages(b"late"))
            commit.claim("orders", "workers", 2 + number, 3 + number, "c2", 5)
            commit.ack("orders", "workers", number, number + 1)
            commit.put(RETAINED, b"key", b"%d" % number)
            house.engine.commit(commit, outcomes.append)
        house.engine.sync()
    assert [type(error) for error in outcomes] == [Unavailable] * 5
    with pytest.raises(Unavailable):
        house.engine.commit(Commit(), outcomes.append)

    eventually(lambda: answers(house))

    kept = {key: value for key, value in house.records(b"").items() if key != keys.SEQUENCE}
    assert kept == {key: value for key, value in before.items() if key != keys.SEQUENCE}
    assert contents(house, "orders") == [b"one", b"two"]
    state = house.engine.log("orders").groups["workers"]
    assert (state.committed, sorted(state.pending)) == (0, [0, 1])
    house.commit(append("orders", b"three"), ack(0, 1))
    assert contents(reopened(house), "orders") == [b"one", b"two", b"three"]
    assert house.engine.log("orders").groups["workers"].committed == 1


def test_a_late_write_without_anything_to_take_back_is_over_once_the_store_answers(house: House) -> None:
    commit = Commit()
    commit.append("orders", messages(b"one"))
    house.engine.commit(commit, lambda error: None, durable=False)
    house.engine.sync()
    outcomes: list[HeadraceError | None] = []
    with writes(house, are_late=True):
        house.engine.commit(Commit(), outcomes.append)
        house.engine.sync()
    assert isinstance(outcomes[0], Unavailable)

    eventually(lambda: answers(house))
    house.commit(append("orders", b"two"))
    assert contents(reopened(house), "orders") == [b"one", b"two"]


def test_columns_are_read_from_payloads_together_apart_and_of_other_logs(house: House) -> None:
    shared = messages(b"shared-1", b"shared-2")
    house.commit(append("papers", LARGE, LARGE + b"2"))

    def mixed(commit: Commit) -> None:
        commit.append("one", [*messages(b"a", b"bb"), shared[0], *messages(b""), shared[1], *messages(b"dddd")])
        commit.append("two", shared)

    house.commit(mixed)
    copy("papers", [1, 0], "one")(house)
    house.commit(append("one", *[b"%d" % number * (number % 7) for number in range(1500)]))
    house.commit(append("one", b"last", time_us=9))

    expected = contents(house, "one")
    assert expected[:8] == [b"a", b"bb", b"shared-1", b"", b"shared-2", b"dddd", LARGE + b"2", LARGE]
    log = house.engine.log("one")
    every = [message.payload for message in log.read(0, 1 << 20)]
    view = View(Location(house.url), MAIN, 30_000, SystemClock())
    try:
        reader = ColumnReader(view, MAIN, view.logs()["one"][0])
        for start, stop in ((0, len(every)), (1, 5), (3, 4), (7, 1200), (600, 1509)):
            found = [each for batch in reader.batches(start, stop) for each in batch.column("payload").to_pylist()]
            assert found == every[start:stop]
    finally:
        view.close()
    log = reopened(house).engine.log("one")
    assert [message.payload for message in log.read(0, 1 << 20)] == every


def test_a_store_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    location = Location(f"file://{tmp_path}/store")
    foreign = Database(location, MAIN, Tuning(flush_interval_ms=1), SystemClock())
    foreign.store([(b"somebody", b"else's")])
    foreign.close()

    with pytest.raises(Unavailable, match="not Headrace's; choose another path"):
        ObjectEngine(f"file://{tmp_path}/store", settings=QUICK)


def test_a_store_of_another_version_is_refused(house: House) -> None:
    house.engine._database.store([(keys.INSTANCE, b"\x03\x04\x00main")])
    house.engine.close()

    with pytest.raises(Corrupt, match="version 3 is not known; this release reads version 2"):
        house.open(QUICK)


def test_an_engine_that_is_closed_takes_nothing_and_closes_again(house: House) -> None:
    house.commit(lambda commit: commit.put(RETAINED, b"key", b"value"))
    house.engine.close()
    house.engine.close()

    with pytest.raises(Unavailable, match="closed"):
        house.engine.commit(Commit(), lambda error: None)
    assert house.open(QUICK).get(RETAINED, b"key") == b"value"

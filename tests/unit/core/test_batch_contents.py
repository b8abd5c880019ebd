"""What a batch holds: one append for each queue, copies by themselves, all bytes counted; when it must be stored."""

from collections.abc import Callable

import pytest

from headrace.core.batch import Appends, Batch
from headrace.core.queue.definition import declared
from headrace.core.queue.entry import accept_copy, add_copies, no_copies
from headrace.core.queue.queue import Queue
from headrace.errors import Unavailable
from headrace.model import Message
from headrace.storage.api import QUEUES, Append, Origin
from tests.house import House
from tests.unit.core.test_bulk import rows

FULL = Unavailable("the disk is full")


def queues(house: House, *names: str) -> list[Queue]:
    return [house.broker.declare(declared(name, durable=True)) for name in names]


def messages(house: House, *payloads: str) -> list[Message]:
    return [house.message(payload, "q") for payload in payloads]


def copies(house: House, *payloads: str) -> Append:
    size = sum([len(payload) for payload in payloads])
    return Append("", messages(house, *payloads), size, origin=Origin("s", list(range(len(payloads)))))


def contents(appends: Appends) -> list[tuple[str, list[bytes]]]:
    return [
        (queue.name, [message.payload for message in append.messages])
        for queue, append in zip(appends.queues, appends.appends, strict=True)
    ]


def test_messages_for_a_queue_are_one_append_whatever_comes_between(house: House) -> None:
    first, second = queues(house, "first", "second")
    appends = Appends()
    a, b, c, d = messages(house, *"abcd")

    appends.add(first, a)
    appends.add(second, b)
    appends.add(first, c)
    appends.add_all(first, [d], 1)

    assert contents(appends) == [("first", [b"a", b"c", b"d"]), ("second", [b"b"])]


def test_nothing_enters_an_append_of_copies(house: House) -> None:
    (queue,) = queues(house, "q")
    appends = Appends()
    a, c = messages(house, "a", "c")

    appends.add(queue, a)
    appends.add_whole(queue, copies(house, "b"))
    appends.add(queue, c)

    assert contents(appends) == [("q", [b"a"]), ("q", [b"b"]), ("q", [b"c"])]


def test_all_payloads_count_until_they_are_removed(house: House) -> None:
    first, second = queues(house, "first", "second")
    appends = Appends()
    appends.add(first, *messages(house, "one"))
    appends.add(first, *messages(house, "four"))
    appends.add_all(first, messages(house, "ab", "c"), 3)
    appends.add_all(second, messages(house, "abcde"), 5)
    appends.add_whole(second, copies(house, "ab"))
    assert appends.size_bytes == 17

    assert appends.remove(lambda *_: False) == 0
    assert appends.remove(lambda queue, _: queue is second) == 7

    assert appends.size_bytes == 10
    assert contents(appends) == [("first", [b"one", b"four", b"ab", b"c"])]


def test_nobody_is_to_be_told_of_appends_to_queues_without_limits(house: House) -> None:
    (plain,) = queues(house, "plain")
    limited = house.broker.declare(declared("limited", arguments={"x-max-length": 5}))
    appends = Appends()

    appends.add(plain, *messages(house, "a"))
    assert not appends.is_counted
    appends.add(limited, *messages(house, "b"))

    assert appends.is_counted


def published(batch: Batch, house: House) -> None:
    batch.append_published(queues(house, "q")[0], house.message("a", "q"))


def moved(batch: Batch, house: House) -> None:
    batch.append_moved(queues(house, "q")[0], house.message("a", "q"))


def published_in_memory(batch: Batch, house: House) -> None:
    batch.append_published(house.broker.declare(declared("m")), *messages(house, "a"))


def moved_in_memory(batch: Batch, house: House) -> None:
    batch.append_moved(house.broker.declare(declared("m")), *messages(house, "a"))


def awaited(batch: Batch, house: House) -> None:
    batch.confirms.add(lambda _: None)


def entered(batch: Batch, house: House) -> None:
    batch.entered.append(lambda: None)


def used(batch: Batch, house: House) -> None:
    batch.used.append(lambda: None)


def settled(batch: Batch, house: House) -> None:
    batch.durable.ack("q", "default", 0, 1)


def touched(batch: Batch, house: House) -> None:
    batch.touch(*queues(house, "q"))


def touched_in_memory(batch: Batch, house: House) -> None:
    batch.touch(house.broker.declare(declared("m")))


def barrier(batch: Batch, house: House) -> None:
    batch.is_barrier = True


def promised(batch: Batch, house: House) -> None:
    batch.is_promised = True


def declaration(batch: Batch, house: House) -> None:
    batch.durable.put(QUEUES, b"q", b"")


def deletion(batch: Batch, house: House) -> None:
    batch.durable.drop("q")


def transaction(batch: Batch, house: House) -> None:
    batch.done = lambda _: None


def nothing(batch: Batch, house: House) -> None:
    return


@pytest.mark.parametrize(
    ("fill", "says"),
    [
        (nothing, {"empty", "can wait", "plain"}),
        (published, {"plain"}),
        (moved, set()),
        (published_in_memory, {"plain"}),
        (moved_in_memory, set()),
        (awaited, {"plain"}),
        (entered, {"plain"}),
        (used, {"can wait", "plain"}),
        (settled, {"can wait", "plain"}),
        (touched, {"can wait", "plain"}),
        (touched_in_memory, {"plain"}),
        (barrier, {"promise"}),
        (promised, {"empty", "promise"}),
        (declaration, {"promise"}),
        (deletion, {"promise"}),
        (transaction, {"empty", "promise"}),
    ],
)
def test_what_a_batch_holds_says_when_it_must_be_stored(
    house: House, fill: Callable[[Batch, House], None], says: set[str]
) -> None:
    batch = Batch()

    fill(batch, house)

    found = {
        "empty": batch.is_empty,
        "can wait": batch.can_wait(1),
        "plain": batch.is_plain,
        "promise": batch.is_promise,
    }
    assert {word for word, is_so in found.items() if is_so} == says


def test_more_settlements_than_may_wait_do_not(house: House) -> None:
    batch = Batch()

    batch.durable.ack("q", "default", 0, 1)
    batch.durable.ack("q", "default", 2, 3)

    assert batch.can_wait(2)
    assert not batch.can_wait(1)


def test_a_queue_in_which_several_messages_were_settled_is_noted_once(house: House) -> None:
    batch = Batch()
    (stored,) = queues(house, "q")
    remembered = house.broker.declare(declared("m"))

    for _ in range(2):
        batch.touch(stored)
        batch.touch(remembered)

    assert (batch.touched, batch.touched_in_memory) == ([stored], [remembered])


# -- what is taken out -------------------------------------------------------------------------------------------------


def test_a_deleted_queue_takes_all_its_messages_out_of_a_batch_and_no_other_queue_does(house: House) -> None:
    batch = Batch()
    gone, kept = queues(house, "gone", "kept")
    gone_in_memory, kept_in_memory = [house.broker.declare(declared(name)) for name in ("gone-m", "kept-m")]
    for queue in (gone, kept, gone_in_memory, kept_in_memory):
        batch.append_published(queue, *messages(house, f"published to {queue.name}"))
        batch.append_moved(queue, *messages(house, f"moved to {queue.name}"))

    batch.forget_queue(gone)
    batch.forget_queue(gone_in_memory)

    held = (batch.published, batch.moved, batch.transient, batch.moved_in_memory)
    assert [contents(appends) for appends in held] == [
        [("kept", [b"published to kept"])],
        [("kept", [b"moved to kept"])],
        [("kept-m", [b"published to kept-m"])],
        [("kept-m", [b"moved to kept-m"])],
    ]
    assert batch.size_bytes == len("published to kept") + len("published to kept-m")


def test_a_refused_batch_keeps_declarations_settlements_and_moved_messages_and_nothing_of_clients(house: House) -> None:
    batch = Batch()
    (queue,) = queues(house, "q")
    remembered = house.broker.declare(declared("m"))
    told: list[object] = []
    batch.confirms.add(told.append)
    batch.entered.append(lambda: told.append("entered"))
    batch.is_barrier = True
    batch.durable.put(QUEUES, b"name", b"value")
    batch.durable.ack("q", "default", 0, 1)
    batch.append_moved(queue, *messages(house, "moved"))
    batch.append_rows(queue, rows(house, "row"))
    for each in (queue, remembered):
        batch.append_published(each, *messages(house, "published"))
    batch.collect()
    assert batch.durable.size_bytes == len("namevalue") + len("moved") + len("row") + len("published")

    batch.refuse(FULL, None)
    batch.refuse(FULL, None)

    assert told == [FULL, "entered"]
    assert (batch.size_bytes, batch.is_barrier) == (0, False)
    assert (batch.published.queues, batch.transient.queues, batch.durable.appends) == ([], [], [])
    assert not batch.durable.is_encoded
    assert batch.durable.size_bytes == len("namevalue")
    commit = batch.collect()
    assert [append.messages[0].payload for append in commit.appends] == [b"moved"]
    assert commit.size_bytes == len("namevalue") + len("moved")
    assert len(commit.steps) == 1


def test_whoever_is_told_behind_another_batch_lets_that_wait_no_longer_than_itself() -> None:
    before, batch = Batch(), Batch()
    told: list[str] = []
    before.confirms.add(lambda error: told.append(f"before: {error}"))
    batch.confirms.add(lambda error: told.append(f"behind: {error}"))
    before.wait_until(100)
    batch.wait_until(50)

    batch.tell(None, before)
    assert (told, before.ack_due_us) == ([], 50)
    before.give_up(FULL)

    assert (told, before.ack_due_us) == ([f"before: {FULL}", "behind: None"], 0)


@pytest.mark.parametrize("is_durable", [True, False])
def test_a_damaged_log_takes_its_steps_and_what_it_gave_or_gets_out_of_a_batch(house: House, is_durable: bool) -> None:
    batch = Batch()
    damaged, other = [house.broker.declare(declared(name, durable=is_durable)) for name in ("damaged", "other")]
    commit = batch.commit_for(damaged)
    for queue in (damaged, other):
        commit.ack(queue.log.name, "default", 0, 1)
        commit.truncate(queue.log.name, 1)
        batch.append_moved(queue, *messages(house, f"to {queue.name}"))

    batch.forget_log(commit, damaged.log.name)

    assert [step.log for step in commit.steps] == [other.log.name]
    assert list(commit.truncations) == [other.log.name]
    assert contents(batch.moved if is_durable else batch.moved_in_memory) == [("other", [b"to other"])]


def test_copies_of_a_damaged_stream_leave_a_batch_and_the_limit_of_their_queue(house: House) -> None:
    batch = Batch()
    stream, other = queues(house, "stream", "other")
    limited = house.broker.declare(
        declared("limited", durable=True, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    )
    for source in (stream, other):
        copied = no_copies(limited, source.log.name)
        assert accept_copy(limited, copied, 0, house.message(f"of {source.name}", "q"), 0)
        add_copies(limited, batch, copied)
    more = no_copies(limited, other.log.name)
    assert not accept_copy(limited, more, 1, house.message("c", "q"), 0)

    batch.forget_log(batch.durable, stream.log.name)

    assert contents(batch.moved) == [("limited", [b"of other"])]
    assert accept_copy(limited, more, 1, house.message("c", "q"), 0)

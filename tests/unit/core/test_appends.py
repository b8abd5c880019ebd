"""What a batch appends to each queue: one append for neighbours, rows and copies by themselves, all bytes counted."""

from headrace.core.batch import Appends
from headrace.core.queue.definition import declared
from headrace.core.queue.queue import Queue
from headrace.model import Message
from headrace.storage.api import Append, Origin
from tests.house import House


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

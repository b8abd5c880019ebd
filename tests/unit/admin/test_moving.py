"""Messages moved, sent back or dropped by the thousand: a bounded number in each step, each step stored by itself."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from starlette.responses import Response

from headrace.admin.api import dead_letters
from headrace.admin.api.dead_letters import AT_ONCE
from headrace.admin.pages import Call, Page
from headrace.core.queue.definition import QueueDefinition
from headrace.core.queue.group import REJECT
from headrace.errors import NotFound
from tests.house import House
from tests.unit.admin.test_slices import call

COUNT = 4 * AT_ONCE + 7


class _Rights:
    def check(self, *_: object) -> None:
        pass

    def may(self, *_: object) -> bool:
        return True


class Moves:
    """Makes a call, and notes how many messages a queue has whenever a step is stored."""

    def __init__(self, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
        self.house = house
        self.body: dict[str, object] = {}
        self.left: list[int] = []
        self.between: Callable[[], None] = lambda: None
        self._watched = ""

        async def stored(_: Call, __: object) -> None:
            self.house.run()
            self.left.append(self.house.broker.queue(self._watched).messages)
            self.between()

        async def read(_: Call) -> dict[str, object]:
            return dict(self.body)

        monkeypatch.setattr(Call, "rights", lambda *_: _Rights())
        monkeypatch.setattr(Call, "stored", stored)
        monkeypatch.setattr(Call, "json", read)

    def make(self, page: Page, queue: str, watched: str, **body: object) -> Any:
        self._watched, self.body = watched, body
        response: Response = asyncio.run(page(call(self.house, vhost="/", queue=queue)))  # type: ignore[arg-type]
        return json.loads(bytes(response.body))


@pytest.fixture
def moves(house: House, monkeypatch: pytest.MonkeyPatch) -> Moves:
    for name in ("from", "to"):
        house.broker.declare(QueueDefinition(name))
    house.broker.declare(QueueDefinition("jobs", dead_letter_queue="$dlq/jobs"))
    return Moves(house, monkeypatch)


def texts(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def bury(house: House, count: int) -> None:
    house.publish("jobs", *texts(count))
    worker = house.consume("jobs", "worker")
    house.settle(REJECT, *worker.take())
    house.broker.cancel(worker.consumer)
    house.run()


def steps(left: list[int], before: int) -> list[int]:
    return [was - now for was, now in zip([before, *left], left, strict=False)]


def test_many_messages_are_moved_in_order_a_step_after_the_other(moves: Moves) -> None:
    moves.house.publish("from", *texts(COUNT))

    answered = moves.make(dead_letters.move_messages, "from", "from", to="to")

    assert answered == {"messages": COUNT}
    assert steps(moves.left, COUNT) == [AT_ONCE] * 4 + [7]
    assert moves.house.consume("to", "reader").payloads == texts(COUNT)


def test_what_comes_while_messages_are_moved_stays(moves: Moves) -> None:
    moves.house.publish("from", *texts(AT_ONCE + 1))

    def publish() -> None:
        moves.house.publish("from", "late")

    moves.between = publish

    answered = moves.make(dead_letters.move_messages, "from", "from", to="to")

    assert answered == {"messages": AT_ONCE + 1}
    assert set(moves.house.consume("from", "reader").payloads) == {"late"}


def test_a_limit_counts_for_all_steps_together(moves: Moves) -> None:
    moves.house.publish("from", *texts(COUNT))

    answered = moves.make(dead_letters.move_messages, "from", "from", to="to", limit=AT_ONCE + 5)

    assert answered == {"messages": AT_ONCE + 5}
    assert moves.house.broker.queue("to").messages == AT_ONCE + 5


def test_a_move_whose_target_goes_says_how_many_went_before(moves: Moves) -> None:
    moves.house.publish("from", *texts(COUNT))

    def remove() -> None:
        moves.house.broker.delete("to")
        moves.house.run()

    moves.between = remove

    with pytest.raises(NotFound, match=f"{AT_ONCE} messages went before"):
        moves.make(dead_letters.move_messages, "from", "from", to="to")

    assert moves.house.broker.queue("from").messages == COUNT - AT_ONCE


def test_a_move_ends_when_its_queue_is_declared_anew(moves: Moves) -> None:
    moves.house.publish("from", *texts(COUNT))

    def renew() -> None:
        moves.house.broker.delete("from")
        moves.house.broker.declare(QueueDefinition("from"))
        moves.house.publish("from", *texts(COUNT))

    moves.between = renew

    with pytest.raises(NotFound, match="declared again"):
        moves.make(dead_letters.move_messages, "from", "from", to="to")

    assert moves.house.broker.queue("from").messages == COUNT


def test_a_broker_that_dies_in_a_move_has_each_message_in_one_of_the_queues(moves: Moves) -> None:
    moves.house.publish("from", *texts(COUNT))

    def die() -> None:
        if len(moves.left) == 2:
            raise KeyboardInterrupt

    moves.between = die
    with pytest.raises(KeyboardInterrupt):
        moves.make(dead_letters.move_messages, "from", "from", to="to")
    again = House(moves.house.engine, moves.house.clock)

    assert again.consume("to", "one").payloads == texts(COUNT)[: 2 * AT_ONCE]
    assert again.consume("from", "two").payloads == texts(COUNT)[2 * AT_ONCE :]


def test_many_dead_letters_go_back_a_step_after_the_other(moves: Moves) -> None:
    bury(moves.house, COUNT)

    answered = moves.make(dead_letters.redrive, "jobs", "$dlq/jobs")

    assert answered == {"queue": "$dlq/jobs", "messages": COUNT, "next": None, "until": COUNT}
    assert steps(moves.left, COUNT) == [AT_ONCE] * 4 + [7]
    assert moves.house.consume("jobs", "reader").payloads == texts(COUNT)


def test_dead_letters_that_die_again_meanwhile_are_not_sent_back_twice(moves: Moves) -> None:
    bury(moves.house, COUNT)

    def fail() -> None:
        worker = moves.house.consume("jobs", "worker")
        moves.house.settle(REJECT, *worker.take())
        moves.house.broker.cancel(worker.consumer)
        moves.house.run()

    moves.between = fail

    assert moves.make(dead_letters.redrive, "jobs", "$dlq/jobs")["messages"] == COUNT
    assert moves.house.broker.queue("$dlq/jobs").messages == COUNT


def test_dead_letters_are_moved_a_step_after_the_other(moves: Moves) -> None:
    bury(moves.house, COUNT)

    answered = moves.make(dead_letters.move, "jobs", "$dlq/jobs", to="to", limit=COUNT - 1)

    assert (answered["messages"], answered["next"]) == (COUNT - 1, COUNT - 1)
    assert max(steps(moves.left, COUNT)) == AT_ONCE


def test_dead_letters_among_other_messages_are_found_and_dropped_in_steps(moves: Moves) -> None:
    moves.house.publish("from", *texts(3 * AT_ONCE))

    assert moves.make(dead_letters.purge, "from", "from")["messages"] == 0
    assert moves.house.broker.queue("from").messages == 3 * AT_ONCE

"""Long lists: whatever there is of it, a bounded part is worked on in each turn of the event loop."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import pytest
from starlette.requests import Request
from starlette.responses import Response

from headrace.admin import metrics as metrics_module
from headrace.admin import sampler as sampler_module
from headrace.admin.api import dead_letters, queues
from headrace.admin.pages import Call, Page, after, array, listed
from headrace.admin.pipelines import Pipelines
from headrace.admin.rabbitmq import definitions, exchanges
from headrace.admin.rabbitmq import queues as rabbitmq_queues
from headrace.admin.sampler import Sampler
from headrace.admin.site import Site, Visitor
from headrace.admin.slices import AT_ONCE, ordered, sliced
from headrace.core.access.logins import Account
from headrace.core.hosts import Hosts
from headrace.core.queue.definition import QueueDefinition
from headrace.core.routing.exchange import Binding
from headrace.storage.memory import MemoryEngine
from tests.house import House

COUNT = 6 * AT_ONCE + 7


class LoopLoad:
    """Counts what is done in each turn of the event loop."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self._done = 0
        self._of = -1
        self._handle: asyncio.Handle | None = None

    def note(self) -> None:
        self._done = self._done + 1 if self._of == self.now else 1
        self._of = self.now
        self.most = max(self.most, self._done)

    def start(self) -> None:
        self.now += 1
        self._handle = asyncio.get_running_loop().call_soon(self.start)

    def stop(self) -> None:
        assert self._handle is not None
        self._handle.cancel()


def counted(work: Callable[[LoopLoad], Awaitable[Any]]) -> tuple[Any, int]:
    """Return the result, and the largest number of calls of `note` in one turn."""

    async def run() -> Any:
        load.start()
        try:
            return await work(load)
        finally:
            load.stop()

    load = LoopLoad()
    return asyncio.run(run()), load.most


async def body_of(response: Response) -> bytes:
    parts = getattr(response, "body_iterator", None)
    if parts is None:
        return bytes(response.body)
    return b"".join([part async for part in cast("AsyncIterator[bytes]", parts)])


def test_a_list_is_made_a_slice_in_each_turn() -> None:
    async def work(load: LoopLoad) -> bytes:
        def shown(number: int) -> object:
            load.note()
            return None if number % 3 == 0 else {"n": number}

        return b"".join([part async for part in array(range(COUNT), shown)])

    raw, most = counted(work)

    assert json.loads(raw) == [{"n": number} for number in range(COUNT) if number % 3]
    assert most == AT_ONCE


@pytest.mark.parametrize("count", [0, 1, AT_ONCE, AT_ONCE + 1])
@pytest.mark.parametrize("is_there", [True, False])
def test_lists_of_any_length_are_json(count: int, is_there: bool) -> None:
    async def work(_: LoopLoad) -> bytes:
        return b"".join([part async for part in array(range(count), lambda number: number if is_there else None)])

    assert json.loads(counted(work)[0]) == (list(range(count)) if is_there else [])


def test_long_items_make_short_slices() -> None:
    async def work(load: LoopLoad) -> Response:
        def shown(_: int) -> object:
            load.note()
            return "x" * (64 << 10)

        return await listed(range(20), None, shown)

    response, most = counted(work)

    assert most == 2
    assert len(json.loads(response.body)["items"]) == 20


@pytest.mark.parametrize("reverse", [False, True])
def test_items_are_ordered_as_sorted_has_them(reverse: bool) -> None:
    items = [(number * 7919 % 1013, number) for number in range(4500)]

    async def work(_: LoopLoad) -> list[tuple[int, int]]:
        return await ordered(items, lambda item: item[0], reverse)

    assert counted(work)[0] == sorted(items, key=lambda item: item[0], reverse=reverse)


def test_names_go_on_after_the_last_one() -> None:
    names = [f"{number:05}" for number in range(3000)]

    async def work(_: LoopLoad) -> list[tuple[list[str], str | None]]:
        return [await after(names, last, 2) for last in ("", "01999", "02997")]

    assert counted(work)[0] == [
        (["00000", "00001"], "00001"),
        (["02000", "02001"], "02001"),
        (["02998", "02999"], None),
    ]


def site(house: House) -> Site:
    found = cast("Any", object.__new__(Site))
    found.hosts = Hosts(MemoryEngine(), lambda *_: house.broker)
    found.wires = list
    found.ports = dict
    found.sampler = Sampler(found.hosts, house.clock)
    found.clock = house.clock
    found.version = "1"
    found.started_us = 0
    found.cluster = None
    found.trouble = str
    found.refused = int
    found.access = _Access()
    found.pipelines = Pipelines()
    return cast("Site", found)


class _Access:
    def users(self) -> list[object]:
        return []

    permissions = topic_permissions = users


def call(house: House, query: str = "", **path: str) -> Call:
    visitor = cast("Any", object.__new__(Visitor))
    visitor.account, visitor.name, visitor.tags = cast("Account", None), "guest", frozenset({"administrator"})
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "headers": [],
        "query_string": query.encode(),
        "path_params": path,
    }
    return Call(Request(scope), site(house), cast("Visitor", visitor))


PAGES: list[tuple[Page, str, dict[str, str]]] = [
    (rabbitmq_queues.list_queues, "", {}),
    (rabbitmq_queues.list_queues, "sort=messages&sort_reverse=true&page=2", {}),
    (rabbitmq_queues.list_queues, "name=q1&columns=name,messages", {}),
    (exchanges.list_bindings, "", {}),
    (exchanges.bindings_from_exchange, "", {"vhost": "%2f", "name": "amq.fanout"}),
    (definitions.export, "", {}),
    (definitions.export, "", {"vhost": "%2f"}),
    (queues.list_queues, "limit=1000", {}),
    (dead_letters.list_graves, "", {"vhost": "%2f"}),
    (metrics_module.metrics, "queues=10000", {}),
]


@pytest.fixture
def full(house: House) -> House:
    for number in range(COUNT):
        house.broker.declare(QueueDefinition(f"q{number}", dead_letter_queue=f"q{number}"))
        house.broker.bind(Binding("amq.fanout", f"q{number}"))
    house.run()
    return house


@pytest.mark.parametrize(("page", "query", "path"), PAGES)
def test_no_page_looks_at_more_queues_in_a_turn_than_a_few_slices_have(
    full: House, monkeypatch: pytest.MonkeyPatch, page: Page, query: str, path: dict[str, str]
) -> None:
    async def work(load: LoopLoad) -> bytes:
        for module in (rabbitmq_queues, queues):
            for name in ("queue_row", "queue_to_json"):
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, _noting(load, getattr(module, name)))
        monkeypatch.setattr(exchanges, "binding_row", _noting(load, exchanges.binding_row))
        monkeypatch.setattr(definitions, "_queue", _noting(load, definitions._queue))
        monkeypatch.setattr(definitions, "_binding", _noting(load, definitions._binding))
        monkeypatch.setattr(metrics_module, "_queue", _noting(load, metrics_module._queue))
        monkeypatch.setattr(dead_letters, "_grave_to_json", _noting(load, dead_letters._grave_to_json))
        return await body_of(await page(call(full, query, **path)))

    raw, most = counted(work)

    assert raw
    assert 0 < most <= 2 * AT_ONCE


def _noting(load: LoopLoad, work: Callable[..., Any]) -> Callable[..., Any]:
    def noting(*arguments: Any) -> Any:
        load.note()
        return work(*arguments)

    return noting


def test_samples_are_taken_a_slice_in_each_turn(full: House, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = site(full).sampler

    async def work(load: LoopLoad) -> None:
        monkeypatch.setattr(sampler_module, "queue_values", _noting(load, sampler_module.queue_values))
        await sampler.sample(1.0)

    assert counted(work)[1] <= 100


def test_definitions_come_in_a_few_in_each_turn(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"queues": [{"name": f"q{number}", "vhost": "/"} for number in range(COUNT)]}
    asked = call(house)

    async def given() -> dict[str, object]:
        return dict(body)

    async def work(load: LoopLoad) -> None:
        monkeypatch.setattr(definitions, "_declare_queue", _noting(load, definitions._declare_queue))
        monkeypatch.setattr(Call, "json", lambda _: given())
        monkeypatch.setattr(Call, "kept", lambda *_: asyncio.sleep(0))
        await definitions.import_definitions(asked)

    assert counted(work)[1] <= AT_ONCE
    assert len(house.broker.topology.queues) == COUNT


def test_items_of_slices_are_all_there() -> None:
    async def work(_: LoopLoad) -> list[int]:
        return [item async for item in sliced(range(COUNT))]

    assert counted(work)[0] == list(range(COUNT))

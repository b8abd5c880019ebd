"""Rates and rings: bounded, however many queues there are and however long it runs."""

import asyncio

import pytest

from headrace.admin import sampler as module
from headrace.admin.sampler import KEPT, QUEUE_COUNTERS, QUEUE_GAUGES, Sampler, Series
from headrace.core.hosts import Hosts
from headrace.core.queue.definition import QueueDefinition
from headrace.storage.memory import MemoryEngine
from tests.house import House


def hosts_of(house: House) -> Hosts:
    return Hosts(MemoryEngine(), lambda *_: house.broker)


def test_rates_are_differences_over_time_and_never_negative() -> None:
    series = Series(("published",), ("ready",))

    for published, ready in ((100, 1), (110, 2), (5, 3)):
        series.add({"published": published, "ready": ready}, 2.0)

    assert series.history() == {"published": [0.0, 5.0, 0.0], "ready": [1.0, 2.0, 3.0]}
    assert series.rates == {"published": 0.0}


def test_only_so_many_samples_are_kept() -> None:
    series = Series(QUEUE_COUNTERS, QUEUE_GAUGES)

    for number in range(KEPT + 50):
        series.add(dict.fromkeys((*QUEUE_COUNTERS, *QUEUE_GAUGES), number), 1.0)

    assert {len(values) for values in series.history().values()} == {KEPT}
    assert series.history()["ready"][-1] == KEPT + 49


def test_queues_and_hosts_have_series_and_lose_them_when_they_go(house: House) -> None:
    house.broker.declare(QueueDefinition("jobs"))
    sampler = Sampler(hosts_of(house), house.clock)
    asyncio.run(sampler.sample(1.0))
    house.publish("jobs", "one", "two")

    asyncio.run(sampler.sample(2.0))
    found = sampler.queue("/", "jobs")
    house.broker.delete("jobs")
    house.run()
    asyncio.run(sampler.sample(1.0))

    assert found is not None
    assert found.rates["published"] == 1.0
    assert sampler.series["/"].history()["ready"] == [0.0, 2.0, 0.0]
    assert sampler.queue("/", "jobs") is None


def test_queues_beyond_the_bound_have_no_series_but_count(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_QUEUES", 2)
    for number in range(4):
        house.broker.declare(QueueDefinition(f"q{number}"))
        house.publish(f"q{number}", "x")
    sampler = Sampler(hosts_of(house), house.clock)

    asyncio.run(sampler.sample(1.0))

    assert [sampler.queue("/", f"q{number}") is not None for number in range(4)] == [True, True, False, False]
    assert sampler.series["/"].history()["ready"] == [4.0]


def test_a_queue_that_somebody_looks_at_has_lag_and_age(house: House) -> None:
    house.broker.declare(QueueDefinition("jobs"))
    house.consume("jobs", credit=1)
    house.publish("jobs", "one", "two")
    sampler = Sampler(hosts_of(house), house.clock)
    asyncio.run(sampler.sample(1.0))
    before = sampler.watch("/", "jobs")
    assert before is not None
    assert before.history()["oldest_age_ms"] == []

    for _ in range(2):
        house.clock.advance(3)
        asyncio.run(sampler.sample(1.0))

    history = before.history()
    assert history["oldest_age_ms"] == [3000.0, 6000.0]
    assert (history["lag"][-1], history["ready"][-1], history["unsettled"][-1]) == (2.0, 1.0, 1.0)


def test_the_age_of_a_queue_is_left_out_when_nobody_looks_any_more(house: House) -> None:
    house.broker.declare(QueueDefinition("jobs"))
    house.publish("jobs", "one")
    sampler = Sampler(hosts_of(house), house.clock)
    asyncio.run(sampler.sample(1.0))
    series = sampler.watch("/", "jobs")
    assert series is not None

    async def look(times: int) -> None:
        for _ in range(times):
            await sampler.sample(1.0)

    asyncio.run(look(KEPT))
    assert len(series.history()["oldest_age_ms"]) == KEPT
    asyncio.run(look(1))
    assert series.history()["oldest_age_ms"] == []

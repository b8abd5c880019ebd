"""Rates and rings: bounded, however many queues there are and however long it runs."""

import asyncio

import pytest

from headrace.admin import sampler as module
from headrace.admin.sampler import KEPT, QUEUE_COUNTERS, QUEUE_GAUGES, Sampler, Series
from headrace.core.definition import QueueDefinition
from headrace.core.hosts import Hosts
from headrace.storage.memory import MemoryEngine
from tests.house import House


def hosts_of(house: House) -> Hosts:
    return Hosts(MemoryEngine(), lambda _: house.broker)


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
    sampler = Sampler(hosts_of(house))
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
    sampler = Sampler(hosts_of(house))

    asyncio.run(sampler.sample(1.0))

    assert [sampler.queue("/", f"q{number}") is not None for number in range(4)] == [True, True, False, False]
    assert sampler.series["/"].history()["ready"] == [4.0]

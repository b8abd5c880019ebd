"""Times of a crontab line: which come next, which were missed, what is refused; dates that a run fills in."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.kinds import Unfit
from headrace.spark.pipelines.archive import ArchiveSettings
from headrace.spark.pipelines.endpoint import Endpoint
from headrace.spark.pipelines.schedule import Schedule, ScheduleKind, dated
from headrace.spark.pipelines.sql import SqlSettings, SqlSource

MINUTE = timedelta(minutes=1)


def schedule(text: str) -> Schedule:
    found = ScheduleKind().parse(text)
    assert isinstance(found, Schedule)
    return found


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "time", "following"),
    [
        ("30 2 * * *", "2026-11-18 02:29:59", "2026-11-18 02:30"),
        ("30 2 * * *", "2026-11-18 02:30", "2026-11-19 02:30"),
        ("*/15 * * * *", "2026-12-31 23:45:01", "2027-01-01 00:00"),
        ("0 9-17/4 * * 1-5", "2026-11-20 17:00", "2026-11-23 09:00"),
        ("0 0 29 2 *", "2026-01-01 00:00", "2028-02-29 00:00"),
        ("0 0 29 2 *", "2097-01-01 00:00", "2104-02-29 00:00"),
        ("0 0 31 * *", "2026-11-18 00:00", "2026-12-31 00:00"),
        ("0 0 1 * 1", "2026-11-18 00:00", "2026-11-23 00:00"),  # the 1st, or a Monday
        ("0 12 * * 7", "2026-11-18 00:00", "2026-11-22 12:00"),
        ("5,35 0 * * *", "2026-11-18 00:05", "2026-11-18 00:35"),
        ("50/5 3 * * *", "2026-11-18 03:50", "2026-11-18 03:55"),
        ("@daily", "2026-11-18 10:00", "2026-11-19 00:00"),
        ("@weekly", "2026-11-18 10:00", "2026-11-22 00:00"),
    ],
)
def test_the_next_time_is_that_of_a_crontab(text: str, time: str, following: str) -> None:
    assert schedule(text).next_after(at(time)) == at(following)


@pytest.mark.parametrize(
    "text",
    ["", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "5-1 * * * *", "*/0 * * * *",
     "a * * * *", "0 0 31 2 *", "0 0 30 2 *", "@never", "1.5 * * * *", "-1 * * * *", "* * * * * *"],
)  # fmt: skip
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(Unfit):
        schedule(text)


parts = st.tuples(
    st.one_of(st.just("*"), st.integers(0, 59).map(str), st.integers(1, 59).map("*/{}".format)),
    st.one_of(st.just("*"), st.integers(0, 23).map(str), st.just("8-17")),
    st.one_of(st.just("*"), st.integers(1, 28).map(str)),
    st.one_of(st.just("*"), st.integers(1, 12).map(str)),
    st.one_of(st.just("*"), st.integers(0, 7).map(str), st.just("1-5")),
)


@given(parts, st.datetimes(datetime(2026, 1, 1), datetime(2036, 1, 1)), st.integers(1, 5))
def test_a_missed_time_is_the_last_of_those_that_came(fields: tuple[str, ...], naive: datetime, count: int) -> None:
    chosen, start = schedule(" ".join(fields)), naive.replace(tzinfo=UTC)
    times = [start]
    for _ in range(count):
        times.append(chosen.next_after(times[-1]))

    assert times[1:] == sorted(set(times[1:]))
    assert chosen.last_until(times[-1], start) == times[-1]
    assert chosen.last_until(times[-1] + MINUTE / 2, start) == times[-1]
    assert chosen.last_until(times[-1], times[-1]) is None
    assert chosen.last_until(times[1] - MINUTE / 60, start) is None


def test_a_run_fills_in_the_dates_of_its_time() -> None:
    due = at("2026-03-01 02:30")
    archive = ArchiveSettings("keep", Endpoint("http://b"), "orders-{today}", Path("archive/{yesterday}"))
    source = SqlSource("orders", starting="{yesterday}")
    sql = SqlSettings("day", Endpoint("http://b"), (source,), "SELECT '{today}', '{tomorrow}'", Path("s"), queue="q")

    assert dated(archive, due).directory == Path("archive/2026-02-28")
    assert dated(archive, due).queues == "orders-2026-03-01"
    assert dated(sql, due).sources == (SqlSource("orders", starting="2026-02-28"),)
    assert dated(sql, due).query == "SELECT '2026-03-01', '{tomorrow}'"
    assert dated(sql, due).endpoint == Endpoint("http://b")

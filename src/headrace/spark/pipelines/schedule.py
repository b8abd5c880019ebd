"""Schedules of a job's pipelines: times as in a crontab, in UTC, and the dates that a run fills in. No runs."""

import re
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, TypeVar, final

from headrace.config.kinds import Kind, Unfit

Settings = TypeVar("Settings")
_NAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
_FIELDS: Final = (("minute", 0, 59), ("hour", 0, 23), ("day of the month", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
_PART: Final = re.compile(r"(\*|[0-9]{1,2}(?:-[0-9]{1,2})?)(?:/([0-9]{1,2}))?")
_YEARS: Final = 8
"""The longest time between two times of a schedule: from one 29th of February to the next, over a century's end."""
_DAY: Final = timedelta(days=1)
_MINUTE: Final = timedelta(minutes=1)


@final
@dataclass(frozen=True)
class Schedule:
    """The times of a crontab line, in UTC."""

    text: str
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    is_either: bool
    """True if a day of the month or a weekday suffices, as in a crontab that limits both."""

    def next_after(self, time: datetime) -> datetime:
        """Return the first time behind this one; `ScheduleKind` takes no schedule without one."""
        found = self._next(time)
        assert found is not None
        return found

    def last_until(self, time: datetime, after: datetime) -> datetime | None:
        """Return the last time up to this one and behind another; None if there is none."""
        day = time.replace(hour=0, minute=0, second=0, microsecond=0)
        while day + _DAY > after:
            if self._is_day(day):
                for hour in sorted(self.hours, reverse=True):
                    for minute in sorted(self.minutes, reverse=True):
                        found = day.replace(hour=hour, minute=minute)
                        if after < found <= time:
                            return found
            day -= _DAY
        return None

    def _next(self, time: datetime) -> datetime | None:
        at = time.astimezone(UTC).replace(second=0, microsecond=0) + _MINUTE
        day = at.replace(hour=0, minute=0)
        end = day + timedelta(days=366 * _YEARS)
        while day < end:
            if self._is_day(day):
                for hour in sorted(self.hours):
                    for minute in sorted(self.minutes):
                        found = day.replace(hour=hour, minute=minute)
                        if found >= at:
                            return found
            day += _DAY
        return None

    def _is_day(self, day: datetime) -> bool:
        is_date, is_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        is_chosen = is_date or is_weekday if self.is_either else is_date and is_weekday
        return day.month in self.months and is_chosen


@final
class ScheduleKind(Kind):
    """Times as in a crontab: `30 2 * * *`, `*/15 * * * 1-5`, or `@daily`."""

    noun = "schedule"
    expected = (
        "must be minute, hour, day, month and weekday as in a crontab, such as '30 2 * * *' or '*/15 * * * 1-5', or "
        f"one of {', '.join(_NAMES)}; in UTC"
    )

    def read(self, value: object) -> object:
        text = str(value).strip()
        parts = _NAMES.get(text, text).split()
        if len(parts) != len(_FIELDS):
            raise Unfit(self.expected)
        found = [_numbers(part, *field) for part, field in zip(parts, _FIELDS, strict=True)]
        weekdays = frozenset(number % 7 for number in found[4])
        is_either = not parts[2].startswith("*") and not parts[4].startswith("*")
        schedule = Schedule(text, found[0], found[1], found[2], found[3], weekdays, is_either)
        if schedule._next(datetime(2000, 1, 1, tzinfo=UTC)) is None:
            raise Unfit("names a day that no month has")
        return schedule


def _numbers(text: str, noun: str, least: int, most: int) -> frozenset[int]:
    """Return the numbers of one field. Raises Unfit."""
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise Unfit(f"has the {noun} {part!r}; it may be *, 5, 1-5, */15 or several with commas between")
        numbers, step = match.groups()
        first, _, last = (f"{least}-{most}" if numbers == "*" else numbers).partition("-")
        low, high = int(first), int(last or (most if step else first))
        if not least <= low <= high <= most or step == "0" * len(step or "x"):
            raise Unfit(f"has the {noun} {part!r}; it goes from {least} to {most}")
        found.update(range(low, high + 1, int(step or 1)))
    return frozenset(found)


def dated(settings: Settings, due: datetime) -> Settings:
    """Return settings with dates in place of `{today}` and `{yesterday}`, for a run that is due at this time."""
    if not is_dataclass(settings):
        return settings
    changes: dict[str, object] = {}
    for each in fields(settings):
        value = getattr(settings, each.name)
        if isinstance(value, str):
            changes[each.name] = _dated(value, due)
        elif isinstance(value, Path):
            changes[each.name] = Path(_dated(str(value), due))
        elif isinstance(value, tuple):
            changes[each.name] = tuple(dated(item, due) for item in value)
    return replace(settings, **changes)  # type: ignore[type-var]


def _dated(text: str, due: datetime) -> str:
    days = {"{today}": due, "{yesterday}": due - _DAY}
    for name, day in days.items():
        text = text.replace(name, f"{day:%Y-%m-%d}")
    return text

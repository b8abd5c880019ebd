"""Lengths of time as people write them."""

import pytest

from headrace.config.kinds import Duration, Unfit


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("168h", 604_800_000),
        ("30m", 1_800_000),
        ("5s", 5_000),
        ("500ms", 500),
        ("1h30m", 5_400_000),
        ("1.5h", 5_400_000),
        ("2500us", 2),
        ("7D", 604_800_000),
        ("2W", 1_209_600_000),
        ("1M", 2_592_000_000),
        ("1Y", 31_536_000_000),
        (" 12h ", 43_200_000),
        ("90", 90_000),
        ("0", 0),
        ("0s", 0),
        (90, 90_000),
        (0.25, 250),
    ],
)
def test_a_duration_is_read_as_people_write_it(text: object, milliseconds: int) -> None:
    assert Duration().read(text) == milliseconds


@pytest.mark.parametrize(
    "text",
    ["", " ", "h", "5 s", "5x", "s5", "-5s", "5s5", "1e3s", "\u0665s", "9" * 5000, "9" * 17 + "Y", "5s, please"],
)
def test_a_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(Unfit, match="must "):
        Duration().read(text)


@pytest.mark.parametrize("value", [None, True, [], {}, -1, -0.5, float("nan"), float("inf"), 10**30, b"5s"])
def test_a_value_that_is_no_duration_is_refused(value: object) -> None:
    with pytest.raises(Unfit, match="must "):
        Duration().read(value)

"""Values between AMQP 1.0 and the other protocols."""

import pytest

from headrace.selector.fields import header_number
from headrace.wire.amqp10 import from_neutral, to_neutral
from headrace.wire.amqp10_values import encode_value
from headrace.wire.properties import plain_value
from headrace.wire.types import ULong

LARGE = (1, (1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


@pytest.mark.parametrize("number", LARGE)
def test_an_unsigned_number_of_0_9_1_can_be_written(number: int) -> None:
    value = from_neutral(ULong(number))

    assert value == number
    assert type(value) is (int if number < 1 << 63 else ULong)
    assert encode_value(value)[-8:].endswith(number.to_bytes(8).lstrip(b"\0"))


@pytest.mark.parametrize("number", LARGE)
def test_an_unsigned_number_is_a_number_to_others(number: int) -> None:
    assert to_neutral(ULong(number)) == number
    assert type(to_neutral(ULong(number))) is int


@pytest.mark.parametrize("number", LARGE)
def test_filters_find_an_unsigned_number_of_0_9_1(number: int) -> None:
    assert header_number(plain_value(ULong(number))) == number

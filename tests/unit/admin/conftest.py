"""A broker over memory."""

import pytest

from tests.house import House


@pytest.fixture
def house() -> House:
    return House()

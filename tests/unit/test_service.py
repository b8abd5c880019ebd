"""Reasons why the broker takes no messages: logged at once, over after a while, one line for each."""

import logging

import pytest

from headrace.clock import ManualClock
from headrace.service import Readiness


def test_trouble_is_told_once_when_it_begins_and_once_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    reasons, clock = [""], ManualClock()
    readiness = Readiness(lambda: reasons[0], clock)
    assert readiness.reason() == ""

    with caplog.at_level(logging.WARNING):
        for reason in ("the disk is full", "", "the disk is full", ""):  # tried again in between
            reasons[0] = reason
            readiness.tick()
            clock.advance(0.5)
            assert readiness.reason() == "the disk is full"
        clock.advance(2)
        assert readiness.reason() == ""

    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert all("the disk is full" in record.getMessage() for record in caplog.records)

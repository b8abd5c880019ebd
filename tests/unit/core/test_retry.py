"""Retries of a message: the backoff of the queue's settings, and the limits."""

import pytest

from headrace.core.queue.backlog import DEAD, next_attempt_us
from headrace.core.queue.definition import QueueDefinition, Retry

NOW = 1_000_000_000
SECOND = 1_000_000


def wait_s(definition: QueueDefinition, attempts: int) -> float:
    return (next_attempt_us(definition, attempts, True, NOW) - NOW) / SECOND


def test_the_default_backoff_is_five_seconds_doubled_each_time_up_to_five_minutes() -> None:
    jobs = QueueDefinition("jobs", retry=Retry())

    waits = [wait_s(jobs, attempts) for attempts in range(1, 11)]

    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300, 300]


def test_after_ten_retries_the_message_is_given_up() -> None:
    jobs = QueueDefinition("jobs", retry=Retry())

    assert next_attempt_us(jobs, 10, True, NOW) > NOW
    assert next_attempt_us(jobs, 11, True, NOW) == DEAD


def test_without_backoff_the_message_is_ready_at_once() -> None:
    assert next_attempt_us(QueueDefinition("jobs"), 1, True, NOW) == NOW


def test_a_consumer_that_went_away_does_not_delay_the_message() -> None:
    assert next_attempt_us(QueueDefinition("jobs", retry=Retry()), 3, False, NOW) == NOW


def test_a_consumer_that_went_away_counts_against_the_limit() -> None:
    assert next_attempt_us(QueueDefinition("jobs", retry=Retry(max_retries=2)), 3, False, NOW) == DEAD


def test_the_delivery_limit_goes_before_the_number_of_retries() -> None:
    jobs = QueueDefinition("jobs", retry=Retry(max_retries=10), delivery_limit=2)

    assert next_attempt_us(jobs, 2, False, NOW) == NOW
    assert next_attempt_us(jobs, 3, False, NOW) == DEAD


def test_a_negative_delivery_limit_is_none() -> None:
    assert next_attempt_us(QueueDefinition("jobs", delivery_limit=-1), 1000, False, NOW) == NOW


def test_no_retries_means_one_delivery() -> None:
    assert next_attempt_us(QueueDefinition("jobs", retry=Retry(max_retries=0)), 1, True, NOW) == DEAD


@pytest.mark.parametrize("multiplier", [2.0, 1e10])
def test_a_power_too_large_for_a_float_is_the_longest_backoff(multiplier: float) -> None:
    jobs = QueueDefinition("jobs", retry=Retry(max_retries=100_000, multiplier=multiplier))

    assert wait_s(jobs, 90_000) == 300


def test_a_small_multiplier_grows_on_for_as_long_as_it_takes() -> None:
    jobs = QueueDefinition("jobs", retry=Retry(max_retries=100_000, multiplier=1.01))

    assert wait_s(jobs, 300) == pytest.approx(5 * 1.01**299, rel=1e-6)

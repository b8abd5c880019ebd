"""Reports of jobs about their pipelines: shown as they came, lost in silence, bounded, and each job one user's."""

import pytest

from headrace.admin.pipelines import KEPT_SECONDS, LOST, LOST_SECONDS, MOST, Pipelines, Report
from headrace.errors import AccessRefused, Refused

SECOND = 1_000_000


def note(pipelines: Pipelines, job: str, *reports: Report, user: str = "ann", at: int = 0, host: str = "/") -> None:
    pipelines.note(host, job, user, list(reports), at * SECOND, False)


def test_a_rate_is_that_between_two_reports_of_one_job() -> None:
    pipelines = Pipelines()
    note(pipelines, "plant", Report("hot", "sql", "running", 100), Report("cold", "sql", "running", 5), at=10)
    note(pipelines, "other", Report("hot", "sql", "running", 9000), at=11)
    note(pipelines, "plant", Report("hot", "sql", "running", 300), Report("new", "sql", "running", 40), at=12)

    found = {(each.job, each.report.name): each.rate for each in pipelines}
    assert found == {("other", "hot"): 0.0, ("plant", "hot"): 100.0, ("plant", "new"): 0.0}

    note(pipelines, "plant", Report("hot", "sql", "running", 10), at=14)  # the job began anew
    assert [each.rate for each in pipelines if each.job == "plant"] == [0.0]


@pytest.mark.parametrize(
    ("state", "later"),
    [("running", LOST), ("waiting", LOST), ("restarting", LOST), ("over", "over"), ("failed", "failed")],
)
def test_a_job_that_fell_silent_is_lost_unless_it_was_over(state: str, later: str) -> None:
    pipelines = Pipelines()
    note(pipelines, "plant", Report("hot", "sql", state), at=100)

    (found,) = pipelines

    assert found.state((100 + LOST_SECONDS) * SECOND) == state
    assert found.state((101 + LOST_SECONDS) * SECOND) == later


def test_a_job_is_of_the_user_who_reports_it() -> None:
    pipelines = Pipelines()
    note(pipelines, "plant", Report("hot", "sql", "running"))

    with pytest.raises(AccessRefused, match="'plant' is reported by another user than 'bob'"):
        note(pipelines, "plant", Report("hot", "sql", "failed"), user="bob")
    with pytest.raises(AccessRefused):
        pipelines.forget("/", "plant", "bob", False)
    note(pipelines, "plant", Report("hot", "sql", "failed"), user="bob", host="eu")

    assert [(each.host, each.user) for each in pipelines] == [("/", "ann"), ("eu", "bob")]
    assert pipelines.forget("/", "plant", "root", True) == 1
    assert pipelines.forget("/", "plant", "root", True) == 0


def test_the_number_of_pipelines_is_bounded_and_silent_jobs_make_room() -> None:
    pipelines = Pipelines()
    note(pipelines, "many", *[Report(f"p{number}", "sql", "running") for number in range(MOST - 1)], at=1)
    note(pipelines, "one", Report("hot", "sql", "running"), at=2)
    note(pipelines, "one", Report("hot", "sql", "running"), at=3)

    with pytest.raises(Refused, match=f"{MOST} pipelines are shown at most"):
        note(pipelines, "more", Report("hot", "sql", "running"), at=4)
    note(pipelines, "one", Report("hot", "sql", "running"), at=KEPT_SECONDS)
    note(pipelines, "more", Report("hot", "sql", "running"), at=KEPT_SECONDS + 2)

    assert sorted(each.job for each in pipelines) == ["more", "one"]


def test_long_texts_are_cut() -> None:
    pipelines = Pipelines()
    note(
        pipelines, "plant", Report("hot", "sql", "failed", schedule="s" * 10_000, due="d" * 10_000, reason="r" * 10_000)
    )

    (found,) = pipelines

    assert (len(found.report.schedule), len(found.report.due), len(found.report.reason)) == (100, 100, 1000)

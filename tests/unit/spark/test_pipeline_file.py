"""Pipelines in a file: read as they are meant, and refused with line and key where they are not."""

from pathlib import Path

import pytest

from headrace.errors import Refused
from headrace.spark.pipelines.archive import ArchiveSettings
from headrace.spark.pipelines.assign import AssignSettings
from headrace.spark.pipelines.compact import CompactSettings
from headrace.spark.pipelines.endpoint import Endpoint
from headrace.spark.pipelines.file import Defaults, read_filter_file, read_job
from headrace.spark.pipelines.replay import ReplaySettings
from headrace.spark.pipelines.report import ReportSettings
from headrace.spark.pipelines.sql import SqlSettings, SqlSource

DEFAULTS = Defaults(Endpoint("http://localhost:15672"))


def test_all_kinds_of_pipelines_are_read(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        """\
queues: {}
pipelines:
  joined:
    from: [telemetry, devices]
    schema: {telemetry: "device STRING"}
    watermark: 10 minutes
    to: out
    every: 5 seconds
    sql: SELECT 1
  keep: {type: archive, from: [a, b], to: archive, once: true, url: "s3://bucket/p", replication_group: eu}
  split: {type: assign, from: events, filters: {eu: region = 'eu'}}
"""
    )

    joined, keep, split = [each.settings for each in read_job(file, DEFAULTS).pipelines]

    assert isinstance(joined, SqlSettings)
    assert joined.sources == (
        SqlSource("telemetry", "", "device STRING", "10 minutes"),
        SqlSource("devices", "", "", "10 minutes"),
    )
    assert (joined.queue, joined.every, joined.once, joined.state) == (
        "out",
        "5 seconds",
        False,
        Path("pipelines/joined"),
    )
    assert isinstance(keep, ArchiveSettings)
    assert (keep.queues, keep.directory, keep.once) == ("a,b", Path("archive"), True)
    assert keep.endpoint == Endpoint("s3://bucket/p", replication_group="eu")
    assert keep.endpoint.options == {"url": "s3://bucket/p", "vhost": "/", "group": "eu"}
    assert isinstance(split, AssignSettings)
    assert split.filters == (("eu", "region = 'eu'"),)


def test_a_job_has_a_name_schedules_and_restarts(tmp_path: Path) -> None:
    file = tmp_path / "plant.yaml"
    file.write_text(
        """\
restarts: 3
pipelines:
  again:
    type: replay
    archive: archive
    from: [a, b]
    to: day
    starting: "{yesterday}"
    ending: "{today}"
    filter: priority > 3
    rate: 500
    mark: true
    schedule: 30 2 * * *
    restarts: 0
  dead: {type: report, from: "*.dlq", to: reports, topics: 5}
  last: {type: compact, from: prices, key: "json:$.id"}
"""
    )

    job = read_job(file, DEFAULTS)
    again, dead, last = job.pipelines

    assert job.name == "plant"
    assert again.settings == ReplaySettings(
        "again", DEFAULTS.endpoint, "a,b", "day", Path("pipelines/again"), "archive", "{yesterday}", "{today}",
        "priority > 3", 500, True,
    )  # fmt: skip
    assert again.schedule is not None
    assert (again.schedule.text, again.restarts) == ("30 2 * * *", 0)
    assert dead.settings == ReportSettings(DEFAULTS.endpoint, "*.dlq", Path("reports"), topics=5, name="dead")
    assert (dead.schedule, dead.restarts, dead.kind) == (None, 3, "report")
    assert last.settings == CompactSettings(
        DEFAULTS.endpoint, "prices", "prices", Path("pipelines/last"), "json:$.id", "last"
    )
    file.write_text("job: other\n" + file.read_text())
    assert read_job(file, DEFAULTS).name == "other"


QUERY = "pipelines:\n  hot:\n    from: a\n    to: b\n    sql: c\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "p.yaml: there is no key 'pipelines'"),
        ("a: [", "p.yaml:1: this is no YAML"),
        ("pipelines: 5", "p.yaml:1: pipelines: must have keys and values"),
        ("pipelines: {}", "p.yaml:1: pipelines: write the pipelines below it"),
        ("pipelines:\n  hot: {form: a}", r"p.yaml:2: pipelines.hot.form: there is no such key; did you mean from\?"),
        ("pipelines:\n  hot: {to: a, sql: b}", "p.yaml:2: pipelines.hot: from is missing"),
        ("pipelines:\n  hot:\n    from: a\n    sql: b", "p.yaml:3: pipelines.hot: say where the rows go, once"),
        ("pipelines:\n  hot:\n    type: sq", "p.yaml:3: pipelines.hot.type: is 'sq'; it may be sql, archive, assign"),
        (QUERY + "    schedule: often", "p.yaml:6: pipelines.hot.schedule: is 'often'; it must be minute, hour"),
        (QUERY + "    restarts: -1", "p.yaml:6: pipelines.hot.restarts: is '-1'; it must be a whole number"),
        (
            QUERY + "    schedule: '@daily'\n    every: 1 minute",
            "p.yaml:7: pipelines.hot.every: is for a pipeline that",
        ),
        ("restarts: many\n" + QUERY, "p.yaml:1: restarts: is 'many'"),
        ("pipelines:\n  r: {type: replay, to: a}", "p.yaml:2: pipelines.r: say which messages"),
        ("pipelines:\n  c: {type: compact, from: a, key: me}", "p.yaml:2: pipelines.c.key: the key 'me' is none"),
        (QUERY + "    once: maybe", "p.yaml:6: pipelines.hot.once: is 'maybe'"),
        (QUERY + "    mode: all", "p.yaml:6: pipelines.hot.mode: is 'all'"),
        (QUERY + "    max_messages: many", "p.yaml:6: pipelines.hot.max_messages: is 'many'"),
        (QUERY.replace("from: a", "from: [a, [b]]"), "p.yaml:3: pipelines.hot.from: must be a text or"),
        (
            "pipelines:\n  x:\n    type: assign\n    from: a\n    filters:\n      b: c =",
            "p.yaml:6: pipelines.x.filters",
        ),
        ("pipelines:\n  a: {}\n  a: {}", "p.yaml:3: pipelines has a key twice"),
    ],
)
def test_a_mistake_is_named_by_file_line_and_key(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(text)

    with pytest.raises(Refused, match=said):
        read_job(file, DEFAULTS)


def test_filters_are_read_from_a_file_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "filters.yaml"
    file.write_text("filters:\n  eu: region = 'eu'\n  all: 'TRUE'\n")
    assert read_filter_file(file) == (("all", "TRUE"), ("eu", "region = 'eu'"))

    file.write_text("filters:\n  eu: region = 'eu'\n  us: region =\n")
    with pytest.raises(Refused, match=r"filters.yaml:3: filters.us: the filter of queue 'us'"):
        read_filter_file(file)


def test_a_file_that_is_not_there_is_said_not_to_be(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be read"):
        read_job(tmp_path / "p.yaml", DEFAULTS)

"""`headrace pipeline archive` and `replay`: queues to Parquet files, and messages to a queue again."""

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.pipeline.running import (
    DEFAULT_MASTER,
    DEFAULT_URL,
    Board,
    Conf,
    Master,
    Name,
    Once,
    ReplicationGroup,
    State,
    Url,
    Vhost,
    endpoint,
    spark_session,
)
from headrace.cli.words import EXIT_USAGE, examples, fail


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "headrace pipeline archive --from orders --to archive",
            "headrace pipeline archive --from 'sensor-*' --to archive --once",
        )
    )(archive)
    app.command(
        epilog=examples(
            "headrace pipeline replay --archive archive --from orders --to orders-again --rate 500",
            "headrace pipeline replay --from orders --to test --starting 2026-01-31T12:00Z --ending 2026-01-31T13:00Z",
            "headrace pipeline replay --from orders --to eu --filter \"region = 'eu' AND priority > 3\"",
        )
    )(replay)


def archive(
    source: Annotated[str, typer.Option("--from", help="Queues to archive: names with commas between, or a pattern.")],
    to: Annotated[Path, typer.Option(metavar="DIRECTORY", help="The archive.")],
    group: Annotated[str, typer.Option(help="How the broker knows how far the archive is.")] = "archive",
    every: Annotated[str, typer.Option(help="How often messages are archived.")] = "1 minute",
    once: Once = False,
    name: Name = "archive",
    url: Url = DEFAULT_URL,
    vhost: Vhost = "/",
    replication_group: ReplicationGroup = "",
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
) -> None:
    """Keep queues as Parquet files by queue and date, each message once; start it again and it goes on."""
    with spark_session(master, conf, url) as spark, Board() as tell:
        from headrace.spark.pipelines.archive import ArchiveSettings, run_archive

        run_archive(
            spark, ArchiveSettings(name, endpoint(url, vhost, replication_group), source, to, group, once, every), tell
        )


def replay(
    to: Annotated[str, typer.Option(metavar="QUEUE", help="The queue that gets the messages.")],
    source: Annotated[str, typer.Option("--from", help="The queues that they were in.")] = "",
    archive: Annotated[str, typer.Option(metavar="DIRECTORY", help="Take them from this archive.")] = "",
    starting: Annotated[str, typer.Option(help="From where: earliest, an offset or a time.")] = "earliest",
    ending: Annotated[str, typer.Option(help="Up to where: latest, an offset or a time.")] = "latest",
    filter: Annotated[str, typer.Option(help="A filter expression: only messages that match it.")] = "",  # noqa: A002
    rate: Annotated[int, typer.Option(min=0, help="The most messages a second; 0 for no limit.")] = 0,
    name: Name = "replay",
    state: State = "",
    url: Url = DEFAULT_URL,
    vhost: Vhost = "/",
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
) -> None:
    """Store messages of an archive or of a queue's log again; one that is interrupted goes on without repeating any."""
    if not archive and not source:
        fail("say which messages: --from QUEUE, --archive DIRECTORY, or both", EXIT_USAGE)
    with spark_session(master, conf) as spark, Board() as tell:
        from headrace.spark.pipelines.replay import ReplaySettings, run_replay
        from headrace.spark.pipelines.state import DEFAULT_STATES

        place = Path(state) if state else DEFAULT_STATES / name
        settings = ReplaySettings(
            name, endpoint(url, vhost), source, to, place, archive, starting, ending, filter, rate
        )
        run_replay(spark, settings, tell)

"""`headrace pipeline report`: what went through queues, on one page."""

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.pipeline.running import (
    DEFAULT_MASTER,
    DEFAULT_URL,
    Conf,
    Master,
    ReplicationGroup,
    Url,
    Vhost,
    endpoint,
    spark_session,
)
from headrace.cli.words import count, examples


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "headrace pipeline report --from '*' --to report",
            "headrace pipeline report --from orders --to report --starting 2026-01-31 --ending 2026-02-01",
            "headrace pipeline report --from '*' --to report --url /var/lib/headrace",
        )
    )(report)


def report(
    source: Annotated[str, typer.Option("--from", help="Queues: names with commas between, or a pattern.")],
    to: Annotated[Path, typer.Option(metavar="DIRECTORY", help="Where page, tables and plots are written.")],
    starting: Annotated[str, typer.Option(help="From when: earliest, or a time.")] = "earliest",
    ending: Annotated[str, typer.Option(help="Until when: latest, or a time.")] = "latest",
    topics: Annotated[int, typer.Option(min=1, help="How many of the hottest topics are shown.")] = 20,
    url: Url = DEFAULT_URL,
    vhost: Vhost = "/",
    replication_group: ReplicationGroup = "",
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
) -> None:
    """Report throughput, lag, time in queue, retries, dead letters, hot topics and sizes: tables, plots, one page."""
    with spark_session(master, conf, url) as spark:
        from headrace.spark.pipelines.report import ReportSettings, run_report

        done = run_report(
            spark, ReportSettings(endpoint(url, vhost, replication_group), source, to, starting, ending, topics)
        )
        typer.echo(f"{done.page}: {count(done.messages, 'message')}")

"""`headrace pipeline assign`: messages of a log to every queue whose filter they match."""

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
    State,
    Url,
    Vhost,
    endpoint,
    problems_told,
    spark_session,
)
from headrace.cli.words import examples


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "headrace pipeline assign --from events --filters filters.yaml",
            "headrace pipeline assign --from events --filters filters.yaml --once",
            "filters.yaml:  filters: {eu-orders: \"topic LIKE 'orders/%' AND region = 'eu'\", urgent: priority > 7}",
        )
    )(assign)


def assign(
    source: Annotated[str, typer.Option("--from", help="The log to read: a queue, usually a stream.")],
    filters: Annotated[Path, typer.Option(help="A YAML file with a filter expression for each queue under filters:.")],
    starting: Annotated[
        str, typer.Option(help="Where to begin the first time: earliest, latest, an offset or a time.")
    ] = "earliest",
    every: Annotated[str, typer.Option(help="How often to look for messages, such as '10 seconds'.")] = "",
    max_bytes: Annotated[
        str, typer.Option(help="The most that is read at once; its copies, 256 MiB at the most, are one commit.")
    ] = "64m",
    once: Once = False,
    name: Name = "assign",
    state: State = "",
    url: Url = DEFAULT_URL,
    vhost: Vhost = "/",
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
) -> None:
    """Assign every message of a log to each queue whose filter it matches, exactly once; for thousands of filters."""
    with problems_told():
        from headrace.spark.pipelines.assign import AssignSettings, run_assign
        from headrace.spark.pipelines.file import read_filter_file
        from headrace.spark.pipelines.state import DEFAULT_STATES

        place = Path(state) if state else DEFAULT_STATES / name
        settings = AssignSettings(
            name, endpoint(url, vhost), source, read_filter_file(filters), place, starting, once, every, max_bytes
        )
    with spark_session(master, conf) as spark, Board() as tell:
        run_assign(spark, settings, tell)

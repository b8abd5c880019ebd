"""`headrace pipeline sql` and `run`: queries over queues, from the command line and from a file."""

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
    problems_told,
    spark_session,
)
from headrace.cli.words import EXIT_USAGE, examples, fail


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            'headrace pipeline sql --from telemetry --to alerts "SELECT device FROM telemetry WHERE temperature > 90"',
            'headrace pipeline sql --from telemetry --console --once "SELECT count(*) FROM telemetry" --mode complete',
            'headrace pipeline sql --from telemetry --parquet out --watermark "10 minutes" "SELECT window.start, '
            "device, avg(temperature) AS mean FROM telemetry GROUP BY window(timestamp, '1 hour'), device\"",
        )
    )(sql)
    app.command(
        epilog=examples(
            "headrace pipeline run pipelines.yaml",
            "headrace pipeline run pipelines.yaml --only hot --once",
        )
    )(run)


def sql(
    query: Annotated[str, typer.Argument(help="The query; its tables are the queues it reads.")],
    source: Annotated[
        list[str], typer.Option("--from", help="A queue to read, queues with commas between, or a pattern; repeatable.")
    ],
    to: Annotated[str, typer.Option(metavar="QUEUE", help="Write the rows to this queue.")] = "",
    parquet: Annotated[str, typer.Option(metavar="DIRECTORY", help="Write the rows to Parquet files here.")] = "",
    console: Annotated[bool, typer.Option("--console", help="Print the rows.")] = False,
    schema: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELDS",
            help="The fields of JSON payloads, such as 'device STRING, value DOUBLE', or none; without, from a sample.",
        ),
    ] = None,
    watermark: Annotated[
        list[str] | None,
        typer.Option(metavar="DELAY", help="How late messages may come, such as '10 minutes'."),
    ] = None,
    starting: Annotated[
        str, typer.Option(help="Where to begin the first time: earliest, latest, an offset or a time.")
    ] = "earliest",
    mode: Annotated[str, typer.Option(help="Which rows are written: append, update or complete.")] = "append",
    every: Annotated[str, typer.Option(help="How often to look for messages, such as '10 seconds'.")] = "",
    max_messages: Annotated[int, typer.Option(help="The most messages read at once; 0 for all there are.")] = 0,
    once: Once = False,
    name: Name = "sql",
    state: State = "",
    url: Url = DEFAULT_URL,
    vhost: Vhost = "/",
    replication_group: ReplicationGroup = "",
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
) -> None:
    """Run a query over queues, for good or up to now; start it again and it goes on where it ended."""
    schemas, watermarks = _by_queue("--schema", schema, source), _by_queue("--watermark", watermark, source)
    with spark_session(master, conf, url) as spark, Board() as tell:
        from headrace.spark.pipelines.sql import SqlSettings, SqlSource, run_sql
        from headrace.spark.pipelines.state import DEFAULT_STATES

        sources = tuple(SqlSource(each, "", schemas[each], watermarks[each], starting) for each in source)
        place = Path(state) if state else DEFAULT_STATES / name
        settings = SqlSettings(
            name,
            endpoint(url, vhost, replication_group),
            sources,
            query,
            place,
            to,
            parquet,
            console,
            mode,
            once,
            every,
            max_messages,
        )
        run_sql(spark, settings, tell)


def run(
    file: Annotated[Path, typer.Argument(help="A YAML file with pipelines.")],
    only: Annotated[list[str] | None, typer.Option(help="Run only the pipeline of this name; repeatable.")] = None,
    once: Once = False,
    url: Url = DEFAULT_URL,
    vhost: Vhost = "/",
    replication_group: ReplicationGroup = "",
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
) -> None:
    """Run the pipelines of a file together, until all of them end or one of them fails."""
    with problems_told():
        from headrace.spark.pipelines.file import Defaults, read_file
        from headrace.spark.pipelines.together import run_together

        pipelines = read_file(file, Defaults(endpoint(url, vhost, replication_group), once))
    names = [each.name for each in pipelines]
    for each in only or []:
        if each not in names:
            fail(f"{file} has no pipeline {each!r}; it has {', '.join(names)}", EXIT_USAGE)
    chosen = [each for each in pipelines if not only or each.name in only]
    with spark_session(master, conf, *[each.endpoint.url for each in chosen]) as spark, Board() as tell:
        run_together(spark, chosen, tell)


def _by_queue(option: str, given: list[str] | None, sources: list[str]) -> dict[str, str]:
    """A setting for each queue: said once for the only one, or with the queue's name in front."""
    said = dict.fromkeys(sources, "")
    for each in given or []:
        queue = next((source for source in sources if each.startswith(f"{source}=")), "")
        if queue:
            said[queue] = each[len(queue) + 1 :]
        elif len(sources) == 1:
            said[sources[0]] = each
        else:
            fail(f"{option} needs a queue in front, such as {sources[0]}=...; {each!r} has none", EXIT_USAGE)
    return said

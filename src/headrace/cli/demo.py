"""`headrace demo`: everything at once, for a first look. The demo itself is in demo/."""

import asyncio
from typing import Annotated, Final

import typer
from rich.console import Console

from headrace.cli.output import command, fail, line
from headrace.demo.demo import Demo
from headrace.errors import HeadraceError
from headrace.process import EXIT_PROBLEMS

app: Final = typer.Typer(rich_markup_mode="rich", add_completion=False)


@command(app, "headrace demo", "headrace demo --seconds 60", "headrace demo --no-spark")
def demo(
    seconds: Annotated[float, typer.Option(min=0, help="Seconds until it ends by itself; 0 for never.")] = 0,
    spark: Annotated[bool, typer.Option("--spark/--no-spark", help="Run a Spark pipeline over the stream.")] = True,
) -> None:
    """Start a broker in a temporary directory with sensors, orders, failing workers and a Spark pipeline.

    Ctrl-C ends it and leaves nothing behind.
    """
    console = Console()
    run = Demo(lambda text: line(console, text), seconds, spark)
    try:
        asyncio.run(run.run())
    except KeyboardInterrupt:  # before or after the demo heeds it by itself
        return
    except HeadraceError as error:
        fail(str(error), EXIT_PROBLEMS)

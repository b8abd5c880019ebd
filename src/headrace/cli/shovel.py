"""`headrace shovel`: moves messages from a queue of one broker to another broker, as long as it runs."""

import asyncio
import signal
from collections.abc import Callable
from typing import Annotated, Final

import typer

from headrace.cli.output import announce, command, count, fail, progress
from headrace.errors import HeadraceError, Refused
from headrace.process import EXIT_PROBLEMS, EXIT_USAGE
from headrace.shovel.amqp091 import QueueDestination, QueueSource
from headrace.shovel.ends import Place, read_place
from headrace.shovel.shovel import Tally, move

app: Final = typer.Typer(rich_markup_mode="rich", add_completion=False)


@command(
    app,
    "headrace shovel amqp://guest:guest@rabbit:5672 amqp://localhost:5672 --from orders",
    "headrace shovel amqp://rabbit/eu amqp://localhost/eu --from orders --to orders-eu",
    "headrace shovel amqp://localhost amqp://rabbit --from events --to-exchange events      with their keys",
    "headrace shovel amqp://rabbit amqp://localhost --from orders --until-empty",
)
def shovel(
    source: Annotated[str, typer.Argument(help="The broker that has the queue, amqp:// or amqps://, with a login.")],
    destination: Annotated[str, typer.Argument(help="The broker that gets the messages.")],
    queue: Annotated[str, typer.Option("--from", help="The queue to take messages out of.")],
    to: Annotated[str, typer.Option("--to", help="The queue to put them into; by default of the same name.")] = "",
    to_exchange: Annotated[str, typer.Option(help="An exchange to publish to instead, with their own keys.")] = "",
    until_empty: Annotated[bool, typer.Option("--until-empty", help="End when the queue is empty.")] = False,
) -> None:
    """Move messages from one broker to another until Ctrl-C, at least once.

    A message leaves its queue once the other broker has confirmed it. It connects again where a connection breaks.
    """
    if to and to_exchange:
        fail("--to is a queue and --to-exchange an exchange: give one of them", EXIT_USAGE)
    try:
        there, here = read_place(source, queue), read_place(destination, to or queue, to_exchange)
    except Refused as error:
        fail(str(error), EXIT_USAGE)
    tally = Tally()
    try:
        asyncio.run(_shovel(there, here, tally, until_empty))
    except HeadraceError as error:
        announce(f"{count(tally.messages, 'message')} moved")
        fail(str(error), EXIT_PROBLEMS)
    typer.echo(f"{count(tally.messages, 'message')} moved, {tally.size_bytes:,} bytes")


async def _shovel(there: Place, here: Place, tally: Tally, until_empty: bool) -> None:
    stop = asyncio.Event()
    heed_signals(stop)
    with progress(f"{there.shown} {there.queue}") as show:
        watch = asyncio.ensure_future(_watch(tally, show))
        await move(
            lambda broken: (QueueSource(there, broken), QueueDestination(here, broken)),
            tally,
            not until_empty,
            stop,
            announce,
        )
        watch.cancel()


async def _watch(tally: Tally, show: Callable[[str], None]) -> None:
    while True:
        show(f"{count(tally.messages, 'message')} moved")
        await asyncio.sleep(1)


def heed_signals(stop: asyncio.Event) -> None:
    """Stop in good order on Ctrl-C and SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

"""`headrace shovel`: moves messages from a queue of one broker to another broker, as long as it runs."""

import asyncio
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Final

import typer

from headrace.cli.output import announce, command, count, fail, progress
from headrace.errors import HeadraceError, Refused
from headrace.process import EXIT_PROBLEMS, EXIT_USAGE
from headrace.shovel.ends import Place, read_place
from headrace.shovel.shovel import Tally, make_ends, move

app: Final = typer.Typer(rich_markup_mode="rich", add_completion=False)


@command(
    app,
    "headrace shovel amqp://guest:guest@rabbit:5672 amqp://localhost:5672 --from orders",
    "headrace shovel amqp://rabbit/eu amqp://localhost/eu --from orders --to orders-eu",
    "headrace shovel amqp://localhost amqp://rabbit --from events --to-exchange events      with their keys",
    "headrace shovel amqp://rabbit amqp://localhost --from orders --until-empty",
    "headrace shovel mqtt://mosquitto mqtt://localhost --from 'plant/#'                  with their topics",
    "headrace shovel mqtt://mosquitto amqp://localhost --from 'plant/#' --to-exchange amq.topic",
)
def shovel(
    source: Annotated[str, typer.Argument(help="The broker that has them, amqp(s):// or mqtt(s)://, with a login.")],
    destination: Annotated[str, typer.Argument(help="The broker that gets the messages.")],
    queue: Annotated[str, typer.Option("--from", help="The queue to take messages out of, or a topic filter of MQTT.")],
    to: Annotated[
        str, typer.Option("--to", help="The queue, by default of the same name; or the topic, by default their own.")
    ] = "",
    to_exchange: Annotated[str, typer.Option(help="An exchange to publish to instead, with their own keys.")] = "",
    until_empty: Annotated[bool, typer.Option("--until-empty", help="End when the queue is empty.")] = False,
) -> None:
    """Move messages from one broker to another until Ctrl-C, at least once.

    A message leaves its queue once the other broker has confirmed it. It connects again where a connection breaks.
    """
    try:
        there, here = _places(source, destination, queue, to, to_exchange)
    except Refused as error:
        fail(str(error), EXIT_USAGE)
    if there.has_topics and until_empty:
        fail("--until-empty is for queues: MQTT does not tell how many messages wait", EXIT_USAGE)
    tally = Tally()
    try:
        asyncio.run(_shovel(there, here, tally, until_empty))
    except HeadraceError as error:
        announce(f"{count(tally.messages, 'message')} moved")
        fail(str(error), EXIT_PROBLEMS)
    typer.echo(f"{count(tally.messages, 'message')} moved, {tally.size_bytes:,} bytes")


def _places(source: str, destination: str, queue: str, to: str, to_exchange: str) -> tuple[Place, Place]:
    """Return both ends. Raises Refused for what makes no sense."""
    if to and to_exchange:
        raise Refused("--to is a queue and --to-exchange an exchange: give one of them")
    there, here = read_place(source, queue), read_place(destination, to, to_exchange)
    if here.has_topics and to_exchange:
        raise Refused("--to-exchange is for AMQP: an MQTT broker has topics")
    if there.has_topics and not here.has_topics and not (to or to_exchange):
        raise Refused("messages of topics go to a queue (--to) or to an exchange (--to-exchange amq.topic): name one")
    return there, here if here.has_topics or to or to_exchange else replace(here, queue=queue)


async def _shovel(there: Place, here: Place, tally: Tally, until_empty: bool) -> None:
    stop = asyncio.Event()
    heed_signals(stop)
    with progress(f"{there.shown} {there.queue}") as show:
        watch = asyncio.ensure_future(_watch(tally, show))
        await move(
            lambda fail: make_ends(there, here, fail),
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

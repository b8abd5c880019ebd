"""A program with a broker of its own that publishes, settles, buries and moves messages until it is killed.

    python -m tests.crash.kills.embedded_program DIRECTORY ROUND

It says on standard output what it is about to do and what the broker answered, a line each: a word of `Book` or
`Facts`, a queue, and an identifier.
"""

import asyncio
import sys

import headrace
from headrace.core.queue.definition import QueueDefinition
from headrace.embedded import EmbeddedBroker
from tests.crash.kills.message import body_of, number_of, uid_of

JOBS = "embedded.jobs"
GRAVE = f"$dlq/{JOBS}"
COPIES = ("embedded.one", "embedded.two")
MOVES = "embedded"
_KEPT_THINGS = 4


async def run(directory: str, number: str) -> None:
    async with headrace.open(directory) as broker:
        for name in (f"{MOVES}.in", f"{MOVES}.left", f"{MOVES}.right"):
            await broker.declare(name)
        await broker.declare(QueueDefinition(JOBS, dead_letter_queue=GRAVE))
        await broker.declare_exchange("embedded", "fanout")
        for name in COPIES:
            await broker.declare(name)
            await broker.bind("embedded", name, "")
        name = f"r{number}e"
        await asyncio.gather(
            publish(broker, name + "jobs"),
            *[fan_out(broker, f"{name}fan{lane}") for lane in range(3)],
            work(broker, name + "acks"),
            feed(broker, name + "moves"),
            move(broker),
            declare(broker, name),
        )


async def publish(broker: EmbeddedBroker, publisher: str) -> None:
    for number in range(1 << 30):
        uid = uid_of(publisher, number)
        say("sending", JOBS, uid)
        await broker.publish(f"$queue/{JOBS}/{uid}", body_of(uid), headers={"uid": uid})
        say("told", JOBS, uid)


async def fan_out(broker: EmbeddedBroker, publisher: str) -> None:
    for number in range(1 << 30):
        uid = uid_of(publisher, number)
        for queue in COPIES:
            say("sending", queue, uid)
        await broker.publish(uid, body_of(uid), exchange="embedded", headers={"uid": uid})
        for queue in COPIES:
            say("told", queue, uid)


async def work(broker: EmbeddedBroker, publisher: str) -> None:
    """Acknowledge most, reject some, keep some; a confirm that comes later vouches for what was settled before."""
    settled: list[str] = []
    async with broker.consume(JOBS, credit=20) as jobs:
        async for job in jobs:
            uid = str(job.headers["uid"])
            say("given", JOBS, uid)
            kind = number_of(uid) % 10
            if kind == 0 and number_of(uid) < 100:
                continue
            if kind == 1:
                say("rejecting", JOBS, uid)
                job.reject()
            else:
                say("settling", JOBS, uid)
                job.ack()
            settled.append(uid)
            if len(settled) == 20:
                await broker.declare(f"{MOVES}.in")
                for done in settled:
                    say("ended", JOBS, done)
                settled.clear()


async def feed(broker: EmbeddedBroker, publisher: str) -> None:
    queue = f"{MOVES}.in"
    for number in range(1 << 30):
        uid = uid_of(publisher, number)
        say("sending", queue, uid)
        await broker.publish(f"$queue/{queue}/{uid}", body_of(uid), headers={"uid": uid})
        say("told", queue, uid)


async def move(broker: EmbeddedBroker) -> None:
    async with broker.consume(f"{MOVES}.in", credit=5) as inbox:
        async for received in inbox:
            uid = str(received.headers["uid"])
            say("committing", MOVES, uid)
            async with broker.transaction() as transaction:
                for side in ("left", "right"):
                    transaction.publish(f"$queue/{MOVES}.{side}/{uid}", received.payload)
                transaction.ack(received)
            say("committed", MOVES, uid)


async def declare(broker: EmbeddedBroker, name: str) -> None:
    for number in range(1 << 30):
        queue = f"{name}.{number}"
        say("declaring", queue, "")
        await broker.declare(queue)
        say("declared", queue, "")
        if number >= _KEPT_THINGS:
            old = f"{name}.{number - _KEPT_THINGS}"
            say("deleting", old, "")
            await broker.delete(old)
            say("deleted", old, "")


def say(word: str, queue: str, uid: str) -> None:
    sys.stdout.write(f"{word} {queue} {uid}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2]))

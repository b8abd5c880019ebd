"""Clients of the stream protocol: numbered messages that come twice, stored offsets, streams that come and go."""

import random

from headrace.protocols.streams import frames
from tests.crash.jobs.job import Opened, Step, payload_of
from tests.crash.ledger import Ledger
from tests.servers import Server
from tests.stream_client import StreamClient, command, entry, publish, table, text

_STREAM = "numbered"
_NAME = "crowd"


def numbering(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """Messages with numbers, many of which are sent twice; a reader that stores how far it is, and is told nothing."""
    client = opened.enter_context(StreamClient(server.ports["stream"]))
    if _STREAM not in ledger.publishers:
        with ledger.stating("queue", _STREAM):
            client.ask(frames.CREATE, text(_STREAM) + table())
        ledger.publishers[_STREAM] = _NAME
    client.ask(frames.DECLARE_PUBLISHER, b"\0" + text(_NAME) + text(_STREAM))
    last = _sequence(client)

    def step(count: int) -> None:
        nonlocal last
        payloads = [payload_of(chance, count) for _ in range(chance.randint(1, 4))]
        entries = [entry(number, payload) for number, payload in enumerate(payloads, last + 1)]
        lives = [ledger.sends(_STREAM, payload) for payload in payloads]
        times = chance.choice((1, 1, 2))
        client.send(*[publish(0, *entries)] * times)
        last += len(payloads)
        told: list[int] = []
        while len(told) < times * len(payloads):
            told += client.expect(frames.PUBLISH_CONFIRM).ids
            if len(set(told)) == len(payloads) and lives:
                ledger.confirm(*lives)
                lives = []
        if count % 5 == 4:
            ledger.tell_sequence(_STREAM, _sequence(client))
        if count % 3 == 2:
            ledger.asking("progress", f"{_STREAM} reader", str(last))
            client.send(_store_offset(last - 1))

    return step


def _sequence(client: StreamClient) -> int:
    """The number of the publisher's last message; 0 for none."""
    told = client.ask(frames.QUERY_PUBLISHER_SEQUENCE, text(_NAME) + text(_STREAM))
    return int.from_bytes(told.fields)


def _store_offset(offset: int) -> bytes:
    return command(frames.STORE_OFFSET, text("reader") + text(_STREAM) + offset.to_bytes(8))


def declaring(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """Streams that come, hold something, and go; and come again by the same names."""
    client = opened.enter_context(StreamClient(server.ports["stream"]))

    def step(count: int) -> None:
        stream = f"flow-{count % 3}"
        with ledger.stating("queue", stream):
            client.ask(frames.CREATE, text(stream) + table())
        client.ask(frames.DECLARE_PUBLISHER, b"\0" + text("") + text(stream))
        payload = payload_of(chance, count)
        with ledger.publishing(payload, stream):
            client.send(publish(0, entry(1, payload)))
            client.expect(frames.PUBLISH_CONFIRM)
        client.ask(frames.DELETE_PUBLISHER, b"\0")
        with ledger.removing(*ledger.queues[stream]), ledger.stating("queue", stream, ""):
            client.ask(frames.DELETE, text(stream))

    return step

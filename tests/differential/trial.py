"""A broker and Headrace side by side: the same programs on both, and what of the differences nobody explained."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from bench.compare.brokers import Broker
from bench.compare.peers import Peer, RabbitMq

from tests.differential import amqp_programs
from tests.differential.amqp_runner import AmqpRunner
from tests.differential.comparison import Difference, Explained, Transcript, compare, explained, shorten
from tests.servers import Server, serving

PAGE: Final = "differences.md"
_ATTEMPTS: Final = 5
"""A peer may show one of several orders: ours must be one of those that it shows in so many runs."""


class Runner(Protocol):
    """One broker."""

    def run(self, program: Any, prefix: str, hoped: Transcript | None = None) -> Transcript: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Kind:
    """A protocol and the broker to compare with."""

    name: str
    sections: tuple[str, ...]
    """The parts of the page that have its known differences."""
    peer: Peer
    family: Any
    program: Callable[[int], Sequence[Any]]
    runner: Callable[[int], Runner]


def _of(kind: str) -> Callable[[int], Sequence[Any]]:
    return lambda seed: amqp_programs.Programs(seed, kind).program()


_AMQP: Final = "AMQP 0-9-1"
_QUORUM: Final = "Quorum queues"
_STREAMS: Final = "Streams"
KINDS: Final = (
    Kind(_AMQP, (_AMQP,), RabbitMq(), "amqp", _of(amqp_programs.CLASSIC), AmqpRunner),
    Kind(_QUORUM, (_AMQP, _QUORUM), RabbitMq(), "amqp", _of(amqp_programs.QUORUM), AmqpRunner),
    Kind(_STREAMS, (_AMQP, _STREAMS), RabbitMq(), "amqp", _of(amqp_programs.STREAM), AmqpRunner),
)


@dataclass(frozen=True)
class Finding:
    """A difference that no row of the docs explains, and the shortest program that shows it."""

    seed: int
    program: Sequence[object]
    difference: Difference

    def __str__(self) -> str:
        steps = "\n".join([f"    {step}" for step in self.program])
        return f"seed {self.seed}\n{steps}\n{self.difference}"


class Trial:
    """Runs programs on a broker and on Headrace."""

    def __init__(self, kind: Kind, theirs: Runner, ours: Runner) -> None:
        self._kind = kind
        self._theirs = theirs
        self._ours = ours
        self._rows: list[Explained] = [row for section in kind.sections for row in explained(PAGE, section)]
        self._runs = 0
        self.used: set[Explained] = set()
        """The rows that explained a difference."""

    def check(self, seed: int) -> Finding | None:
        """Run the program of a seed; None if both brokers show the same, or the docs explain the difference."""
        program = list(self._kind.program(seed))
        found = self._unexplained(program)
        if found is None:
            return None
        program = shorten(program[: found.at + 1], lambda shorter: self._unexplained(shorter) is not None)
        return Finding(seed, program, self._unexplained(program) or found)

    def _unexplained(self, program: list[Any]) -> Difference | None:
        ours = self._ours.run(program, self._prefix())
        for _ in range(_ATTEMPTS):
            found = compare(program, self._theirs.run(program, self._prefix(), ours), ours)
            rows = [row for row in self._rows if found is not None and row.covers(found)]
            if found is None or rows:
                self.used.update(rows)
                return None
        return found

    def _prefix(self) -> str:
        self._runs += 1
        return f"r{self._runs}-"

    def close(self) -> None:
        self._theirs.close()
        self._ours.close()


@contextlib.contextmanager
def trial(kind: Kind) -> Iterator[Trial]:
    """Start both brokers."""
    peer = Broker(kind.peer)
    target = peer.start()
    try:
        with tempfile.TemporaryDirectory() as folder, serving(Server(Path(folder))) as server:
            port = server.ports[kind.family]
            running = Trial(kind, kind.runner(target.endpoints[kind.family].port), kind.runner(port))
            try:
                yield running
            finally:
                running.close()
    finally:
        peer.stop()

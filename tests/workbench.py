"""Shared parts of the storage tests: messages to store and how to compare them, and an engine with its owner."""

import shutil
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Event

from librt.strings import BytesWriter

from headrace.clock import Clock
from headrace.errors import HeadraceError
from headrace.model import AMQP091, Message, Source
from headrace.storage.api import Append, Commit, Encoded, Engine
from headrace.storage.group_state import Transition
from headrace.storage.local.disk import Disk
from headrace.storage.local.encoding import write_run, write_step, write_truncate
from headrace.storage.local.engine import LocalEngine, LocalSettings
from headrace.storage.local.record import Run

SMALL = LocalSettings(
    journal_file_bytes=32 << 10,
    checkpoint_bytes=4 << 20,
    tail_bytes=8 << 10,
    segment_bytes=8 << 10,
    cache_bytes=64 << 10,
)
"""Everything small and checkpoints only on closing, so that a test decides when files are written."""

PLAIN = Source("orders/created")
FULL = Source("orders/paid", "amq.topic", "till-7", "amqp091", AMQP091)

Build = Callable[[Commit], object]
Values = tuple[tuple[str, str, str, str, int], bytes, int, bytes, int, int, int]


def encode_step(step: Transition, log_id: int, group_id: int) -> bytes:
    """A transition as it stands in a record."""
    out = BytesWriter()
    write_step(out, step, log_id, group_id)
    return out.getvalue()


def encode_truncate(log_id: int, before: int) -> bytes:
    out = BytesWriter()
    write_truncate(out, log_id, before)
    return out.getvalue()


def encode_runs(runs: list[Run]) -> bytes:
    out = BytesWriter()
    for log_id, count, base in runs:
        write_run(out, log_id, count, base)
    return out.getvalue()


def values(message: Message) -> Values:
    """All that a message says, to be compared."""
    source = message.source
    return (
        (source.topic, source.exchange, source.client_id, source.protocol, source.encoding),
        message.payload,
        message.timestamp_us,
        message.properties,
        message.priority,
        message.expires_us,
        message.not_before_us,
    )


def all_values(messages: Iterable[Message]) -> list[Values]:
    return [values(message) for message in messages]


def payloads(messages: Iterable[Message]) -> list[bytes]:
    return [message.payload for message in messages]


def plain(*payloads: bytes, timestamp_us: int = 1_000) -> list[Message]:
    """Messages with nothing but a payload; each a microsecond after the one before."""
    return [Message(PLAIN, payload, timestamp_us + at) for at, payload in enumerate(payloads)]


def many(count: int, prefix: str = "order ", size: int = 0) -> list[Message]:
    """Numbered messages, filled up to a size."""
    return plain(*(f"{prefix}{number} ".encode().ljust(size, b".") for number in range(count)))


def full_message(timestamp_us: int = 2_000) -> Message:
    """A message with every column set."""
    return Message(FULL, b"paid", timestamp_us, b"\x00\x01props", 9, timestamp_us + 60, timestamp_us + 5)


def append_encoded(commit: Commit, log: str, rows: Encoded) -> Append:
    """Add encoded messages to the end of a log."""
    commit.is_encoded = True
    return commit.add(Append(log, [], rows.payload_bytes, rows))


def store(engine: Engine, *builds: Build, durable: bool = True) -> None:
    """Make one commit of everything given and see it through."""
    assert outcome(engine, *builds, durable=durable) is None


def outcome(engine: Engine, *builds: Build, durable: bool = True) -> HeadraceError | None:
    """Make one commit of everything given; what its callback was told."""
    commit = Commit()
    for build in builds:
        build(commit)
    told: list[HeadraceError | None] = []
    engine.commit(commit, told.append, durable)
    engine.sync()
    assert len(told) == 1
    return told[0]


class Bench(AbstractContextManager["Bench"]):
    """A local engine and its owner, who polls when woken. Closes the engine at the end."""

    def __init__(
        self, root: Path, settings: LocalSettings = SMALL, clock: Clock | None = None, disk: Disk | None = None
    ) -> None:
        self.root = root
        self.woken = Event()
        self.engine = LocalEngine(root, self.woken.set, settings, clock, disk)

    def __exit__(self, *_: object) -> None:
        self.engine.close()

    def store(self, *builds: Build, durable: bool = True) -> None:
        store(self.engine, *builds, durable=durable)

    def until(self, condition: Callable[[], bool]) -> None:
        """Poll until this holds; it fails the test when that takes more than ten seconds."""
        for _ in range(1000):
            self.engine.poll()
            if condition():
                return
            self.woken.wait(0.01)
            self.woken.clear()
        raise AssertionError("it did not happen within ten seconds")

    def segments(self, log: str = "orders") -> list[str]:
        """The names of a log's segment files; the log's name must be its path."""
        return sorted(path.name for path in (self.root / "queues" / log / "segments").glob("*.seg"))

    def killed(self, target: Path) -> Path:
        """A copy of the directory as it is now: what a killed process would leave."""
        for _ in range(100):
            try:
                return shutil.copytree(self.root, target)
            except (shutil.Error, FileNotFoundError):  # a file went away meanwhile
                shutil.rmtree(target)
        raise AssertionError("the directory never stood still")

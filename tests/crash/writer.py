"""A process that commits as fast as it can and says which commits were confirmed, until it is killed.

    python -m tests.crash.writer DIRECTORY_OR_URL FIRST_NUMBER

Commit n appends to several logs, moves a group and writes a key, all marked with n. Each confirmed number is one
line on standard output.
"""

import sys
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.model import Message, Source
from headrace.storage.api import RETAINED, Commit, Engine
from headrace.storage.group_state import WORK
from headrace.storage.local.engine import LocalEngine, LocalSettings
from headrace.storage.objects.engine import ObjectEngine, ObjectSettings

SMALL = LocalSettings(
    journal_file_bytes=256 << 10,
    checkpoint_bytes=512 << 10,
    tail_bytes=128 << 10,
    segment_bytes=256 << 10,
    own_files=2,
)
SMALL_STORE = ObjectSettings(flush_interval_ms=1, tail_bytes=128 << 10, cache_bytes=64 << 10)
LOGS = 5
SOURCE = Source("crash/test")


def open_engine(place: str) -> Engine:
    """The engine over a directory, or over a store."""
    if "://" in place:
        return ObjectEngine(place, settings=SMALL_STORE)
    return LocalEngine(Path(place), settings=SMALL)


def build(number: int) -> Commit:
    """Commit `number`: to log number % 5 a run of messages, to the log `all` one, acked up to here."""
    commit = Commit()
    commit.append(
        f"log-{number % LOGS}", [Message(SOURCE, b"%d/%d" % (number, row), number) for row in range(number % 7)]
    )
    commit.append("all", [Message(SOURCE, b"%d" % number, number)])
    commit.claim("all", "workers", number, number + 1, "consumer", number)
    if number % 3:
        commit.ack("all", "workers", number, number + 1)
    commit.put(RETAINED, b"last", b"%d" % number)
    if number % 50 == 0:
        commit.truncate(f"log-{number % LOGS}", number // 10)
    return commit


def main() -> None:
    engine = open_engine(sys.argv[1])
    number = int(sys.argv[2])
    if number == 0:
        commit = Commit()
        commit.create_group("all", "workers", WORK)
        engine.commit(commit, lambda error: None)

    def confirmed(number: int, error: HeadraceError | None) -> None:
        if error is not None:
            raise error
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()

    while True:
        for _ in range(1 + number % 4):
            engine.commit(build(number), lambda error, number=number: confirmed(number, error))  # type: ignore[misc]
            number += 1
        if number % 5 == 0:
            engine.sync()
        else:
            engine.poll()


if __name__ == "__main__":
    main()

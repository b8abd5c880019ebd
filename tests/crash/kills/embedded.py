"""Rounds of a program with a broker of its own over the data of a server: run, killed, and read by the server."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

from tests.crash.kills.amqp091 import Moves
from tests.crash.kills.book import Book, Facts
from tests.crash.kills.embedded_program import COPIES, GRAVE, JOBS, MOVES
from tests.crash.kills.part import drained
from tests.servers import Server


class Embedded:
    def __init__(self, server: Server, directory: Path) -> None:
        self._server = server
        self._directory = directory
        self.facts = Facts()
        self.jobs = Book(JOBS, in_order=False)
        self.copies = {name: Book(name, is_watched=False) for name in COPIES}
        self.moves = Moves(MOVES)
        self._books = {JOBS: self.jobs, self.moves.inbox.name: self.moves.inbox, **self.copies}

    def run(self, number: int, seconds: float) -> float:
        """Let the program run for so long from its first answer on, and kill it; returns when."""
        command = [sys.executable, "-m", "tests.crash.kills.embedded_program", str(self._directory), str(number)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as program:
            assert program.stdout is not None
            self._take(program.stdout.readline())
            listening = threading.Thread(target=self._listen, args=(program.stdout,))
            listening.start()
            time.sleep(seconds)
            assert program.poll() is None, "the program stopped by itself"
            killed_at = time.monotonic()
            program.send_signal(signal.SIGKILL)
            listening.join()
        return killed_at

    def _listen(self, lines: IO[str]) -> None:
        for line in lines:
            self._take(line)

    def _take(self, line: str) -> None:
        if not line.endswith("\n"):
            return
        word, queue, uid = line[:-1].split(" ")
        if word in ("declaring", "deleting"):
            self.facts.asking(f"queue {queue}", word == "declaring")
        elif word in ("declared", "deleted"):
            self.facts.told(f"queue {queue}", word == "declared")
        elif word == "committing":
            self.moves.committing(uid)
        elif word == "committed":
            self.moves.told(uid)
        elif word == "rejecting":
            self.jobs.settling(uid, rejected=True)
        elif word == "ended":
            self.jobs.ended([uid])
        else:
            getattr(self._books[queue], word)(uid)

    def check(self, killed_at: float) -> list[str]:
        dead = drained(self._server, GRAVE) if self._has_grave() else []
        found = drained(self._server, JOBS)
        problems = self.jobs.check(found, killed_at, dead)
        self.jobs.drained([*found, *dead])
        fresh = {uid for uid, entry in self.copies[COPIES[0]].entries.items() if not entry.settling_at}
        both: list[set[str]] = []
        acknowledges = random.random() < 0.7
        for name, book in self.copies.items():
            found = drained(self._server, name, acknowledges)
            problems += book.check(found, killed_at)
            (book.drained if acknowledges else book.looked_at)(found)
            both.append({one.uid for one in found})
        problems += [f"{uid} is in one of two queues" for uid in sorted(fresh & (both[0] ^ both[1]))[:3]]
        return problems + self.moves.check(self._server, killed_at)

    def _has_grave(self) -> bool:
        queues = self._server.connect().channel()
        try:
            queues.queue_declare(GRAVE, passive=True)
        except Exception:
            return False
        return True

    def counts(self) -> dict[str, int]:
        return {
            "embedded jobs": self.jobs.confirmed,
            "embedded settled": self.jobs.settled,
            "embedded fan": self.copies[COPIES[0]].confirmed,
            "embedded moves": self.moves.committed,
            "embedded facts": self.facts.count,
        }

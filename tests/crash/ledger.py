"""What clients were told, and when: to be compared with what is left of it after a power cut. No broker, no clients."""

import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator

from headrace.storage.api import BINDINGS, EXCHANGES, PERMISSIONS, QUEUES, RETAINED, SESSIONS, USERS, Engine

_NEVER = 1 << 63
_ABSENT = ""


class Life:
    """One message in one queue; times in nanoseconds of the clock that the recorder has."""

    __slots__ = ("confirmed_ns", "gone_ns", "leaving_ns", "payload", "sent_ns")

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.sent_ns = time.monotonic_ns()
        self.confirmed_ns = _NEVER
        """When its publisher was told that it is stored."""
        self.leaving_ns = _NEVER
        """When somebody asked for it to go; it may be there or not from then on."""
        self.gone_ns = _NEVER
        """When somebody was told that it is gone."""

    @property
    def is_waiting(self) -> bool:
        """Whether nobody asked for it to go yet."""
        return self.leaving_ns == _NEVER


class Whole:
    """What happens entirely or not at all: messages that come, and messages that go."""

    def __init__(self, comes: list[tuple[str, Life]], goes: list[tuple[str, Life]]) -> None:
        self.comes = comes
        self.goes = goes


class Ledger:
    """Everything that was asked for and answered. Each queue and each fact belongs to one client."""

    def __init__(self) -> None:
        self.queues: dict[str, list[Life]] = {}
        self.moves: set[tuple[str, str]] = set()
        """Queues whose messages go to the other: each is in exactly one of the two."""
        self.wholes: list[Whole] = []
        self._facts: dict[tuple[str, str], list[tuple[int, int, str]]] = {}
        self.answers = 0

    def sends(self, queue: str, payload: bytes) -> Life:
        life = Life(payload)
        self.queues.setdefault(queue, []).append(life)
        return life

    @contextlib.contextmanager
    def publishing(self, payload: bytes, *queues: str) -> Iterator[None]:
        """The block ends when the publisher is told that the message is in all of these."""
        lives = [(queue, self.sends(queue, payload)) for queue in queues]
        if len(lives) > 1:
            self.wholes.append(Whole(lives, []))
        yield
        self.confirm(*[life for _, life in lives])

    def confirm(self, *lives: Life) -> None:
        now = time.monotonic_ns()
        for life in lives:
            life.confirmed_ns = now
        self.answers += 1

    @contextlib.contextmanager
    def removing(self, *lives: Life) -> Iterator[None]:
        """The block ends when somebody is told that these are gone."""
        lasting = [life for life in lives if life.gone_ns == _NEVER]
        for life in lasting:
            life.leaving_ns = min(life.leaving_ns, time.monotonic_ns())
        yield
        now = time.monotonic_ns()
        for life in lasting:
            life.gone_ns = now
        self.answers += 1

    @contextlib.contextmanager
    def stating(self, kind: str, name: str, value: str = "there") -> Iterator[None]:
        """The block ends when somebody is told that this is so; no value: it is not there."""
        history = self._facts.setdefault((kind, name), [(0, 0, _ABSENT)])
        start = time.monotonic_ns()
        history.append((start, _NEVER, value))
        yield
        history[-1] = (start, time.monotonic_ns(), value)
        self.answers += 1

    def problems(self, cut_ns: int, left: "Left") -> list[str]:
        """Everything that somebody was told before the cut, and that is not so."""
        found: list[str] = []
        for queue, lives in self.queues.items():
            found += _check_queue(queue, lives, cut_ns, left.messages(queue))
        for source, target in self.moves:
            there = left.messages(source) + left.messages(target)
            present = set(there)
            found += [f"{source} and {target} both have {_name(payload)}" for payload in _doubles(there)]
            for life in self.queues[source]:
                if life.confirmed_ns < cut_ns and life.gone_ns > cut_ns and life.payload not in present:
                    found.append(f"neither {source} nor {target} has {_name(life.payload)}, which was confirmed")
        found += self._check_wholes(cut_ns, left)
        for (kind, name), history in self._facts.items():
            value = left.fact(kind, name)
            allowed = _allowed(history, cut_ns)
            if value not in allowed:
                found.append(f"{kind} {name} is {value or 'absent'}, and not one of {allowed}")
        return found

    def _check_wholes(self, cut_ns: int, left: "Left") -> list[str]:
        found: list[str] = []
        for whole in self.wholes:
            if any(not life.sent_ns < cut_ns <= life.leaving_ns for _, life in whole.comes):
                continue
            goes = [(queue, life) for queue, life in whole.goes if life.confirmed_ns < cut_ns]
            signs = [life.payload in left.present(queue) for queue, life in whole.comes]
            signs += [life.payload not in left.present(queue) for queue, life in goes]
            if any(signs) != all(signs):
                names = [f"{queue} {_name(life.payload)}" for queue, life in whole.comes + goes]
                found.append(f"half of a transaction happened: {names} {signs}")
        return found


def _check_queue(queue: str, lives: list[Life], cut_ns: int, there: list[bytes]) -> list[str]:
    found = [f"{queue} has {_name(payload)} twice" for payload in _doubles(there)]
    known = {life.payload: number for number, life in enumerate(lives)}
    present = set(there)
    for life in lives:
        if life.confirmed_ns < cut_ns <= life.leaving_ns and life.payload not in present:
            found.append(f"{queue} has lost {_name(life.payload)}, which was confirmed")
        if life.gone_ns < cut_ns and life.payload in present:
            found.append(f"{queue} has {_name(life.payload)} again, which was gone")
        if life.sent_ns >= cut_ns and life.payload in present:
            found.append(f"{queue} has {_name(life.payload)}, which nobody had sent")
    found += [f"{queue} has {_name(payload)}, which nobody sent" for payload in there if payload not in known]
    order = [known[payload] for payload in there if payload in known]
    if order != sorted(order):
        found.append(f"{queue} is out of order")
    return found


def _name(payload: bytes) -> str:
    """What tells a message from the others of its queue; the rest of it is noise."""
    return payload.partition(b":")[0].decode()


def _doubles(payloads: list[bytes]) -> list[bytes]:
    return [payload for payload, count in Counter(payloads).items() if count > 1]


def _allowed(history: list[tuple[int, int, str]], cut_ns: int) -> list[str]:
    """The last value that was answered before the cut, and those asked for since."""
    last = max(number for number, (_, end, _) in enumerate(history) if end < cut_ns)
    return [value for start, _, value in history[last:] if start < cut_ns]


class Left:
    """What an engine holds after a cut, as clients would find it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._messages: dict[str, list[bytes]] = {}
        self._present: dict[str, set[bytes]] = {}
        self._sessions = {key.decode() for key, _ in engine.items(SESSIONS)}
        bindings = [json.loads(value) for _, value in engine.items(BINDINGS)]
        self._bindings = {f"{binding['source']}>{binding['destination']}" for binding in bindings}

    def messages(self, queue: str) -> list[bytes]:
        """The payloads that wait in a queue."""
        if queue not in self._messages:
            self._messages[queue] = self._read(queue)
        return self._messages[queue]

    def present(self, queue: str) -> set[bytes]:
        """The same without an order."""
        if queue not in self._present:
            self._present[queue] = set(self.messages(queue))
        return self._present[queue]

    def _read(self, queue: str) -> list[bytes]:
        log = self._engine.log(queue)
        if queue not in self._engine.logs():
            return []
        states = list(log.groups.values())
        rows = log.read(log.first_offset, 1 << 30)
        waiting: list[bytes] = []
        for offset, message in enumerate(rows, log.first_offset):
            if not states or any(offset >= state.committed and offset not in state.settled for state in states):
                waiting.append(bytes(message.payload))
        return waiting

    def fact(self, kind: str, name: str) -> str:
        if kind == "session":
            return "there" if f"/\0{name}\0s" in self._sessions else _ABSENT
        if kind == "subscription":
            client, _, pattern = name.partition(" ")
            return "there" if f"/\0{client}\0f{pattern}" in self._sessions else _ABSENT
        if kind == "binding":
            return "there" if name in self._bindings else _ABSENT
        if kind == "retained":
            value = self._engine.get(RETAINED, f"/\0{name}".encode())
            return value.rpartition(b"=")[2].decode() if value is not None else _ABSENT
        if kind == "permission":
            value = self._engine.get(PERMISSIONS, f"/\0{name}".encode())
            return json.loads(value)["write"] if value is not None else _ABSENT
        table = {"queue": QUEUES, "exchange": EXCHANGES, "user": USERS}[kind]
        return "there" if self._engine.get(table, name.encode()) is not None else _ABSENT

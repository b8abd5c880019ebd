"""What clients were told, and when: to be compared with what is left of it after a power cut. No broker, no clients."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from tests.crash.left import ABSENT, Left

_NEVER = 1 << 63


class Life:
    """One message in one queue; times in nanoseconds of the clock that the recorder has."""

    __slots__ = ("confirmed_ns", "gone_ns", "leaving_ns", "payload", "sent_ns", "target")

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.sent_ns = time.monotonic_ns()
        self.confirmed_ns = _NEVER
        """When its publisher was told that it is stored."""
        self.leaving_ns = _NEVER
        """When somebody asked for it to go; it may be there or not from then on."""
        self.gone_ns = _NEVER
        """When somebody was told that it is gone."""
        self.target = ""
        """The queue to which it went when it left, if it went to one."""

    @property
    def is_waiting(self) -> bool:
        """Whether nobody asked for it to go yet."""
        return self.leaving_ns == _NEVER


class Whole:
    """What happens entirely or not at all: messages that come, and messages that go."""

    def __init__(
        self, comes: list[tuple[str, Life]], goes: list[tuple[str, Life]], facts: Sequence[tuple[str, str]] = ()
    ) -> None:
        """`facts` become true with it, and stay true."""
        self.comes = comes
        self.goes = goes
        self.facts = facts


class Ledger:
    """Everything that was asked for and answered. Each queue and each fact belongs to one client."""

    def __init__(self) -> None:
        self.queues: dict[str, list[Life]] = {}
        self.moves: set[tuple[str, str]] = set()
        """Queues whose messages go to the other: none is in both."""
        self.wholes: list[Whole] = []
        self.publishers: dict[str, str] = {}
        """Of streams, the publisher that numbers its messages from 1 on: nobody else publishes there."""
        self._facts: dict[tuple[str, str], list[tuple[int, int, str]]] = {}
        self._sequences: list[tuple[int, str, int]] = []
        self._attempts: list[tuple[int, str, Life]] = []
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
    def moving(self, source: str, target: str, *lives: Life) -> Iterator[None]:
        """The block ends when somebody is told that these went to another queue; each is in exactly one of both."""
        comes = [self.leave_for(source, target, life) for life in lives]
        with self.removing(*lives):
            yield
        self.confirm(*comes)

    def leave_for(self, source: str, target: str, life: Life) -> Life:
        """Somebody asks for a message to go to another queue; returns it as it is there."""
        self.moves.add((source, target))
        life.leaving_ns, life.target = time.monotonic_ns(), target
        return self.sends(target, life.payload)

    def waiting(self, queue: str) -> list[Life]:
        """The messages of a queue that nobody asked to go."""
        return [life for life in self.queues.get(queue, []) if life.is_waiting]

    def with_payload(self, queue: str, payload: bytes) -> Life:
        """The message of a queue that has this payload; the last one, if it came there more than once."""
        return [life for life in self.queues[queue] if life.payload == payload][-1]

    def tell_sequence(self, stream: str, number: int) -> None:
        """Somebody was told that a stream has the messages of its publisher up to this number."""
        self._sequences.append((time.monotonic_ns(), stream, number))
        self.answers += 1

    def give_back(self, queue: str, life: Life) -> None:
        """Somebody was told that a message is back in line: its delivery counts."""
        self._attempts.append((time.monotonic_ns(), queue, life))
        self.answers += 1

    def asking(self, kind: str, name: str, value: str) -> None:
        """Somebody asks for this to be so, and is told nothing."""
        self._facts.setdefault((kind, name), [(0, 0, ABSENT)]).append((time.monotonic_ns(), _NEVER, value))

    @contextlib.contextmanager
    def stating(self, kind: str, name: str, value: str = "there") -> Iterator[None]:
        """The block ends when somebody is told that this is so; no value: it is not there."""
        history = self._facts.setdefault((kind, name), [(0, 0, ABSENT)])
        start = time.monotonic_ns()
        history.append((start, _NEVER, value))
        yield
        history[-1] = (start, time.monotonic_ns(), value)
        self.answers += 1

    def problems(self, cut_ns: int, left: Left) -> list[str]:
        """Everything that somebody was told before the cut, and that is not so."""
        found: list[str] = []
        for queue, lives in self.queues.items():
            runs = left.runs(queue)
            if runs is not None:
                found += _check_queue(queue, lives, cut_ns, runs) + _check_targets(queue, lives, cut_ns, left)
        for source, target in self.moves:
            there = left.messages(source) + left.messages(target)
            found += [f"{source} and {target} both have {_name(payload)}" for payload in _doubles(there)]
        found += self._check_wholes(cut_ns, left)
        for (kind, name), history in self._facts.items():
            value = left.fact(kind, name)
            allowed = _allowed(history, cut_ns)
            if value is not None and value not in allowed:
                found.append(f"{kind} {name} is {value or 'absent'}, and not one of {allowed}")
        return found + self._check_numbers(cut_ns, left) + self._check_attempts(cut_ns, left)

    def _check_numbers(self, cut_ns: int, left: Left) -> list[str]:
        """A stream has as many messages as it says that it has of its only publisher, who numbers them."""
        found: list[str] = []
        lasts = {stream: left.sequence(stream, publisher) for stream, publisher in self.publishers.items()}
        for stream, last in lasts.items():
            count = len(left.messages(stream))
            if last != count:
                found.append(f"{stream} has {count} messages, and says that {last} is the last number")
        for told_ns, stream, number in self._sequences:
            if told_ns < cut_ns and lasts[stream] < number:
                found.append(f"{stream} says that {lasts[stream]} is the last number, and said {number} before")
        return found

    def _check_attempts(self, cut_ns: int, left: Left) -> list[str]:
        return [
            f"{queue} does not know that {_name(life.payload)} was delivered and given back"
            for told_ns, queue, life in self._attempts
            if told_ns < cut_ns <= life.leaving_ns and left.attempts(queue, life.payload) == 0
        ]

    def _check_wholes(self, cut_ns: int, left: Left) -> list[str]:
        found: list[str] = []
        for whole in self.wholes:
            if any(not life.sent_ns < cut_ns <= life.leaving_ns for _, life in whole.comes):
                continue
            goes = [(queue, life) for queue, life in whole.goes if life.confirmed_ns < cut_ns]
            signs = [life.payload in left.present(queue) for queue, life in whole.comes]
            signs += [life.payload not in left.present(queue) for queue, life in goes]
            values = [left.fact(*fact) for fact in whole.facts]
            signs += [value != ABSENT for value in values if value is not None]
            if any(signs) != all(signs):
                names = [f"{queue} {_name(life.payload)}" for queue, life in whole.comes + goes]
                found.append(f"half of a transaction happened: {names} {signs}")
        return found


def _check_queue(queue: str, lives: list[Life], cut_ns: int, runs: list[list[bytes]]) -> list[str]:
    there = [payload for run in runs for payload in run]
    found = [f"{queue} has {_name(payload)} twice" for payload in _doubles(there)]
    known: dict[bytes, list[int]] = {}
    for number, life in enumerate(lives):
        known.setdefault(life.payload, []).append(number)
    present = set(there)
    for payload, numbers in known.items():
        came = [lives[number] for number in numbers if lives[number].sent_ns < cut_ns]
        if payload not in present:
            if any(life.confirmed_ns < cut_ns <= life.leaving_ns for life in came):
                found.append(f"{queue} has lost {_name(payload)}, which was confirmed")
        elif not came:
            found.append(f"{queue} has {_name(payload)}, which nobody had sent")
        elif all(life.gone_ns < cut_ns for life in came):
            found.append(f"{queue} has {_name(payload)} again, which was gone")
    found += [f"{queue} has {_name(payload)}, which nobody sent" for payload in there if payload not in known]
    return found + [f"{queue} is out of order" for run in runs if not _is_in_order(run, known)]


def _is_in_order(run: list[bytes], known: dict[bytes, list[int]]) -> bool:
    """True if these can have come in this order; `known` has the places of each, as it may have come more than once."""
    last = -1
    for payload in run:
        if payload in known:
            later = [number for number in known[payload] if number > last]
            if not later:
                return False
            last = later[0]
    return True


def _check_targets(queue: str, lives: list[Life], cut_ns: int, left: Left) -> list[str]:
    return [
        f"neither {queue} nor {life.target} has {_name(life.payload)}, which was confirmed"
        for life in lives
        if life.target and life.confirmed_ns < cut_ns <= life.gone_ns
        if life.payload not in left.present(queue) and life.payload not in left.present(life.target)
    ]


def _name(payload: bytes) -> str:
    """What tells a message from the others of its queue; the rest of it is noise."""
    return payload.partition(b":")[0].decode(errors="replace")


def _doubles(payloads: list[bytes]) -> list[bytes]:
    return [payload for payload, count in Counter(payloads).items() if count > 1]


def _allowed(history: list[tuple[int, int, str]], cut_ns: int) -> list[str]:
    """The last value that was answered before the cut, and those asked for since."""
    last = max(number for number, (_, end, _) in enumerate(history) if end < cut_ns)
    return [value for start, _, value in history[last:] if start < cut_ns]

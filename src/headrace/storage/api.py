"""The interface of engines: logs, group state and keyed state, changed only through atomic commits. No files, no core.

One thread owns an engine and calls everything here. `commit` returns at once. When the commit is durable the engine
calls the `wake` it was opened with (from any thread), and the owner's next `poll` runs the callbacks, in commit order.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import mypyc_attr

from headrace.errors import HeadraceError, Refused
from headrace.model import Message, Source
from headrace.storage.group_state import (
    ACKED,
    CLAIMED,
    COMMITTED,
    CREATED,
    CURSOR,
    DEAD,
    DELETED,
    MODE_NAMES,
    REQUEUED,
    GroupState,
    Transition,
)

if TYPE_CHECKING:
    import pyarrow as pa

# The tables of keyed state. Definitions are small JSON documents that people may want to read; the others are bytes.
QUEUES: Final = "queues"
EXCHANGES: Final = "exchanges"
BINDINGS: Final = "bindings"
HOSTS: Final = "hosts"
USERS: Final = "users"
PERMISSIONS: Final = "permissions"
TOPIC_PERMISSIONS: Final = "topic_permissions"
RETAINED: Final = "retained"
SESSIONS: Final = "sessions"
TRANSACTIONS: Final = "transactions"
PAUSES: Final = "pauses"
PARAMETERS: Final = "parameters"
GLOBAL_PARAMETERS: Final = "global_parameters"
KEPT: Final = "kept"
PUBLISHERS: Final = "publishers"
DEFINITIONS: Final = frozenset({QUEUES, EXCHANGES, BINDINGS, HOSTS, USERS, PERMISSIONS, TOPIC_PERMISSIONS})

MAX_NAME_BYTES: Final = 512
MAX_TEXT_BYTES: Final = 65535
MAX_COMMIT_BYTES: Final = 1 << 30
NO_LIMIT: Final = 1 << 60
_EXTENT_MESSAGES: Final = 1000
_EXTENT_BYTES: Final = 1 << 20
_MAX_NUMBER: Final = (1 << 63) - 1
_USUAL_NUMBER: Final = 1 << 60
"""Compiled, larger numbers are objects and take ten times as long to compare."""

Done = Callable[[HeadraceError | None], None]
Wake = Callable[[], None]


@mypyc_attr(allow_interpreted_subclasses=True)
class Encoded(ABC):
    """Encoded messages: engines store them without looking at each."""

    count: int
    payload_bytes: int
    largest_bytes: int
    """The longest payload."""
    first_expiry_us: int
    """The time when the first of them expires; 0 if none does."""

    @abstractmethod
    def sources(self) -> list[Source]:
        """The sources of the messages; usually few."""

    @abstractmethod
    def source_index(self) -> Sequence[int] | None:
        """The index of each message's source; None if all have the first."""

    @abstractmethod
    def messages(self, start: int, stop: int) -> list[Message]:
        """Some of them, decoded."""

    @abstractmethod
    def take(self, rows: Sequence[int]) -> "Encoded":
        """Only these rows, in order."""

    @abstractmethod
    def due_times(self) -> Sequence[int]:
        """The time when each may be delivered, 0 for at once; empty if all may."""

    @abstractmethod
    def expiring(self, ttl_us: int, now_us: int, keeps_earlier: bool = True) -> "Encoded":
        """The same rows with a time to live from now, or from when a message is due. Earlier expiries can stay."""


@final
class Origin:
    """The origin of copies: their offsets in another log, which still holds the messages."""

    __slots__ = ("log", "offsets")

    def __init__(self, log: str, offsets: list[int]) -> None:
        self.log = log
        self.offsets = offsets


@final
@mypyc_attr(acyclic=True)
class Append:
    """Messages for one log, plain or encoded; `base` is the offset of the first, known once the engine has taken it."""

    __slots__ = ("_log", "at", "base", "count", "encoded", "messages", "origin", "size_bytes")

    def __init__(
        self,
        log: str,
        messages: list[Message],
        size_bytes: int,
        encoded: Encoded | None = None,
        origin: Origin | None = None,
        at: "Log | None" = None,
    ) -> None:
        self._log = log
        self.at = at
        """The log itself, if the caller has it: finding one of ten thousand by its name took a message 0.3 us."""
        self.messages = messages
        self.size_bytes = size_bytes
        """The size of the payloads."""
        self.encoded = encoded
        self.origin = origin
        """Set for copies: an engine may then store their payloads once."""
        self.count = len(messages) if encoded is None else encoded.count
        self.base = -1

    def add(self, message: Message, size_bytes: int) -> None:
        """Add a message with the size of its payload."""
        self.messages.append(message)
        self.count += 1
        self.size_bytes += size_bytes

    def extend(self, messages: list[Message], size_bytes: int) -> None:
        """Add messages with the size of all their payloads."""
        self.messages += messages
        self.count += len(messages)
        self.size_bytes += size_bytes

    @property
    def log(self) -> str:
        """The name of the log."""
        return self._log if self.at is None else self.at.name


@final
class Commit:
    """Changes that happen entirely or not at all: appends, then group steps, keyed state, truncations, drops."""

    __slots__ = (
        "appends",
        "drops",
        "furthest",
        "is_consumed",
        "is_encoded",
        "puts",
        "size_bytes",
        "steps",
        "truncations",
        "written",
    )

    def __init__(self) -> None:
        self.written: Wake | None = None
        """Called when the commit is visible but not yet durable; from then on only the end of the engine can stop it.
        An owner that leaves it unset sees the commit only once it is durable."""
        self.is_consumed = True
        """False if nobody would use the commit before it is durable: it may be written and synced in one call."""
        self.appends: list[Append] = []
        self.steps: list[Transition] = []
        self.puts: dict[tuple[str, bytes], bytes | None] = {}
        self.truncations: dict[str, int] = {}
        self.furthest = 0
        """The largest offset among the truncations."""
        self.drops: list[str] = []
        self.size_bytes = 0
        self.is_encoded = False
        """True if one of the appends is encoded."""

    @property
    def is_empty(self) -> bool:
        return not (self.appends or self.steps or self.puts or self.truncations or self.drops)

    def append(self, log: str, messages: list[Message], origin: Origin | None = None) -> Append:
        """Add messages to the end of a log, which comes into being with its first message or group."""
        size_bytes = 0
        for message in messages:
            size_bytes += len(message.payload)
        return self.add(Append(log, messages, size_bytes, None, origin))

    def add(self, append: Append) -> Append:
        """Add an append that is complete."""
        self.appends.append(append)
        self.size_bytes += append.size_bytes
        return append

    def add_all(self, appends: list[Append], size_bytes: int) -> None:
        """Add appends that are complete, with the size of all their payloads."""
        self.appends += appends
        self.size_bytes += size_bytes

    def create_group(self, log: str, group: str, mode: int, filter: str = "", start: int = 0) -> None:  # noqa: A002
        """Start a group with its cursor and committed offset at `start`."""
        self.steps.append(Transition(CREATED, log, group, start, mode=mode, filter=filter))

    def delete_group(self, log: str, group: str) -> None:
        self.steps.append(Transition(DELETED, log, group))

    def claim(self, log: str, group: str, start: int, stop: int, consumer: str, due_us: int) -> None:
        """Record that `consumer` was given these offsets and has until `due_us` to settle them."""
        self._continue(CLAIMED, log, group, start, stop, due_us, consumer)

    def ack(self, log: str, group: str, start: int, stop: int, cut: int = 0) -> None:
        """Settle these offsets, and drop the log's messages below `cut`: nobody needs them."""
        self._settle(ACKED, log, None, group, start, stop, cut)

    def ack_at(self, log: "Log", group: str, start: int, stop: int, cut: int = 0) -> None:
        """Settle offsets in a log that the caller has at hand."""
        self._settle(ACKED, "", log, group, start, stop, cut)

    def bury(self, log: str, group: str, start: int, stop: int) -> None:
        """Settle these offsets as dead: given up, expired or rejected."""
        self._settle(DEAD, log, None, group, start, stop, 0)

    def requeue(self, log: str, group: str, start: int, stop: int, due_us: int) -> None:
        """Give claimed offsets back; they are ready again at `due_us`."""
        self._continue(REQUEUED, log, group, start, stop, due_us, "")

    def seek(self, log: str, group: str, offset: int) -> None:
        """Move the cursor. Below the committed offset, that moves back too and forgets all settled offsets above it."""
        self.steps.append(Transition(CURSOR, log, group, offset))

    def commit_offset(self, log: str, group: str, offset: int) -> None:
        """Declare everything below `offset` finished."""
        if self.steps:
            last = self.steps[-1]
            if last.kind == COMMITTED and last.start <= offset and last.group == group and last.log == log:
                last.start = offset
                return
        self.steps.append(Transition(COMMITTED, log, group, offset))

    def put(self, table: str, key: bytes, value: bytes) -> None:
        self.puts[table, key] = value
        self.size_bytes += len(key) + len(value)

    def delete(self, table: str, key: bytes) -> None:
        self.puts[table, key] = None

    def truncate(self, log: str, before: int) -> None:
        """Drop every message below `before`."""
        if before > 0 and self.truncations.setdefault(log, before) < before:
            self.truncations[log] = before
        self.furthest = max(self.furthest, before)

    def drop(self, log: str) -> None:
        """Remove a log with its messages and groups. A new log of the name starts at offset 0."""
        self.drops.append(log)

    def _continue(self, kind: int, log: str, group: str, start: int, stop: int, due_us: int, consumer: str) -> None:
        """Add a step, or let the last one go on if it is about the offsets right before."""
        if self.steps:
            last = self.steps[-1]
            continues = last.kind == kind and last.stop == start and last.group == group and last.log == log
            if continues and last.consumer == consumer and last.due_us == due_us:
                last.stop = stop
                return
        self.steps.append(Transition(kind, log, group, start, stop, due_us, consumer))

    def _settle(self, kind: int, log: str, at: "Log | None", group: str, start: int, stop: int, cut: int) -> None:
        # Acks arrive one by one and mostly in order: grow the last step instead of adding one for each.
        if self.steps:
            last = self.steps[-1]
            if last.kind == kind and last.stop == start and last.group == group and last.is_in(log, at):
                last.stop = stop
                last.cut = max(last.cut, cut)
                return
        self.steps.append(Transition(kind, log, group, start, stop, cut=cut, at=at))


@mypyc_attr(allow_interpreted_subclasses=True)
class Log(ABC):
    """The messages of one queue in order, with the groups that read them. Readers see visible commits only."""

    __slots__ = ("first_offset", "id", "name", "next_offset")

    id: int
    """Once it has messages: a number that no other log of its name had."""
    name: str
    first_offset: int
    next_offset: int

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """About how much the log holds, in stored bytes."""

    @property
    @abstractmethod
    def groups(self) -> Mapping[str, GroupState]:
        """The groups by name. Read them; they change only through commits."""

    @abstractmethod
    def read(self, offset: int, max_messages: int, max_bytes: int = NO_LIMIT) -> list[Message]:
        """The messages from `offset` on: at least one unless the end is reached, then as many as both bounds allow.

        Raises Refused below `first_offset` and Corrupt where the stored bytes are damaged.
        """

    def single(self, offset: int) -> Message | None:
        """The message at this offset, if it is the last one and in memory; else None, and `read` finds it."""
        return None

    def let_go(self, before: int) -> None:
        """Forget messages that a coming commit truncates. A crash before that commit may bring them back."""
        return

    @abstractmethod
    def find(self, timestamp_us: int) -> int:
        """The offset of the first message with at least this timestamp, or `next_offset` when there is none."""

    def extents(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Neighbouring messages of a range, in order: the first offset, the one behind the last, and their bytes.

        Raises as `read` does. An engine that knows sizes without reading the messages has its own.
        """
        while start < stop:
            found = self.read(start, min(stop - start, _EXTENT_MESSAGES), _EXTENT_BYTES)
            if not found:
                return
            size = sum([len(message.payload) + len(message.properties) for message in found])
            yield start, start + len(found), size
            start += len(found)

    @abstractmethod
    def record_batches(self, start: int, stop: int) -> "Iterator[pa.RecordBatch]":
        """The messages of a range as Arrow record batches in the schema of storage/arrow.py."""


Items = Callable[[str], Iterable[tuple[bytes, bytes]]]
"""All keys and values of a table: see Engine.items."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Engine(ABC):
    """A store of commits."""

    keeps_claims: bool
    """True if it keeps the claims of settled messages. Other engines need not store a claim that ends well."""
    staged_bytes: int
    """Payload bytes handed to `commit` whose callbacks have not run yet."""

    @abstractmethod
    def commit(self, commit: Commit, done: Done, durable: bool = True) -> None:
        """Store the commit; `done` is called with None once it is durable, or with the error.

        With `durable=False`, `done` is called once the commit is written; it is durable within a second. Raises
        Refused at once when the commit names a group that does not exist, and Unavailable when the engine cannot take
        commits now; then nothing of it happens. A commit that fails later takes those behind it along.
        """

    @abstractmethod
    def log(self, name: str) -> Log:
        """The log of that name, empty if it does not exist."""

    @abstractmethod
    def logs(self) -> list[str]:
        """The names of all logs that exist."""

    @abstractmethod
    def items(self, table: str) -> Iterable[tuple[bytes, bytes]]:
        """All keys and values of a table, in no particular order."""

    @abstractmethod
    def get(self, table: str, key: bytes) -> bytes | None:
        """One value, or None."""

    @property
    def trouble(self) -> str:
        """The reason why it takes no messages now, as a sentence; "" if it takes them."""
        return ""

    @abstractmethod
    def poll(self) -> None:
        """Run the callbacks of commits that have ended. Raises Fatal when the engine can no longer go on."""

    @abstractmethod
    def sync(self) -> None:
        """Wait until every commit taken so far is done, running the callbacks."""

    @abstractmethod
    def close(self) -> None:
        """Finish all commits, write everything to disk and release the directory."""


def check_commit(commit: Commit) -> None:
    """Raises Refused for a commit that no engine can store: too large, or with wrong numbers, texts or definitions."""
    if commit.size_bytes > MAX_COMMIT_BYTES:
        raise Refused(
            f"a commit of {commit.size_bytes} bytes is too large ({MAX_COMMIT_BYTES} at most); publish smaller batches"
        )
    for step in commit.steps:
        is_usual = 0 <= step.start <= step.stop <= _USUAL_NUMBER and 0 <= step.due_us <= _USUAL_NUMBER
        if not (is_usual and 0 <= step.cut <= _USUAL_NUMBER and step.kind != CREATED):
            _check_numbers(step)
        if step.consumer or step.filter:
            _check_text("consumer", step.consumer)
            _check_text("filter", step.filter)
    for (table, key), value in commit.puts.items():
        _check_text("table", table)
        if table in DEFINITIONS and value is not None:
            _check_definition(table, key, value)
    if commit.furthest > _USUAL_NUMBER:
        for log, before in commit.truncations.items():
            if before > _MAX_NUMBER:
                raise Refused(f"{log}: {before} is not an offset")


def check_step(step: Transition, exists: bool) -> None:
    """Raises Refused when a group is created twice, under a name too long, or used without being created."""
    if step.kind == CREATED and exists:
        raise Refused(f"group {step.group!r} of {step.log!r} exists already")
    if step.kind == CREATED:
        check_name("group", step.group)
    elif not exists:
        raise Refused(f"group {step.group!r} of {step.log!r} does not exist; create it first")


def check_name(kind: str, name: str) -> None:
    """Raises Refused unless the name has 1 to 512 bytes of UTF-8."""
    if not name or len(name) > MAX_NAME_BYTES or not 1 <= _utf8_length(kind, name) <= MAX_NAME_BYTES:
        raise Refused(f"the {kind} name {name[:64]!r} must have 1 to {MAX_NAME_BYTES} bytes of UTF-8")


def _check_numbers(step: Transition) -> None:
    start, stop = step.start, step.stop
    backwards = stop < start and step.kind in (CLAIMED, ACKED, DEAD, REQUEUED)
    if start < 0 or backwards or start > _MAX_NUMBER or stop > _MAX_NUMBER:
        raise Refused(f"group {step.group!r}: {start}..{stop} is not a range of offsets")
    if not 0 <= step.cut <= _MAX_NUMBER:
        raise Refused(f"group {step.group!r}: {step.cut} is not an offset")
    if not -_MAX_NUMBER <= step.due_us <= _MAX_NUMBER:
        raise Refused(f"group {step.group!r}: {step.due_us} is not a time in microseconds")
    if step.kind == CREATED and step.mode not in MODE_NAMES:
        raise Refused(f"group {step.group!r}: there is no mode {step.mode}")


def _check_text(kind: str, text: str) -> None:
    if _utf8_length(kind, text) > MAX_TEXT_BYTES:
        raise Refused(f"the {kind} {text[:64]!r} is too long ({MAX_TEXT_BYTES} bytes of UTF-8 at most)")


def _check_definition(table: str, key: bytes, value: bytes) -> None:
    try:
        key.decode()
        json.dumps(json.loads(value), ensure_ascii=False).encode()
    except ValueError as error:
        raise Refused(f"{key!r} in {table!r} must have a key of UTF-8 and a value of JSON: {error}") from error


def _utf8_length(kind: str, name: str) -> int:
    try:
        return len(name.encode())
    except UnicodeEncodeError as error:
        raise Refused(f"the {kind} name {name[:64]!r} is not valid Unicode") from error

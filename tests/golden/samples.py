"""The values behind the golden bytes: for each file here, what it holds and what the code writes for it.

Golden files and the examples in docs/formats/ have one form: an address, bytes in hex, and after two spaces whatever
helps a reader. `00 x 4064` stands for that many zeros.
"""

import re
from collections.abc import Callable
from pathlib import Path

from headrace.model import AMQP091, MQTT5, Message, Source
from headrace.storage.api import QUEUES, RETAINED
from headrace.storage.group_state import (
    ACKED,
    CLAIMED,
    COMMITTED,
    CREATED,
    CURSOR,
    DEAD,
    DELETED,
    REQUEUED,
    WORK,
    GroupState,
    Pending,
    Transition,
)
from headrace.storage.local.checkpoint import Checkpoint, LogEntry, Tail, encode_checkpoint
from headrace.storage.local.disk import Disk
from headrace.storage.local.encoding import encode_block
from headrace.storage.local.flusher import encode_tails
from headrace.storage.local.group_files import encode_pending, encode_progress, encode_state
from headrace.storage.local.journal import Newest, Position, encode_header, encode_newest
from headrace.storage.local.record import Run, encode_create_log, encode_drop_log, encode_put, encode_record
from headrace.storage.local.segment import Segment, encode_segment_header, segment_path, write_indexes
from headrace.storage.local.tables import Table
from tests.workbench import encode_runs, encode_step, encode_truncate

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs" / "formats"

START_US = 1_700_000_000_000_000
CREATED_BY_MQTT = Source("orders/created", "", "sensor-1", "mqtt", MQTT5)
PAID_BY_AMQP = Source("orders/paid", "amq.topic", "", "amqp091", AMQP091)

PLAIN_BASE = 41
PLAIN_MESSAGES = [
    Message(CREATED_BY_MQTT, b"first", START_US),
    Message(CREATED_BY_MQTT, b"second one", START_US + 250),
]
FULL_BASE = 7
FULL_MESSAGES = [
    Message(CREATED_BY_MQTT, b"created", START_US + 500, b"", 0, START_US + 60_000_000, 0),
    Message(PAID_BY_AMQP, b"paid", START_US, b"\x01\x02\x03", 9, 0, START_US + 1_000_000),
]

RECORD_SEQ = 7
RECORD_SYNCED = 6
RECORD_OPERATIONS = encode_create_log(1, "orders")
RECORD_RUNS: list[Run] = [(1, 2, PLAIN_BASE)]
BLOCK_RUNS: list[Run] = [(1, 2, PLAIN_BASE), (2, 1, 7)]

OPERATIONS = [
    encode_create_log(1, "orders"),
    encode_drop_log(1),
    encode_truncate(1, 40),
    encode_step(Transition(CREATED, "orders", "billing", 40, mode=WORK, filter="orders/#"), 1, 2),
    encode_step(Transition(DELETED, "orders", "billing"), 1, 2),
    encode_step(Transition(CLAIMED, "orders", "billing", 41, 43, START_US, "c1"), 1, 2),
    encode_step(Transition(ACKED, "orders", "billing", 41, 42), 1, 2),
    encode_step(Transition(DEAD, "orders", "billing", 42, 43), 1, 2),
    encode_step(Transition(REQUEUED, "orders", "billing", 41, 42, START_US), 1, 2),
    encode_step(Transition(CURSOR, "orders", "billing", 50), 1, 2),
    encode_step(Transition(COMMITTED, "orders", "billing", 49), 1, 2),
    encode_put(RETAINED, b"key", b"value"),
    encode_put(RETAINED, b"key", None),
]

SEGMENT_LOG_ID = 1
GROUP_ID = 2
GROUP_SEQ = 9
TABLE_VALUES = {b"lamp": b"on", b"door": b""}


def group() -> GroupState:
    state = GroupState("billing", WORK, "orders/#", 40)
    state.cursor = 50
    state.add_settled(42, 45)
    state.add_settled(47, 48)
    state.pending = {41: Pending(1, START_US, "c1"), 46: Pending(3, START_US + 5, "")}
    return state


def definitions() -> Table:
    table = Table(QUEUES)
    table.put(b"orders", b'{"type":"classic","topics":["orders/#"]}')
    table.put("größe".encode(), b'{"type":"stream"}')
    return table


def checkpoint() -> Checkpoint:
    found = Checkpoint(Position(9, 2, 8192), 3)
    orders = LogEntry(1, "orders", 40, 50)
    orders.segment, orders.segment_length, orders.stored_bytes = 41, 4096, 8160
    orders.groups = [(2, "billing")]
    found.logs = [orders]
    found.tables = {QUEUES: (0, 120), RETAINED: (1, 36)}
    return found


def checkpoint_with_files() -> Checkpoint:
    """One that says how old the files of groups are."""
    found = checkpoint()
    found.tables[QUEUES] = (0, 9)
    found.files = {2: (9, True)}
    return found


def shared_checkpoint() -> Checkpoint:
    """One that names small tails in one file, and a table of groups."""
    found = checkpoint()
    found.tables["groups"] = (1, 148)
    found.tails = (5, 240)
    return found


def tails() -> list[Tail]:
    return [Tail(1, PLAIN_BASE, PLAIN_MESSAGES, 500), Tail(2, 7, PLAIN_MESSAGES[:1], 300)]


def _tails() -> bytes:
    return b"".join([buffer for buffers in encode_tails(tails(), GROUP_SEQ) for buffer in buffers])


def _block(base: int, messages: list[Message]) -> bytes:
    block = encode_block(base, messages)
    return block.header + block.body


def _record() -> bytes:
    block = encode_block(PLAIN_BASE, PLAIN_MESSAGES)
    return b"".join(encode_record(RECORD_SEQ, RECORD_SYNCED, RECORD_OPERATIONS, encode_runs(RECORD_RUNS), [block]))


def _record_of_blocks() -> bytes:
    blocks = [encode_block(0, PLAIN_MESSAGES), encode_block(0, PLAIN_MESSAGES[:1])]
    return b"".join(encode_record(RECORD_SEQ, RECORD_SYNCED, b"", encode_runs(BLOCK_RUNS), blocks))


def _segment() -> bytes:
    return encode_segment_header(SEGMENT_LOG_ID, PLAIN_BASE) + _block(PLAIN_BASE, PLAIN_MESSAGES)


def indexed_segment(directory: Path) -> Segment:
    """A segment of two blocks, the second of which has the earlier messages."""
    segment = Segment(segment_path(directory, PLAIN_BASE), PLAIN_BASE)
    segment.add(41, 43, 152, START_US + 250)
    segment.add(43, 47, 200, START_US + 100)
    return segment


def _index(directory: Path, suffix: str) -> bytes:
    segment = indexed_segment(directory)
    write_indexes(Disk(), segment)
    return segment.path.with_suffix(suffix).read_bytes()


def _table(directory: Path) -> bytes:
    table = Table(RETAINED)
    for key, value in TABLE_VALUES.items():
        table.put(key, value)
    first = table.write(directory, 1)
    table.generation, table.length = first.generation, first.length
    table.put(b"door", None)
    second = table.write(directory, 2)
    second.take(table.values, 2)
    return b"".join([*first.parts(), *second.parts()])


WRITTEN: dict[str, Callable[[Path], bytes]] = {
    "block-plain-v1": lambda _: _block(PLAIN_BASE, PLAIN_MESSAGES),
    "block-full-v1": lambda _: _block(FULL_BASE, FULL_MESSAGES),
    "record-v1": lambda _: _record(),
    "record-v2": lambda _: _record_of_blocks(),
    "operations-v1": lambda _: b"".join(OPERATIONS),
    "journal-header-v1": lambda _: encode_header(2, RECORD_SEQ),
    "newest-v1": lambda _: encode_newest(Newest("0003.jnl", 2, RECORD_SEQ, 16 << 20)),
    "segment-v1": lambda _: _segment(),
    "idx-v1": lambda directory: _index(directory, ".idx"),
    "tix-v1": lambda directory: _index(directory, ".tix"),
    "state-v1": lambda _: encode_progress("orders", GROUP_ID, group(), GROUP_SEQ),
    "pel-v1": lambda _: encode_pending(GROUP_ID, group(), GROUP_SEQ),
    "definitions-v1": lambda directory: b"".join(definitions().write(directory, 9).parts()),
    "table-v1": _table,
    "checkpoint-v1": lambda _: b"".join(encode_checkpoint(checkpoint())),
    "checkpoint-v1-files": lambda _: b"".join(encode_checkpoint(checkpoint_with_files())),
    "checkpoint-v2": lambda _: b"".join(encode_checkpoint(shared_checkpoint())),
    "tails-v1": lambda _: _tails(),
    "group-v1": lambda _: encode_state(group()),
}
"""Writer of each golden file, given a directory to work in."""


def golden(name: str) -> bytes:
    """The bytes of a golden file."""
    if (HERE / f"{name}.json").exists():
        return (HERE / f"{name}.json").read_bytes()
    return parse_hex((HERE / f"{name}.hex").read_text())


def documented(name: str) -> bytes:
    """The bytes of the example of that name in docs/formats/."""
    kind, text = example(f"golden {name}")
    return text.removesuffix("\n").encode() if kind == "json" else parse_hex(text)


def example(title: str) -> tuple[str, str]:
    """Language and text of the code block with this title in docs/formats/."""
    found: list[tuple[str, str]] = []
    for page in sorted(DOCS.glob("*.md")):
        found += re.findall(rf"^```(\w+) {re.escape(title)}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    assert len(found) == 1, f"docs/formats/ has {len(found)} examples titled {title!r}, one is needed"
    return found[0]


def parse_hex(text: str) -> bytes:
    """Bytes from lines of address and hex; the addresses must be right."""
    data = b""
    for line in text.splitlines():
        match = re.match(r"^([0-9a-f]{4})  ([0-9a-f]{2}(?: [0-9a-f]{2})*)(?: x (\d+))?(?:  .*)?$", line)
        assert match is not None, f"not a line of hex: {line!r}"
        assert int(match[1], 16) == len(data), f"{line!r} should stand at {len(data):04x}"
        data += bytes.fromhex(match[2]) * int(match[3] or 1)
    return data

"""Messages that come encoded are stored in one commit, in blocks as they came, and read like any others."""

from pathlib import Path

from headrace.model import Message
from headrace.storage.api import TRANSACTIONS, Commit
from headrace.storage.group_state import WORK
from headrace.storage.local.encoding import encode_block
from headrace.storage.local.engine import LocalEngine, LocalSettings
from headrace.storage.local.staging import EncodedBlock, encoded
from headrace.storage.memory import MemoryEngine
from tests.workbench import FULL, PLAIN, Bench, all_values, append_encoded, full_message, many, outcome, payloads, plain


def rows(messages: list[Message]) -> EncodedBlock:
    return encoded(encode_block(0, messages))


def test_encoded_messages_of_several_blocks_and_logs_are_one_commit(tmp_path: Path) -> None:
    first, second, other = many(300, "a "), many(2, "b "), [full_message()]
    with Bench(tmp_path) as bench:
        bench.store(lambda commit: commit.append("orders", many(5, "before ")))

        bench.store(
            lambda commit: append_encoded(commit, "orders", rows(first)),
            lambda commit: append_encoded(commit, "orders", rows(second)),
            lambda commit: append_encoded(commit, "other", rows(other)),
            lambda commit: commit.put(TRANSACTIONS, b"job", b"1"),
        )
        bench.store(lambda commit: commit.append("orders", many(5, "after ")))

        expected = all_values([*many(5, "before "), *first, *second, *many(5, "after ")])
        assert all_values(bench.engine.log("orders").read(0, 1000)) == expected
        assert all_values(bench.engine.log("other").read(0, 10)) == all_values(other)
        killed = bench.killed(tmp_path.with_name(f"{tmp_path.name}-killed"))

    for root in (tmp_path, killed):  # closed, and replayed from the journal
        engine = LocalEngine(root)
        assert all_values(engine.log("orders").read(0, 1000)) == expected
        assert all_values(engine.log("other").read(0, 10)) == all_values(other)
        assert engine.get(TRANSACTIONS, b"job") == b"1"
        engine.close()


def test_a_commit_larger_than_a_journal_file_is_stored_and_flushed(tmp_path: Path) -> None:
    blocks = [many(400, f"{number} ", 500) for number in range(10)]
    with Bench(tmp_path) as bench:
        bench.store(*[lambda commit, part=part: append_encoded(commit, "orders", rows(part)) for part in blocks])
        bench.until(lambda: bool(bench.segments()))

        assert payloads(bench.engine.log("orders").read(3990, 10)) == payloads(blocks[-1][390:])
    with Bench(tmp_path) as bench:
        found = bench.engine.log("orders").read(0, 10_000)
        assert payloads(found) == [message.payload for part in blocks for message in part]


def test_a_commit_of_encoded_and_plain_messages_keeps_both(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        bench.store(
            lambda commit: append_encoded(commit, "orders", rows(many(3))),
            lambda commit: commit.append("dead", plain(b"moved")),
            lambda commit: commit.create_group("orders", "g", WORK),
        )
    with Bench(tmp_path) as bench:
        assert payloads(bench.engine.log("dead").read(0, 5)) == [b"moved"]
        assert bench.engine.log("orders").next_offset == 3


def test_a_refused_commit_of_encoded_messages_leaves_nothing(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        error = outcome(
            bench.engine,
            lambda commit: append_encoded(commit, "orders", rows(many(3))),
            lambda commit: commit.append("bad", [Message(PLAIN, b"", 0, priority=999)]),
        )

        assert error is not None
        assert bench.engine.log("orders").next_offset == 0
        bench.store(lambda commit: append_encoded(commit, "orders", rows(many(2))))
        assert bench.engine.log("orders").next_offset == 2


def test_small_and_encoded_commits_that_wait_together_keep_their_order(tmp_path: Path) -> None:
    with Bench(tmp_path, LocalSettings()) as bench:
        told: list[object] = []
        for number in range(6):
            commit = Commit()
            if number % 2:
                append_encoded(commit, "orders", rows(many(300, f"{number} ")))
            else:
                commit.append("orders", many(1, f"{number} "))
            bench.engine.commit(commit, told.append)
        bench.engine.sync()

        assert told == [None] * 6
        expected = [m.payload for number in range(6) for m in many(300 if number % 2 else 1, f"{number} ")]
        assert payloads(bench.engine.log("orders").read(0, 2000)) == expected


def test_the_memory_engine_takes_encoded_messages_too() -> None:
    engine = MemoryEngine()
    commit = Commit()
    append_encoded(commit, "orders", rows(many(3)))
    engine.commit(commit, lambda error: None)
    engine.sync()

    assert payloads(engine.log("orders").read(0, 9)) == payloads(many(3))


def test_what_has_to_be_known_of_encoded_messages_is_known() -> None:
    made = rows([Message(PLAIN, b"12345", 1), full_message(2_000), Message(PLAIN, b"", 3)])

    assert (made.count, made.payload_bytes, made.largest_bytes, made.first_expiry_us) == (3, 9, 5, 2_060)
    assert [source.topic for source in made.sources()] == [PLAIN.topic, FULL.topic]
    assert list(made.source_index() or []) == [0, 1, 0]
    assert rows(many(2)).source_index() is None


def test_a_time_to_live_is_added_where_it_ends_first() -> None:
    messages = [
        Message(PLAIN, b"a", 1),
        Message(PLAIN, b"b", 1, expires_us=1_050),
        Message(PLAIN, b"c", 1, expires_us=9_000),
        Message(PLAIN, b"d", 1, not_before_us=2_000),
    ]

    made = rows(messages).expiring(100, 1_000)

    assert [message.expires_us for message in made.messages(0, 4)] == [1_100, 1_050, 1_100, 2_100]
    assert payloads(made.messages(0, 4)) == [b"a", b"b", b"c", b"d"]
    assert made.first_expiry_us == 1_050
    alone = rows(messages).expiring(100, 1_000, keeps_earlier=False)
    assert [message.expires_us for message in alone.messages(0, 4)] == [1_100, 1_100, 1_100, 2_100]
    plainly = rows(many(3)).expiring(100, 1_000)
    assert [message.expires_us for message in plainly.messages(0, 3)] == [1_100] * 3


def test_some_rows_can_be_taken() -> None:
    made = rows([*many(3), full_message()]).take([1, 3])

    assert all_values(made.messages(0, 2)) == all_values([many(3)[1], full_message()])

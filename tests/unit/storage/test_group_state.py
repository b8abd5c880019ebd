"""A group's progress: what claims, acks, requeues, seeks and commits do to cursor, pending list and committed."""

from headrace.storage.group_state import (
    ACKED,
    CLAIMED,
    COMMITTED,
    CURSOR,
    DEAD,
    REQUEUED,
    STREAM,
    WORK,
    GroupState,
    Pending,
    Transition,
)


def _group(start: int = 0) -> GroupState:
    return GroupState("billing", WORK, "", start)


def _step(state: GroupState, kind: int, start: int, stop: int = 0, due_us: int = 0, consumer: str = "") -> None:
    state.apply(Transition(kind, "orders", "billing", start, stop, due_us, consumer))


def _progress(state: GroupState) -> tuple[int, list[int], int]:
    return state.cursor, sorted(state.pending), state.committed


def test_the_worked_example_of_a_classic_group() -> None:
    """A log with offsets 0..5; cursor, pending list and committed after each event."""
    state = _group()
    seen = [_progress(state)]

    for kind, start, stop in [(CLAIMED, 0, 2), (ACKED, 0, 1), (ACKED, 1, 2)]:
        _step(state, kind, start, stop, consumer="c1")
        seen.append(_progress(state))

    assert seen == [
        (0, [], 0),  # the group starts
        (2, [0, 1], 0),  # it claims offsets 0 and 1
        (2, [1], 1),  # it acks offset 0
        (2, [], 2),  # it acks offset 1
    ]


def test_a_group_starts_where_it_is_told() -> None:
    assert _progress(_group(7)) == (7, [], 7)


def test_a_claim_notes_who_holds_the_message_until_when_and_how_often_it_was_given() -> None:
    state = _group()

    _step(state, CLAIMED, 0, 1, due_us=30, consumer="c1")

    assert state.pending == {0: Pending(1, 30, "c1")}


def test_claiming_again_counts_another_attempt() -> None:
    state = _group()
    _step(state, CLAIMED, 0, 1, due_us=30, consumer="c1")

    _step(state, CLAIMED, 0, 1, due_us=60, consumer="c2")

    assert state.pending == {0: Pending(2, 60, "c2")}


def test_claiming_what_was_given_back_does_not_move_the_cursor_back() -> None:
    state = _group()
    _step(state, CLAIMED, 0, 5)

    _step(state, CLAIMED, 1, 2)

    assert state.cursor == 5


def test_an_ack_out_of_order_waits_for_those_below() -> None:
    state = _group()
    _step(state, CLAIMED, 0, 4)

    _step(state, ACKED, 2, 3)

    assert _progress(state) == (4, [0, 1, 3], 0)
    assert list(state.settled) == [(2, 3)]


def test_committed_steps_over_what_was_acked_out_of_order() -> None:
    state = _group()
    _step(state, CLAIMED, 0, 4)
    _step(state, ACKED, 1, 2)
    _step(state, ACKED, 2, 3)

    _step(state, ACKED, 0, 1)

    assert _progress(state) == (4, [3], 3)
    assert list(state.settled) == []


def test_acks_in_reverse_order_keep_one_range() -> None:
    state = _group()
    _step(state, CLAIMED, 0, 1000)

    for offset in range(999, 0, -1):
        _step(state, ACKED, offset, offset + 1)

    assert list(state.settled) == [(1, 1000)]


def test_an_ack_that_comes_twice_changes_nothing() -> None:
    state = _group()
    _step(state, CLAIMED, 0, 3)
    _step(state, ACKED, 0, 2)

    _step(state, ACKED, 0, 1)

    assert _progress(state) == (3, [2], 2)


def test_an_ack_that_overlaps_committed_counts_from_there() -> None:
    state = _group()
    _step(state, CLAIMED, 0, 6)
    _step(state, ACKED, 0, 2)

    _step(state, ACKED, 1, 4)

    assert _progress(state) == (6, [4, 5], 4)


def test_an_ack_ahead_of_the_cursor_takes_the_cursor_along() -> None:
    state = _group()

    _step(state, ACKED, 0, 3)

    assert _progress(state) == (3, [], 3)


def test_a_dead_message_is_settled_as_an_acked_one_is() -> None:
    state = _group()
    _step(state, CLAIMED, 0, 2)

    _step(state, DEAD, 0, 1)

    assert _progress(state) == (2, [1], 1)


def test_a_requeue_keeps_the_attempts_and_names_nobody() -> None:
    state = _group()
    _step(state, CLAIMED, 0, 1, due_us=30, consumer="c1")
    _step(state, CLAIMED, 0, 1, due_us=60, consumer="c2")

    _step(state, REQUEUED, 0, 1, due_us=90)

    assert state.pending == {0: Pending(2, 90, "")}


def test_the_attempt_after_a_requeue_counts_on() -> None:
    state = _group()
    _step(state, CLAIMED, 0, 1, due_us=30, consumer="c1")
    _step(state, REQUEUED, 0, 1, due_us=90)

    _step(state, CLAIMED, 0, 1, due_us=120, consumer="c2")

    assert state.pending == {0: Pending(2, 120, "c2")}


def test_a_requeue_moves_neither_cursor_nor_committed() -> None:
    state = _group()
    _step(state, CLAIMED, 0, 3)

    _step(state, REQUEUED, 0, 1)

    assert (state.cursor, state.committed) == (3, 0)


def test_seeking_forward_leaves_committed_and_pending() -> None:
    state = _group()
    _step(state, CLAIMED, 0, 2)

    _step(state, CURSOR, 9)

    assert _progress(state) == (9, [0, 1], 0)


def test_seeking_back_above_committed_keeps_what_was_settled() -> None:
    state = _group()
    _step(state, CLAIMED, 0, 6)
    _step(state, ACKED, 4, 5)

    _step(state, CURSOR, 2)

    assert (state.cursor, state.committed, list(state.settled)) == (2, 0, [(4, 5)])


def test_seeking_below_committed_moves_that_back_and_forgets_what_was_settled_above() -> None:
    state = _group()
    _step(state, CLAIMED, 0, 6)
    _step(state, ACKED, 0, 3)
    _step(state, ACKED, 4, 5)

    _step(state, CURSOR, 1)

    assert (state.cursor, state.committed, list(state.settled)) == (1, 1, [])


def test_committing_an_offset_settles_everything_below_it() -> None:
    state = _group()
    _step(state, CLAIMED, 0, 6)

    _step(state, COMMITTED, 4)

    assert _progress(state) == (6, [4, 5], 4)


def test_committing_up_to_a_settled_range_steps_over_it() -> None:
    state = _group()
    _step(state, CLAIMED, 0, 9)
    _step(state, ACKED, 2, 3)
    _step(state, ACKED, 4, 7)

    _step(state, COMMITTED, 4)

    assert (state.committed, list(state.settled)) == (7, [])


def test_committing_ahead_of_the_cursor_takes_the_cursor_along() -> None:
    state = GroupState("audit", STREAM, "orders/#", 0)

    _step(state, COMMITTED, 4)

    assert _progress(state) == (4, [], 4)


def test_progress_and_pending_are_independent_of_each_other() -> None:
    """Each is stored in a file of its own, and may be replayed from another commit on."""
    steps = [(CLAIMED, 0, 6), (ACKED, 2, 3), (REQUEUED, 4, 5), (ACKED, 0, 1), (COMMITTED, 2, 0), (CLAIMED, 4, 5)]
    whole, progress, pending = _group(), _group(), _group()

    for kind, start, stop in steps:
        _step(whole, kind, start, stop)
        progress.apply_progress(Transition(kind, "orders", "billing", start, stop))
        pending.apply_pending(Transition(kind, "orders", "billing", start, stop))

    assert (progress.cursor, progress.committed, list(progress.settled)) == (
        whole.cursor,
        whole.committed,
        list(whole.settled),
    )
    assert pending.pending == whole.pending

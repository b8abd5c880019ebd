"""The progress of `headrace pipeline`: a line at least every two seconds, with an injected clock."""

from headrace.cli.pipeline import IDLE_SECONDS, REPORT_SECONDS, Board
from headrace.clock import ManualClock
from headrace.spark.pipelines.run import WAITING, Progress


def ticked(board: Board, clock: ManualClock, lines: list[str], seconds: float) -> list[str]:
    """Return the lines that a board says meanwhile."""
    before = len(lines)
    for _ in range(round(seconds * 4)):
        clock.advance(0.25)
        board.tick()
    return lines[before:]


def test_a_line_comes_at_least_every_two_seconds_also_within_a_call_of_spark() -> None:
    clock, lines = ManualClock(), list[str]()
    board = Board(clock, lines.append)

    starting = ticked(board, clock, lines, 6)
    board.watch(lambda: "3 of 8 tasks")
    preparing = ticked(board, clock, lines, 2)
    board.tell(Progress("compact", 1000, 0, 1.0, phase="reading"))
    reading = ticked(board, clock, lines, 4)
    board.tell(Progress("compact", 1000, 0, 5.0, phase="storing"))
    board.close()

    assert REPORT_SECONDS < 2
    assert starting == [f"starting Spark: {seconds} s" for seconds in (1.5, 3.0, 4.5, 6.0)]
    assert preparing == ["preparing: 7.5 s; 3 of 8 tasks"]
    assert reading == [
        "compact: 1,000 messages in 2.0 s, 500/s; reading, 3 of 8 tasks",
        "compact: 1,000 messages in 3.5 s, 286/s; reading, 3 of 8 tasks",
        "compact: 1,000 messages in 5.0 s, 200/s; reading, 3 of 8 tasks",
    ]
    assert lines[-1] == "compact: 1,000 messages in 5.0 s, 200/s"


def test_pipelines_that_all_wait_say_so_once_a_minute() -> None:
    clock, lines = ManualClock(), list[str]()
    board = Board(clock, lines.append)
    board.tell(Progress("nightly", 0, 0, 0.0, note="waits until 02:30 UTC"))
    board.tell(Progress("alerts", 5, 1, 0.0, 0, phase=WAITING))

    idle = ticked(board, clock, lines, 2 * IDLE_SECONDS)
    board.tell(Progress("alerts", 5, 1, 0.0, 90, phase="processing"))
    busy = ticked(board, clock, lines, 2)

    assert len(idle) == 4
    assert idle[1] == f"alerts: 5 messages in 60.0 s, 0/s, 0 behind; {WAITING}"
    assert busy == [
        "nightly: 0 messages in 121.5 s, 0/s; waits until 02:30 UTC",
        "alerts: 5 messages in 1.5 s, 3/s, 90 behind; processing",
    ]

"""Figures made of results: medians, ratios round by round, and rows that failed or cannot be, which are no figures."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from bench.compare.comparison import entries, ours_of, ratio
from bench.compare.histogram import Histogram
from bench.compare.plot import draw_comparison, draw_scale
from bench.compare.record import make_record
from bench.compare.result import Result
from bench.compare.table import comparison_table, remarks, scale_table
from rich.console import Console

ROW = Result("s", "r", "end to end", "headrace", "amqp", 1, "ok", rate=100.0, server_us=2.0, memory_after=1 << 20)
PEER = replace(ROW, broker="rabbitmq", rate=20.0, server_us=10.0, memory_after=1 << 22)


def shown(results: list[Result]) -> str:
    output = io.StringIO()
    Console(file=output, width=200, no_color=True).print(comparison_table(results), *remarks(results))
    return output.getvalue()


def test_ratios_are_of_figures_of_the_same_round() -> None:
    results = [
        ROW,
        PEER,
        replace(ROW, round=2, rate=300.0),
        replace(PEER, round=2, rate=150.0),
        replace(ROW, round=3, rate=90.0),
        replace(PEER, round=3, rate=30.0),
    ]
    ours, peer = entries(results)

    assert ratio(ours, peer, "rate") == pytest.approx(3.0)
    assert ratio(ours, peer, "cpu") == pytest.approx(0.2)
    assert ours.median("rate") == 100.0


def test_a_failed_row_is_shown_as_failed_and_not_as_a_figure() -> None:
    results = [ROW, replace(PEER, verdict="failed", why="3 missing within the sequence")]

    text = shown(results)

    assert "rabbitmq failed 1 of 1 times at r: 3 missing within the sequence" in text
    assert "20/s" not in text
    assert ratio(ours_of(entries(results), "r"), entries(results)[1], "rate") is None


def test_what_a_peer_cannot_do_is_shown_as_such() -> None:
    text = shown([ROW, Result("s", "r", "end to end", "nats", "", 1, "unsupported", "it grants QoS 1")])

    assert "nats cannot: it grants QoS 1 (r)" in text
    assert "0/s" not in text.replace("100/s", "")


def test_it_is_told_when_the_generator_was_the_limit() -> None:
    assert "the generator was the limit" in shown([replace(ROW, is_generator_bound=True)])
    assert "the generator was the limit" not in shown([ROW])


def test_all_columns_fit_into_a_small_terminal() -> None:
    slow = {"p50": 23_456.0, "p99": 123_456.0}
    results = [replace(each, rate=123456.0, server_us=123.4, latency_us=slow) for each in (ROW, PEER)]
    output = io.StringIO()

    Console(file=output, width=80).print(comparison_table(results))

    assert max(len(line) for line in output.getvalue().splitlines()) <= 80
    for words in ("123.5 k/s", "123.4 us", "23.5 ms", "123.5 ms", "4 MiB", "rabbitmq", "0.25x"):
        assert words in output.getvalue()


def test_it_is_told_when_other_programs_were_busy() -> None:
    assert "other programs used up to 0.8 cores" in shown([replace(ROW, other_cores=0.8), PEER])
    assert "other programs" not in shown([replace(ROW, other_cores=0.1), PEER])


def test_the_record_has_every_result_and_the_machine() -> None:
    record = make_record([ROW, PEER], {"headrace": "1", "rabbitmq": "3.10"}, {"rounds": 1})

    assert [each["broker"] for each in record["results"]] == ["headrace", "rabbitmq"]
    assert record["ratios"][0]["rate"] == pytest.approx(5.0)
    assert record["machine"]["cores"] >= 1
    assert {"date", "kernel", "python", "compiled", "file_system"} <= set(record["machine"])
    assert record["brokers"]["rabbitmq"] == "3.10"


def test_ratios_are_drawn_where_there_are_any(tmp_path: Path) -> None:
    assert [file.suffix for file in draw_comparison([ROW, PEER], tmp_path / "results")] == [".svg", ".png"]
    assert "rabbitmq" in (tmp_path / "results.svg").read_text()
    assert (tmp_path / "results.png").stat().st_size > 1000
    assert draw_comparison([ROW], tmp_path / "alone") == []


def test_growth_is_shown_and_drawn_from_the_first_point(tmp_path: Path) -> None:
    points = [
        replace(ROW, row=f"scale-backlog-{size}", title=f"{size} backlog", axis="backlog", point=size, server_us=cost)
        for size, cost in ((0, 4.0), (1000, 5.0))
    ]
    output = io.StringIO()

    Console(file=output, width=200).print(scale_table(points))

    assert "1.25x" in output.getvalue()
    assert [file.suffix for file in draw_scale(points, tmp_path / "scale")] == [".svg", ".png"]


def test_percentiles_are_within_two_percent() -> None:
    histogram = Histogram()
    for duration in range(1, 10_001):
        histogram.add(duration)

    found = histogram.percentiles()

    assert found["p50"] == pytest.approx(5000, rel=0.02)
    assert found["p99"] == pytest.approx(9900, rel=0.02)
    assert Histogram().percentiles() == {}

"""The page that a run leaves: a line for each row, a column for each broker, and what could not be measured."""

from bench.compare.markdown import page
from bench.compare.result import NOT_SPOKEN, Result, Verdict

RECORD = {
    "machine": {
        "date": "2026-11-18T17:00:00+00:00",
        "cores": 2,
        "processor": "some processor",
        "kernel": "6.1",
        "python": "3.11.7",
        "compiled": True,
        "file_system": "ext4",
    },
    "brokers": {"headrace": "0.1.0", "rabbitmq": "3.10.8"},
    "settings": {"rounds": 1, "seconds": 5.0},
}


def result(broker: str, rate: float, cpu: float, verdict: Verdict = "ok", why: str = "", row: str = "mixed") -> Result:
    found = Result("s", row, f"the {row} row", broker, "amqp", 1, verdict, why)
    found.rate, found.server_us = rate, cpu
    found.latency_us = {"p50": 1500.0, "p99": 20.0}
    return found


def test_a_row_has_each_brokers_figures_and_ratios() -> None:
    text = page([result("headrace", 50_000.0, 10.0), result("rabbitmq", 10_000.0, 40.0)], RECORD, "bench --seconds 5")

    assert text.startswith("# 2026-11-18\n\n`bench --seconds 5`: medians of 1 interleaved rounds of 5 s")
    assert "| what | headrace | rabbitmq |\n|---|---|---|\n" in text
    ours, theirs = "50.0 k/s, 10.0 us, 1.5 ms / 20 us", "10.0 k/s, 40.0 us, 1.5 ms / 20 us (5.00, 0.25)"
    assert f"| the mixed row | {ours} | {theirs} |\n" in text


def test_what_a_broker_cannot_do_or_does_wrong_is_no_figure() -> None:
    text = page(
        [
            result("headrace", 50_000.0, 10.0),
            result("rabbitmq", 1.0, 1.0, "failed", "2 missing"),
            result("mosquitto", 1.0, 1.0, "unsupported", NOT_SPOKEN),
            result("nats", 1.0, 1.0, "unsupported", "no such thing"),
        ],
        RECORD,
        "bench",
    )

    assert "| failed |  | cannot |\n" in text
    assert "- rabbitmq failed 1 of 1 times at mixed: 2 missing\n" in text


def test_lost_headers_are_a_remark() -> None:
    lossy = result("fluxmq", 30_000.0, 38.0)
    lossy.stripped = 1200

    text = page([result("headrace", 50_000.0, 10.0), lossy], RECORD, "bench")

    assert "- fluxmq lost ids or headers of 1,200 messages at mixed\n" in text

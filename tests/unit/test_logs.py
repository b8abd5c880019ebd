"""The log: one line per event in both forms, whatever is said."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from headrace import logs


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    for handler in list(root.handlers):
        root.removeHandler(handler)
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)


def _said(form: str, level: str = "info") -> tuple[io.StringIO, logging.Logger]:
    stream = io.StringIO()
    logs.set_up(level, form, stream)
    return stream, logging.getLogger("headrace.net")


def _raised() -> ValueError:
    try:
        int("two\nlines")
    except ValueError as error:
        return error
    raise AssertionError


def test_a_line_of_text_has_time_level_room_sentence_and_what_it_is_about() -> None:
    stream, log = _said("text")

    log.warning("the connection is ended", extra={"connection": "a -> b", "user": "guest", "queue": ""})

    time, rest = stream.getvalue().split(" ", 1)
    assert time.endswith("Z")
    assert rest == 'WARNING  net the connection is ended connection="a -> b" user=guest\n'


def test_an_event_of_json_is_an_object_on_a_line() -> None:
    stream, log = _said("json")

    log.info("it's %s", "there", extra={"queue": "ord\ners", "vhost": "/"})

    event = json.loads(stream.getvalue())
    assert stream.getvalue().count("\n") == 1
    assert (event["level"], event["room"], event["message"]) == ("info", "net", "it's there")
    assert (event["queue"], event["vhost"]) == ("ord\ners", "/")


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_a_client_said_and_tracebacks_break_no_line(form: str) -> None:
    stream, log = _said(form)

    log.error("a client said %s", "x\r\n2026 INFO forged", extra={"user": "a\nb"}, exc_info=_raised())

    assert len(stream.getvalue().splitlines()) == 1
    assert "Traceback" in stream.getvalue()


def test_a_terminal_gets_colours_and_whole_tracebacks() -> None:
    error = _raised()
    record = logging.LogRecord(
        "headrace", logging.ERROR, "", 0, "failed", (), (type(error), error, error.__traceback__)
    )

    text = logs.TextLines(is_terminal=True).format(record)

    assert text.startswith("\033[31m")
    assert "\nTraceback" in text


def test_what_is_below_the_level_is_not_said_and_the_level_can_change() -> None:
    stream, log = _said("text", "warning")
    log.info("quiet")
    assert stream.getvalue() == ""

    logs.set_up("debug", "text", stream)
    log.debug("loud")

    assert "loud" in stream.getvalue()

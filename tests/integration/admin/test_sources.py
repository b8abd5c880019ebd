"""Queues that are filled from streams, declared and looked at from everywhere: commands, HTTP, AMQP, metrics."""

import subprocess

import httpx
import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from headrace.cli.client import EXIT_NOT_FOUND
from tests.commands import headrace
from tests.integration.admin.test_metrics import scraped, value
from tests.servers import Server, drain
from tests.waiting import eventually


def command(server: Server, *arguments: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
    """Run `headrace` as people do."""
    result = headrace(*arguments, "--url", server.http_url)
    assert result.returncode == code, result.stdout + result.stderr
    return result


@pytest.fixture
def papers(server: Server, http: httpx.Client, name: str) -> str:
    """A stream with three messages."""
    stream = f"{name}-papers"
    channel = server.connect().channel()
    channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
    channel.confirm_delivery()
    for number, kind in enumerate(("invoice", "letter", "invoice")):
        about = pika.BasicProperties(delivery_mode=2, headers={"type": kind, "amount": 60 * (number + 1)})
        channel.basic_publish("", stream, b"%d" % number, about)
    return stream


def said(http: httpx.Client, queue: str) -> dict[str, object]:
    """What HTTP says of a queue's source, once it has caught up."""
    found: dict[str, object] = {}

    def has_caught_up() -> bool:
        found.update(http.get(f"/api/v1/queues/%2F/{queue}").json()["source"])
        return found["state"] == "following"

    eventually(has_caught_up)
    return found


def test_a_command_declares_it_and_shows_how_far_it_is(
    server: Server, http: httpx.Client, papers: str, name: str
) -> None:
    command(server, "queues", "declare", name, "--filter", "type = 'invoice' AND amount > 100", "--source", papers)

    assert said(http, name) == {
        "queue": papers, "state": "following", "offset": 3, "lag": 0, "missed": 0, "oversized": 0,
    }  # fmt: skip
    shown = command(server, "queues", "show", name).stdout
    assert f"{papers} (following)" in shown
    assert "type = 'invoice' AND amount > 100" in shown
    assert drain(server.connect().channel(), name, 1) == [b"2"]
    assert value(scraped(http), "headrace_queue_source_offset", queue=name, source=papers) == 3
    assert value(scraped(http), "headrace_queue_source_lag", queue=name, source=papers) == 0
    assert value(scraped(http), "headrace_queue_source_missed", queue=name, source=papers) == 0


def test_http_declares_it_by_keys_and_from_where(http: httpx.Client, server: Server, papers: str, name: str) -> None:
    answer = http.put(f"/api/v1/queues/%2F/{name}", json={"source": papers, "source_from": 1})

    assert answer.status_code == 201, answer.text
    assert said(http, name)["offset"] == 3
    assert drain(server.connect().channel(), name, 2) == [b"1", b"2"]
    assert http.get(f"/api/v1/queues/%2F/{papers}").json()["source"] is None


def test_amqp_declares_it_by_arguments_and_a_second_declaration_must_say_the_same(
    http: httpx.Client, server: Server, papers: str, name: str
) -> None:
    arguments = {"x-filter": "type = 'letter'", "x-source": papers, "x-source-from": "earliest"}
    channel = server.connect().channel()
    channel.queue_declare(name, durable=True, arguments=arguments)
    channel.queue_declare(name, durable=True, arguments=arguments)

    assert drain(channel, name, 1) == [b"1"]
    with pytest.raises(ChannelClosedByBroker, match="x-source"):
        channel.queue_declare(name, durable=True, arguments={"x-filter": "type = 'letter'"})


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ({"x-source": "nothing"}, 404, "no queue 'nothing' from which queue"),
        ({"x-source-from": "latest"}, 406, "'x-source' is missing"),
        ({"x-source": "{papers}", "x-source-from": "soon"}, 406, "'soon'"),
        ({"x-source": "{name}"}, 406, "from itself"),
    ],
)
def test_amqp_refuses_what_makes_no_sense(
    server: Server, papers: str, name: str, arguments: dict[str, str], code: int, words: str
) -> None:
    filled = {key: text.format(papers=papers, name=name) for key, text in arguments.items()}
    with pytest.raises(ChannelClosedByBroker, match=words) as refusal:
        server.connect().channel().queue_declare(name, durable=True, arguments=filled)
    assert refusal.value.reply_code == code


def test_a_command_says_why_it_is_refused(server: Server, papers: str, name: str) -> None:
    result = command(server, "queues", "declare", name, "--source", "nothing", code=EXIT_NOT_FOUND)
    assert "no queue 'nothing' from which queue" in result.stderr


def test_whoever_may_not_read_the_source_may_not_have_a_queue_filled_from_it(
    http: httpx.Client, server: Server, papers: str, name: str
) -> None:
    http.put("/api/users/clerk", json={"password": "secret", "tags": ""}).raise_for_status()
    patterns = {"configure": ".*", "write": ".*", "read": "^own"}
    http.put("/api/permissions/%2F/clerk", json=patterns).raise_for_status()
    clerk = pika.PlainCredentials("clerk", "secret")

    channel = server.connect(credentials=clerk).channel()
    with pytest.raises(ChannelClosedByBroker, match=f"read access to queue '{papers}'") as refusal:
        channel.queue_declare(name, durable=True, arguments={"x-source": papers})
    assert refusal.value.reply_code == 403


def test_definitions_bring_a_queue_in_that_stands_before_its_source(http: httpx.Client, name: str) -> None:
    first, second = f"a-{name}", f"z-{name}"
    queues = [
        {"name": first, "vhost": "/", "durable": True, "arguments": {"x-source": second}},
        {"name": second, "vhost": "/", "durable": True, "arguments": {"x-queue-type": "stream"}},
    ]
    answer = http.post("/api/definitions", json={"queues": queues})
    assert answer.status_code == 204, answer.text
    assert said(http, first)["queue"] == second

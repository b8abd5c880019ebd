"""`POST /publish`, seen from both ends: the program that publishes over HTTP and the consumer that gets it."""

import base64

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.servers import Server, drain


def encoded(payload: bytes) -> str:
    return base64.b64encode(payload).decode()


def test_a_message_to_a_queue_is_there_when_the_answer_is(server: Server, http: httpx.Client, name: str) -> None:
    channel = server.connect().channel()
    channel.queue_declare(name, durable=True)

    answer = http.post("/publish", json={"topic": f"$queue/{name}/eu", "payload": encoded(b"\0\xff"), "qos": 1})

    assert (answer.status_code, answer.json()) == (200, {"status": "ok", "receivers": 1})
    assert drain(channel, name, 1) == [b"\0\xff"]


def test_what_is_said_about_a_message_reaches_its_consumer(server: Server, http: httpx.Client, name: str) -> None:
    channel = server.connect().channel()
    channel.queue_declare(name, durable=True)
    body = {
        "topic": f"$queue/{name}",
        "payload": "grün",
        "payload_encoding": "string",
        "qos": 2,
        "expiry_seconds": 60,
        "content_type": "text/plain",
        "correlation_id": "c1",
        "reply_to": "answers",
        "headers": {"n": 7, "ok": True, "word": "w"},
        "vhost": "/",
    }

    assert http.post("/publish", json=body).status_code == 200

    method, properties, payload = next(channel.consume(name, inactivity_timeout=60))
    assert payload == "grün".encode()
    assert properties is not None
    assert (properties.content_type, properties.correlation_id, properties.reply_to) == ("text/plain", "c1", "answers")
    assert (properties.headers["n"], properties.headers["ok"], properties.headers["word"]) == (7, True, "w")
    assert method is not None
    channel.basic_ack(method.delivery_tag)


def test_a_plain_topic_goes_through_the_topic_exchange(server: Server, http: httpx.Client, name: str) -> None:
    channel = server.connect().channel()
    channel.queue_declare(name, durable=True)
    channel.queue_bind(name, "amq.topic", f"{name}.*")

    answer = http.post("/publish", json={"topic": f"{name}/1", "payload": encoded(b"hi")})

    assert answer.json()["receivers"] == 1
    assert drain(channel, name, 1) == [b"hi"]


def test_a_message_for_nobody_is_no_error(http: httpx.Client, name: str) -> None:
    answer = http.post("/publish", json={"topic": f"{name}/1", "qos": 1})

    assert (answer.status_code, answer.json()["receivers"]) == (200, 0)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"payload": ""}, 400, '"topic" is missing'),
        ({"topic": 7}, 400, '"topic" must be a string'),
        ({"topic": "a/+"}, 400, "wildcard"),
        ({"topic": "a", "payload": "!"}, 400, "not base64"),
        ({"topic": "a", "payload": 7}, 400, '"payload" must be a string'),
        ({"topic": "a", "payload_encoding": "hex"}, 400, "payload_encoding"),
        ({"topic": "a", "qos": 3}, 400, '"qos" must be a number from 0 to 2'),
        ({"topic": "a", "qos": True}, 400, '"qos"'),
        ({"topic": "a", "retain": 1}, 400, '"retain" must be true or false'),
        ({"topic": "a", "expiry_seconds": -1}, 400, '"expiry_seconds"'),
        ({"topic": "a", "headers": []}, 400, '"headers"'),
        ({"topic": "a", "header": {}}, 400, "there is no 'header'"),
        ({"topic": "$SYS/broker/version"}, 403, "the server's"),
        ({"topic": "$queue/orders/$ack"}, 400, "verb"),
        ({"topic": "$queue/"}, 400, "names no queue"),
        ({"topic": "a", "vhost": "elsewhere"}, 404, "elsewhere"),
        ([], 400, "object"),
    ],
)
def test_what_cannot_be_published_is_told_so(http: httpx.Client, body: object, status: int, words: str) -> None:
    answer = http.post("/publish", json=body)

    assert answer.status_code == status
    assert words in answer.json()["reason"]


@pytest.mark.parametrize("member", ['"topic"', '"content_type"', '"payload"', '"headers"'])
def test_half_of_a_character_is_refused(http: httpx.Client, member: str) -> None:
    value = '{"h": "\\ud800"}' if member == '"headers"' else '"\\ud800"'
    text = f'{{"topic": "a", "payload_encoding": "string", {member}: {value}}}'

    answer = http.post("/publish", content=text)

    assert (answer.status_code, "Unicode" in answer.json()["reason"]) == (400, True)


def test_nobody_publishes_without_a_login(server: Server) -> None:
    assert httpx.post(f"{server.http_url}/publish", json={"topic": "a"}, timeout=60, verify=False).status_code == 401
    wrong = httpx.post(
        f"{server.http_url}/publish", json={"topic": "a"}, auth=("guest", "no"), timeout=60, verify=False
    )
    assert wrong.status_code == 401


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_members = st.sampled_from(
    ["topic", "payload", "payload_encoding", "qos", "retain", "expiry_seconds", "headers", "content_type", "vhost", "x"]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(_members, _values, max_size=5) | _values, st.booleans())
def test_any_body_is_published_or_refused(http: httpx.Client, body: object, has_topic: bool) -> None:
    if has_topic and isinstance(body, dict):
        body = {**body, "topic": "fuzz/a"}

    assert http.post("/publish", json=body).status_code in (200, 400, 403, 404)

"""The API under /api/v1, over real HTTP: what the command line and the dashboard do."""

import base64
import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from proton import ConnectionException
from proton.utils import BlockingConnection

from tests.paho_helpers import Paho
from tests.servers import Server


@pytest.fixture
def api(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=f"{server.http_url}/api/v1", auth=("guest", "guest"), timeout=30, verify=False
    ) as client:
        yield client


def declare(api: httpx.Client, name: str, **body: object) -> None:
    answer = api.put(f"/queues/%2F/{quote(name, safe='')}", json=body)
    assert answer.status_code == 201, answer.text


def publish(api: httpx.Client, key: str, *payloads: str, **body: object) -> None:
    for payload in payloads:
        answer = api.post("/publish/%2F", json={"routing_key": key, "payload": payload, **body})
        assert answer.json() == {"queues": 1}, answer.text


def consume(api: httpx.Client, name: str, **body: object) -> list[dict[str, Any]]:
    answer = api.post(f"/queues/%2F/{name}/consume", json=body)
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def payloads(items: list[dict[str, Any]]) -> list[str]:
    return [item["payload"] for item in items]


# -- queues


def test_a_queue_is_declared_shown_listed_and_deleted(api: httpx.Client, name: str) -> None:
    declare(api, name, arguments={"x-max-length": 5})

    shown = api.get(f"/queues/%2F/{name}").json()
    listed = api.get("/queues", params={"search": name}).json()
    deleted = api.delete(f"/queues/%2F/{name}")

    assert (shown["type"], shown["arguments"], shown["state"]) == ("classic", {"x-max-length": 5}, "running")
    assert shown["definition"]["max_length"] == 5
    assert [queue["name"] for queue in listed["items"]] == [name]
    assert deleted.json() == {"messages": 0}
    assert api.get(f"/queues/%2F/{name}").status_code == 404


def test_a_name_may_have_slashes_and_spaces(api: httpx.Client) -> None:
    declare(api, "a/b c%2F")

    assert api.get(f"/queues/%2F/{quote('a/b c%2F', safe='')}").json()["name"] == "a/b c%2F"


def test_the_keys_of_the_configuration_file_declare_a_queue_too(api: httpx.Client, name: str) -> None:
    declare(api, name, type="stream", retention={"max_age": "7d"})

    definition = api.get(f"/queues/%2F/{name}").json()["definition"]

    assert definition["kind"] == "stream"
    assert definition["retention"]["max_age_ms"] == 7 * 86_400_000


def test_declaring_again_otherwise_is_a_conflict_that_says_how(api: httpx.Client, name: str) -> None:
    declare(api, name, arguments={"x-max-length": 5})

    answer = api.put(f"/queues/%2F/{name}", json={"arguments": {"x-max-length": 6}})

    assert answer.status_code == 409
    assert "x-max-length" in answer.json()["reason"]


def test_a_queue_that_is_there_and_differs_is_a_conflict_and_stays_as_it_is(api: httpx.Client, name: str) -> None:
    declare(api, name, limits={"max_depth": 5}, retry={"max_retries": 2})

    other = api.put(f"/queues/%2F/{name}", json={"limits": {"max_depth": 6}})
    same = api.put(f"/queues/%2F/{name}", json={"limits": {"max_depth": 5}})
    bare = api.put(f"/queues/%2F/{name}", json={})

    assert other.status_code == 409
    assert "differs in max_length" in other.json()["reason"]
    assert (same.status_code, bare.status_code) == (200, 200)
    assert api.get(f"/queues/%2F/{name}").json()["definition"]["max_length"] == 5


def test_a_message_names_its_user_or_nobody_unless_the_user_may_impersonate(api: httpx.Client, name: str) -> None:
    declare(api, name)
    api.put(f"/users/{name}", json={"password": name, "tags": ["monitoring"]})
    api.put(f"/permissions/%2F/{name}", json={"configure": "", "write": ".*", "read": ""})

    def status(signed: str) -> int:
        body = {"routing_key": name, "payload": "x", "properties": {"user_id": signed}}
        return api.post("/publish/%2F", json=body, auth=(name, name)).status_code

    assert (status(name), status("guest")) == (200, 409)
    api.put(f"/users/{name}", json={"tags": ["monitoring", "impersonator"]})
    assert status("guest") == 200


def test_a_queue_is_changed_when_asked_to(api: httpx.Client, name: str) -> None:
    declare(api, name, limits={"max_depth": 5}, retry={"max_retries": 2})
    publish(api, name, "stays")
    change = {"limits": {"max_depth": 1}, "history": "1h", "description": "what comes in"}

    answer = api.put(f"/queues/%2F/{name}?update=true", json=change)

    definition = api.get(f"/queues/%2F/{name}").json()["definition"]
    assert answer.status_code == 200
    assert (definition["max_length"], definition["history_ms"], definition["retry"]["max_retries"]) == (
        1,
        3_600_000,
        10,
    )
    assert definition["description"] == "what comes in"
    assert api.post("/publish/%2F", json={"routing_key": name, "payload": "no room"}).status_code == 400
    assert api.put(f"/queues/%2F/{name}-new?update=true", json={}).status_code == 201


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"type": "stream"}, "cannot become a stream queue"),
        ({"overflow": "drop-head", "limits": {"max_depth": 1}}, "would drop 1 of its stored"),
    ],
)
def test_a_queue_is_not_changed_so_that_it_loses_messages(
    api: httpx.Client, name: str, body: dict[str, object], said: str
) -> None:
    declare(api, name)
    for number in range(2):
        publish(api, name, str(number))

    answer = api.put(f"/queues/%2F/{name}?update=true", json=body)

    assert answer.status_code == 409
    assert said in answer.json()["reason"]
    assert api.get(f"/queues/%2F/{name}").json()["counters"]["ready"] == 2


def test_a_queue_tells_how_messages_ended_and_who_had_them(api: httpx.Client, name: str) -> None:
    declare(api, name, history="1h", retry={"max_retries": 1, "initial_backoff": "1ms"})
    publish(api, name, "good", "bad")
    consume(api, name, limit=1)
    consume(api, name, limit=1, then="reject")

    first = api.get(f"/queues/%2F/{name}/history?limit=1").json()
    rest = api.get(f"/queues/%2F/{name}/history?offset={first['next']}").json()

    (done,), (failed,) = first["items"], rest["items"]
    assert (done["offset"], done["outcome"], done["deliveries"]) == (0, "done", 1)
    assert (failed["offset"], failed["outcome"], failed["group"]) == (1, "rejected", "default")
    assert [attempt["consumer"] for attempt in failed["attempts"]] == ["http-guest"]
    assert failed["published_at"] <= failed["attempts"][0]["claimed_at"] <= failed["ended_at"]
    assert rest["next"] is None
    assert api.get(f"/queues/%2F/{name}-not/history").status_code == 404


def test_a_queue_without_the_setting_keeps_no_history(api: httpx.Client, name: str) -> None:
    declare(api, name)
    publish(api, name, "gone")
    consume(api, name)

    assert api.get(f"/queues/%2F/{name}/history").json() == {"items": [], "next": None}


def test_a_key_that_means_nothing_is_refused(api: httpx.Client, name: str) -> None:
    answer = api.put(f"/queues/%2F/{name}", json={"maximum": 5})

    assert answer.status_code == 400
    assert "'maximum'" in answer.json()["reason"]


def test_lists_come_in_pages(api: httpx.Client, name: str) -> None:
    names = [f"{name}-{number}" for number in range(5)]
    for each in names:
        declare(api, each)

    found: list[str] = []
    following: str | None = ""
    while following is not None:
        page = api.get("/queues", params={"search": name, "limit": 2, "after": following}).json()
        assert len(page["items"]) <= 2
        found += [queue["name"] for queue in page["items"]]
        following = page["next"]

    assert found == names


def test_purging_drops_what_waits(api: httpx.Client, name: str) -> None:
    declare(api, name)
    publish(api, name, "a", "b")

    assert api.post(f"/queues/%2F/{name}/purge").json() == {"messages": 2}
    assert consume(api, name) == []


def test_a_queue_in_use_or_not_empty_is_kept_when_asked_to(api: httpx.Client, name: str) -> None:
    declare(api, name)
    publish(api, name, "a")

    assert api.delete(f"/queues/%2F/{name}", params={"if_empty": "true"}).status_code == 409
    assert api.delete(f"/queues/%2F/{name}", params={"if_empty": "perhaps"}).status_code == 400
    assert api.delete(f"/queues/%2F/{name}").json() == {"messages": 1}


# -- messages


def test_browsing_takes_nothing(api: httpx.Client, name: str) -> None:
    declare(api, name)
    publish(api, name, "one", "two", "three", properties={"content_type": "text/plain", "headers": {"n": 1}})

    first = api.get(f"/queues/%2F/{name}/messages", params={"limit": 2}).json()
    rest = api.get(f"/queues/%2F/{name}/messages", params={"offset": first["next"]}).json()

    assert payloads(first["items"]) == ["one", "two"]
    assert payloads(rest["items"]) == ["three"]
    assert first["items"][0]["properties"] == {"content_type": "text/plain", "delivery_mode": 2, "headers": {"n": 1}}
    assert api.get(f"/queues/%2F/{name}").json()["counters"]["ready"] == 3


def test_browsing_begins_at_a_time(api: httpx.Client, name: str) -> None:
    declare(api, name)
    publish(api, name, "one")

    later = api.get(f"/queues/%2F/{name}/messages", params={"time": "2100-01-01T00:00:00Z"}).json()
    earlier = api.get(f"/queues/%2F/{name}/messages", params={"time": "2000-01-01T00:00:00"}).json()

    assert payloads(later["items"]) == []
    assert payloads(earlier["items"]) == ["one"]


def test_what_is_no_text_is_shown_in_base64(api: httpx.Client, name: str) -> None:
    declare(api, name)
    for raw in (b"\xff\xfe", b"\x00\x01"):
        publish(api, name, base64.b64encode(raw).decode(), payload_encoding="base64")

    items = api.get(f"/queues/%2F/{name}/messages").json()["items"]

    assert [item["payload_encoding"] for item in items] == ["base64", "base64"]
    assert [base64.b64decode(item["payload"]) for item in items] == [b"\xff\xfe", b"\x00\x01"]


def test_a_long_payload_is_cut_between_characters(api: httpx.Client, name: str) -> None:
    declare(api, name)
    publish(api, name, "größe")

    item = api.get(f"/queues/%2F/{name}/messages", params={"max_bytes": 3}).json()["items"][0]

    assert (item["payload"], item["payload_bytes"], item["is_cut"]) == ("gr", 7, True)


def test_a_message_that_no_queue_takes_says_so(api: httpx.Client) -> None:
    answer = api.post("/publish/%2F", json={"routing_key": "nowhere", "payload": "x"})

    assert answer.json() == {"queues": 0}


def test_a_full_queue_refuses_and_says_why(api: httpx.Client, name: str) -> None:
    declare(api, name, limits={"max_depth": 1})
    publish(api, name, "one")

    answer = api.post("/publish/%2F", json={"routing_key": name, "payload": "two"})

    assert answer.status_code == 400
    assert "is full" in answer.json()["reason"]


@pytest.mark.parametrize(
    "body",
    [
        {"payload": 5},
        {"payload": "x", "payload_encoding": "rot13"},
        {"payload": "x", "payload_encoding": "base64"},
        {"payload": "x", "topic": "a", "routing_key": "b"},
        {"payload": "x", "properties": {"priority": 256}},
        {"payload": "x", "properties": {"headers": 5}},
        {"payload": "x", "surprise": True},
    ],
)
def test_a_message_that_makes_no_sense_is_refused(api: httpx.Client, body: dict[str, object]) -> None:
    answer = api.post("/publish/%2F", json=body)

    assert answer.status_code == 400
    assert answer.json()["reason"]


def test_taking_acknowledges_puts_back_or_rejects(api: httpx.Client, name: str) -> None:
    declare(api, name)
    publish(api, name, "one", "two", "three")

    looked = consume(api, name, limit=2, then="requeue")
    taken = consume(api, name, limit=1)
    rejected = consume(api, name, limit=1, then="reject")
    left = consume(api, name, limit=10)

    assert payloads(looked) == ["one", "two"]
    assert payloads(taken) == ["one"]
    assert payloads(rejected) == ["two"]
    assert payloads(left) == ["three"]


def test_more_messages_are_taken_than_fit_a_first_hand(api: httpx.Client, name: str) -> None:
    declare(api, name)
    publish(api, name, *[str(number) for number in range(100)])

    assert payloads(consume(api, name, limit=90, wait_ms=5000)) == [str(number) for number in range(90)]


def test_a_group_of_a_stream_goes_on_where_it_was(api: httpx.Client, name: str) -> None:
    declare(api, name, type="stream")
    publish(api, name, "one", "two", "three")

    assert payloads(consume(api, name, group="g", limit=2)) == ["one", "two"]
    assert payloads(consume(api, name, group="g", limit=2)) == ["three"]
    assert payloads(consume(api, name, group="h", limit=1, position="first")) == ["one"]


# -- groups


def test_a_group_is_listed_shown_sought_and_deleted(api: httpx.Client, name: str) -> None:
    declare(api, name, type="stream")
    publish(api, name, "one", "two")
    consume(api, name, group="g", limit=2)
    group = f"/queues/%2F/{name}/groups/g"

    listed = api.get(f"/queues/%2F/{name}/groups").json()["items"]
    sought = api.post(f"{group}/seek", json={"position": 1}).json()
    again = consume(api, name, group="g", limit=2)
    deleted = api.delete(group)

    assert [(each["name"], each["mode"], each["committed"], each["lag"]) for each in listed] == [("g", "stream", 2, 0)]
    assert (sought["cursor"], sought["lag"]) == (1, 1)
    assert payloads(again) == ["two"]
    assert deleted.json() == {"queue": name, "group": "g", "messages": 0}
    assert api.get(group).status_code == 404


def test_a_paused_group_gets_nothing_until_it_is_resumed(api: httpx.Client, name: str) -> None:
    declare(api, name)
    consume(api, name)
    publish(api, name, "one")
    group = f"/queues/%2F/{name}/groups/default"

    paused = api.post(f"{group}/pause").json()
    nothing = consume(api, name, wait_ms=100)
    resumed = api.post(f"{group}/resume").json()

    assert (paused["is_paused"], resumed["is_paused"]) == (True, False)
    assert nothing == []
    assert payloads(consume(api, name)) == ["one"]


def test_what_consumers_hold_is_listed(api: httpx.Client, name: str, server: Server) -> None:
    declare(api, name)
    publish(api, name, "one", "two")
    channel = server.connect().channel()
    channel.basic_get(name)

    pending = api.get(f"/queues/%2F/{name}/groups/default/pending").json()

    assert [(entry["offset"], entry["attempts"]) for entry in pending["items"]] == [(0, 1)]
    assert pending["next"] is None


@pytest.mark.parametrize("position", ["tomorrow", -1, None, [], True])
def test_a_position_that_is_none_is_refused(api: httpx.Client, position: object) -> None:
    queue = f"seek-{position}"
    declare(api, queue, type="stream")
    consume(api, quote(queue), group="g")

    answer = api.post(f"/queues/%2F/{quote(queue)}/groups/g/seek", json={"position": position})

    assert answer.status_code == 400
    assert "first" in answer.json()["reason"]


# -- dead letters


def test_dead_letters_are_listed_sent_back_moved_and_purged(api: httpx.Client, name: str) -> None:
    declare(api, name)
    declare(api, f"{name}-elsewhere")
    publish(api, name, "one", "two", "three", "four")
    consume(api, name, limit=4, then="reject")
    letters = f"/queues/%2F/{name}/dead-letters"

    listed = api.get(letters).json()["items"]
    graves = {grave["queue"]: grave["messages"] for grave in api.get("/dead-letters/%2F").json()["items"]}
    redriven = api.post(f"{letters}/redrive", json={"limit": 1, "offset": 1}).json()
    moved = api.post(f"{letters}/move", json={"to": f"{name}-elsewhere", "limit": 1}).json()
    purged = api.post(f"{letters}/purge").json()

    assert payloads(listed) == ["one", "two", "three", "four"]
    assert listed[0]["properties"]["headers"]["_dlq_reason"] == "rejected"
    assert graves[f"$dlq/{name}"] == 4
    grave = f"$dlq/{name}"
    assert redriven == {"queue": grave, "messages": 1, "next": 2, "until": 4}
    assert moved == {"queue": grave, "messages": 1, "next": 1, "until": 4}
    assert purged == {"queue": grave, "messages": 2, "next": None, "until": 4}
    assert payloads(consume(api, name, limit=9)) == ["two"]
    assert payloads(consume(api, f"{name}-elsewhere", limit=9)) == ["one"]


def test_dead_letters_outside_of_the_offsets_that_are_named_stay(api: httpx.Client, name: str) -> None:
    declare(api, name)
    declare(api, f"{name}-elsewhere")
    publish(api, name, "one", "two", "three", "four")
    consume(api, name, limit=4, then="reject")
    letters = f"/queues/%2F/{name}/dead-letters"

    purged = api.post(f"{letters}/purge", json={"offset": 2, "until": 3}).json()
    moved = api.post(f"{letters}/move", json={"to": f"{name}-elsewhere", "until": 1}).json()

    assert (purged["messages"], moved["messages"]) == (1, 1)
    assert payloads(api.get(letters).json()["items"]) == ["two", "four"]


def test_a_queue_without_dead_letters_keeps_its_messages(api: httpx.Client, name: str) -> None:
    declare(api, name)
    declare(api, f"{name}-elsewhere")
    publish(api, name, "alive")
    letters = f"/queues/%2F/{name}/dead-letters"

    answers = [
        api.get(letters).json(),
        api.get(f"/dead-letters/%2F/{name}").json()["messages"],
        api.post(f"{letters}/redrive").json()["messages"],
        api.post(f"{letters}/move", json={"to": f"{name}-elsewhere"}).json()["messages"],
        api.post(f"{letters}/purge").json()["messages"],
    ]

    assert answers == [{"items": [], "next": None}, 0, 0, 0, 0]
    assert api.get(f"/queues/%2F/{quote(f'$dlq/{name}', safe='')}/dead-letters").status_code == 404
    assert api.post(f"/queues/%2F/{name}-missing/dead-letters/purge").status_code == 404
    assert payloads(consume(api, name, limit=9)) == ["alive"]


def die_through_exchange(api: httpx.Client, name: str, *texts: str) -> str:
    """Have messages die in a queue that sends its dead letters to another by the default exchange; returns that."""
    parking = f"{name}-parking"
    declare(api, parking, arguments={})
    declare(api, name, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": parking})
    publish(api, name, *texts)
    if texts:
        consume(api, name, limit=len(texts), then="reject")
    return parking


def test_dead_letters_behind_an_exchange_are_listed_sent_back_moved_and_purged(api: httpx.Client, name: str) -> None:
    parking = die_through_exchange(api, name, "one", "two", "three", "four")
    publish(api, parking, "not a letter")
    declare(api, f"{name}-elsewhere")
    letters = f"/queues/%2F/{parking}/dead-letters"

    graves = [grave for grave in api.get("/dead-letters/%2F?limit=1000").json()["items"] if grave["queue"] == parking]
    by_origin = api.get(f"/queues/%2F/{name}/dead-letters").json()
    listed = api.get(letters).json()
    redriven = api.post(f"{letters}/redrive", json={"limit": 1, "offset": 1}).json()
    moved = api.post(f"{letters}/move", json={"to": f"{name}-elsewhere", "limit": 1}).json()
    purged = api.post(f"{letters}/purge").json()

    assert graves == [{"vhost": "/", "queue": parking, "origin": name, "messages": 5, "has_others": True}]
    assert payloads(listed["items"]) == payloads(by_origin["items"]) == ["one", "two", "three", "four"]
    assert [done["messages"] for done in (redriven, moved, purged)] == [1, 1, 2]
    assert payloads(consume(api, name, limit=9)) == ["two"]
    assert payloads(consume(api, f"{name}-elsewhere", limit=9)) == ["one"]
    assert payloads(consume(api, parking, limit=9)) == ["not a letter"]


def test_dead_letters_behind_an_exchange_that_came_over_mqtt_are_found_and_sent_back(
    api: httpx.Client, server: Server, name: str
) -> None:
    parking = die_through_exchange(api, name)
    publisher = Paho(server.mqtt_port, name)
    publisher.sure(f"$queue/{name}/key", b"from afar")
    publisher.close()
    consume(api, name, then="reject")

    (grave,) = [each for each in api.get("/dead-letters/%2F?limit=1000").json()["items"] if each["queue"] == parking]
    assert (grave["origin"], grave["messages"]) == (name, 1)
    assert api.post(f"/queues/%2F/{parking}/dead-letters/redrive").json()["messages"] == 1
    (back,) = consume(api, name)
    assert (back["payload"], back["topic"]) == ("from afar", f"$queue/{name}/key")


def test_one_dead_letter_that_cannot_go_back_does_not_send_the_next_instead(api: httpx.Client, name: str) -> None:
    parking = die_through_exchange(api, name, "stays")
    other = f"{name}-other"
    declare(api, other, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": parking})
    publish(api, other, "not meant")
    consume(api, other, then="reject")
    api.delete(f"/queues/%2F/{name}")

    done = api.post(f"/queues/%2F/{parking}/dead-letters/redrive", json={"offset": 0, "until": 1}).json()

    assert done["messages"] == 0
    assert api.get(f"/queues/%2F/{other}").json()["counters"]["ready"] == 0


def test_a_queue_that_holds_dead_letters_and_has_its_own_can_be_named_exactly(api: httpx.Client, name: str) -> None:
    parking = f"{name}-parking"
    declare(api, parking)
    declare(api, name, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": parking})
    publish(api, name, "first", "second")
    consume(api, name, limit=2, then="reject")
    consume(api, parking, limit=1, then="reject")
    letters = f"/queues/%2F/{parking}/dead-letters"

    assert payloads(api.get(letters).json()["items"]) == ["first"]
    assert payloads(api.get(letters, params={"exact": "true"}).json()["items"]) == ["second"]
    assert api.post(f"{letters}/purge", params={"exact": "true"}).json()["queue"] == parking
    assert payloads(api.get(letters).json()["items"]) == ["first"]


def test_dead_letters_go_back_only_to_queues_that_the_user_may_write_to(
    api: httpx.Client, server: Server, name: str
) -> None:
    parking = die_through_exchange(api, name, "one")
    api.put(f"/users/{name}", json={"password": "secret", "tags": ["management"]})
    api.put(f"/permissions/%2F/{name}", json={"configure": "", "write": f"^{parking}$", "read": ".*"})

    answer = httpx.post(
        f"{server.http_url}/api/v1/queues/%2F/{parking}/dead-letters/redrive", auth=(name, "secret"), json={}
    )

    assert answer.json()["messages"] == 0
    assert payloads(api.get(f"/queues/%2F/{parking}/dead-letters").json()["items"]) == ["one"]


def test_messages_are_moved_to_another_queue(api: httpx.Client, name: str) -> None:
    declare(api, name)
    declare(api, f"{name}-to")
    publish(api, name, "one", "two")

    moved = api.post(f"/queues/%2F/{name}/move", json={"to": f"{name}-to"})
    to_itself = api.post(f"/queues/%2F/{name}/move", json={"to": name})
    to_nowhere = api.post(f"/queues/%2F/{name}/move", json={"to": f"{name}-nowhere"})

    assert moved.json() == {"messages": 2}
    assert payloads(consume(api, f"{name}-to", limit=5)) == ["one", "two"]
    assert (to_itself.status_code, to_nowhere.status_code) == (400, 404)


# -- connections


def test_connections_channels_and_consumers_are_listed_and_a_connection_is_ended(
    api: httpx.Client, name: str, server: Server
) -> None:
    declare(api, name)
    connection = server.connect(client_properties={"connection_name": name})
    channel = connection.channel()
    channel.basic_qos(prefetch_count=7)
    channel.basic_consume(name, lambda *_: None, consumer_tag="the-tag")

    found = [each for each in api.get("/connections").json()["items"] if each["client_id"] == name]
    channels = [each for each in api.get("/channels").json()["items"] if each["connection"] == found[0]["name"]]
    consumers = [each for each in api.get("/consumers").json()["items"] if each["queue"] == name]
    ended = api.delete(f"/connections/{quote(found[0]['name'], safe='')}")

    assert [(each["protocol"], each["user"], each["vhost"]) for each in found] == [("AMQP 0-9-1", "guest", "/")]
    assert found[0]["client_properties"]["connection_name"] == name
    assert [(each["number"], each["consumers"]) for each in channels] == [(1, 1)]
    assert [(each["name"], each["prefetch"], each["connection"]) for each in consumers] == [
        ("the-tag", 7, found[0]["name"])
    ]
    assert ended.status_code == 204
    with pytest.raises(Exception, match="CONNECTION_FORCED"):
        connection.sleep(30)


# -- users


def test_a_user_sees_what_permissions_and_tags_allow(api: httpx.Client, name: str, server: Server) -> None:
    declare(api, f"{name}-mine")
    declare(api, f"{name}-other")
    assert api.put(f"/users/{name}", json={"password": "secret", "tags": ["management"]}).status_code == 200
    with httpx.Client(base_url=f"{server.http_url}/api/v1", auth=(name, "secret"), timeout=30, verify=False) as user:
        before = user.get(f"/queues/%2F/{name}-mine").status_code
        api.put(f"/permissions/%2F/{name}", json={"read": ".*-mine$"})

        assert before == 403
        assert user.get(f"/queues/%2F/{name}-mine/messages").status_code == 200
        assert user.get(f"/queues/%2F/{name}-other/messages").status_code == 403
        assert user.delete(f"/queues/%2F/{name}-mine").status_code == 403
        assert user.post("/publish/%2F", json={"routing_key": f"{name}-mine"}).status_code == 403
        assert user.get("/users").status_code == 403
        assert user.put("/vhosts/new").status_code == 403
        assert api.delete(f"/users/{name}").status_code == 204
        assert user.get("/overview").status_code == 401


def test_a_user_without_tags_may_not_use_the_api(api: httpx.Client, name: str, server: Server) -> None:
    api.put(f"/users/{name}", json={"password": "secret"})

    answer = httpx.get(f"{server.http_url}/api/v1/overview", auth=(name, "secret"), timeout=60, verify=False)

    assert answer.status_code == 403


def test_nothing_about_a_password_is_ever_told(api: httpx.Client, name: str) -> None:
    api.put(f"/users/{name}", json={"password": "very-secret"})

    assert "argon2" not in api.get("/users").text
    assert set(api.get(f"/users/{name}").json()) == {"name", "tags", "limits"}


def test_virtual_hosts_are_made_and_removed(api: httpx.Client, name: str) -> None:
    assert api.put(f"/vhosts/{name}").status_code == 200
    assert name in [host["name"] for host in api.get("/vhosts").json()["items"]]
    assert api.get("/overview", params={"vhost": name}).json()["vhosts"] == [name]
    assert api.delete(f"/vhosts/{name}").json() == {"vhost": name, "queues": 0, "messages": 0}
    assert api.get("/overview", params={"vhost": name}).status_code == 404
    assert api.delete("/vhosts/%2F").status_code == 400


# -- logging in


@pytest.mark.parametrize(
    "header",
    ["", "Basic", "Basic !!!", "Basic " + base64.b64encode(b"guest").decode(), "Bearer x", "Basic /w=="],
)
def test_what_is_no_login_is_a_401_that_asks_for_one(server: Server, header: str) -> None:
    answer = httpx.get(
        f"{server.http_url}/api/v1/overview", headers={"authorization": header}, timeout=60, verify=False
    )

    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Basic ")


def test_a_wrong_password_is_a_401_and_a_script_is_not_made_to_ask(server: Server) -> None:
    answer = httpx.get(
        f"{server.http_url}/api/v1/overview",
        auth=("guest", "wrong"),
        headers={"x-requested-with": "dashboard"},
        timeout=60,
        verify=False,
    )

    assert answer.status_code == 401
    assert "www-authenticate" not in answer.headers


def test_a_page_of_another_site_cannot_change_anything(api: httpx.Client, name: str, server: Server) -> None:
    declare(api, name)

    foreign = api.delete(f"/queues/%2F/{name}", headers={"origin": "https://evil.example"})
    own = api.delete(f"/queues/%2F/{name}", headers={"origin": server.http_url})

    assert (foreign.status_code, own.status_code) == (403, 200)


def test_a_body_that_is_too_large_is_refused_before_it_is_read(server: Server) -> None:
    def body() -> Iterator[bytes]:
        for _ in range(40):
            yield bytes(1 << 20)

    answer = httpx.post(
        f"{server.http_url}/api/v1/publish/%2F", content=body(), auth=("guest", "guest"), timeout=60, verify=False
    )

    assert answer.status_code == 413
    assert answer.json()["error"] == "too_large"


@pytest.mark.parametrize("body", [b"{", b"[]", b"5", b'{"payload": NaN}', b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_table_is_refused(api: httpx.Client, body: bytes) -> None:
    answer = api.post("/publish/%2F", content=body)

    assert answer.status_code == 400
    assert answer.json()["error"] == "bad_request"


# -- other protocols


def test_clients_of_every_protocol_are_listed_with_their_consumers(
    api: httpx.Client, server: Server, name: str
) -> None:
    declare(api, name)
    mqtt_client = mqtt.Client(CallbackAPIVersion.VERSION2, f"{name}-mqtt", protocol=mqtt.MQTTv5)
    mqtt_client.username_pw_set("guest", "guest")
    mqtt_client.connect("127.0.0.1", server.ports["mqtt"])
    mqtt_client.subscribe(f"$queue/{name}", qos=1)
    mqtt_client.loop_start()
    amqp10 = BlockingConnection(f"guest:guest@127.0.0.1:{server.port}", timeout=20)
    amqp10.create_receiver(f"/queues/{name}")
    try:
        deadline = time.monotonic() + 20
        protocols: set[str] = set()
        while len(protocols) < 2 and time.monotonic() < deadline:
            found = api.get("/consumers", params={"limit": 1000}).json()["items"]
            connections = {each["name"]: each["protocol"] for each in api.get("/connections").json()["items"]}
            protocols = {connections.get(each["connection"], "") for each in found if each["queue"] == name}
    finally:
        mqtt_client.disconnect()
        mqtt_client.loop_stop()
        with contextlib.suppress(ConnectionException):
            amqp10.close()

    assert protocols == {"MQTT 5.0", "AMQP 1.0"}


def test_a_session_is_listed_with_its_subscriptions_and_ended(api: httpx.Client, server: Server, name: str) -> None:
    client = mqtt.Client(CallbackAPIVersion.VERSION2, name, protocol=mqtt.MQTTv311, clean_session=False)
    client.username_pw_set("guest", "guest")
    client.connect("127.0.0.1", server.ports["mqtt"])
    answered = threading.Event()
    client.on_subscribe = lambda *_: answered.set()
    client.loop_start()
    client.subscribe(f"{name}/+", qos=1)
    assert answered.wait(20)
    client.disconnect()
    client.loop_stop()
    deadline = time.monotonic() + 20
    while api.get(f"/sessions/%2F/{name}").json()["is_connected"] and time.monotonic() < deadline:
        time.sleep(0.01)
    publish_topic = api.post("/publish/%2F", json={"topic": f"{name}/x", "payload": "for later"})

    shown = api.get(f"/sessions/%2F/{name}").json()
    listed = [each["client_id"] for each in api.get("/sessions").json()["items"]]
    connected = [each["client_id"] for each in api.get("/sessions", params={"connected": "true"}).json()["items"]]
    subscriptions = api.get(f"/sessions/%2F/{name}/subscriptions").json()["items"]
    ended = api.delete(f"/sessions/%2F/{name}")

    assert publish_topic.json() == {"queues": 1}
    assert (shown["is_connected"], shown["subscriptions"], shown["waiting"]) == (False, 1, 1)
    assert name in listed
    assert name not in connected
    assert subscriptions == [{"pattern": f"{name}/+", "qos": 1, "group": ""}]
    assert ended.json() == {"client_id": name, "messages": 1}
    assert api.get(f"/sessions/%2F/{name}").status_code == 404

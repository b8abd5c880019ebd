"""The page for Prometheus, read by Prometheus's own parser."""

import httpx
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.servers import Server


def scraped(http: httpx.Client, **parameters: object) -> dict[str, Metric]:
    answer = http.get("/metrics", params=parameters)  # type: ignore[arg-type]
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {family.name: family for family in text_string_to_metric_families(answer.text)}


def value(families: dict[str, Metric], family: str, **labels: str) -> float:
    found = [
        sample.value
        for sample in families[family].samples
        if all(sample.labels.get(name) == wanted for name, wanted in labels.items())
    ]
    assert len(found) == 1, found
    return found[0]


def test_what_happens_is_counted(http: httpx.Client, server: Server, name: str) -> None:
    channel = server.connect().channel()
    channel.queue_declare(name, durable=True)
    channel.confirm_delivery()
    before = scraped(http)
    for _ in range(3):
        channel.basic_publish("", name, b"x")
    first, _, _ = channel.basic_get(name)
    channel.basic_nack(first.delivery_tag)
    again, _, _ = channel.basic_get(name)
    channel.basic_ack(again.delivery_tag)
    channel.basic_get(name)
    channel.queue_declare(name, durable=True, passive=True)

    families = scraped(http)

    assert value(families, "headrace_published", vhost="/") - value(before, "headrace_published", vhost="/") == 3
    assert value(families, "headrace_queue_published", queue=name) == 3
    assert value(families, "headrace_queue_ready", queue=name) == 1
    assert value(families, "headrace_queue_unsettled", queue=name) == 1
    assert value(families, "headrace_group_lag", queue=name, group="default") == 2
    assert value(families, "headrace_group_pending", queue=name) == 1
    assert value(families, "headrace_group_redelivered", queue=name) == 1
    assert value(families, "headrace_group_acknowledged", queue=name) == 1
    assert value(families, "headrace_connections", protocol="AMQP 0-9-1") >= 1
    assert value(families, "process_resident_memory_bytes") > 1_000_000


def test_commit_latency_is_a_histogram(http: httpx.Client, name: str) -> None:
    http.put(f"/api/v1/queues/%2F/{name}", json={})
    http.post("/api/v1/publish/%2F", json={"routing_key": name, "payload": "x"})

    samples = scraped(http)["headrace_commit_seconds"].samples

    buckets = [sample.value for sample in samples if sample.name.endswith("_bucket")]
    assert buckets == sorted(buckets)
    assert buckets[-1] == next(sample.value for sample in samples if sample.name.endswith("_count")) > 0


def test_dead_letters_are_counted_by_reason(http: httpx.Client, name: str) -> None:
    http.put(f"/api/v1/queues/%2F/{name}", json={})
    http.post("/api/v1/publish/%2F", json={"routing_key": name, "payload": "x"})
    http.post(f"/api/v1/queues/%2F/{name}/consume", json={"then": "reject"})

    assert value(scraped(http), "headrace_dead_letters", reason="rejected", vhost="/") >= 1


def test_names_that_need_escaping_come_through(http: httpx.Client) -> None:
    odd = 'quo"te back\\slash new\nline größe'
    assert http.post("/api/definitions", json={"queues": [{"name": odd, "vhost": "/"}]}).status_code == 204

    assert value(scraped(http), "headrace_queue_ready", queue=odd) == 0


def test_the_number_of_series_is_bounded(http: httpx.Client, name: str) -> None:
    for number in range(5):
        http.put(f"/api/v1/queues/%2F/{name}-{number}", json={})

    few, none = scraped(http, queues=2), scraped(http, queues=0)

    assert len(few["headrace_queue_ready"].samples) == 2
    assert "headrace_queue_ready" not in none
    assert value(none, "headrace_queues", vhost="/") >= 5
    assert value(none, "headrace_queues_without_series", vhost="/") >= 5
    assert http.get("/metrics", params={"queues": "many"}).status_code == 400


def test_metrics_need_a_login_with_the_tag_for_it(http: httpx.Client, server: Server, name: str) -> None:
    http.put(f"/api/v1/users/{name}", json={"password": "secret", "tags": ["management"]})
    http.put(f"/api/v1/users/{name}-2", json={"password": "secret", "tags": ["monitoring"]})

    assert httpx.get(f"{server.http_url}/metrics", timeout=60, verify=False).status_code == 401
    assert httpx.get(f"{server.http_url}/metrics", auth=(name, "secret"), timeout=60, verify=False).status_code == 403
    assert (
        httpx.get(f"{server.http_url}/metrics", auth=(f"{name}-2", "secret"), timeout=60, verify=False).status_code
        == 200
    )


def test_the_lag_of_a_group_is_what_is_open_however_much_is_acknowledged_behind_it(
    http: httpx.Client, server: Server, name: str
) -> None:
    channel = server.connect().channel()
    channel.queue_declare(name, durable=True)
    channel.confirm_delivery()
    for _ in range(20):
        channel.basic_publish("", name, b"x")
    tags = [channel.basic_get(name)[0].delivery_tag for _ in range(20)]
    for tag in tags[1:]:
        channel.basic_ack(tag)
    channel.queue_declare(name, durable=True, passive=True)

    group = http.get(f"/api/v1/queues/%2F/{name}/groups/default").json()

    assert value(scraped(http), "headrace_group_lag", queue=name, group="default") == 1
    assert (group["lag"], group["committed"], group["settled"]) == (1, 0, [[1, 20]])


def test_messages_that_are_not_due_are_delayed_and_those_of_streams_do_not_wait(http: httpx.Client, name: str) -> None:
    http.put(f"/api/v1/queues/%2F/{name}", json={"retry": {"initial_backoff": "1h", "max_backoff": "1h"}})
    http.put(f"/api/v1/queues/%2F/{name}-log", json={"type": "stream"})
    before = scraped(http)
    publish = {"routing_key": name, "payload": "x"}
    for body in (publish, {**publish, "deliver_in_ms": 3_600_000}, {**publish, "routing_key": f"{name}-log"}):
        assert http.post("/api/v1/publish/%2F", json=body).status_code == 200

    families = scraped(http)
    listed = http.get(f"/api/queues/%2F/{name}").json()
    group = http.post(f"/api/v1/queues/%2F/{name}/consume", json={"limit": 5, "then": "requeue"}).json()["items"]

    for family, gained in (("headrace_messages_ready", 1), ("headrace_messages_delayed", 1)):
        assert value(families, family, vhost="/") - value(before, family, vhost="/") == gained
    assert (
        value(families, "headrace_queue_ready", queue=name)
        == value(families, "headrace_queue_delayed", queue=name)
        == 1
    )
    assert (listed["messages"], listed["messages_ready"], listed["messages_delayed"]) == (2, 1, 1)
    assert len(group) == 1
    assert value(scraped(http), "headrace_group_delayed", queue=name, group="default") == 1


def test_what_failed_is_delayed_until_its_next_try(http: httpx.Client, server: Server, name: str) -> None:
    http.put(f"/api/v1/queues/%2F/{name}", json={"retry": {"initial_backoff": "1h", "max_backoff": "1h"}})
    channel = server.connect().channel()
    channel.confirm_delivery()
    channel.basic_publish("", name, b"x")
    channel.basic_nack(channel.basic_get(name)[0].delivery_tag)
    channel.queue_declare(name, durable=True, passive=True)

    counters = http.get(f"/api/v1/queues/%2F/{name}").json()["counters"]
    group = http.get(f"/api/v1/queues/%2F/{name}/groups/default").json()

    assert (counters["ready"], counters["delayed"]) == (0, 1)
    assert (group["ready"], group["delayed"], group["lag"]) == (0, 1, 1)

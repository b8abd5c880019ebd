"""HTTP at a node that does not own the store: a few pages of its own, everything else from the owner."""

import io
from collections.abc import Iterator

import httpx
import pyarrow as pa
import pytest

from headrace.cluster.forwarding import pages as proxy
from tests.nodes import Nodes

_GUEST = ("guest", "guest")


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with Nodes("a", "b") as running:
        running.own("a")
        yield running


@pytest.fixture
def client(nodes: Nodes) -> Iterator[httpx.Client]:
    """One connection to the node that does not own the store, used again and again."""
    with httpx.Client(base_url=nodes["b"].url, auth=_GUEST, timeout=60, verify=False) as opened:
        yield opened


def test_a_queue_is_made_filled_and_seen_through_another_node(client: httpx.Client, nodes: Nodes) -> None:
    made = client.put("/api/v1/queues/%2F/made%2Fthere", json={})
    message = {"topic": "$queue/mine", "payload": "hello", "payload_encoding": "string", "qos": 1}
    published = client.post("/publish", json=message)
    seen = httpx.get(f"{nodes['a'].url}/api/v1/queues/%2F/made%2Fthere", auth=_GUEST, timeout=60, verify=False)

    assert made.is_success, made.text
    assert published.is_success, published.text
    assert seen.json()["name"] == "made/there"
    assert client.get("/api/v1/queues/%2F/made%2Fthere").json()["definition"] == seen.json()["definition"]


def test_what_is_refused_there_is_refused_here_in_the_same_words(client: httpx.Client, nodes: Nodes) -> None:
    for method, path in (("GET", "/api/v1/queues/%2F/none"), ("GET", "/nowhere"), ("DELETE", "/api/v1/queues")):
        here, there = (
            client.request(method, path),
            httpx.request(method, f"{nodes['a'].url}{path}", auth=_GUEST, timeout=60, verify=False),
        )
        assert (here.status_code, here.json()) == (there.status_code, there.json())
    assert client.get("/api/v1/queues", auth=("guest", "wrong")).status_code == 401
    assert client.get("/api/v1/queues", auth=("guest", "wrong")).headers["www-authenticate"]


def test_the_pages_of_the_dashboard_come_through_any_node(client: httpx.Client, nodes: Nodes) -> None:
    page, there = client.get("/"), httpx.get(nodes["a"].url, follow_redirects=True, timeout=60, verify=False)
    page = client.get(page.headers["location"]) if page.is_redirect else page

    assert page.text == there.text
    assert "<html" in page.text
    assert page.headers.get_list("server") == ["headrace"]


def test_arrow_passes_in_both_directions_larger_than_what_waits_on_the_way(client: httpx.Client) -> None:
    payload = b"x" * 1000
    rows = 4 * proxy.PENDING_BYTES // len(payload)
    assert client.put("/api/v1/queues/%2F/wide", json={"type": "stream"}).is_success
    table = pa.table({"payload": pa.array([payload] * rows, pa.binary())})
    body = io.BytesIO()
    with pa.ipc.new_stream(body, table.schema) as writer:
        writer.write_table(table, 100)

    def pieces() -> Iterator[bytes]:
        data = body.getvalue()
        for at in range(0, len(data), 65_536):
            yield data[at : at + 65_536]

    staged = client.put("/bulk/transactions/one/parts/p", params={"queue": "wide"}, content=pieces())
    assert staged.is_success, staged.text
    assert client.post("/bulk/transactions/one/commit", json={"parts": ["p"]}).is_success
    read = client.get("/bulk/messages", params={"queue": "wide"})

    assert pa.ipc.open_stream(read.content).read_all().column("payload").to_pylist() == [payload] * rows


def test_a_head_request_has_no_body_and_the_connection_goes_on(client: httpx.Client) -> None:
    for _ in range(2):
        answer = client.head("/api/v1/overview")
        assert not answer.content
    assert client.get("/api/v1/overview").is_success


def test_health_readiness_and_metrics_are_its_own(client: httpx.Client) -> None:
    assert client.get("/health").json() == {"status": "healthy", "role": "follower"}
    assert client.get("/ready").json() == {"status": "ready", "role": "follower", "owner": "a"}
    assert "headrace_forwarded_connections 0" in client.get("/metrics").text


def test_a_request_that_waits_for_an_owner_in_vain_is_told_so() -> None:
    with Nodes("a", "b") as nodes:
        nodes["b"].impatient()
        ready = httpx.get(f"{nodes['b'].url}/ready", timeout=60, verify=False)
        answer = httpx.get(f"{nodes['b'].url}/api/v1/overview", auth=_GUEST, timeout=60, verify=False)

    assert (ready.status_code, ready.json()["role"]) == (503, "follower")
    assert (answer.status_code, answer.json()["error"]) == (503, "unavailable")
    assert answer.headers["retry-after"]


def test_a_node_that_becomes_the_owner_answers_itself() -> None:
    with (
        Nodes("a", "b") as nodes,
        httpx.Client(base_url=nodes["b"].url, auth=_GUEST, timeout=60, verify=False) as client,
    ):
        nodes.own("a")
        client.put("/api/v1/queues/%2F/of-a", json={})
        assert client.get("/api/v1/queues/%2F/of-a").is_success

        nodes.own("b")
        overview = client.get("/api/v1/queues/%2F/of-a")

    assert overview.status_code == 404  # the store of the other is in its memory

"""Messages copied from a log to queues in bulk: as they are, in one commit, by those who may."""

import httpx
import pika
import pyarrow as pa
import pytest

from tests.integration.admin.test_bulk import client, commit, declare, payloads, read, stage, stream
from tests.servers import Server


def stage_copies(
    http: httpx.Client, transaction: str, source: str, *rows: tuple[int, str], **more: int
) -> httpx.Response:
    offsets = pa.array([offset for offset, _ in rows], pa.int64())
    table = pa.table({"offset": offsets, "queue": pa.array([queue for _, queue in rows], pa.string())})
    return http.put(f"/bulk/transactions/{transaction}/parts/p", params={"copy": source, **more}, content=stream(table))


def test_messages_are_copied_to_every_queue_that_is_named(server: Server, http: httpx.Client, name: str) -> None:
    source, one, other = (f"{name}-{last}" for last in ("events", "one", "other"))
    for queue in (source, one, other):
        declare(server, queue)
    for part in range(3):  # far more than is read at once
        numbers = [f"{part * 20_000 + at}" for at in range(20_000)]
        assert stage(http, f"{source}-{part}", "p", *numbers, queue=source).status_code == 200
        assert commit(http, f"{source}-{part}", "p").status_code == 200
    chosen = [(offset, one) for offset in range(0, 60_000, 7)] + [(5, other), (59_999, other), (5, other)]

    assert stage_copies(http, name, source, *chosen).json()["rows"] == len(chosen)
    assert read(http, one).num_rows == 0
    assert commit(http, name, "p").json() == {"status": "committed", "rows": len(chosen), "unrouted": 0}
    assert commit(http, name, "p").json()["status"] == "committed before"

    assert payloads(read(http, one)) == [str(offset) for offset in range(0, 60_000, 7)]
    assert payloads(read(http, other)) == ["5", "59999", "5"]
    assert read(http, source).num_rows == 60_000


def test_a_copy_has_everything_that_its_publisher_said(server: Server, http: httpx.Client, name: str) -> None:
    channel = declare(server, name)
    channel.confirm_delivery()
    declare(server, f"{name}-copy")
    said = pika.BasicProperties(
        content_type="text/plain", correlation_id="c-1", reply_to="r", priority=3, headers={"n": 7, "deep": {"x": [1]}}
    )
    channel.basic_publish("", name, b"hello", said)

    stage_copies(http, name, name, (0, f"{name}-copy"))
    assert commit(http, name, "p").json()["rows"] == 1

    _, found, body = channel.basic_get(f"{name}-copy", auto_ack=True)
    assert body == b"hello"
    assert (found.content_type, found.correlation_id, found.reply_to, found.priority) == ("text/plain", "c-1", "r", 3)
    assert found.headers == {"n": 7, "deep": {"x": [1]}}


def test_messages_that_are_not_there_are_not_copied(server: Server, http: httpx.Client, name: str) -> None:
    channel = declare(server, name)
    channel.confirm_delivery()
    declare(server, f"{name}-copy")
    for number in range(3):
        channel.basic_publish("", name, str(number).encode())
    assert stage_copies(http, name, name, (1, f"{name}-copy"), (3, f"{name}-copy")).status_code == 200
    answer = commit(http, name, "p")
    assert (answer.status_code, f"offset 3 of queue '{name}' is not there" in answer.json()["reason"]) == (400, True)

    channel.queue_purge(name)
    channel.basic_publish("", name, b"later")
    stage_copies(http, name, name, (1, f"{name}-copy"))
    answer = commit(http, name, "p")
    assert answer.json()["error"] == "truncated", answer.text
    assert read(http, f"{name}-copy").num_rows == 0


def test_offsets_of_another_log_are_not_copied(server: Server, http: httpx.Client, name: str) -> None:
    channel = declare(server, name)
    declare(server, f"{name}-copy")
    stage(http, name, "p", "0", "1", queue=name)
    assert commit(http, name, "p").status_code == 200
    before = int(http.get("/bulk/queues", params={"name": name}).json()["queues"][name]["log"])

    stage_copies(http, f"{name}-one", name, (1, f"{name}-copy"), log=before)
    assert commit(http, f"{name}-one", "p").json()["rows"] == 1
    stage_copies(http, f"{name}-two", name, (0, f"{name}-copy"), log=before)
    channel.queue_delete(name)
    declare(server, name)
    stage(http, f"{name}-again", "p", "other", queue=name)
    commit(http, f"{name}-again", "p")
    answer = commit(http, f"{name}-two", "p")

    assert answer.json()["error"] == "truncated", answer.text
    assert f"its log {before} is gone" in answer.json()["reason"]
    assert payloads(read(http, f"{name}-copy")) == ["1"]


def test_more_than_is_stored_at_once_is_refused_and_stores_nothing(
    server: Server, http: httpx.Client, name: str
) -> None:
    declare(server, name)
    declare(server, f"{name}-copy")
    stage(http, f"{name}-fill", "p", "x" * (1 << 20), queue=name)
    commit(http, f"{name}-fill", "p")

    stage_copies(http, name, name, *[(0, f"{name}-copy")] * 257)
    answer = commit(http, name, "p")

    assert (answer.status_code, "more than 256 MiB" in answer.json()["reason"]) == (413, True)
    assert read(http, f"{name}-copy").num_rows == 0


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"offset": [1]}),
        pa.table({"offset": [1], "queue": ["a"], "payload": ["x"]}),
        pa.table({"offset": ["1"], "queue": ["a"]}),
        pa.table({"offset": [1], "queue": [5]}),
        pa.table({"offset": [1, None], "queue": ["a", "a"]}),
        pa.table({"offset": [1, 2], "queue": ["a", None]}),
        pa.table({"offset": [-1], "queue": ["a"]}),
    ],
)
def test_a_part_that_does_not_say_what_to_copy_is_refused(
    server: Server, http: httpx.Client, name: str, table: pa.Table
) -> None:
    declare(server, name)

    answer = http.put(f"/bulk/transactions/{name}/parts/p", params={"copy": name}, content=stream(table))

    assert answer.status_code == 400, answer.text


def test_nobody_copies_what_he_may_not_read_or_where_he_may_not_write(
    server: Server, http: httpx.Client, name: str
) -> None:
    source, target, other = (f"{name}-{last}" for last in ("source", "target", "other"))
    for queue in (source, target, other):
        declare(server, queue)
    stage(http, f"{name}-fill", "p", "a", queue=source)
    commit(http, f"{name}-fill", "p")
    assert http.put(f"/api/users/{name}", json={"password": name, "tags": ""}).status_code < 300
    rights = {"configure": "", "write": f"^{target}$", "read": f"^{source}$"}
    assert http.put(f"/api/permissions/%2F/{name}", json=rights).status_code < 300

    with client(server, name) as visitor:
        assert stage_copies(visitor, f"{name}-a", other, (0, target)).status_code == 403
        assert stage_copies(visitor, f"{name}-b", source, (0, other)).status_code == 200
        assert commit(visitor, f"{name}-b", "p").status_code == 403
        assert stage_copies(visitor, f"{name}-c", source, (0, target)).status_code == 200
        assert commit(visitor, f"{name}-c", "p").status_code == 200
    assert read(http, other).num_rows == 0
    assert payloads(read(http, target)) == ["a"]

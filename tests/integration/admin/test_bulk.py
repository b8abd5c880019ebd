"""Queues in bulk over HTTP: Arrow streams in and out of a real server, exactly once, whatever happens in between."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pika
import pyarrow as pa
import pytest

from tests.servers import Server, serving
from tests.waiting import eventually


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[Server]:
    with serving(Server(tmp_path)) as running:
        yield running


def client(server: Server, user: str = "guest") -> httpx.Client:
    return httpx.Client(base_url=server.http_url, auth=(user, user), timeout=30, verify=False)


def stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def stage(http: httpx.Client, transaction: str, part: str, *payloads: str, **target: str) -> httpx.Response:
    body = stream(pa.table({"payload": list(payloads)}))
    return http.put(f"/bulk/transactions/{transaction}/parts/{part}", params=target, content=body)


def commit(http: httpx.Client, transaction: str, *parts: str, sequence: int | None = None) -> httpx.Response:
    body: dict[str, object] = {"parts": list(parts)}
    if sequence is not None:
        body["sequence"] = sequence
    return http.post(f"/bulk/transactions/{transaction}/commit", json=body)


def read(http: httpx.Client, queue: str, **query: str | int) -> pa.Table:
    answer = http.get("/bulk/messages", params={"queue": queue, **query})
    assert answer.status_code == 200, answer.text
    return pa.ipc.open_stream(answer.content).read_all()


def payloads(table: pa.Table) -> list[str]:
    return [value.decode() for value in table.column("payload").to_pylist()]


def declare(server: Server, queue: str, **arguments: object) -> pika.adapters.blocking_connection.BlockingChannel:
    channel = server.connect().channel()
    channel.queue_declare(queue, durable=True, arguments=arguments or None)
    return channel


def test_what_is_committed_is_read_back_and_consumed(server: Server, http: httpx.Client, name: str) -> None:
    channel = declare(server, name)

    assert stage(http, name, "p0", "a", "b", queue=name).json()["rows"] == 2
    assert stage(http, name, "p1", "c", queue=name).json()["rows"] == 1
    assert read(http, name).num_rows == 0
    answer = commit(http, name, "p0", "p1")

    assert answer.json() == {"status": "committed", "rows": 3, "unrouted": 0}
    table = read(http, name)
    assert payloads(table) == ["a", "b", "c"]
    assert table.column("offset").to_pylist() == [0, 1, 2]
    assert set(table.column("queue").to_pylist()) == set(table.column("topic").to_pylist()) == {name}
    _, _, body = channel.basic_get(name, auto_ack=True)
    assert body == b"a"


def test_ranges_and_columns_are_chosen_by_the_query(server: Server, http: httpx.Client, name: str) -> None:
    channel = declare(server, name)
    for number in range(10):
        properties = pika.BasicProperties(content_type="text/plain", headers={"n": number})
        channel.basic_publish("", name, str(number).encode(), properties)
    http.get("/bulk/queues")

    query: dict[str, str | int] = {"from": 3, "to": 6, "columns": "offset,headers,payload,content_type"}
    table = read(http, name, **query)

    assert table.schema.names == ["offset", "headers", "payload", "content_type"]
    assert table.column("offset").to_pylist() == [3, 4, 5]
    assert table.column("headers").to_pylist() == [[("n", "3")], [("n", "4")], [("n", "5")]]
    assert table.column("content_type").to_pylist() == ["text/plain"] * 3
    bounds = http.get("/bulk/queues", params={"name": name}).json()["queues"][name]
    assert (bounds["type"], bounds["first"], bounds["next"]) == ("classic", 0, 10)


def test_messages_are_found_by_time(server: Server, http: httpx.Client, name: str) -> None:
    declare(server, name)
    stage(http, name, "p", "a", "b", queue=name)
    commit(http, name, "p")

    assert http.get("/bulk/offset", params={"queue": name, "timestamp": 0}).json() == {"offset": 0}
    assert http.get("/bulk/offset", params={"queue": name, "timestamp": 1 << 60}).json() == {"offset": 2}


def test_a_commit_that_comes_again_stores_nothing_again(server: Server, http: httpx.Client, name: str) -> None:
    declare(server, name)
    stage(http, name, "p", "a", queue=name)
    assert commit(http, name, "p", sequence=7).json()["status"] == "committed"

    assert commit(http, name, "p", sequence=7).json() == {"status": "committed before", "rows": 1}
    stage(http, name, "q", "older", queue=name)
    assert commit(http, name, "q", sequence=6).json() == {"status": "committed before", "rows": 0}

    assert payloads(read(http, name)) == ["a"]


def test_an_aborted_transaction_leaves_nothing(server: Server, http: httpx.Client, name: str) -> None:
    declare(server, name)
    stage(http, name, "p", "a", queue=name)

    assert http.delete(f"/bulk/transactions/{name}").status_code == 200
    answer = commit(http, name, "p")

    assert answer.status_code == 404
    assert "is not there" in answer.json()["reason"]
    assert read(http, name).num_rows == 0


def test_a_part_that_was_named_by_nobody_is_not_stored(server: Server, http: httpx.Client, name: str) -> None:
    declare(server, name)
    stage(http, name, "attempt-0", "from a task that failed", queue=name)
    stage(http, name, "attempt-1", "good", queue=name)

    commit(http, name, "attempt-1")

    assert payloads(read(http, name)) == ["good"]


def test_staged_parts_and_committed_ids_survive_a_kill(durable: Server) -> None:
    declare(durable, "orders")
    with client(durable) as http:
        stage(http, "job", "p", "a", queue="orders")
    durable.kill()
    durable.start()
    with client(durable) as http:
        assert commit(http, "job", "p").json()["status"] == "committed"
    durable.kill()
    durable.start()

    with client(durable) as http:
        assert commit(http, "job", "p").json() == {"status": "committed before", "rows": 1}
        assert payloads(read(http, "orders")) == ["a"]


def test_what_a_dead_job_staged_is_removed_though_nobody_writes_any_more(durable: Server, tmp_path: Path) -> None:
    declare(durable, "orders")
    with client(durable) as http:
        stage(http, "dead", "p", "a", queue="orders")
        stage(http, "alive", "p", "b", queue="orders")
    folders = {folder.name: folder for folder in (tmp_path / "data" / "staging").iterdir()}
    assert folders.keys() == {"dead", "alive"}
    durable.kill()
    os.utime(folders["dead"], (0, 0))

    durable.start()

    eventually(lambda: not folders["dead"].exists())
    with client(durable) as http:
        assert commit(http, "dead", "p").status_code == 404
        assert commit(http, "alive", "p").json()["status"] == "committed"


def test_exchanges_and_topics_are_written_to(server: Server, http: httpx.Client, name: str) -> None:
    channel = declare(server, name)
    channel.queue_bind(name, "amq.topic", "plant.*")
    body = stream(pa.table({"payload": ["warm", "cold"], "topic": ["plant.1", "elsewhere"]}))
    http.put(f"/bulk/transactions/{name}/parts/e", params={"exchange": "amq.topic"}, content=body)
    body = stream(pa.table({"payload": ["hot"], "topic": ["plant/2"]}))
    http.put(f"/bulk/transactions/{name}/parts/t", params={"topic": ""}, content=body)

    answer = commit(http, name, "e", "t").json()

    assert (answer["rows"], answer["unrouted"]) == (3, 1)
    assert payloads(read(http, name)) == ["warm", "hot"]


def test_progress_is_seen_as_a_group_of_the_queue(server: Server, http: httpx.Client, name: str) -> None:
    declare(server, name, **{"x-queue-type": "stream"})
    stage(http, name, "p", *"abcdef", queue=name)
    commit(http, name, "p")

    for offset in (2, 4):
        query = {"queue": name, "group": "spark", "offset": offset}
        assert http.put("/bulk/progress", params=query).json() == {"status": "ok"}
    refused = http.put("/bulk/progress", params={"queue": name, "group": "", "offset": 1})

    assert refused.status_code == 400
    groups = http.get("/bulk/queues", params={"name": name}).json()["queues"][name]["groups"]
    assert groups == {"spark": 4}


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ({"queue": "nothing"}, 404, "no queue 'nothing'"),
        ({}, 400, "queue is missing"),
        ({"queue": "q", "from": "x"}, 400, "from is 'x'"),
        ({"queue": "q", "columns": "colour"}, 400, "no column 'colour'"),
        ({"queue": "q", "vhost": "none"}, 404, "no vhost 'none'"),
    ],
)
def test_reading_what_is_not_there_is_refused(
    server: Server, http: httpx.Client, query: dict[str, str], status: int, said: str
) -> None:
    declare(server, "q")

    answer = http.get("/bulk/messages", params=query)

    assert answer.status_code == status
    assert said in answer.json()["reason"]


def test_a_task_that_comes_late_is_refused_and_the_next_attempt_is_not(
    server: Server, http: httpx.Client, name: str
) -> None:
    declare(server, name)
    stage(http, name, "p0", "a", queue=name, attempt="one")
    assert http.delete(f"/bulk/transactions/{name}", params={"attempt": "one"}).status_code == 200

    late = stage(http, name, "p1", "b", queue=name, attempt="one")
    assert late.status_code == 409
    assert "was committed or aborted before this part" in late.json()["reason"]

    assert stage(http, name, "p1", "c", queue=name, attempt="two").status_code == 200
    body = {"parts": ["p1"], "attempt": "two"}
    assert http.post(f"/bulk/transactions/{name}/commit", json=body).json()["rows"] == 1
    assert stage(http, name, "p2", "d", queue=name, attempt="two").status_code == 409
    assert payloads(read(http, name)) == ["c"]


@pytest.fixture(params=["directory", "store"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A broker whose messages outlast it."""
    with serving(Server(tmp_path, store=f"file://{tmp_path}/store" if request.param == "store" else "")) as running:
        yield running


def test_a_write_of_any_size_is_stored_once_whatever_is_killed_in_between(kept: Server, tmp_path: Path) -> None:
    declare(kept, "orders")
    with client(kept) as http:
        parts = stage_large(http, "first", 18)
        with ThreadPoolExecutor(1) as pool:
            interrupted = pool.submit(commit, http, "job", *parts, sequence=3)
            eventually(lambda: bounds(http, "orders")["next"] > 0)
            kept.kill()
            with pytest.raises(httpx.HTTPError):
                interrupted.result()
    kept.start()
    with client(kept) as http:
        stored = bounds(http, "orders")["next"]
        again = stage_large(http, "again", 1)
        assert http.delete("/bulk/transactions/job").status_code == 200  # the rest of the commit stays
        refused = commit(http, "job", *again, sequence=4)
        assert (refused.status_code, "number 3 that is stored in part" in refused.text) == (409, True), refused.text
        while (answer := commit(http, "job", *again, sequence=3).json())["status"] == "committing":
            continue

        assert answer == {"status": "committed", "rows": 72, "unrouted": 0}
        topics = read(http, "orders", columns="topic").column("topic").to_pylist()
        assert topics == [f"first {part} {row}" for part in range(18) for row in range(4)]
        assert 0 < stored < 72
        assert commit(http, "job", *again, sequence=3).json()["status"] == "committed before"
        assert not [*tmp_path.glob("data/staging/*job*"), *tmp_path.glob("store/*/staging/*job*/*")]


def stage_large(http: httpx.Client, label: str, count: int) -> list[str]:
    """Stage parts of 30 MB; nine of them are more than is stored at once."""
    for part in range(count):
        rows = pa.table({"payload": [bytes(7_500_000)] * 4, "topic": [f"{label} {part} {row}" for row in range(4)]})
        path = f"/bulk/transactions/job/parts/{label}-{part}"
        assert http.put(path, params={"queue": "orders"}, content=stream(rows)).status_code == 200
    return [f"{label}-{part}" for part in range(count)]


def bounds(http: httpx.Client, queue: str) -> dict[str, int]:
    found: dict[str, int] = http.get("/bulk/queues", params={"name": queue}).json()["queues"][queue]
    return found


def test_rows_for_many_queues_are_one_commit(durable: Server) -> None:
    queues = [f"q{number}" for number in range(50)]
    channel = durable.connect().channel()
    for queue in queues:
        channel.queue_declare(queue, durable=True, arguments={"x-message-ttl": 3_600_000} if queue == "q7" else None)
    with client(durable) as http:
        for part in range(3):
            rows = [(queues[(part + at) % 50], f"{part}-{at}") for at in range(20_000)]
            topics = [None if at % 2 else "t" for at in range(20_000)]
            columns = {"to": [queue for queue, _ in rows], "payload": [text for _, text in rows], "topic": topics}
            path = f"/bulk/transactions/many/parts/{part}"
            answer = http.put(path, params={"queues": "to"}, content=stream(pa.table(columns)))
            assert answer.json()["rows"] == 20_000
        answer = commit(http, "many", "0", "1", "2")
        assert answer.json() == {"status": "committed", "rows": 60_000, "unrouted": 0}

        def check() -> None:
            for number, queue in enumerate(queues):
                wanted = [(part, at) for part in range(3) for at in range(20_000) if (part + at) % 50 == number]
                table = read(http, queue)
                assert payloads(table) == [f"{part}-{at}" for part, at in wanted]
                assert table.column("topic").to_pylist() == [queue if at % 2 else "t" for _, at in wanted]
                assert (table.column("expires_at").null_count == 0) == (queue == "q7")

        check()
        ports = {"http_port": durable.http_port, "amqp_port": durable.port}
        durable.kill()
        durable.start(**ports)
        check()


def test_what_leaves_while_it_is_read_is_left_out_or_breaks_the_answer_off(durable: Server) -> None:
    table = pa.table({"payload": [b"x" * (16 << 10)] * 1024})

    def read_while_purging(queue: str, **query: str | int) -> int:
        channel = declare(durable, queue)
        channel.confirm_delivery()
        with client(durable) as http:
            for part in range(4):  # far more than sockets hold: the server waits for the reader
                path = f"/bulk/transactions/{queue}-{part}/parts/0"
                assert http.put(path, params={"queue": queue}, content=stream(table)).status_code == 200
                assert commit(http, f"{queue}-{part}", "0").json()["rows"] == 1024
            with http.stream("GET", "/bulk/messages", params={"queue": queue, **query}) as answer:
                chunks = answer.iter_raw()
                first = next(chunks)
                channel.queue_purge(queue)
                channel.basic_publish("", queue, b"later")  # confirmed: what was purged is gone by then
                return int(pa.ipc.open_stream(first + b"".join(chunks)).read_all().num_rows)

    assert 0 < read_while_purging("open") < 4096
    with pytest.raises(httpx.RemoteProtocolError):
        read_while_purging("strict", **{"from": 0})


def test_writing_what_is_no_arrow_or_to_nowhere_is_refused(server: Server, http: httpx.Client, name: str) -> None:
    declare(server, name)
    path = f"/bulk/transactions/{name}/parts/p"
    good = stream(pa.table({"payload": ["a"]}))
    cases = [
        (path, {"queue": name}, b"not arrow", 400, "not an Arrow IPC stream"),
        (path, {"queue": name}, good[:-20], 400, "not an Arrow IPC stream"),
        (path, {"queue": name}, stream(pa.table({"x": [1]})), 400, "column payload is missing"),
        (path, {"queue": "nothing"}, good, 404, "no queue 'nothing'"),
        (path, {"exchange": "nothing"}, good, 404, "nothing"),
        (path, {}, good, 400, "say where the messages go"),
        (path, {"queue": name, "topic": "x"}, good, 400, "say where the messages go"),
        (path.replace("/parts/p", "/parts/" + "p" * 300), {"queue": name}, good, 400, "1 to 200 letters"),
        (path, {"queue": name}, bytes(33 << 20), 413, "more than"),
    ]
    for address, target, body, status, said in cases:
        answer = http.put(address, params=target, content=body)
        assert (answer.status_code, said in answer.json()["reason"]) == (status, True), answer.text
    for said_body in (b"", b"[]", b'{"parts": "p"}', b'{"parts": [], "sequence": -2}', b'{"parts": [5]}'):
        answer = http.post(f"/bulk/transactions/{name}/commit", content=said_body)
        assert answer.status_code == 400, answer.text


def test_nobody_writes_or_reads_without_the_right(server: Server, http: httpx.Client, name: str) -> None:
    declare(server, name)
    made = http.put("/api/users/reader", json={"password": "reader", "tags": ""})
    assert made.status_code < 300, made.text
    granted = http.put("/api/permissions/%2F/reader", json={"configure": "", "write": "", "read": "^allowed$"})
    assert granted.status_code < 300, granted.text

    with client(server, "reader") as stranger:
        assert stage(stranger, name, "p", "a", queue=name).status_code == 403
        assert stranger.get("/bulk/messages", params={"queue": name}).status_code == 403
        assert name not in stranger.get("/bulk/queues").json()["queues"]


def test_other_clients_are_served_while_a_large_batch_is_committed(durable: Server) -> None:
    channel = declare(durable, "orders")
    channel.confirm_delivery()
    with client(durable) as http:
        body = stream(pa.table({"payload": ["x" * 200] * 30_000}))
        for part in range(3):
            answer = http.put(f"/bulk/transactions/big/parts/p{part}", params={"queue": "orders"}, content=body)
            assert answer.json()["rows"] == 30_000
        channel.basic_publish("", "orders", b"before")
        assert commit(http, "big", "p0", "p1", "p2").json()["rows"] == 90_000
        channel.basic_publish("", "orders", b"after")
        table = read(http, "orders", columns="offset,payload")

    assert table.column("offset").to_pylist() == list(range(90_002))
    assert payloads(table)[0] == "before"
    assert payloads(table)[-1] == "after"


def test_a_part_may_have_rows_for_many_queues(server: Server, http: httpx.Client, name: str) -> None:
    for queue in (f"{name}-a", f"{name}-b"):
        declare(server, queue)
    table = pa.table({"payload": ["1", "2", "3", "4"], "to": [f"{name}-{last}" for last in "baba"]})

    put = http.put(f"/bulk/transactions/{name}/parts/p", params={"queues": "to"}, content=stream(table))
    assert put.json()["rows"] == 4
    assert commit(http, name, "p").json()["rows"] == 4

    assert payloads(read(http, f"{name}-a")) == ["2", "4"]
    assert payloads(read(http, f"{name}-b")) == ["1", "3"]


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (None, "there is no column 'to' of texts"),
        ([1, 2], "there is no column 'to' of texts"),
        (["a", None], "the column 'to' is null in some row"),
    ],
)
def test_a_part_that_does_not_say_which_queue_is_refused(
    http: httpx.Client, column: list[object] | None, said: str
) -> None:
    table = pa.table({"payload": ["1", "2"], **({} if column is None else {"to": column})})

    answer = http.put("/bulk/transactions/refused/parts/p", params={"queues": "to"}, content=stream(table))

    assert answer.status_code == 400
    assert said in answer.json()["reason"]


def test_a_part_for_a_queue_that_is_not_there_stores_nothing(server: Server, http: httpx.Client, name: str) -> None:
    declare(server, name)
    table = pa.table({"payload": ["1", "2"], "to": [name, f"{name}-nowhere"]})
    http.put(f"/bulk/transactions/{name}/parts/p", params={"queues": "to"}, content=stream(table))

    assert commit(http, name, "p").status_code == 404
    assert read(http, name).num_rows == 0

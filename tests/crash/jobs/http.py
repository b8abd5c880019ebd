"""Clients of HTTP: definitions, messages, bulk writes, dead letters."""

import random

import httpx
import pyarrow as pa

from tests.crash.jobs.job import Opened, Step, channel_of, declare, http_of, payload_of
from tests.crash.ledger import Ledger, Life, Whole
from tests.servers import Server

_GRAVE = "$dlq/mortal"


def administering(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """Users, permissions, queues and messages over HTTP."""
    client = http_of(server, opened)

    def ask(method: str, path: str, body: object = None) -> None:
        client.request(method, path, json=body).raise_for_status()

    def step(count: int) -> None:
        user, queue = f"user-{count % 3}", f"web-{count % 2}"
        with ledger.stating("user", user):
            ask("PUT", f"/users/{user}", {"password_hash": "", "tags": ""})
        with ledger.stating("permission", user, f"w{count}"):
            ask("PUT", f"/permissions/%2F/{user}", {"configure": "", "write": f"w{count}", "read": ""})
        with ledger.stating("queue", queue):
            ask("PUT", f"/queues/%2F/{queue}", {"durable": True})
        payload = f"{count}:{chance.random()}"
        with ledger.publishing(payload.encode(), queue):
            body = {"properties": {}, "routing_key": queue, "payload": payload, "payload_encoding": "string"}
            ask("POST", "/exchanges/%2F/amq.default/publish", body)
        if chance.random() < 0.4:
            with ledger.removing(*ledger.queues[queue]), ledger.stating("queue", queue, ""):
                ask("DELETE", f"/queues/%2F/{queue}")
        if chance.random() < 0.4:
            with ledger.stating("user", user, ""), ledger.stating("permission", user, ""):
                ask("DELETE", f"/users/{user}")

    return step


def getting(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """Messages that HTTP takes out of a queue: the answer says that they are settled."""
    channel = channel_of(server, opened)
    declare(ledger, channel, "got")
    client = http_of(server, opened)

    def step(count: int) -> None:
        payload = payload_of(chance, count)
        with ledger.publishing(payload, "got"):
            channel.basic_publish("", "got", payload)
        if count % 2:
            oldest = next(life for life in ledger.queues["got"] if life.is_waiting)
            with ledger.removing(oldest):
                body = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
                client.post("/queues/%2F/got/get", json=body).raise_for_status()

    return step


def governing(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """Policies, and virtual hosts with a queue, that come, change and go."""
    client = http_of(server, opened)

    def step(count: int) -> None:
        policy, host = f"policy-{count % 3}", f"host-{count % 2}"
        with ledger.stating("policy", policy, str(count + 1)):
            body = {"pattern": "^no queue$", "definition": {"max-length": count + 1}}
            client.put(f"/v1/policies/%2F/{policy}", json=body).raise_for_status()
        if chance.random() < 0.4:
            with ledger.stating("policy", policy, ""):
                client.delete(f"/v1/policies/%2F/{policy}").raise_for_status()
        with ledger.stating("host", host):
            client.put(f"/v1/vhosts/{host}", json={}).raise_for_status()
        everything = dict.fromkeys(("configure", "write", "read"), ".*")
        client.put(f"/v1/permissions/{host}/guest", json=everything).raise_for_status()
        queue = f"{host}\0inside"
        with ledger.stating("queue", queue):
            client.put(f"/v1/queues/{host}/inside", json={}).raise_for_status()
        payload = f"{count}:{chance.random()}"
        with ledger.publishing(payload.encode(), queue):
            _publish(client, host, "inside", payload)
        if chance.random() < 0.4:
            with (
                ledger.removing(*ledger.queues[queue]),
                ledger.stating("queue", queue, ""),
                ledger.stating("host", host, ""),
            ):
                client.delete(f"/v1/vhosts/{host}").raise_for_status()

    return step


def _publish(client: httpx.Client, host: str, queue: str, payload: str) -> None:
    client.post(f"/v1/publish/{host}", json={"routing_key": queue, "payload": payload}).raise_for_status()


def loading(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """Bulk writes to two queues, which happen as a whole and are known from then on; and a reader's progress."""
    channel = channel_of(server, opened)
    declare(ledger, channel, "bulk", arguments={"x-queue-type": "stream"})
    declare(ledger, channel, "bulk-work")
    client = http_of(server, opened)
    client.base_url = server.http_url
    attempt = chance.getrandbits(32)

    def step(count: int) -> None:
        name = f"bulk-{attempt}-{count}"
        comes: list[tuple[str, Life]] = []
        for queue in ("bulk", "bulk-work"):
            payloads = [payload_of(chance, count) for _ in range(chance.randint(1, 5))]
            path = f"/bulk/transactions/{name}/parts/{queue}?queue={queue}"
            client.put(path, content=_rows(payloads)).raise_for_status()
            comes += [(queue, ledger.sends(queue, payload)) for payload in payloads]
        ledger.wholes.append(Whole(comes, [], [("transaction", name)]))
        with ledger.stating("transaction", name):
            body = {"parts": ["bulk", "bulk-work"]}
            client.post(f"/bulk/transactions/{name}/commit", json=body).raise_for_status()
        ledger.confirm(*[life for _, life in comes])
        read = str(len(ledger.queues["bulk"]))
        with ledger.stating("progress", "bulk spark", read):
            client.put(f"/bulk/progress?queue=bulk&group=spark&offset={read}").raise_for_status()

    return step


def _rows(payloads: list[bytes]) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"payload": pa.array(payloads, pa.binary())})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def burying(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """Messages that are rejected, and then sent back, moved elsewhere or dropped."""
    client = http_of(server, opened)
    for queue, body in (("mortal", {"dlq": {"enabled": True}}), ("parking", {})):
        with ledger.stating("queue", queue):
            client.put(f"/v1/queues/%2F/{queue}", json=body).raise_for_status()

    def post(path: str, count: int, body: object = None) -> None:
        answer = client.post(f"/v1/queues/%2F/mortal/{path}", json=body or {}).raise_for_status().json()
        found = len(answer["items"]) if "items" in answer else answer["messages"]
        assert found == count, f"{path} has {found} messages, not {count}"

    def step(count: int) -> None:
        for _ in range(3):
            payload = f"{count} {chance.getrandbits(48)}:"
            with ledger.publishing(payload.encode(), "mortal"):
                _publish(client, "%2F", "mortal", payload)
        lives = ledger.waiting("mortal")
        with ledger.moving("mortal", _GRAVE, *lives):
            post("consume", len(lives), {"limit": len(lives), "then": "reject"})
        dead = ledger.waiting(_GRAVE)
        with ledger.moving(_GRAVE, "mortal", dead[0]):
            post("dead-letters/redrive", 1, {"limit": 1})
        with ledger.moving(_GRAVE, "parking", dead[1]):
            post("dead-letters/move", 1, {"to": "parking", "limit": 1})
        if count % 3 == 2:
            with ledger.removing(*dead[2:]):
                post("dead-letters/purge", len(dead) - 2)

    return step

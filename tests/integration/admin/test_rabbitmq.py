"""RabbitMQ's management paths, with RabbitMQ's own command and by hand."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest

from tests.servers import Server, drain


def admin(server: Server, *arguments: str, user: str = "guest", password: str = "guest") -> str:
    """What `rabbitmqadmin` prints."""
    command = shutil.which("rabbitmqadmin")
    assert command is not None, "rabbitmqadmin is missing: scripts/test installs it"
    result = subprocess.run(
        [command, "-H", "127.0.0.1", "-P", str(server.http_port), "-u", user, "-p", password, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def listed(server: Server, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(admin(server, "-f", "raw_json", "list", *arguments))
    return found


# -- rabbitmqadmin


def test_rabbitmqadmin_declares_publishes_gets_and_deletes(server: Server, name: str) -> None:
    admin(server, "declare", "queue", f"name={name}", "durable=true", 'arguments={"x-max-length": 10}')
    admin(server, "declare", "exchange", f"name={name}-x", "type=topic")
    admin(server, "declare", "binding", f"source={name}-x", f"destination={name}", "routing_key=a.*")
    admin(server, "publish", f"exchange={name}-x", "routing_key=a.b", "payload=hello", 'properties={"priority": 3}')

    peeked = json.loads(admin(server, "-f", "raw_json", "get", f"queue={name}"))
    taken = json.loads(admin(server, "-f", "raw_json", "get", f"queue={name}", "ackmode=ack_requeue_false", "count=5"))
    left = json.loads(admin(server, "-f", "raw_json", "get", f"queue={name}"))

    assert [(each["payload"], each["routing_key"], each["exchange"]) for each in peeked] == [
        ("hello", "a.b", f"{name}-x")
    ]
    assert peeked[0]["properties"]["priority"] == 3
    assert [(each["payload"], each["redelivered"]) for each in taken] == [("hello", True)]
    assert left == []

    keys = [each["properties_key"] for each in listed(server, "bindings") if each["source"] == f"{name}-x"]
    admin(
        server, "delete", "binding", f"source={name}-x", f"destination={name}", "destination_type=queue",
        f"properties_key={keys[0]}",
    )  # fmt: skip
    admin(server, "delete", "exchange", f"name={name}-x")
    admin(server, "delete", "queue", f"name={name}")
    assert name not in [each["name"] for each in listed(server, "queues")]


@pytest.mark.parametrize(
    "what",
    ["users", "vhosts", "connections", "exchanges", "bindings", "permissions", "channels", "parameters", "consumers",
     "queues", "policies", "operator_policies", "nodes", "vhost_limits"],
)  # fmt: skip
def test_rabbitmqadmin_lists_everything(server: Server, what: str) -> None:
    assert isinstance(listed(server, what), list)
    admin(server, "list", what)


def test_rabbitmqadmin_shows_the_overview(server: Server) -> None:
    assert "rabbitmq_version" in admin(server, "show", "overview")


def test_rabbitmqadmin_manages_users_hosts_and_permissions(server: Server, name: str) -> None:
    admin(server, "declare", "vhost", f"name={name}")
    admin(server, "declare", "user", f"name={name}", "password=secret", "tags=management")
    admin(server, "declare", "permission", f"vhost={name}", f"user={name}", "configure=.*", "write=.*", "read=.*")

    admin(server, "-V", name, "declare", "queue", "name=mine", user=name, password="secret")

    assert [each["vhost"] for each in listed(server, "queues") if each["name"] == "mine"] == [name]
    admin(server, "delete", "permission", f"vhost={name}", f"user={name}")
    admin(server, "delete", "user", f"name={name}")
    admin(server, "delete", "vhost", f"name={name}")
    assert name not in [each["name"] for each in listed(server, "vhosts")]


def test_rabbitmqadmin_purges_a_queue_and_closes_a_connection(server: Server, name: str) -> None:
    connection = server.connect(client_properties={"connection_name": name})
    channel = connection.channel()
    channel.queue_declare(name)
    channel.basic_publish("", name, b"x")
    channel.basic_consume(name, lambda *_: None, consumer_tag=f"{name}-tag")

    consumers = [each["consumer_tag"] for each in listed(server, "consumers")]
    channel.basic_cancel(f"{name}-tag")
    admin(server, "purge", "queue", f"name={name}")
    names = [each["name"] for each in listed(server, "connections") if each["user_provided_name"] == name]
    admin(server, "close", "connection", f"name={names[0]}")

    assert f"{name}-tag" in consumers
    with pytest.raises(Exception, match="CONNECTION_FORCED"):
        connection.sleep(30)


def test_definitions_go_from_one_broker_to_another(
    server: Server, name: str, tmp_path: Path, http: httpx.Client
) -> None:
    admin(server, "declare", "vhost", f"name={name}")
    admin(server, "declare", "user", f"name={name}", "password=secret", "tags=administrator")
    admin(server, "declare", "permission", f"vhost={name}", f"user={name}", "configure=.*", "write=.*", "read=.*")
    admin(server, "-V", name, "declare", "queue", "name=plain", 'arguments={"x-queue-type": "stream"}')
    http.put(f"/api/v1/queues/{name}/configured", json={"limits": {"max_depth": 7}, "retry": {"max_retries": 2}})
    admin(server, "-V", name, "declare", "exchange", "name=x", "type=fanout")
    admin(server, "-V", name, "declare", "binding", "source=x", "destination=plain", "routing_key=k")
    delayed = ("type=x-delayed-message", 'arguments={"x-delayed-type": "topic"}')
    admin(server, "-V", name, "declare", "exchange", "name=delays", *delayed)
    file = tmp_path / "definitions.json"
    admin(server, "export", str(file))
    (tmp_path / "other").mkdir()
    other = Server(tmp_path / "other", in_memory=True)
    other.start()
    try:
        admin(other, "import", str(file))
        admin(other, "import", str(file))

        with httpx.Client(base_url=other.http_url, auth=(name, "secret"), timeout=30, verify=False) as client:
            configured = client.get(f"/api/v1/queues/{name}/configured").json()["definition"]
            queues = {each["name"]: each["type"] for each in client.get(f"/api/queues/{name}").json()}
            bindings = [each["source"] for each in client.get(f"/api/queues/{name}/plain/bindings").json()]
            delays = client.get(f"/api/exchanges/{name}/delays").json()
    finally:
        other.stop()

    assert (configured["max_length"], configured["retry"]["max_retries"]) == (7, 2)
    assert queues == {"plain": "stream", "configured": "classic"}
    assert bindings == ["", "x"]
    assert (delays["type"], delays["arguments"]) == ("x-delayed-message", {"x-delayed-type": "topic"})


def test_an_export_of_rabbitmq_comes_in_and_its_users_too(tmp_path: Path) -> None:
    definitions = {  # as RabbitMQ 3.10 wrote them, but for what is the same in each of the lists
        "rabbit_version": "3.10.8",
        "users": [
            {
                "name": "guest",
                "password_hash": "T2SDU/gYyVs0ipEaZrf2Mlrjs5AUMm92L/1/xc8bcBjqfZCd",
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": ["administrator"],
                "limits": {},
            },
            {
                "name": "app",
                "password_hash": "xO/eOrewkZxTFiGfIfY4ScWZkppFenyUUnZYyiKg/YlZ1DrM",
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": [],
                "limits": {"max-connections": 2, "max-odd": 1},
            },
        ],
        "vhosts": [{"name": "/", "default_queue_type": "quorum"}],
        "permissions": [{"user": "app", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
        "topic_permissions": [],
        "parameters": [
            {"value": [], "vhost": "/", "component": "vhost-limits", "name": "limits"},
            {"value": {"src-uri": "amqp://"}, "vhost": "/", "component": "shovel", "name": "mover"},
            {
                "value": {"pattern": "", "apply-to": "queues", "definition": {"max-length": 8}, "priority": 0},
                "vhost": "/",
                "component": "operator_policy",
                "name": "roof",
            },
        ],
        "global_parameters": [{"name": "cluster_name", "value": "x"}],
        "policies": [
            {
                "vhost": "/",
                "name": "short",
                "pattern": "^q",
                "apply-to": "queues",
                "definition": {"max-length": 9, "ha-mode": "all", "x-of-a-plugin": 1},
                "priority": 0,
            },
            {"vhost": "/", "name": "odd", "pattern": "^q", "apply-to": "all", "definition": {"odd": 1}, "priority": 1},
        ],
        "queues": [
            {
                "name": "q",
                "vhost": "/",
                "durable": True,
                "auto_delete": False,
                "arguments": {"x-queue-mode": "lazy", "x-max-length": 10},
            }
        ],
        "exchanges": [],
        "bindings": [],
    }
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(definitions))
    server = Server(tmp_path, in_memory=True)
    server.start()
    try:
        admin(server, "import", str(file))

        assert [each["name"] for each in listed(server, "queues")] == ["q"]
        login = pika.PlainCredentials("app", "secret")
        connection = server.connect(credentials=login)
        arguments = {"x-queue-mode": "lazy", "x-max-length": 10}
        assert connection.channel().queue_declare("q", durable=True, arguments=arguments).method.queue == "q"
        with httpx.Client(base_url=server.http_url, auth=("guest", "guest"), timeout=30) as http:
            answer = http.post("/api/definitions", json=definitions)
            queue = http.get("/api/queues/%2F/q").json()
            limits = http.get("/api/user-limits").json()
        assert answer.status_code == 200
        assert [(each["kind"], each["name"], each["setting"]) for each in answer.json()["without_effect"]] == [
            ("vhost", "/", "default_queue_type"),
            ("user", "app", "max-odd"),
            ("global_parameter", "cluster_name", ""),
            ("shovel", "mover", ""),
            ("policy", "short", "ha-mode"),
            ("policy", "short", "x-of-a-plugin"),
            ("policy", "odd", "odd"),
            ("policy", "odd", ""),
            ("queue", "q", "x-queue-mode"),
        ]
        assert (queue["policy"], queue["operator_policy"]) == ("short", "roof")
        assert queue["effective_policy_definition"] == {"max-length": 8, "ha-mode": "all"}
        assert limits == [{"user": "app", "value": {"max-connections": 2}}]
        server.close_connections()
    finally:
        server.stop()


def test_rabbitmqadmin_manages_policies_and_limits(server: Server, name: str, http: httpx.Client) -> None:
    """The broker is left as it was: other tests share it."""
    admin(server, "declare", "vhost", f"name={name}")
    admin(server, "-V", name, "declare", "queue", "name=q", "durable=true")
    definition = '{"max-length": 9, "dead-letter-exchange": "dead"}'
    admin(server, "-V", name, "declare", "policy", "name=p", "pattern=^q", f"definition={definition}", "priority=2")
    admin(server, "-V", name, "declare", "operator_policy", "name=o", "pattern=.*", 'definition={"max-length": 7}')
    admin(server, "-V", name, "declare", "vhost_limit", f"vhost={name}", "name=max-queues", "value=1")

    policies = [each for each in listed(server, "policies") if each["vhost"] == name]
    operators = [each for each in listed(server, "operator_policies") if each["vhost"] == name]
    queue = http.get(f"/api/queues/{name}/q").json()
    refused = http.put(f"/api/queues/{name}/other", json={})

    assert policies == [
        {
            "vhost": name,
            "name": "p",
            "pattern": "^q",
            "apply-to": "all",
            "definition": json.loads(definition),
            "priority": 2,
        }
    ]
    assert [(each["name"], each["definition"]) for each in operators] == [("o", {"max-length": 7})]
    assert (queue["policy"], queue["operator_policy"]) == ("p", "o")
    assert queue["effective_policy_definition"] == {"max-length": 7, "dead-letter-exchange": "dead"}
    assert [each["value"] for each in listed(server, "vhost_limits") if each["vhost"] == name] == [{"max-queues": 1}]
    assert "queue limit in vhost" in refused.json()["reason"]

    admin(server, "-V", name, "delete", "policy", "name=p")
    admin(server, "-V", name, "delete", "operator_policy", "name=o")
    admin(server, "delete", "vhost_limit", f"vhost={name}", "name=max-queues")
    assert http.get(f"/api/queues/{name}/q").json()["effective_policy_definition"] == {}
    assert http.put(f"/api/queues/{name}/other", json={}).status_code == 201
    admin(server, "delete", "vhost", f"name={name}")


# -- by hand


@pytest.mark.parametrize("has_store", [False, True], ids=["directory", "store"])
def test_a_policy_counts_at_once_for_clients_and_after_a_kill(tmp_path: Path, has_store: bool) -> None:
    server = Server(tmp_path, store=f"file://{tmp_path}/store" if has_store else "")
    server.start()
    try:
        channel = server.connect().channel()
        channel.queue_declare("dead", durable=True)
        channel.queue_declare("work", durable=True, arguments={"x-max-length": 50})
        channel.confirm_delivery()
        for number in range(40):
            channel.basic_publish("", "work", b"%d" % number, pika.BasicProperties(delivery_mode=2))
        with httpx.Client(base_url=server.http_url, auth=("guest", "guest"), timeout=30) as http:
            definition = {"max-length": 30, "dead-letter-exchange": "", "dead-letter-routing-key": "dead"}
            answer = http.put("/api/policies/%2F/p", json={"pattern": "^work", "definition": definition})
            assert answer.status_code == 201
        assert channel.queue_declare("work", passive=True).method.message_count == 30
        server.kill()
        server.start()
        channel = server.connect().channel()
        channel.queue_declare("work", durable=True, arguments={"x-max-length": 50})
        channel.confirm_delivery()
        channel.basic_publish("", "work", b"40", pika.BasicProperties(delivery_mode=2))
        assert drain(channel, "work", 30) == [b"%d" % number for number in range(11, 41)]
        assert drain(channel, "dead", 11) == [b"%d" % number for number in range(11)]
        server.close_connections()
    finally:
        server.stop()


def test_a_policymaker_makes_policies_and_no_operator_policies(http: httpx.Client, server: Server, name: str) -> None:
    http.put(f"/api/users/{name}", json={"password": "secret", "tags": "policymaker"})
    http.put(f"/api/users/{name}-m", json={"password": "secret", "tags": "management"})
    for user in (name, f"{name}-m"):
        http.put(f"/api/permissions/%2F/{user}", json={"configure": "", "write": "", "read": ""})
    body = {"pattern": "^no queue$", "definition": {"max-length": 1}}
    maker = httpx.Client(base_url=server.http_url, auth=(name, "secret"), timeout=30)
    other = httpx.Client(base_url=server.http_url, auth=(f"{name}-m", "secret"), timeout=30)
    with maker, other:
        assert maker.put(f"/api/policies/%2F/{name}", json=body).status_code == 201
        assert maker.put(f"/api/operator-policies/%2F/{name}", json=body).status_code == 403
        assert other.put(f"/api/policies/%2F/{name}", json=body).status_code == 403
        assert maker.delete(f"/api/policies/%2F/{name}").status_code == 204


def test_parameters_are_kept_or_refused(http: httpx.Client, name: str) -> None:
    assert http.put(f"/api/global-parameters/{name}", json={"value": {"a": 1}}).status_code == 201
    assert http.put(f"/api/global-parameters/{name}", json={"value": 2}).status_code == 204
    assert http.get(f"/api/global-parameters/{name}").json() == {"name": name, "value": 2}
    assert http.delete(f"/api/global-parameters/{name}").status_code == 204
    assert http.get(f"/api/global-parameters/{name}").status_code == 404
    refused = http.put("/api/parameters/shovel/%2F/mover", json={"value": {}})
    assert (refused.status_code, "component shovel not found" in refused.json()["reason"]) == (400, True)
    http.put(f"/api/vhosts/{name}")
    limits = f"/api/parameters/vhost-limits/{name}/limits"
    assert http.put(limits, json={"value": {"max-queues": 3}}).status_code == 204
    assert http.get(limits).json()["value"] == {"max-queues": 3}
    assert http.delete(limits).status_code == 204
    assert http.get(limits).status_code == 404


def test_a_virtual_host_and_a_user_have_no_more_connections_than_their_limits(
    http: httpx.Client, server: Server, name: str
) -> None:
    http.put(f"/api/vhosts/{name}")
    http.put(f"/api/users/{name}", json={"password": "secret", "tags": ""})
    http.put(f"/api/permissions/{name}/{name}", json={"configure": "", "write": "", "read": ""})
    http.put(f"/api/vhost-limits/{name}/max-connections", json={"value": 1})
    login = {"virtual_host": name, "credentials": pika.PlainCredentials(name, "secret")}
    first = server.connect(**login)
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match=r"530.*connection limit \(1\) is reached"):
        server.connect(**login)
    http.delete(f"/api/vhost-limits/{name}/max-connections")
    second = server.connect(**login)
    http.put(f"/api/user-limits/{name}/max-connections", json={"value": 2})
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match=r"user connection limit \(2\) is reached"):
        server.connect(**login)
    http.delete(f"/api/user-limits/{name}/max-connections")
    server.connect(**login)
    assert first.is_open
    assert second.is_open


def test_a_queue_is_shown_with_those_who_consume_it(http: httpx.Client, server: Server, name: str) -> None:
    channel = server.connect().channel()
    for queue in (name, name + "-other"):
        channel.queue_declare(queue)
        channel.basic_consume(queue, lambda *_: None, consumer_tag=queue + "-tag")

    (consumer,) = http.get(f"/api/queues/%2F/{name}").json()["consumer_details"]

    assert (consumer["consumer_tag"], consumer["queue"]["name"]) == (name + "-tag", name)
    assert consumer["channel_details"]["number"] == channel.channel_number


def test_lists_are_cut_sorted_and_searched(http: httpx.Client, name: str) -> None:
    for number in range(5):
        assert http.put(f"/api/queues/%2F/{name}-{number}", json={}).status_code == 201
        assert http.put(f"/api/queues/%2F/{name}-{number}", json={}).status_code == 204

    page = http.get("/api/queues", params={"page": 2, "page_size": 2, "name": name, "sort": "name"}).json()
    columns = http.get("/api/queues", params={"name": name, "columns": "name,message_stats.publish"}).json()

    assert [each["name"] for each in page["items"]] == [f"{name}-2", f"{name}-3"]
    assert (page["page_count"], page["filtered_count"], page["item_count"]) == (3, 5, 2)
    assert columns[0] == {"name": f"{name}-0", "message_stats": {"publish": 0}}
    assert http.get("/api/queues", params={"page": 9, "name": name}).status_code == 400
    assert http.get("/api/queues", params={"name": "(a+)+", "use_regex": "true"}).status_code == 400


def test_a_message_published_here_arrives_over_amqp_with_its_properties(
    http: httpx.Client, server: Server, name: str
) -> None:
    http.put(f"/api/queues/%2F/{name}", json={"durable": True})
    body = {
        "properties": {"delivery_mode": 2, "content_type": "text/plain", "type": "greeting", "headers": {"h": 1},
                       "expiration": "60000", "timestamp": 5},
        "routing_key": name,
        "payload": "aGk=",
        "payload_encoding": "base64",
    }  # fmt: skip

    routed = http.post("/api/exchanges/%2F/amq.default/publish", json=body).json()
    nowhere = http.post("/api/exchanges/%2F/amq.default/publish", json={**body, "routing_key": "nowhere"}).json()
    _, properties, payload = server.connect().channel().basic_get(name, auto_ack=True)

    assert (routed, nowhere) == ({"routed": True}, {"routed": False})
    assert payload == b"hi"
    assert (properties.content_type, properties.type, properties.headers) == ("text/plain", "greeting", {"h": 1})
    assert properties.expiration == "60000"


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "/api/queues/%2F/bad", {"durable": "perhaps"}, 400),
        ("PUT", "/api/queues/%2F/bad", {"arguments": {"x-max-length": "many"}}, 400),
        ("PUT", "/api/exchanges/%2F/bad", {"type": "round"}, 400),
        ("PUT", "/api/exchanges/%2F/bad", {"type": 5}, 400),
        ("PUT", "/api/queues/nowhere/bad", {}, 404),
        ("POST", "/api/queues/%2F/missing/get", {"count": 1}, 404),
        ("POST", "/api/bindings/%2F/e/amq.topic/q/missing", {}, 404),
        ("POST", "/api/bindings/%2F/e/amq.topic/z/missing", {}, 404),
        ("PUT", "/api/users/bad", {}, 400),
        ("PUT", "/api/permissions/%2F/missing", {"configure": "", "write": "", "read": ""}, 400),
        ("PUT", "/api/permissions/%2F/guest", {"configure": "("}, 400),
        ("POST", "/api/definitions", {"queues": 5}, 400),
        ("POST", "/api/definitions", {"queues": [{"name": "q", "headrace": {"max_length": "x"}}]}, 400),
        ("POST", "/api/definitions", {"bindings": [{"source": "x"}]}, 400),
        ("DELETE", "/api/users/guest", None, 400),
        ("DELETE", "/api/vhosts/%2F", None, 400),
        ("DELETE", "/api/connections/none", None, 404),
    ],
)
def test_what_cannot_be_done_is_said(http: httpx.Client, method: str, path: str, body: object, status: int) -> None:
    answer = http.request(method, path, json=body)

    assert answer.status_code == status, answer.text
    assert answer.json()["reason"]


def test_health_checks_and_aliveness(http: httpx.Client, server: Server) -> None:
    assert http.get("/api/aliveness-test/%2F").json() == {"status": "ok"}
    assert http.get("/api/health/checks/alarms").json() == {"status": "ok"}
    assert http.get(f"/api/health/checks/port-listener/{server.port}").json() == {"status": "ok"}
    assert http.get("/api/health/checks/port-listener/1").status_code == 503
    assert http.get("/api/health/checks/protocol-listener/amqp091").json() == {"status": "ok"}
    assert http.get("/api/whoami").json()["name"] == "guest"
    assert http.get("/api/cluster-name").json()["name"].startswith("headrace@")
    node = http.get("/api/nodes").json()[0]
    assert http.get(f"/api/nodes/{node['name']}").json()["mem_used"] > 0


def test_a_user_who_only_manages_sees_no_users(http: httpx.Client, server: Server, name: str) -> None:
    http.put(f"/api/users/{name}", json={"password": "secret", "tags": "management"})

    def status(path: str) -> int:
        return httpx.get(f"{server.http_url}{path}", auth=(name, "secret"), timeout=60, verify=False).status_code

    assert status("/api/whoami") == 200
    assert status("/api/users") == 403
    assert status("/api/definitions") == 403
    assert status("/api/nodes") == 403
    assert status("/api/queues/%2F") == 403
    assert httpx.get(f"{server.http_url}/api/queues", auth=(name, "secret"), timeout=60, verify=False).json() == []


def test_lists_of_users_rights_have_what_was_granted(http: httpx.Client) -> None:
    granted = {"exchange": "amq.topic", "write": "a", "read": "b"}
    http.put("/api/topic-permissions/%2f/guest", json=granted).raise_for_status()

    for path in ("/api/topic-permissions", "/api/users/guest/topic-permissions", "/api/topic-permissions/%2f/guest"):
        assert http.get(path).json() == [{"user": "guest", "vhost": "/", **granted}]
    http.delete("/api/topic-permissions/%2f/guest").raise_for_status()
    assert http.get("/api/topic-permissions").json() == []


def test_long_definitions_come_out_as_they_went_in(http: httpx.Client, name: str) -> None:
    http.put(f"/api/vhosts/{name}").raise_for_status()
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    http.put(f"/api/permissions/{name}/guest", json=rights).raise_for_status()
    queues: list[dict[str, object]] = [
        {"name": f"q{number:04}", "durable": True, "auto_delete": False, "arguments": {"x-max-length": number + 1}}
        for number in range(2500)
    ]
    bindings: list[dict[str, object]] = [
        {
            "source": "amq.topic",
            "destination": f"q{number:04}",
            "destination_type": "queue",
            "routing_key": f"key.{number}",
            "arguments": {},
        }
        for number in range(2500)
    ]
    body = {"queues": queues, "bindings": bindings}
    assert len(json.dumps(body)) > 256 << 10

    http.post(f"/api/definitions/{name}", json=body).raise_for_status()
    found = http.get(f"/api/definitions/{name}").json()

    assert {key: found[key] for key in body} == body
    listed = http.get(f"/api/queues/{name}?sort=arguments.x-max-length&sort_reverse=true&columns=name").json()
    assert [each["name"] for each in listed] == [f"q{number:04}" for number in reversed(range(2500))]
    page = http.get(f"/api/queues/{name}?name=q000&page=2&page_size=4").json()
    assert (page["filtered_count"], page["total_count"], page["page_count"], page["item_count"]) == (10, 2500, 3, 4)
    assert len(http.get(f"/api/bindings/{name}").json()) == 5000
    assert [each["messages"] for each in http.get("/api/vhosts").json() if each["name"] == name] == [0]
    http.delete(f"/api/vhosts/{name}").raise_for_status()
    assert http.get(f"/api/queues/{name}").status_code == 404


# -- what clients of the management API ask besides


def test_names_are_found_by_regular_expressions(http: httpx.Client, name: str) -> None:
    for end in ("a1", "b2", "c"):
        http.put(f"/api/queues/%2F/{name}-{end}", json={}).raise_for_status()

    found = http.get("/api/queues", params={"name": rf"^{name}-[ab]\d+$", "use_regex": "true", "page": 1}).json()
    plain = http.get("/api/queues", params={"name": f"{name}-[ab]", "use_regex": "false", "page": 1}).json()

    assert sorted(each["name"] for each in found["items"]) == [f"{name}-a1", f"{name}-b2"]
    assert plain["items"] == []


@pytest.mark.parametrize("expression", ["[", "(a+)+b", "(x*){9}", "a*b*c*d*"])
def test_an_expression_that_is_none_or_takes_long_is_refused(http: httpx.Client, expression: str) -> None:
    assert http.get("/api/queues", params={"name": expression, "use_regex": "true"}).status_code == 400


def test_how_visitors_log_in_is_told_to_everybody(server: Server) -> None:
    answer = httpx.get(f"{server.http_url}/api/auth")

    assert (answer.status_code, answer.json()["oauth_enabled"]) == (200, False)


def test_users_are_deleted_in_bulk_all_or_none(http: httpx.Client, name: str) -> None:
    for end in "ab":
        http.put(f"/api/users/{name}-{end}", json={"password": "p", "tags": ""}).raise_for_status()

    def there() -> list[str]:
        shown = http.get("/api/users/without-permissions").json()
        return sorted(each["name"] for each in shown if each["name"].startswith(name))

    refused = http.post("/api/users/bulk-delete", json={"users": [f"{name}-a", f"{name}-z"]})
    before = there()
    done = http.post("/api/users/bulk-delete", json={"users": [f"{name}-a", f"{name}-b"]})

    assert (refused.status_code, before) == (400, [f"{name}-a", f"{name}-b"])
    assert (done.status_code, there()) == (204, [])


def test_the_overview_names_contexts_and_all_types_of_exchanges(http: httpx.Client, server: Server) -> None:
    shown = http.get("/api/overview").json()

    assert [each["port"] for each in shown["contexts"]] == [str(server.http_port)]
    types = {each["name"] for each in shown["exchange_types"]}
    assert {"direct", "x-consistent-hash", "x-delayed-message", "x-modulus-hash", "x-random"} <= types


def test_what_rabbitmq_answers_with_400_is_400(http: httpx.Client, name: str) -> None:
    http.put(f"/api/queues/%2F/{name}", json={"durable": True}).raise_for_status()
    everything = {"configure": ".*", "write": ".*", "read": ".*"}

    answers = [
        http.put(f"/api/queues/%2F/{name}", json={"durable": False}),
        http.put(f"/api/queues/%2F/{name}-2", json={"arguments": {"x-message-ttl": "soon"}}),
        http.put("/api/exchanges/%2F/amq.direct", json={"type": "fanout"}),
        http.put("/api/permissions/%2F/nobody-of-that-name", json=everything),
    ]

    assert [answer.status_code for answer in answers] == [400] * 4
    assert http.put(f"/api/exchanges/%2F/{name}", json={}).status_code == 201

"""Jobs tell the status of their pipelines over HTTP: who may, what is refused, what is listed and counted."""

import httpx

from tests.servers import Server

HOT = {"name": "hot", "type": "sql", "state": "running", "messages": 10, "batches": 2, "behind": 3}


def ask(server: Server, user: str, method: str, path: str, told: object = None) -> httpx.Response:
    return httpx.request(method, f"{server.http_url}/api/v1{path}", auth=(user, "secret"), timeout=30, json=told)


def test_a_user_without_tags_tells_a_job_and_no_other_user_does(http: httpx.Client, server: Server, name: str) -> None:
    for user in ("ann", "bob", "stranger"):
        http.put(f"/api/v1/users/{user}", json={"password": "secret"}).raise_for_status()
    for user in ("ann", "bob"):
        http.put(f"/api/v1/permissions/%2F/{user}", json={}).raise_for_status()
    place = f"/pipelines/%2F/{name}"

    told = ask(server, "ann", "PUT", place, {"pipelines": [HOT]})

    assert (told.status_code, told.json()) == (200, {"pipelines": 1})
    assert ask(server, "bob", "PUT", place, {"pipelines": []}).status_code == 403
    assert ask(server, "bob", "DELETE", place).status_code == 403
    assert ask(server, "stranger", "PUT", f"{place}-2", {"pipelines": [HOT]}).status_code == 403
    assert ask(server, "ann", "GET", "/pipelines").status_code == 403  # looking needs the tag management
    listed = [each for each in http.get("/api/v1/pipelines").json()["items"] if each["job"] == name]
    assert [(each["name"], each["state"], each["behind"], each["user"]) for each in listed] == [
        ("hot", "running", 3, "ann")
    ]
    labels = f'{{vhost="/",job="{name}",pipeline="hot"}}'
    metrics = http.get("/metrics").text
    assert f"headrace_pipeline_messages_total{labels} 10\n" in metrics
    assert f"headrace_pipeline_lag{labels} 3\n" in metrics
    assert ask(server, "ann", "DELETE", place).json() == {"pipelines": 1}
    assert name not in http.get("/metrics").text


def test_a_status_that_is_none_is_refused_whole(http: httpx.Client, name: str) -> None:
    place = f"/api/v1/pipelines/%2F/{name}"

    refused: tuple[dict[str, object], ...] = (
        {},
        {"pipelines": {}},
        {"pipelines": [HOT, {**HOT, "state": "lost"}]},
        {"pipelines": [HOT, {**HOT, "messages": -1}]},
        {"pipelines": [HOT, {**HOT, "colour": "red"}]},
        {"pipelines": [{"name": "hot"}]},
        {"pipelines": [{**HOT, "name": ""}]},
        {"pipelines": [HOT] * 1001},
    )
    for wrong in refused:
        assert http.put(place, json=wrong).status_code == 400, wrong
    assert http.put(f"/api/v1/pipelines/nowhere/{name}", json={"pipelines": [HOT]}).status_code == 404
    assert http.put(f"/api/v1/pipelines/%2F/{'j' * 256}", json={"pipelines": [HOT]}).status_code == 400
    assert name not in http.get("/api/v1/pipelines").text


def test_pipelines_are_listed_page_by_page_and_by_virtual_host(http: httpx.Client, name: str) -> None:
    http.put(f"/api/v1/vhosts/{name}").raise_for_status()
    http.put(f"/api/v1/permissions/{name}/guest", json={}).raise_for_status()
    for job in ("a", "b"):
        told = [{**HOT, "name": f"p{number}"} for number in range(3)]
        http.put(f"/api/v1/pipelines/{name}/{job}", json={"pipelines": told}).raise_for_status()

    found: list[tuple[str, str]] = []
    after: str | None = ""
    while after is not None:
        page = http.get("/api/v1/pipelines", params={"vhost": name, "limit": 4, "after": after}).json()
        found += [(each["job"], each["name"]) for each in page["items"]]
        after = page["next"]

    assert found == [(job, f"p{number}") for job in ("a", "b") for number in range(3)]
    http.delete(f"/api/v1/vhosts/{name}").raise_for_status()
    assert f'"vhost":"{name}"' not in http.get("/api/v1/pipelines").text

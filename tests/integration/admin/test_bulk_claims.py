"""Work claimed in bulk over HTTP: shared with AMQP consumers, settled later."""

import httpx
import pytest

from tests.integration.admin.test_bulk import client, declare
from tests.servers import Server


def call(http: httpx.Client, verb: str, queue: str, name: str = "job", **body: object) -> dict[str, object]:
    answer = http.post(f"/bulk/claims/{name}/{verb}", json={"queue": queue, **body})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_claims_are_taken_held_finished_and_released(server: Server, http: httpx.Client, name: str) -> None:
    channel = declare(server, name)
    channel.confirm_delivery()
    for number in range(3000):
        channel.basic_publish("", name, b"%d" % number)
    method, _, _ = channel.basic_get(name)

    assert call(http, "take", name, most=2500) == {"ranges": [[1, 2501]], "messages": 2500, "bytes": 8893}
    assert call(http, "take", name, "other", before=2601)["ranges"] == [[2501, 2601]]
    assert call(http, "hold", name, ranges=[[0, 2000], [2500, 2600]]) == {"ranges": [[1, 2000], [2500, 2501]]}
    assert call(http, "finish", name, ranges=[[0, 2600]]) == {"messages": 2500}
    channel.basic_ack(method.delivery_tag)
    assert call(http, "release", name, "other") == {"messages": 100}
    _, _, body = channel.basic_get(name)
    assert body == b"2501"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"ranges": [[1, 1]]}, "'ranges' must be a list of pairs"),
        ({"ranges": [[0, 5], [4, 6]]}, "that do not overlap"),
        ({"ranges": [[0, True]]}, "'ranges' must be"),
        ({"ranges": [[0, 1 << 40]]}, "100000 offsets altogether"),
        ({"ranges": "all"}, "'ranges' must be"),
        ({"ranges": [], "lease_ms": 5}, "'lease_ms' must be a whole number from 1000"),
        ({"ranges": [], "colour": 5}, "no key 'colour'"),
        ({"ranges": [], "group": "g" * 600}, "'group' must have 512 bytes"),
    ],
)
def test_what_makes_no_sense_is_refused(server: Server, http: httpx.Client, body: dict[str, object], said: str) -> None:
    declare(server, "refusing")

    answer = http.post("/bulk/claims/job/hold", json={"queue": "refusing", **body})

    assert (answer.status_code, said in answer.json()["reason"]) == (400, True), answer.text


def test_nobody_claims_without_the_right(server: Server, http: httpx.Client, name: str) -> None:
    declare(server, name)
    assert http.put("/api/users/claimer", json={"password": "claimer", "tags": ""}).status_code < 300
    granted = http.put("/api/permissions/%2F/claimer", json={"configure": "", "write": ".*", "read": "^allowed$"})
    assert granted.status_code < 300, granted.text

    with client(server, "claimer") as stranger:
        for verb in ("take", "hold", "finish", "release"):
            answer = stranger.post(f"/bulk/claims/job/{verb}", json={"queue": name, "ranges": [[0, 1]]})
            assert answer.status_code in (400, 403), answer.text
            assert stranger.post(f"/bulk/claims/job/{verb}", json={"queue": name}).status_code == 403

"""The service without a server: the fixture `headrace` is a broker in memory."""

import shop
from fastapi.testclient import TestClient

import headrace as package


def test_an_order_waits_until_it_is_served(headrace: package.SyncBroker) -> None:
    headrace.declare("orders")
    shop.app.dependency_overrides[shop.broker] = lambda: headrace
    client = TestClient(shop.app)

    answer = client.post("/orders", json={"drink": "espresso", "table": "7"})

    assert answer.status_code == 202
    assert client.get("/orders").json() == {"waiting": 1}
    served = shop.served(headrace)
    assert next(served) == "espresso for table 7"
    served.close()


def test_an_order_outlives_a_restart(headrace_on_disk: package.SyncBroker) -> None:
    headrace_on_disk.declare("orders")
    shop.app.dependency_overrides[shop.broker] = lambda: headrace_on_disk

    TestClient(shop.app).post("/orders", json={"drink": "tea", "table": "2"})

    assert headrace_on_disk.messages("orders") == 1

"""The site over the fixture `headrace_on_disk`, in place of the broker that it would open."""

import pytest
import shop
from django.test import Client

import headrace as package


@pytest.fixture
def client(headrace_on_disk: package.SyncBroker, monkeypatch: pytest.MonkeyPatch) -> Client:
    headrace_on_disk.declare("orders")
    monkeypatch.setattr(shop, "broker", lambda: headrace_on_disk)
    return Client()


def test_an_order_is_served_once(client: Client) -> None:
    assert client.post("/orders", "espresso", content_type="text/plain").json() == {"queues": 1}

    assert client.get("/orders").json() == {"order": "espresso"}
    assert client.get("/orders").status_code == 404

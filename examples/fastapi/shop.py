"""A web service with FastAPI that takes orders into a durable queue. Run it with `uvicorn shop:app`."""

import os
from collections.abc import Generator
from functools import cache
from typing import Annotated

from fastapi import Depends, FastAPI

import headrace


@cache
def _opened() -> headrace.SyncBroker:
    opened = headrace.open_sync(os.environ.get("SHOP_DATA", "data"))
    opened.declare("orders", max_length=100_000, overflow="reject-publish")
    return opened


def broker() -> headrace.SyncBroker:
    """The broker of this process; tests put another in its place."""
    return _opened()


Broker = Annotated[headrace.SyncBroker, Depends(broker)]
app = FastAPI()


@app.post("/orders", status_code=202)
def take(order: dict[str, str], shop: Broker) -> dict[str, int]:
    """The answer goes out once the order would survive a crash."""
    queues = shop.publish("orders", order["drink"].encode(), headers={"table": order["table"]})
    return {"queues": queues}


@app.get("/orders")
def waiting(shop: Broker) -> dict[str, int]:
    return {"waiting": shop.messages("orders")}


def served(shop: headrace.SyncBroker) -> Generator[str, None, None]:
    """The barista: one order after the other, each acknowledged when it is served."""
    with shop.consume("orders", credit=1) as orders:
        for order in orders:
            yield f"{order.payload.decode()} for table {order.headers['table']}"
            order.ack()

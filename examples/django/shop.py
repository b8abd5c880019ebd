"""A site with Django in one file: a view stores orders, a command serves them. `python shop.py runserver`."""

import os
import sys
from functools import cache

import django
from django.conf import settings
from django.core.management import execute_from_command_line
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path

import headrace

if not settings.configured:
    settings.configure(
        ROOT_URLCONF=__name__,
        ALLOWED_HOSTS=["127.0.0.1", "localhost", "testserver"],
        SECRET_KEY=os.environ.get("SHOP_SECRET", "only for this example"),
        HEADRACE_DATA=os.environ.get("SHOP_DATA", "data"),
    )
    django.setup()


@cache
def broker() -> headrace.SyncBroker:
    """The broker of this process, opened by the first request: after a server has forked its workers."""
    opened = headrace.open_sync(settings.HEADRACE_DATA)
    opened.declare("orders")
    return opened


def orders(request: HttpRequest) -> JsonResponse:
    """POST stores an order; GET serves the one that has waited longest."""
    if request.method == "POST":
        return JsonResponse({"queues": broker().publish("orders", request.body)}, status=202)
    with broker().consume("orders", credit=1) as waiting:
        try:
            order = waiting.get(timeout=0.2)
        except TimeoutError:
            return JsonResponse({"order": None}, status=404)
        order.ack()
        return JsonResponse({"order": order.payload.decode()})


urlpatterns = [path("orders", orders)]
application = get_wsgi_application()

if __name__ == "__main__":
    execute_from_command_line(sys.argv)

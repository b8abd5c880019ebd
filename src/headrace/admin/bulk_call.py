"""What the bulk pages read from their addresses: the virtual host, the queue, names and numbers. No pages."""

import re
from typing import Final

from headrace.admin.pages import BadRequest, Call
from headrace.core.access.permissions import QUEUE, READ, Rights
from headrace.core.broker import Broker
from headrace.core.queue.queue import Queue
from headrace.core.routing.topology import DEFAULT_HOST
from headrace.errors import AccessRefused, NotFound

NAME: Final = re.compile(r"[A-Za-z0-9._:-]{1,200}")


def place_of(call: Call) -> tuple[Broker, Rights, str]:
    """The virtual host that is asked for. Raises NotFound, AccessRefused when the visitor may not enter it."""
    host = call.request.query_params.get("vhost", DEFAULT_HOST)
    broker = call.site.hosts.find(host)
    if broker is None:
        raise NotFound(f"no vhost '{host}'")
    rights = call.site.access.rights(call.visitor.account, host)
    if rights is None:
        raise AccessRefused(f"access to vhost '{host}' refused for user '{call.visitor.name}'")
    return broker, rights, host


def queue_of(call: Call, broker: Broker, rights: Rights) -> Queue:
    name = call.request.query_params.get("queue", "")
    if not name:
        raise BadRequest("queue is missing")
    rights.check(READ, QUEUE, name)
    queue = broker.queue(name)
    if queue.refusal is not None:
        raise queue.refusal
    return queue


def number_of(call: Call, name: str, absent: int) -> int:
    text = call.request.query_params.get(name, "")
    if not text and absent >= 0:
        return absent
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) < 1 << 63):
        raise BadRequest(f"{name} is {text!r}; it must be a whole number from 0 on")
    return int(text)


def name_of(call: Call, which: str) -> str:
    name = call.path(which)
    if not NAME.fullmatch(name):
        raise BadRequest(f"{which} is {name[:64]!r}; it must have 1 to 200 letters, digits, '.', '_', ':' or '-'")
    return name

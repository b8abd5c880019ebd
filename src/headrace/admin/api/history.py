"""What a queue keeps of messages that are gone, over HTTP: who claimed them, when, and how they ended."""

from typing import Final

from starlette.responses import Response

from headrace.admin.api.operation import DEFAULT_LIMIT, LIMIT, MAX_LIMIT, MAX_OFFSET, OFFSET, Operation, page_of
from headrace.admin.messages import time_to_json
from headrace.admin.pages import Call, listed
from headrace.core.access.permissions import QUEUE, READ


async def list_history(call: Call) -> Response:
    """Nothing for a queue that keeps none: its setting `history` says for how long."""
    host, name = call.path("vhost"), call.path("queue")
    call.rights(host).check(READ, QUEUE, name)
    broker = call.broker(host)
    broker.topology.queue(name)
    limit = call.number("limit", DEFAULT_LIMIT, 1, MAX_LIMIT)
    found = broker.history(name, call.number("offset", 0, 0, MAX_OFFSET), limit)
    following = found[-1][0] + 1 if len(found) == limit else None
    return await listed(found, following, lambda pair: _shown(pair[0], pair[1]))


def _shown(at: int, entry: dict[str, object]) -> dict[str, object]:
    return {"at": at, **{_name(name): _value(name, value) for name, value in entry.items()}}


def _name(name: str) -> str:
    return name.removesuffix(_MICROSECONDS)


def _value(name: str, value: object) -> object:
    """Times as everywhere in the API, also those of attempts."""
    if isinstance(value, list):
        return [{_name(key): _value(key, inner) for key, inner in attempt.items()} for attempt in value]
    return time_to_json(value) if name.endswith(_MICROSECONDS) and isinstance(value, int) else value


_MICROSECONDS: Final = "_us"

OPERATIONS: Final = (
    Operation(
        "GET",
        "/queues/{vhost}/{queue}/history",
        list_history,
        "How messages ended and who had claimed them",
        {"offset": OFFSET, "limit": LIMIT},
        answer=page_of("Ended"),
    ),
)

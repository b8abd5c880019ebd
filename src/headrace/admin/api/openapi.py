"""OpenAPI document and routes of the API, made from its operations. Schemas of answers are here, too."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from headrace.admin.api import connections, dead_letters, messages, overview, queues, users
from headrace.admin.api.operation import COUNT, FLAG, PREFIX, TABLE, TEXT, TEXTS, Operation, Schema, ref, table
from headrace.admin.pages import Pages, answer
from headrace.config.table import described, table_of
from headrace.core.feeds.feed import BEHIND, DAMAGED, FOLLOWING, FULL, NO_SOURCE
from headrace.version import __version__

OPERATIONS: Final[tuple[Operation, ...]] = (
    *overview.OPERATIONS,
    *queues.OPERATIONS,
    *messages.OPERATIONS,
    *dead_letters.OPERATIONS,
    *connections.OPERATIONS,
    *users.OPERATIONS,
)


def routes(pages: Pages) -> list[BaseRoute]:
    """Return a route for each operation; the document needs no login."""

    async def openapi(request: Request) -> Response:
        return answer(document())

    found: list[BaseRoute] = [Route(f"{PREFIX}/openapi.json", openapi)]
    for operation in OPERATIONS:
        found.append(pages.route(PREFIX + operation.path, operation.page, operation.method, operation.needs))
    return found


_MAYBE_TEXT: Final[Schema] = {"type": ["string", "null"]}
_MAYBE_COUNT: Final[Schema] = {"type": ["integer", "null"]}
_NUMBERS: Final[Schema] = {"type": "object", "additionalProperties": {"type": "number"}}
_SERIES: Final[Schema] = {
    "type": "object",
    "additionalProperties": {"type": "array", "items": {"type": "number"}},
    "description": "Samples at intervals of two seconds, the oldest first.",
}

_QUEUE: Final[dict[str, Schema]] = {
    "vhost": TEXT,
    "name": TEXT,
    "type": {"type": "string", "enum": ["classic", "quorum", "stream", "ephemeral"]},
    "durable": FLAG,
    "exclusive": FLAG,
    "auto_delete": FLAG,
    "arguments": TABLE,
    "state": {"type": "string", "enum": ["running", "damaged"]},
    "groups": COUNT,
    "consumers": COUNT,
    "first_offset": COUNT,
    "next_offset": COUNT,
    "bytes": COUNT,
    "waiting": {
        **COUNT,
        "description": "Ready and delayed messages: those that a purge drops.",
    },
    "messages": {**COUNT, "description": "Messages that a deletion of the queue drops."},
    "counters": _NUMBERS,
    "rates": _NUMBERS,
    "is_dead_letter_queue": FLAG,
}

_SOURCE: Final[Schema] = {
    **table(
        queue=TEXT,
        state={"type": "string", "enum": [FOLLOWING, BEHIND, FULL, NO_SOURCE, DAMAGED]},
        offset=COUNT,
        lag=COUNT,
        missed={**COUNT, "description": "Messages that retention dropped before the queue got them."},
        oversized={**COUNT, "description": "Messages that were too large for the queue."},
    ),
    "type": ["object", "null"],
    "description": "Progress of the queue in its source.",
}

SCHEMAS: Final[dict[str, Schema]] = {
    "Problem": table(error=TEXT, reason=TEXT),
    "Queue": table(**_QUEUE),
    "DeclaredQueue": table(
        **_QUEUE,
        warnings={**TEXTS, "description": "Settings that look like a mistake."},
    ),
    "QueueDetails": table(
        **_QUEUE,
        reason=TEXT,
        warnings={**TEXTS, "description": "Settings that look like a mistake."},
        definition=TABLE,
        oldest_age_ms=_MAYBE_COUNT,
        source=_SOURCE,
        bindings=COUNT,
        history=_SERIES,
    ),
    "Group": table(
        queue=TEXT,
        name=TEXT,
        mode={"type": "string", "enum": ["work", "stream"]},
        filter=TEXT,
        is_paused=FLAG,
        cursor=COUNT,
        committed=COUNT,
        settled={
            "type": "array",
            "items": {"type": "array", "items": COUNT},
            "description": "Ranges of settled offsets above `committed`, without their end; at most 200.",
        },
        lag={**COUNT, "description": "Messages that are not settled yet."},
        ready=COUNT,
        delayed={**COUNT, "description": "Messages that are not due yet: retried or published for later."},
        pending=COUNT,
        consumers=COUNT,
        delivered=COUNT,
        redelivered=COUNT,
        acknowledged=COUNT,
    ),
    "Pending": table(offset=COUNT, consumer=TEXT, attempts=COUNT, due=_MAYBE_TEXT),
    "Message": table(
        offset=COUNT,
        timestamp=_MAYBE_TEXT,
        exchange=TEXT,
        topic=TEXT,
        client_id=TEXT,
        protocol=TEXT,
        expires_at=_MAYBE_TEXT,
        not_before=_MAYBE_TEXT,
        properties=TABLE,
        payload=TEXT,
        payload_encoding={"type": "string", "enum": ["text", "base64"]},
        payload_bytes=COUNT,
        is_cut=FLAG,
    ),
    "Ended": table(
        ("topic", "exchange", "published_at"),
        at={**COUNT, "description": "Offset in the history."},
        queue=TEXT,
        group=TEXT,
        offset=COUNT,
        topic=TEXT,
        exchange=TEXT,
        published_at=_MAYBE_TEXT,
        outcome={**TEXT, "description": "done, or the reason of a dead letter or a drop."},
        deliveries=COUNT,
        attempts={"type": "array", "items": table(consumer=TEXT, claimed_at=_MAYBE_TEXT)},
        ended_at=_MAYBE_TEXT,
    ),
    "DeadLetterQueue": table(
        vhost=TEXT,
        queue={**TEXT, "description": "Queue that holds them; empty if there is none."},
        origin={**TEXT, "description": "Queue in which they died, if known."},
        messages={**COUNT, "description": "Messages that wait in it."},
        has_others={**FLAG, "description": "True if it may also hold messages that are no dead letters."},
    ),
    "Connection": table(
        name=TEXT,
        protocol=TEXT,
        user=TEXT,
        vhost=TEXT,
        client_id=TEXT,
        state=TEXT,
        is_tls=FLAG,
        node=TEXT,
        connected_at=_MAYBE_TEXT,
        channels=COUNT,
        consumers=COUNT,
        received_bytes=COUNT,
        sent_bytes=COUNT,
        client_properties=TABLE,
    ),
    "Channel": table(name=TEXT, connection=TEXT, number=COUNT),
    "Consumer": table(vhost=TEXT, queue=TEXT, group=TEXT, name=TEXT),
    "Session": table(
        vhost=TEXT,
        client_id=TEXT,
        is_connected=FLAG,
        lifetime_seconds=COUNT,
        left_at=_MAYBE_TEXT,
        subscriptions=COUNT,
        waiting=COUNT,
        has_will=FLAG,
    ),
    "Subscription": table(pattern=TEXT, qos=COUNT, group=TEXT),
    "VirtualHost": table(name=TEXT, queues=COUNT),
    "User": table(name=TEXT, tags=TEXTS, limits=TABLE),
    "Permission": table(user=TEXT, vhost=TEXT, configure=TEXT, write=TEXT, read=TEXT),
    "TopicPermission": table(user=TEXT, vhost=TEXT, exchange=TEXT, write=TEXT, read=TEXT),
}


def document() -> dict[str, object]:
    """Return the OpenAPI 3.1 document of all operations."""
    paths: dict[str, dict[str, object]] = {}
    for operation in OPERATIONS:
        paths.setdefault(PREFIX + operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": __version__,
            "description": "Queues, groups, messages, dead letters, connections and users of a Headrace broker.",
        },
        "paths": paths,
        "security": [{"basic": []}],
        "components": {"schemas": SCHEMAS, "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}}},
    }


def _described(operation: Operation) -> dict[str, object]:
    parameters: list[dict[str, object]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in operation.parameters
    ]
    if operation.query is not None:
        keys = table_of(operation.query).keys
        parameters += [{"name": name, "in": "query", "schema": described(key)} for name, key in keys.items()]
    found: dict[str, object] = {
        "summary": operation.summary,
        "operationId": _identifier(operation),
        "tags": [operation.path.split("/")[1]],
        "parameters": parameters,
        "responses": {
            "2XX" if operation.method == "PUT" else str(operation.status): _response("Done", operation.answer),
            "4XX": _response("It cannot be done; the reason is in the body", ref("Problem")),
            "503": _response("It cannot be done now", ref("Problem")),
        },
    }
    body = operation.body
    if body is not None:
        schema = table_of(body).schema() if isinstance(body, type) else body
        found["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return found


def _response(description: str, schema: Schema | None) -> dict[str, object]:
    found: dict[str, object] = {"description": description}
    if schema is not None:
        found["content"] = {"application/json": {"schema": schema}}
    return found


def _identifier(operation: Operation) -> str:
    words = [word for word in operation.path.replace("{", "").replace("}", "").replace("-", "/").split("/") if word]
    return operation.method.lower() + "".join(word.capitalize() for word in words)

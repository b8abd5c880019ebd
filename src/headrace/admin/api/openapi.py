"""OpenAPI document and routes of the API, made from its operations. Schemas of answers are here, too."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from headrace.admin.api import connections, dead_letters, messages, overview, pipelines, policies, queues, users
from headrace.admin.api.operation import COUNT, PREFIX, TEXT, TEXTS, Operation, Schema, array_of, ref, table
from headrace.admin.pages import Pages, answer
from headrace.admin.pipelines import LOST, STATES
from headrace.config.settings import APPLY_TO
from headrace.config.table import described, table_of
from headrace.core.feeds.feed import BEHIND, DAMAGED, FOLLOWING, FULL, NO_SOURCE
from headrace.version import __version__

OPERATIONS: Final[tuple[Operation, ...]] = (
    *overview.OPERATIONS,
    *queues.OPERATIONS,
    *messages.OPERATIONS,
    *dead_letters.OPERATIONS,
    *connections.OPERATIONS,
    *pipelines.OPERATIONS,
    *users.OPERATIONS,
    *policies.OPERATIONS,
)


def routes(pages: Pages) -> list[BaseRoute]:
    """Return a route for each operation; the document needs no login."""

    async def openapi(request: Request) -> Response:
        return answer(document())

    found: list[BaseRoute] = [Route(f"{PREFIX}/openapi.json", openapi)]
    for operation in OPERATIONS:
        found.append(pages.route(PREFIX + operation.path, operation.page, operation.method, operation.needs))
    return found


_SERIES: Final[Schema] = {
    "type": "object",
    "additionalProperties": {"type": "array", "items": {"type": "number"}},
    "description": "Samples at intervals of two seconds, the oldest first.",
}
_QUEUE: Final = (
    "vhost name type durable:flag exclusive:flag auto_delete:flag arguments:table state groups:count consumers:count"
    " first_offset:count next_offset:count bytes:count waiting messages counters:numbers rates:numbers"
    " is_dead_letter_queue:flag"
)
_QUEUE_MEMBERS: Final[dict[str, Schema]] = {
    "type": {"type": "string", "enum": ["classic", "quorum", "stream", "ephemeral"]},
    "state": {"type": "string", "enum": ["running", "damaged"]},
    "waiting": {**COUNT, "description": "Ready and delayed messages: those that a purge drops."},
    "messages": {**COUNT, "description": "Messages that a deletion of the queue drops."},
    "warnings": {**TEXTS, "description": "Settings that look like a mistake."},
}
_SOURCE: Final[Schema] = {
    **table(
        "queue state offset:count lag:count missed oversized",
        state={"type": "string", "enum": [FOLLOWING, BEHIND, FULL, NO_SOURCE, DAMAGED]},
        missed={**COUNT, "description": "Messages that retention dropped before the queue got them."},
        oversized={**COUNT, "description": "Messages that were too large for the queue."},
    ),
    "type": ["object", "null"],
    "description": "Progress of the queue in its source.",
}

SCHEMAS: Final[dict[str, Schema]] = {
    "Problem": table("error reason"),
    "Queue": table(_QUEUE, **_QUEUE_MEMBERS),
    "DeclaredQueue": table(f"{_QUEUE} warnings", **_QUEUE_MEMBERS),
    "QueueDetails": table(
        f"{_QUEUE} reason warnings definition:table policy operator_policy policy_settings:table"
        " oldest_age_ms:count-or-null source bindings:count history",
        **_QUEUE_MEMBERS,
        policy={"type": ["string", "null"], "description": "Policy that counts for the queue."},
        operator_policy={"type": ["string", "null"], "description": "Operator policy that counts for the queue."},
        policy_settings={"type": "object", "description": "Settings of both together."},
        source=_SOURCE,
        history=_SERIES,
    ),
    "Group": table(
        "queue name mode filter is_paused:flag cursor:count committed:count settled lag ready:count delayed"
        " pending:count consumers:count delivered:count redelivered:count acknowledged:count",
        mode={"type": "string", "enum": ["work", "stream"]},
        settled={
            **array_of(array_of(COUNT)),
            "description": "Ranges of settled offsets above `committed`, without their end; at most 200.",
        },
        lag={**COUNT, "description": "Messages that are not settled yet."},
        delayed={**COUNT, "description": "Messages that are not due yet: retried or published for later."},
    ),
    "Pending": table("offset:count consumer attempts:count due:time"),
    "Message": table(
        "offset:count timestamp:time exchange topic client_id protocol expires_at:time not_before:time"
        " properties:table payload payload_encoding payload_bytes:count is_cut:flag",
        payload_encoding={"type": "string", "enum": ["text", "base64"]},
    ),
    "Ended": table(
        "at queue group offset:count topic? exchange? published_at:time? outcome deliveries:count attempts"
        " ended_at:time",
        at={**COUNT, "description": "Offset in the history."},
        outcome={**TEXT, "description": "done, or the reason of a dead letter or a drop."},
        attempts=array_of(table("consumer claimed_at:time")),
    ),
    "DeadLetterQueue": table(
        "vhost queue origin messages has_others",
        queue={**TEXT, "description": "Queue that holds them; empty if there is none."},
        origin={**TEXT, "description": "Queue in which they died, if known."},
        messages={**COUNT, "description": "Messages that wait in it."},
        has_others={"type": "boolean", "description": "True if it may also hold messages that are no dead letters."},
    ),
    "Connection": table(
        "name protocol user vhost client_id state is_tls:flag node connected_at:time channels:count consumers:count"
        " received_bytes:count sent_bytes:count client_properties:table"
    ),
    "Channel": table("name connection number:count"),
    "Consumer": table("vhost queue group name"),
    "Session": table(
        "vhost client_id is_connected:flag lifetime_seconds:count left_at:time subscriptions:count waiting:count"
        " has_will:flag"
    ),
    "Subscription": table("pattern qos:count group"),
    "Pipeline": table(
        "vhost job name type state messages:count rate batches:count behind:count-or-null restarts:count schedule due"
        " reason user reported_at:time",
        state={"type": "string", "enum": [*STATES, LOST]},
        rate={"type": "number", "description": "Messages a second between the last two reports."},
        behind={"type": ["integer", "null"], "description": "Messages that wait to be read; null if unknown."},
    ),
    "VirtualHost": table("name queues:count limits:table"),
    "Policy": table(
        "vhost name pattern apply_to priority definition:table without_effect",
        apply_to={"type": "string", "enum": list(APPLY_TO)},
        priority={"type": "integer"},
        without_effect={**TEXTS, "description": "Settings that change nothing here."},
    ),
    "User": table("name tags:texts limits:table"),
    "Permission": table("user vhost configure write read"),
    "TopicPermission": table("user vhost exchange write read"),
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

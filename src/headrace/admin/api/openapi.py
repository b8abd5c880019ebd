"""The OpenAPI document of the API, made from its operations. The schemas of what is answered are here too."""

from collections.abc import Iterable
from typing import Final

from headrace.admin.api.operation import COUNT, FLAG, PREFIX, TABLE, TEXT, Operation, Schema, table
from headrace.core.feeds.feed import BEHIND, DAMAGED, FOLLOWING, FULL, NO_SOURCE

_MAYBE_TEXT: Final[Schema] = {"type": ["string", "null"]}
_MAYBE_COUNT: Final[Schema] = {"type": ["integer", "null"]}
_NUMBERS: Final[Schema] = {"type": "object", "additionalProperties": {"type": "number"}}
_SERIES: Final[Schema] = {
    "type": "object",
    "additionalProperties": {"type": "array", "items": {"type": "number"}},
    "description": "Samples, two seconds apart, the oldest first.",
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
        "description": "Messages that a purge drops: those that are ready, and those that are delayed.",
    },
    "messages": {**COUNT, "description": "Messages that go with the queue when it is deleted."},
    "counters": _NUMBERS,
    "rates": _NUMBERS,
    "is_dead_letter_queue": FLAG,
}

_SOURCE: Final[Schema] = {
    **table(
        ("queue", "state", "offset", "lag", "missed", "oversized"),
        queue=TEXT,
        state={"type": "string", "enum": [FOLLOWING, BEHIND, FULL, NO_SOURCE, DAMAGED]},
        offset=COUNT,
        lag=COUNT,
        missed={**COUNT, "description": "Messages that retention took before they were looked at."},
        oversized={**COUNT, "description": "Messages that were larger than the queue takes."},
    ),
    "type": ["object", "null"],
    "description": "How far the queue is in the stream that it is filled from.",
}

SCHEMAS: Final[dict[str, Schema]] = {
    "Problem": table(("error", "reason"), error=TEXT, reason=TEXT),
    "Queue": table(tuple(_QUEUE), **_QUEUE),
    "DeclaredQueue": table(
        (*_QUEUE, "warnings"),
        **_QUEUE,
        warnings={"type": "array", "items": TEXT, "description": "What is probably not meant so."},
    ),
    "QueueDetails": table(
        (*_QUEUE, "definition", "source", "oldest_age_ms", "history"),
        **_QUEUE,
        reason=TEXT,
        warnings={"type": "array", "items": TEXT, "description": "What is probably not meant so."},
        definition=TABLE,
        oldest_age_ms=_MAYBE_COUNT,
        source=_SOURCE,
        bindings=COUNT,
        history=_SERIES,
    ),
    "Group": table(
        (
            "queue",
            "name",
            "mode",
            "is_paused",
            "cursor",
            "committed",
            "lag",
            "ready",
            "delayed",
            "pending",
            "consumers",
        ),
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
            "description": "Settled offsets above `committed`: the first, and one behind the last; at most 200.",
        },
        lag={**COUNT, "description": "Messages that it has not finished."},
        ready=COUNT,
        delayed={**COUNT, "description": "Messages that wait and are not due yet: retried or published for later."},
        pending=COUNT,
        consumers=COUNT,
        delivered=COUNT,
        redelivered=COUNT,
        acknowledged=COUNT,
    ),
    "Pending": table(
        ("offset", "consumer", "attempts", "due"), offset=COUNT, consumer=TEXT, attempts=COUNT, due=_MAYBE_TEXT
    ),
    "Message": table(
        ("offset", "topic", "exchange", "payload", "payload_encoding", "payload_bytes", "properties"),
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
        ("at", "queue", "group", "offset", "outcome", "deliveries", "attempts", "ended_at"),
        at={**COUNT, "description": "Its place in the history."},
        queue=TEXT,
        group=TEXT,
        offset=COUNT,
        topic=TEXT,
        exchange=TEXT,
        published_at=_MAYBE_TEXT,
        outcome={**TEXT, "description": "done, or why it became a dead letter or was dropped."},
        deliveries=COUNT,
        attempts={"type": "array", "items": table(("consumer",), consumer=TEXT, claimed_at=_MAYBE_TEXT)},
        ended_at=_MAYBE_TEXT,
    ),
    "DeadLetterQueue": table(
        ("queue", "origin", "messages", "has_others"),
        vhost=TEXT,
        queue={**TEXT, "description": "The queue that holds them; empty when there is none."},
        origin={**TEXT, "description": "The queue in which they died, as far as that is known."},
        messages={**COUNT, "description": "Messages that wait there."},
        has_others={**FLAG, "description": "Whether messages may be among them that are no dead letters."},
    ),
    "Connection": table(
        ("name", "protocol", "user", "vhost", "state"),
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
    "Channel": table(("name", "connection", "number"), name=TEXT, connection=TEXT, number=COUNT),
    "Consumer": table(("queue", "group", "name"), vhost=TEXT, queue=TEXT, group=TEXT, name=TEXT),
    "Session": table(
        ("vhost", "client_id", "is_connected", "subscriptions", "waiting"),
        vhost=TEXT,
        client_id=TEXT,
        is_connected=FLAG,
        lifetime_seconds=COUNT,
        left_at=_MAYBE_TEXT,
        subscriptions=COUNT,
        waiting=COUNT,
        has_will=FLAG,
    ),
    "Subscription": table(("pattern", "qos"), pattern=TEXT, qos=COUNT, group=TEXT),
    "VirtualHost": table(("name", "queues"), name=TEXT, queues=COUNT),
    "User": table(("name", "tags"), name=TEXT, tags={"type": "array", "items": TEXT}, limits=TABLE),
    "Permission": table(
        ("user", "vhost", "configure", "write", "read"), user=TEXT, vhost=TEXT, configure=TEXT, write=TEXT, read=TEXT
    ),
    "TopicPermission": table(
        ("user", "vhost", "exchange", "write", "read"), user=TEXT, vhost=TEXT, exchange=TEXT, write=TEXT, read=TEXT
    ),
}


def document(operations: Iterable[Operation], version: str) -> dict[str, object]:
    """What every operation takes and answers, as OpenAPI 3.1 has it."""
    paths: dict[str, dict[str, object]] = {}
    for operation in operations:
        paths.setdefault(PREFIX + operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": version,
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
    parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in operation.query.items()]
    found: dict[str, object] = {
        "summary": operation.summary,
        "operationId": _identifier(operation),
        "tags": [operation.path.split("/")[1]],
        "parameters": parameters,
        "responses": {
            "2XX" if operation.method == "PUT" else str(operation.status): _response("Done", operation.answer),
            "4XX": _response("It cannot be done; the reason is in the body", {"$ref": "#/components/schemas/Problem"}),
            "503": _response("It cannot be done now", {"$ref": "#/components/schemas/Problem"}),
        },
    }
    if operation.body is not None:
        found["requestBody"] = {
            "content": {"application/json": {"schema": {"additionalProperties": False, **operation.body}}}
        }
    return found


def _response(description: str, schema: Schema | None) -> dict[str, object]:
    found: dict[str, object] = {"description": description}
    if schema is not None:
        found["content"] = {"application/json": {"schema": schema}}
    return found


def _identifier(operation: Operation) -> str:
    words = [word for word in operation.path.replace("{", "").replace("}", "").replace("-", "/").split("/") if word]
    return operation.method.lower() + "".join(word.capitalize() for word in words)

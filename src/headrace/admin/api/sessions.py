"""MQTT sessions over HTTP: who has one, what they subscribe to, what waits for them; ending one."""

from typing import Final

from starlette.responses import Response

from headrace.admin.api.operation import (
    COUNT,
    DEFAULT_LIMIT,
    FLAG,
    MAX_LIMIT,
    PAGED,
    TEXT,
    Operation,
    page_of,
    ref,
    table,
)
from headrace.admin.messages import time_to_json
from headrace.admin.pages import Call, after, answer, listed
from headrace.admin.site import ADMINISTRATOR
from headrace.admin.slices import sliced
from headrace.core.pubsub.session import Session
from headrace.core.routing.topology import DEFAULT_HOST
from headrace.errors import NotFound


def _line(host: str, session: Session) -> dict[str, object]:
    return {
        "vhost": host,
        "client_id": session.client_id,
        "is_connected": session.link is not None,
        "lifetime_seconds": session.lifetime_s,
        "left_at": time_to_json(session.left_us),
        "subscriptions": len(session.subscriptions),
        "waiting": session.queue.messages if session.queue is not None else 0,
        "has_will": session.will is not None,
    }


async def list_sessions(call: Call) -> Response:
    """Of one virtual host, by client id; with `connected=true` only those that have a connection now."""
    host, connected_only = call.text("vhost", DEFAULT_HOST), call.flag("connected")
    sessions = {
        session.client_id: session
        async for session in sliced(list(call.broker(host).sessions), 1000)
        if session.link is not None or not connected_only
    }
    page, following = await after(sessions, call.text("after"), call.number("limit", DEFAULT_LIMIT, 1, MAX_LIMIT))
    return await listed(page, following, lambda name: _line(host, sessions[name]))


async def show_session(call: Call) -> Response:
    return answer(_line(call.path("vhost"), _found(call)))


async def list_subscriptions(call: Call) -> Response:
    session = _found(call)
    limit = call.number("limit", DEFAULT_LIMIT, 1, MAX_LIMIT)
    page, following = await after(list(session.subscriptions), call.text("after"), limit)
    return await listed(
        page,
        following,
        lambda pattern: {
            "pattern": pattern,
            "qos": session.subscriptions[pattern].assurance,
            "group": session.subscriptions[pattern].group,
        },
    )


async def end_session(call: Call) -> Response:
    session = _found(call)
    broker = call.broker(call.path("vhost"))
    waiting = session.queue.messages if session.queue is not None else 0
    broker.sessions.end(session)
    await call.stored(broker)
    call.record(f"session of client {session.client_id!r} ended with {waiting:,} messages that waited for it")
    return answer({"client_id": session.client_id, "messages": waiting})


def _found(call: Call) -> Session:
    host, name = call.path("vhost"), call.path("client")
    session = call.broker(host).sessions.get(name)
    if session is None:
        raise NotFound(f"no session of a client '{name}' in vhost '{host}'")
    return session


_SESSION: Final = "/sessions/{vhost}/{client}"

OPERATIONS: Final = (
    Operation(
        "GET",
        "/sessions",
        list_sessions,
        "List MQTT sessions",
        {"vhost": TEXT, "connected": FLAG, **PAGED},
        answer=page_of("Session"),
    ),
    Operation("GET", _SESSION, show_session, "One MQTT session", answer=ref("Session")),
    Operation(
        "GET",
        _SESSION + "/subscriptions",
        list_subscriptions,
        "What it subscribes to",
        PAGED,
        answer=page_of("Subscription"),
    ),
    Operation(
        "DELETE",
        _SESSION,
        end_session,
        "End a session with the messages that wait for it",
        answer=table(("client_id", "messages"), client_id=TEXT, messages=COUNT),
        needs=ADMINISTRATOR,
    ),
)

"""MQTT sessions over HTTP: who has one, what they subscribe to, what waits for them; ending one."""

from typing import Final

from starlette.responses import Response

from headrace.admin.answers import after, answer, listed, nothing
from headrace.admin.api.operation import DEFAULT_LIMIT, FLAG, MAX_LIMIT, PAGED, TEXT, Operation, page_of, ref
from headrace.admin.messages import time_to_json
from headrace.admin.pages import Call
from headrace.admin.site import ADMINISTRATOR
from headrace.core.session import Session
from headrace.core.topology import DEFAULT_HOST
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
        for session in call.broker(host).sessions
        if session.link is not None or not connected_only
    }
    page, following = after(sessions, call.text("after"), call.number("limit", DEFAULT_LIMIT, 1, MAX_LIMIT))
    return listed(page, following, lambda name: _line(host, sessions[name]))


async def show_session(call: Call) -> Response:
    return answer(_line(call.path("vhost"), _found(call)))


async def list_subscriptions(call: Call) -> Response:
    session = _found(call)
    limit = call.number("limit", DEFAULT_LIMIT, 1, MAX_LIMIT)
    page, following = after(session.subscriptions, call.text("after"), limit)
    return listed(
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
    broker.sessions.end(session)
    await call.stored(broker)
    return nothing()


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
    Operation("DELETE", _SESSION, end_session, "End a session", status=204, needs=ADMINISTRATOR),
)

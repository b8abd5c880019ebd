"""The answers of HTTP to requests that change something: our own API, RabbitMQ's paths, bulk endpoints."""

from collections.abc import Callable
from unittest.mock import MagicMock, patch

import pyarrow as pa

from headrace.admin import application
from tests.answers.decisions import Answers, Decision, NotPromised, Place, Request, Synced
from tests.answers.mqtt import Device

_OURS = "/api/v1"
_THEIRS = "/api"
_READING = {"GET", "HEAD"}


def in_the_code() -> set[str]:
    """All routes whose method is not one for reading."""
    with patch.object(application, "Starlette") as made:
        application.application(MagicMock(), [])
    routes = made.call_args.kwargs["routes"]
    return {
        f"{method} {route.path}"
        for route in routes
        for method in getattr(route, "methods", None) or ()
        if method not in _READING
    }


def _asks(method: str, path: str, body: object = None, **made: Callable[[Place], str]) -> Decision:
    """A request to a path with the names in it of what is made for it."""

    def prepare(place: Place) -> Request:
        names = {name: make(place) for name, make in made.items()}
        said = _filled_in(body, names)
        return lambda: place.call(method, path.format(**names), said)

    return Synced(prepare)


def _filled_in(body: object, names: dict[str, str]) -> object:
    """The body with the names at their places."""
    if isinstance(body, dict):
        return {key: _filled_in(value, names) for key, value in body.items()}
    if isinstance(body, list):
        return [_filled_in(value, names) for value in body]
    return body.format(**names) if isinstance(body, str) else body


# -- what requests are about -------------------------------------------------------------------------------------------


def _new(place: Place) -> str:
    return place.name()


def _queue(place: Place) -> str:
    return place.declare()


def _filled(place: Place) -> str:
    return place.filled()


def _grave(place: Place) -> str:
    return place.grave()


def _read_stream(place: Place) -> str:
    """A stream that the group `g` has read."""
    name = place.filled(**{"x-queue-type": "stream"})
    place.consume(name, "g")
    return name


def _paused(place: Place) -> str:
    name = _read_stream(place)
    place.post(f"{_OURS}/queues/%2F/{name}/groups/g/pause")
    return name


def _session(place: Place) -> str:
    device = Device(place)
    device.connect()
    return device.client_id


def _host(place: Place) -> str:
    name = place.name()
    place.put(f"{_OURS}/vhosts/{name}")
    return name


def _user(place: Place) -> str:
    name = place.name()
    place.put(f"{_OURS}/users/{name}", {"password": "secret"})
    return name


def _allowed(place: Place) -> str:
    name = _user(place)
    place.put(f"{_OURS}/permissions/%2F/{name}", {"read": ".*"})
    return name


def _bounded(place: Place) -> str:
    name = _allowed(place)
    place.put(f"{_OURS}/topic-permissions/%2F/{name}/amq.topic", {"read": "a"})
    return name


def _policy(place: Place) -> str:
    name = place.name()
    place.put(f"{_OURS}/policies/%2F/{name}", {"pattern": "^no queue$", "definition": {"max-length": 5}})
    return name


def _operator_policy(place: Place) -> str:
    name = place.name()
    place.put(f"{_OURS}/operator-policies/%2F/{name}", {"pattern": "^no queue$", "definition": {"max-length": 5}})
    return name


def _limited_host(place: Place) -> str:
    name = _host(place)
    place.put(f"{_THEIRS}/vhost-limits/{name}/max-queues", {"value": 5})
    return name


def _global_parameter(place: Place) -> str:
    name = place.name()
    place.put(f"{_THEIRS}/global-parameters/{name}", {"value": 1})
    return name


def _exchange(place: Place) -> str:
    name = place.name()
    place.put(f"{_THEIRS}/exchanges/%2F/{name}", {"type": "topic"})
    return name


def _bound(place: Place) -> str:
    name = place.declare()
    place.post(f"{_THEIRS}/bindings/%2F/e/amq.topic/q/{name}", {"routing_key": "k"})
    return name


def _claimed(place: Place) -> str:
    """A queue whose message `job` has claimed."""
    name = place.filled()
    place.post("/bulk/claims/job/take", {"queue": name})
    return name


def _staged(place: Place) -> str:
    """A bulk write with a part, of the same name as its queue."""
    name = place.declare()
    _stage(place, name)()
    return name


def _stage(place: Place, name: str) -> Request:
    sink = pa.BufferOutputStream()
    table = pa.table({"payload": ["x"]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    path = f"/bulk/transactions/{name}/parts/p?queue={name}"
    return lambda: place.call("PUT", path, content=bytes(sink.getvalue()))


def _reload(place: Place) -> Request:
    """The configuration has one more queue."""
    place.configuration.write_text(f"queues:\n  - name: {place.name()}\n")
    return lambda: place.post(f"{_OURS}/reload")


def _take(place: Place) -> Request:
    name = place.filled()
    return lambda: place.post("/bulk/claims/job/take", {"queue": name})


def _hold(place: Place) -> Request:
    name = _claimed(place)
    return lambda: place.post("/bulk/claims/job/hold", {"queue": name, "ranges": [[0, 1]]})


def _publish_quickly(place: Place) -> Request:
    name = place.declare()
    return lambda: place.post("/publish", {"topic": f"$queue/{name}", "qos": 0})


def _tell_status(place: Place) -> Request:
    told = {"pipelines": [{"name": "hot", "type": "sql", "state": "running"}]}
    return lambda: place.put(f"{_OURS}/pipelines/%2F/plant", told)


_CLOSED = NotPromised("it is about a connection, which no crash survives")
_CLAIM = "a claim ends with the broker, and its messages are back in line"
_DEFINITIONS: dict[str, object] = {"queues": [{"name": "{name}", "durable": True}]}
_POLICY: dict[str, object] = {"pattern": "^{name}$", "definition": {"max-length": 5}}
_GROUP = "/queues/%2F/{name}/groups/g"
_LETTERS = "/queues/%2F/{name}/dead-letters"

_BULK: Answers = {
    "POST /publish": _asks("POST", "/publish", {"topic": "$queue/{name}", "qos": 1}, name=_queue),
    "POST /publish of a message at QoS 0": NotPromised("nothing is promised of QoS 0", _publish_quickly),
    "PUT /bulk/progress": _asks("PUT", "/bulk/progress?queue={name}&group=spark&offset=1", name=_filled),
    "POST /bulk/claims/{name}/take": NotPromised(_CLAIM, _take),
    "POST /bulk/claims/{name}/hold": NotPromised(_CLAIM, _hold),
    "POST /bulk/claims/{name}/finish": _asks(
        "POST", "/bulk/claims/job/finish", {"queue": "{name}", "ranges": [[0, 1]]}, name=_claimed
    ),
    "POST /bulk/claims/{name}/release": _asks("POST", "/bulk/claims/job/release", {"queue": "{name}"}, name=_claimed),
    "PUT /bulk/transactions/{id}/parts/{part}": NotPromised(
        "parts that a power loss took are missing when they are committed, and whoever commits hears so",
        lambda place: _stage(place, place.declare()),
    ),
    "POST /bulk/transactions/{id}/commit": _asks(
        "POST", "/bulk/transactions/{name}/commit", {"parts": ["p"]}, name=_staged
    ),
    "DELETE /bulk/transactions/{id}": NotPromised("what was not committed is nowhere, and goes by itself in an hour"),
}

_OUR_API: Answers = {
    "PUT /queues/{vhost}/{queue}": _asks("PUT", _OURS + "/queues/%2F/{name}", {}, name=_new),
    "PUT /queues/{vhost}/{queue} of a queue that is changed": _asks(
        "PUT", _OURS + "/queues/%2F/{name}?update=true", {"limits": {"max_depth": 5}}, name=_queue
    ),
    "DELETE /queues/{vhost}/{queue}": _asks("DELETE", _OURS + "/queues/%2F/{name}", name=_filled),
    "POST /queues/{vhost}/{queue}/purge": _asks("POST", _OURS + "/queues/%2F/{name}/purge", {}, name=_filled),
    "POST /queues/{vhost}/{queue}/move": _asks(
        "POST", _OURS + "/queues/%2F/{name}/move", {"to": "{other}"}, name=_filled, other=_queue
    ),
    "POST /queues/{vhost}/{queue}/consume": _asks("POST", _OURS + "/queues/%2F/{name}/consume", {}, name=_filled),
    "POST /queues/{vhost}/{queue}/consume of a message that is rejected": _asks(
        "POST", _OURS + "/queues/%2F/{name}/consume", {"then": "reject"}, name=_filled
    ),
    "POST /queues/{vhost}/{queue}/consume of a stream": _asks(
        "POST",
        _OURS + "/queues/%2F/{name}/consume",
        {"group": "new", "position": "first"},
        name=lambda place: place.filled(**{"x-queue-type": "stream"}),
    ),
    "POST /publish/{vhost}": _asks("POST", _OURS + "/publish/%2F", {"routing_key": "{name}"}, name=_queue),
    "POST /queues/{vhost}/{queue}/groups/{group}/seek": _asks(
        "POST", _OURS + _GROUP + "/seek", {"position": "first"}, name=_read_stream
    ),
    "POST /queues/{vhost}/{queue}/groups/{group}/pause": _asks(
        "POST", _OURS + _GROUP + "/pause", {}, name=_read_stream
    ),
    "POST /queues/{vhost}/{queue}/groups/{group}/resume": _asks("POST", _OURS + _GROUP + "/resume", {}, name=_paused),
    "DELETE /queues/{vhost}/{queue}/groups/{group}": _asks("DELETE", _OURS + _GROUP, name=_read_stream),
    "POST /queues/{vhost}/{queue}/dead-letters/redrive": _asks("POST", _OURS + _LETTERS + "/redrive", {}, name=_grave),
    "POST /queues/{vhost}/{queue}/dead-letters/move": _asks(
        "POST", _OURS + _LETTERS + "/move", {"to": "{other}"}, name=_grave, other=_queue
    ),
    "POST /queues/{vhost}/{queue}/dead-letters/purge": _asks("POST", _OURS + _LETTERS + "/purge", {}, name=_grave),
    "DELETE /connections/{connection}": _CLOSED,
    "DELETE /sessions/{vhost}/{client}": _asks("DELETE", _OURS + "/sessions/%2F/{name}", name=_session),
    "PUT /vhosts/{vhost}": _asks("PUT", _OURS + "/vhosts/{name}", {}, name=_new),
    "DELETE /vhosts/{vhost}": _asks("DELETE", _OURS + "/vhosts/{name}", name=_host),
    "PUT /users/{user}": _asks("PUT", _OURS + "/users/{name}", {"password": "secret"}, name=_new),
    "DELETE /users/{user}": _asks("DELETE", _OURS + "/users/{name}", name=_user),
    "PUT /permissions/{vhost}/{user}": _asks("PUT", _OURS + "/permissions/%2F/{name}", {"read": ".*"}, name=_user),
    "DELETE /permissions/{vhost}/{user}": _asks("DELETE", _OURS + "/permissions/%2F/{name}", name=_allowed),
    "PUT /pipelines/{vhost}/{job}": NotPromised("a job tells its status again every two seconds", _tell_status),
    "DELETE /pipelines/{vhost}/{job}": NotPromised("the status of a job is in memory, and gone with the broker anyway"),
    "PUT /topic-permissions/{vhost}/{user}/{exchange}": _asks(
        "PUT", _OURS + "/topic-permissions/%2F/{name}/amq.topic", {"read": "a"}, name=_allowed
    ),
    "DELETE /topic-permissions/{vhost}/{user}/{exchange}": _asks(
        "DELETE", _OURS + "/topic-permissions/%2F/{name}/amq.topic", name=_bounded
    ),
    "PUT /policies/{vhost}/{policy}": _asks("PUT", _OURS + "/policies/%2F/{name}", _POLICY, name=_new),
    "DELETE /policies/{vhost}/{policy}": _asks("DELETE", _OURS + "/policies/%2F/{name}", name=_policy),
    "PUT /operator-policies/{vhost}/{policy}": _asks(
        "PUT", _OURS + "/operator-policies/%2F/{name}", _POLICY, name=_new
    ),
    "DELETE /operator-policies/{vhost}/{policy}": _asks(
        "DELETE", _OURS + "/operator-policies/%2F/{name}", name=_operator_policy
    ),
    "POST /reload": Synced(_reload),
}

_THEIR_PATHS: Answers = {
    "PUT /vhosts/{name}": _asks("PUT", _THEIRS + "/vhosts/{name}", {}, name=_new),
    "DELETE /vhosts/{name}": _asks("DELETE", _THEIRS + "/vhosts/{name}", name=_host),
    "PUT /users/{name}": _asks("PUT", _THEIRS + "/users/{name}", {"password": "secret", "tags": ""}, name=_new),
    "DELETE /users/{name}": _asks("DELETE", _THEIRS + "/users/{name}", name=_user),
    "POST /users/bulk-delete": _asks("POST", _THEIRS + "/users/bulk-delete", {"users": ["{name}"]}, name=_user),
    "PUT /permissions/{vhost}/{user}": _asks(
        "PUT",
        _THEIRS + "/permissions/%2F/{name}",
        {"configure": ".*", "write": ".*", "read": ".*"},
        name=_user,
    ),
    "DELETE /permissions/{vhost}/{user}": _asks("DELETE", _THEIRS + "/permissions/%2F/{name}", name=_allowed),
    "PUT /topic-permissions/{vhost}/{user}": _asks(
        "PUT",
        _THEIRS + "/topic-permissions/%2F/{name}",
        {"exchange": "amq.topic", "write": "a", "read": "a"},
        name=_allowed,
    ),
    "DELETE /topic-permissions/{vhost}/{user}": _asks(
        "DELETE", _THEIRS + "/topic-permissions/%2F/{name}", name=_bounded
    ),
    "DELETE /connections/{name}": _CLOSED,
    "PUT /exchanges/{vhost}/{name}": _asks("PUT", _THEIRS + "/exchanges/%2F/{name}", {"type": "topic"}, name=_new),
    "DELETE /exchanges/{vhost}/{name}": _asks("DELETE", _THEIRS + "/exchanges/%2F/{name}", name=_exchange),
    "POST /exchanges/{vhost}/{name}/publish": _asks(
        "POST",
        _THEIRS + "/exchanges/%2F/amq.default/publish",
        {"routing_key": "{name}", "payload": "x", "payload_encoding": "string", "properties": {}},
        name=_queue,
    ),
    "PUT /queues/{vhost}/{name}": _asks("PUT", _THEIRS + "/queues/%2F/{name}", {}, name=_new),
    "DELETE /queues/{vhost}/{name}": _asks("DELETE", _THEIRS + "/queues/%2F/{name}", name=_filled),
    "DELETE /queues/{vhost}/{name}/contents": _asks("DELETE", _THEIRS + "/queues/%2F/{name}/contents", name=_filled),
    "POST /queues/{vhost}/{name}/get": _asks(
        "POST", _THEIRS + "/queues/%2F/{name}/get", {"count": 1, "ackmode": "ack_requeue_false"}, name=_filled
    ),
    "POST /bindings/{vhost}/e/{source}/{kind}/{destination}": _asks(
        "POST", _THEIRS + "/bindings/%2F/e/amq.topic/q/{name}", {"routing_key": "k"}, name=_queue
    ),
    "DELETE /bindings/{vhost}/e/{source}/{kind}/{destination}/{properties}": _asks(
        "DELETE", _THEIRS + "/bindings/%2F/e/amq.topic/q/{name}/k", name=_bound
    ),
    "PUT /policies/{vhost}/{name}": _asks("PUT", _THEIRS + "/policies/%2F/{name}", _POLICY, name=_new),
    "DELETE /policies/{vhost}/{name}": _asks("DELETE", _THEIRS + "/policies/%2F/{name}", name=_policy),
    "PUT /operator-policies/{vhost}/{name}": _asks(
        "PUT", _THEIRS + "/operator-policies/%2F/{name}", _POLICY, name=_new
    ),
    "DELETE /operator-policies/{vhost}/{name}": _asks(
        "DELETE", _THEIRS + "/operator-policies/%2F/{name}", name=_operator_policy
    ),
    "PUT /parameters/{component}/{vhost}/{name}": _asks(
        "PUT", _THEIRS + "/parameters/vhost-limits/{name}/limits", {"value": {"max-queues": 5}}, name=_host
    ),
    "DELETE /parameters/{component}/{vhost}/{name}": _asks(
        "DELETE", _THEIRS + "/parameters/vhost-limits/{name}/limits", name=_limited_host
    ),
    "PUT /global-parameters/{name}": _asks("PUT", _THEIRS + "/global-parameters/{name}", {"value": 1}, name=_new),
    "DELETE /global-parameters/{name}": _asks("DELETE", _THEIRS + "/global-parameters/{name}", name=_global_parameter),
    "PUT /vhost-limits/{vhost}/{name}": _asks(
        "PUT", _THEIRS + "/vhost-limits/{name}/max-queues", {"value": 5}, name=_host
    ),
    "DELETE /vhost-limits/{vhost}/{name}": _asks(
        "DELETE", _THEIRS + "/vhost-limits/{name}/max-queues", name=_limited_host
    ),
    "PUT /user-limits/{user}/{name}": _asks(
        "PUT", _THEIRS + "/user-limits/{name}/max-channels", {"value": 5}, name=_user
    ),
    "DELETE /user-limits/{user}/{name}": _asks("DELETE", _THEIRS + "/user-limits/{name}/max-channels", name=_user),
    "POST /definitions": _asks("POST", _THEIRS + "/definitions", _DEFINITIONS, name=_new),
    "POST /definitions/{vhost}": _asks("POST", _THEIRS + "/definitions/%2F", _DEFINITIONS, name=_new),
}


def _under(prefix: str, answers: Answers) -> Answers:
    """The same with the whole path in their names."""
    return {name.replace(" ", f" {prefix}", 1): decision for name, decision in answers.items()}


ANSWERS: Answers = {**_BULK, **_under(_OURS, _OUR_API), **_under(_THEIRS, _THEIR_PATHS)}

"""`POST /publish`: a message to a topic or a queue address, for programs that speak HTTP only. The rules are core's.

{"topic": "plant/1/temperature", "payload": "MjEuNQ==", "qos": 1, "retain": false}
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Final

from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from headrace.admin.pages import BadRequest, Call, Pages
from headrace.admin.site import ANYBODY
from headrace.core.batch import Confirm
from headrace.core.client import Client
from headrace.core.properties import NativeCodec, Properties
from headrace.core.pubsub.session import BEST_EFFORT, EXACTLY_ONCE
from headrace.core.routing.topology import DEFAULT_HOST
from headrace.errors import AccessRefused, NotFound
from headrace.model import NATIVE
from headrace.net.connection import outcome

PROTOCOL: Final = "http"
MAX_EXPIRY_SECONDS: Final = (1 << 32) - 1
_TEXTS: Final = ("content_type", "content_encoding", "correlation_id", "reply_to", "message_id")
_KNOWN: Final = frozenset(
    ("topic", "payload", "payload_encoding", "qos", "retain", "expiry_seconds", "headers", "vhost", *_TEXTS)
)


def routes(pages: Pages) -> list[BaseRoute]:
    return [pages.route("/publish", publish, "POST", ANYBODY)]


async def publish(call: Call) -> Response:
    """Publish what the body says; at QoS 1 and 2 the answer comes once the message would survive a crash."""
    said = await call.json()
    unknown = sorted(set(said) - _KNOWN)
    if unknown:
        raise BadRequest(f"there is no {unknown[0]!r}; known are {', '.join(sorted(_KNOWN))}")
    topic = _text(said, "topic")
    if not topic:
        raise BadRequest('"topic" is missing: it is a topic, or a queue as $queue/<name>')
    payload = _payload(said)
    qos = _number(said, "qos", 0, EXACTLY_ONCE)
    expiry_seconds = _number(said, "expiry_seconds", -1, MAX_EXPIRY_SECONDS)
    properties = _properties(said)
    client = _client(call, _text(said, "vhost") or DEFAULT_HOST)
    retain = _switch(said, "retain")

    def send(confirm: Confirm | None) -> int:
        return client.publish_topic(
            topic,
            payload,
            call.site.clock.now_us(),
            properties,
            expiry_seconds if expiry_seconds >= 0 else None,
            qos,
            retain,
            confirm,
        )

    client.check_rate(call.site.clock.monotonic_us())
    receivers = send(None) if qos == BEST_EFFORT else await outcome(send)
    return JSONResponse({"status": "ok", "receivers": receivers})


def _client(call: Call, name: str) -> Client:
    """Raises NotFound for the virtual host, AccessRefused when the visitor may not enter it."""
    broker = call.site.hosts.find(name)
    if broker is None:
        raise NotFound(f"no vhost '{name}'")
    rights = call.site.access.rights(call.visitor.account, name)
    if rights is None:
        raise AccessRefused(f"access to vhost '{name}' refused for user '{call.visitor.name}'")
    return Client(broker, call.visitor.account, rights, f"{PROTOCOL}:{call.visitor.name}", PROTOCOL, NATIVE)


# -- what the body says ------------------------------------------------------------------------------------------------


def _payload(said: Mapping[str, object]) -> bytes:
    text = _text(said, "payload")
    encoding = _text(said, "payload_encoding") or "base64"
    if encoding == "string":
        return text.encode()
    if encoding != "base64":
        raise BadRequest(f'"payload_encoding" is {encoding!r}; it is base64 (unless given) or string')
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest(
            f'"payload" is not base64: {error}; give "payload_encoding": "string" for plain text'
        ) from error


def _properties(said: Mapping[str, object]) -> bytes:
    headers = said.get("headers")
    if headers is not None and not isinstance(headers, dict):
        raise BadRequest('"headers" must be an object of names and values')
    properties = Properties(headers)
    for name in _TEXTS:
        setattr(properties, name, _text(said, name))
    try:
        return NativeCodec().encode(properties)
    except UnicodeEncodeError as error:
        raise BadRequest(f'"headers" are not Unicode: {error.reason}') from error


def _text(said: Mapping[str, object], name: str) -> str:
    value = said.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadRequest(f'"{name}" must be a string')
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(f'"{name}" is not Unicode at character {error.start + 1}') from error
    return value


def _number(said: Mapping[str, object], name: str, absent: int, most: int) -> int:
    value = said.get(name)
    if value is None:
        return absent
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise BadRequest(f'"{name}" must be a number from 0 to {most}')
    return value


def _switch(said: Mapping[str, object], name: str) -> bool:
    value = said.get(name)
    if value is not None and not isinstance(value, bool):
        raise BadRequest(f'"{name}" must be true or false')
    return bool(value)

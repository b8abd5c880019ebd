"""`POST /publish`: a message to a topic or a queue address, for programs that speak HTTP only. Core has the rules.

{"topic": "plant/1/temperature", "payload": "MjEuNQ==", "qos": 1, "retain": false}
"""

import base64
import binascii
from dataclasses import dataclass
from typing import Final

from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from headrace.admin.messages import client_of
from headrace.admin.pages import BadRequest, Call, Pages
from headrace.admin.site import ANYBODY
from headrace.config.kinds import Flag, Number, Object, Unicode
from headrace.config.table import Fault, option, read_model, table_of
from headrace.core.batch import Confirm
from headrace.core.pubsub.session import BEST_EFFORT, EXACTLY_ONCE
from headrace.core.routing.topology import DEFAULT_HOST
from headrace.net.connection import outcome
from headrace.wire.properties import Properties, encode_native

MAX_EXPIRY_SECONDS: Final = (1 << 32) - 1
_STRING: Final = Unicode("must be a string")
_TEXTS: Final = ("content_type", "content_encoding", "correlation_id", "reply_to", "message_id")


@dataclass(frozen=True)
class PublishBody:
    """Body of the request."""

    topic: str = option("", _STRING)
    payload: str = option("", _STRING)
    payload_encoding: str = option("", _STRING)
    qos: int = option(0, Number(0, EXACTLY_ONCE, f"must be a number from 0 to {EXACTLY_ONCE}"))
    retain: bool = option(False, Flag())
    expiry_seconds: int | None = option(
        None, Number(0, MAX_EXPIRY_SECONDS, f"must be a number from 0 to {MAX_EXPIRY_SECONDS}")
    )
    headers: dict[str, object] | None = option(None, Object("must be an object of names and values"))
    vhost: str = option("", _STRING)
    content_type: str = option("", _STRING)
    content_encoding: str = option("", _STRING)
    correlation_id: str = option("", _STRING)
    reply_to: str = option("", _STRING)
    message_id: str = option("", _STRING)


def routes(pages: Pages) -> list[BaseRoute]:
    return [pages.route("/publish", publish, "POST", ANYBODY)]


async def publish(call: Call) -> Response:
    """Publish a message; at QoS 1 and 2, answer once it is durable."""
    body = await _read(call)
    if not body.topic:
        raise BadRequest('"topic" is missing: it is a topic, or a queue as $queue/<name>')
    payload, properties = _payload(body), _properties(body)
    client = client_of(call, *call.enter(body.vhost or DEFAULT_HOST))

    def send(confirm: Confirm | None) -> int:
        return client.publish_topic(
            body.topic,
            payload,
            call.site.clock.now_us(),
            properties,
            body.expiry_seconds,
            body.qos,
            body.retain,
            confirm,
        )

    client.check_rate(call.site.clock.monotonic_us())
    receivers = send(None) if body.qos == BEST_EFFORT else await outcome(send)
    return JSONResponse({"status": "ok", "receivers": receivers})


async def _read(call: Call) -> PublishBody:
    """Read the body; its errors have the wording of this page. Raises BadRequest."""
    try:
        return read_model(PublishBody, await call.json())
    except Fault as fault:
        name = fault.path[-1]
        if fault.expected:
            raise BadRequest(f'"{name}" {fault.expected}') from fault
        known = ", ".join(sorted(table_of(PublishBody).keys))
        raise BadRequest(f"there is no {name!r}; known are {known}") from fault


def _payload(body: PublishBody) -> bytes:
    encoding = body.payload_encoding or "base64"
    if encoding == "string":
        return body.payload.encode()
    if encoding != "base64":
        raise BadRequest(f'"payload_encoding" is {encoding!r}; it is base64 (unless given) or string')
    try:
        return base64.b64decode(body.payload, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest(
            f'"payload" is not base64: {error}; give "payload_encoding": "string" for plain text'
        ) from error


def _properties(body: PublishBody) -> bytes:
    properties = Properties(body.headers)
    for name in _TEXTS:
        setattr(properties, name, getattr(body, name))
    try:
        return encode_native(properties)
    except UnicodeEncodeError as error:
        raise BadRequest(f'"headers" are not Unicode: {error.reason}') from error

"""Virtual hosts, users and permissions as RabbitMQ shows them."""

from collections.abc import Mapping

from starlette.responses import Response

from headrace.admin.api.users import (
    permission_to_json,
    remove_host,
    remove_user,
    topic_permission_to_json,
    user_to_json,
)
from headrace.admin.pages import BadRequest, Call, done, nothing
from headrace.admin.rabbitmq.shapes import Row, details, node_name, row, rows, text
from headrace.admin.slices import sliced
from headrace.core.access.permissions import Permission, TopicPermission
from headrace.errors import NotFound


async def host_row(call: Call, name: str) -> Row:
    broker = call.broker(name)
    series = call.site.sampler.series.get(name)
    rates = series.rates if series is not None else {}
    ready = delayed = unsettled = 0
    async for queue in sliced(list(broker.topology.queues.values())):
        delayed += queue.delayed
        ready += queue.messages - queue.delayed
        unsettled += queue.unsettled
    return {
        "name": name,
        "description": "Default virtual host" if name == "/" else "",
        "tags": [],
        "default_queue_type": "classic",
        "tracing": False,
        "cluster_state": {node_name(): "running"},
        "messages": ready + delayed + unsettled,
        "messages_ready": ready,
        "messages_delayed": delayed,
        "messages_unacknowledged": unsettled,
        "message_stats": {
            "publish": broker.statistics.stored,
            "publish_details": details(rates.get("published", 0.0)),
            "deliver_get": broker.statistics.delivered,
            "deliver_get_details": details(rates.get("delivered", 0.0)),
        },
    }


def tags_of(body: Mapping[str, object]) -> list[str]:
    """Tags as a list, or as RabbitMQ's tools send them: with commas between. Raises BadRequest."""
    value = body.get("tags", "")
    if isinstance(value, str):
        return [tag.strip() for tag in value.split(",") if tag.strip()]
    if isinstance(value, list) and all(isinstance(tag, str) for tag in value):
        return value
    raise BadRequest(f"'tags' must be words with commas between, or a list of words, not {value!r}")


# -- virtual hosts


async def list_hosts(call: Call) -> Response:
    names = [name for name in call.site.hosts.names() if call.sees(name)]
    found = [await host_row(call, name) for name in names if call.site.hosts.find(name) is not None]
    return await rows(call, found, lambda shown: shown)


async def show_host(call: Call) -> Response:
    return row(call, await host_row(call, call.path("name")))


async def put_host(call: Call) -> Response:
    name = call.path("name")
    is_new = call.site.hosts.find(name) is None
    await done(lambda tell: call.site.hosts.create(name, tell))
    if is_new and call.visitor.account.grants is None:  # as RabbitMQ does: whoever makes it may use it
        everything = Permission(call.visitor.name, name, ".*", ".*", ".*")
        await done(lambda tell: call.site.access.put_permission(everything, tell))
    return nothing(201 if is_new else 204)


async def delete_host(call: Call) -> Response:
    await remove_host(call, call.path("name"))
    return nothing()


async def permissions_of_host(call: Call) -> Response:
    name = call.path("name")
    call.broker(name)
    return await rows(call, [each for each in call.site.access.permissions() if each.host == name], permission_to_json)


# -- users


async def list_users(call: Call) -> Response:
    return await rows(call, call.site.access.users(), user_to_json)


async def show_user(call: Call) -> Response:
    return row(call, user_to_json(call.site.access.account(call.path("name")).user))


async def put_user(call: Call) -> Response:
    name = call.path("name")
    body = await call.json()
    if "tags" not in body:
        raise BadRequest("'tags' is missing; give an empty text for none")
    access = call.site.access
    is_new = all(user.name != name for user in access.users())
    password = body.get("password")
    if password is not None and not isinstance(password, str):
        raise BadRequest("'password' must be a string")
    tags = tags_of(body)
    password_hash = body.get("password_hash")
    if password is None and isinstance(password_hash, str):
        await done(lambda tell: access.put_user_hash(name, password_hash, tags, tell))
    else:
        await done(lambda tell: access.put_user(name, password or None, tags, tell))
    return nothing(201 if is_new else 204)


async def delete_user(call: Call) -> Response:
    return await remove_user(call, call.path("name"))


async def permissions_of_user(call: Call) -> Response:
    name = call.site.access.account(call.path("name")).name
    return await rows(call, [each for each in call.site.access.permissions() if each.user == name], permission_to_json)


async def topic_permissions_of_user(call: Call) -> Response:
    name = call.site.access.account(call.path("name")).name
    found = [each for each in call.site.access.topic_permissions() if each.user == name]
    return await rows(call, found, topic_permission_to_json)


async def whoami(call: Call) -> Response:
    visitor = call.visitor
    is_stored = not visitor.account.expires_us
    return row(call, {"name": visitor.name, "tags": sorted(visitor.tags), "is_internal_user": is_stored})


# -- permissions


async def list_permissions(call: Call) -> Response:
    return await rows(call, call.site.access.permissions(), permission_to_json)


async def show_permission(call: Call) -> Response:
    user, host = call.path("user"), call.path("vhost")
    for permission in call.site.access.permissions():
        if (permission.user, permission.host) == (user, host):
            return row(call, permission_to_json(permission))
    raise NotFound(f"user '{user}' has no permissions in vhost '{host}'")


async def put_permission(call: Call) -> Response:
    user, host = call.path("user"), call.path("vhost")
    body = await call.json()
    patterns = [text(body, name) for name in ("configure", "write", "read")]
    is_new = all((each.user, each.host) != (user, host) for each in call.site.access.permissions())
    await done(lambda tell: call.site.access.put_permission(Permission(user, host, *patterns), tell))
    return nothing(201 if is_new else 204)


async def delete_permission(call: Call) -> Response:
    await done(lambda tell: call.site.access.delete_permission(call.path("user"), call.path("vhost"), tell))
    return nothing()


async def list_topic_permissions(call: Call) -> Response:
    return await rows(call, call.site.access.topic_permissions(), topic_permission_to_json)


async def show_topic_permissions(call: Call) -> Response:
    user, host = call.path("user"), call.path("vhost")
    found = [each for each in call.site.access.topic_permissions() if (each.user, each.host) == (user, host)]
    if not found:
        raise NotFound(f"user '{user}' has no topic permissions in vhost '{host}'")
    return await rows(call, found, topic_permission_to_json)


async def put_topic_permission(call: Call) -> Response:
    body = await call.json()
    user, host, exchange = call.path("user"), call.path("vhost"), text(body, "exchange")
    permission = TopicPermission(user, host, exchange, text(body, "write"), text(body, "read"))
    await done(lambda tell: call.site.access.put_topic_permission(permission, tell))
    return nothing(201)


async def delete_topic_permissions(call: Call) -> Response:
    await done(lambda tell: call.site.access.delete_topic_permissions(call.path("user"), call.path("vhost"), tell))
    return nothing()

"""Virtual hosts, users and permissions as RabbitMQ shows them."""

from dataclasses import dataclass

from starlette.responses import Response

from headrace.admin.pages import BadRequest, Call, done, nothing
from headrace.admin.rabbitmq.shapes import Row, details, node_name, row, rows
from headrace.admin.resources import delete_host as remove_host
from headrace.admin.resources import delete_permission as remove_permission
from headrace.admin.resources import delete_user as remove_user
from headrace.admin.resources import hosts, permission_to_json, topic_permission_to_json, user_to_json
from headrace.admin.slices import sliced
from headrace.config.kinds import Secret, Text, Unchecked
from headrace.config.table import option, required
from headrace.core.access.permissions import Permission, TopicPermission
from headrace.errors import NotFound


@dataclass(frozen=True, kw_only=True)
class UserBody:
    """Body of a user."""

    tags: object = required(Unchecked(), "Empty text for none.")
    password: str | None = option(None, Secret())
    password_hash: str | None = option(None, Secret())


@dataclass(frozen=True, kw_only=True)
class UserNames:
    """Body of a request to delete users."""

    users: object = required(Unchecked())


@dataclass(frozen=True, kw_only=True)
class Patterns:
    """Body of a permission."""

    configure: str = required(Text())
    write: str = required(Text())
    read: str = required(Text())


@dataclass(frozen=True, kw_only=True)
class TopicPatterns:
    """Body of a topic permission."""

    exchange: str = required(Text())
    write: str = required(Text())
    read: str = required(Text())


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


def tags_of(value: object) -> list[str]:
    """Read tags: a list, or a text with commas, as RabbitMQ's tools send it. Raises BadRequest."""
    if isinstance(value, str):
        return [tag.strip() for tag in value.split(",") if tag.strip()]
    if isinstance(value, list) and all(isinstance(tag, str) for tag in value):
        return value
    raise BadRequest(f"'tags' must be words with commas between, or a list of words, not {value!r}")


# -- virtual hosts


async def list_hosts(call: Call) -> Response:
    found = [await host_row(call, name) for name, _ in hosts(call) if call.site.hosts.find(name) is not None]
    return await rows(call, found, lambda shown: shown)


async def show_host(call: Call) -> Response:
    return row(call, await host_row(call, call.path("name")))


async def put_host(call: Call) -> Response:
    name = call.path("name")
    is_new = call.site.hosts.find(name) is None
    await done(lambda tell: call.site.hosts.create(name, tell))
    if is_new and call.visitor.account.grants is None:  # RabbitMQ, too, lets the creator in
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
    body = await call.read(UserBody, is_lenient=True)
    access, tags = call.site.access, tags_of(body.tags)
    is_new = all(user.name != name for user in access.users())
    if body.password is None and body.password_hash is not None:
        password_hash = body.password_hash
        await done(lambda tell: access.put_user_hash(name, password_hash, tags, tell))
    else:
        await done(lambda tell: access.put_user(name, body.password or None, tags, tell))
    return nothing(201 if is_new else 204)


async def delete_user(call: Call) -> Response:
    await remove_user(call, call.path("name"))
    return nothing()


async def delete_users(call: Call) -> Response:
    """Delete several users, or none if one of them is not there."""
    body = await call.read(UserNames, is_lenient=True)
    names = body.users
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise BadRequest(f"'users' must be a list of names, not {names!r}")
    known = {user.name for user in call.site.access.users()}
    missing = [name for name in names if name not in known]
    if missing:
        raise BadRequest(f"no user '{missing[0]}'")
    for name in names:
        await remove_user(call, name)
    return nothing()


async def users_without_permissions(call: Call) -> Response:
    allowed = {each.user for each in call.site.access.permissions()}
    return await rows(call, [user for user in call.site.access.users() if user.name not in allowed], user_to_json)


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
    body = await call.read(Patterns, is_lenient=True)
    if host not in call.site.hosts.names() or all(each.name != user for each in call.site.access.users()):
        raise BadRequest(f"there is no vhost '{host}' or no user '{user}'")
    permission = Permission(user, host, body.configure, body.write, body.read)
    is_new = all((each.user, each.host) != (user, host) for each in call.site.access.permissions())
    await done(lambda tell: call.site.access.put_permission(permission, tell))
    return nothing(201 if is_new else 204)


async def delete_permission(call: Call) -> Response:
    await remove_permission(call)
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
    body = await call.read(TopicPatterns, is_lenient=True)
    permission = TopicPermission(call.path("user"), call.path("vhost"), body.exchange, body.write, body.read)
    await done(lambda tell: call.site.access.put_topic_permission(permission, tell))
    return nothing(201)


async def delete_topic_permissions(call: Call) -> Response:
    await done(lambda tell: call.site.access.delete_topic_permissions(call.path("user"), call.path("vhost"), tell))
    return nothing()

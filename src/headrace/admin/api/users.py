"""Virtual hosts, users and permissions over HTTP: list, have, remove. Only administrators change them."""

from typing import Final

from starlette.responses import Response

from headrace.admin.api.operation import COUNT, DEFAULT_LIMIT, MAX_LIMIT, PAGED, TEXT, Operation, page_of, ref, table
from headrace.admin.pages import BadRequest, Call, Section, after, answer, done, listed, nothing
from headrace.admin.site import ADMINISTRATOR
from headrace.admin.slices import sliced
from headrace.core.access.permissions import Permission, TopicPermission
from headrace.core.access.users import Limits, User
from headrace.errors import Refused


def user_to_json(user: User) -> dict[str, object]:
    """A user without anything secret."""
    return {"name": user.name, "tags": list(user.tags), "limits": user.limits.to_json()}


def permission_to_json(permission: Permission) -> dict[str, object]:
    return {
        "user": permission.user,
        "vhost": permission.host,
        "configure": permission.configure,
        "write": permission.write,
        "read": permission.read,
    }


def topic_permission_to_json(permission: TopicPermission) -> dict[str, object]:
    return {
        "user": permission.user,
        "vhost": permission.host,
        "exchange": permission.exchange,
        "write": permission.write,
        "read": permission.read,
    }


async def list_hosts(call: Call) -> Response:
    names = [name for name in call.site.hosts.names() if call.sees(name)]
    page, following = await after(names, call.text("after"), call.number("limit", DEFAULT_LIMIT, 1, MAX_LIMIT))
    return await listed(page, following, lambda name: _host_to_json(call, name))


def _host_to_json(call: Call, name: str) -> dict[str, object] | None:
    broker = call.site.hosts.find(name)
    return None if broker is None else {"name": name, "queues": len(broker.topology.queues)}


async def put_host(call: Call) -> Response:
    name = call.path("vhost")
    await done(lambda tell: call.site.hosts.create(name, tell))
    return answer({"name": name, "queues": len(call.broker(name).topology.queues)})


async def delete_host(call: Call) -> Response:
    return answer(await remove_host(call, call.path("vhost")))


async def remove_host(call: Call, name: str) -> dict[str, object]:
    """Remove a virtual host, whoever's way of asking it was; tells what went with it. Raises NotFound, Refused."""
    broker = call.site.hosts.find(name)
    queues = list(broker.topology.queues.values()) if broker is not None else []
    messages = 0
    async for queue in sliced(queues):
        messages += queue.total
    await done(lambda tell: call.site.hosts.delete(name, tell))
    call.record(f"virtual host {name!r} removed with {len(queues):,} queues and {messages:,} messages")
    return {"vhost": name, "queues": len(queues), "messages": messages}


async def list_users(call: Call) -> Response:
    users = {user.name: user for user in call.site.access.users()}
    page, following = await after(users, call.text("after"), call.number("limit", DEFAULT_LIMIT, 1, MAX_LIMIT))
    return await listed(page, following, lambda name: user_to_json(users[name]))


async def show_user(call: Call) -> Response:
    return answer(user_to_json(call.site.access.account(call.path("user")).user))


async def put_user(call: Call) -> Response:
    """Without a password the user keeps the one there is; a new user then has none that is right."""
    name = call.path("user")
    body = await call.section()
    password, tags, limits = body.text("password", ""), _tags(body), body.get("limits")
    body.check_all_read()
    allowed = None if limits is None else Limits.from_json(limits)
    access = call.site.access
    await done(lambda tell: access.put_user(name, password or None, tags, tell))
    if allowed is not None:
        await done(lambda tell: access.set_limits(name, allowed, tell))
    return answer(user_to_json(access.account(name).user))


def _tags(body: Section) -> list[str]:
    value = body.get("tags")
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(tag, str) for tag in value):
        raise BadRequest(f"'tags' must be a list of words, not {value!r}")
    return value


async def delete_user(call: Call) -> Response:
    return await remove_user(call, call.path("user"))


async def remove_user(call: Call, name: str) -> Response:
    """Remove a user, whoever's way of asking it was. Raises NotFound, Refused."""
    if name == call.visitor.name:
        raise Refused("users do not remove themselves; another administrator can")
    await done(lambda tell: call.site.access.delete_user(name, tell))
    return nothing()


async def list_permissions(call: Call) -> Response:
    found = {f"{entry.host}\n{entry.user}": entry for entry in call.site.access.permissions()}
    page, following = await after(found, call.text("after"), call.number("limit", DEFAULT_LIMIT, 1, MAX_LIMIT))
    return await listed(page, following, lambda key: permission_to_json(found[key]))


async def put_permission(call: Call) -> Response:
    body = await call.section()
    given = [body.text(name, "") for name in ("configure", "write", "read")]
    body.check_all_read()
    permission = Permission(call.path("user"), call.path("vhost"), *given)
    await done(lambda tell: call.site.access.put_permission(permission, tell))
    return answer(permission_to_json(permission))


async def delete_permission(call: Call) -> Response:
    await done(lambda tell: call.site.access.delete_permission(call.path("user"), call.path("vhost"), tell))
    return nothing()


async def list_topic_permissions(call: Call) -> Response:
    granted = call.site.access.topic_permissions()
    found = {f"{entry.host}\n{entry.user}\n{entry.exchange}": entry for entry in granted}
    page, following = await after(found, call.text("after"), call.number("limit", DEFAULT_LIMIT, 1, MAX_LIMIT))
    return await listed(page, following, lambda key: topic_permission_to_json(found[key]))


async def put_topic_permission(call: Call) -> Response:
    body = await call.section()
    given = [body.text(name, "") for name in ("write", "read")]
    body.check_all_read()
    permission = TopicPermission(call.path("user"), call.path("vhost"), call.path("exchange"), *given)
    await done(lambda tell: call.site.access.put_topic_permission(permission, tell))
    return answer(topic_permission_to_json(permission))


async def delete_topic_permission(call: Call) -> Response:
    user, host, exchange = call.path("user"), call.path("vhost"), call.path("exchange")
    await done(lambda tell: call.site.access.delete_topic_permissions(user, host, tell, exchange))
    return nothing()


_HOST: Final = "/vhosts/{vhost}"
_USER: Final = "/users/{user}"
_PERMISSION: Final = "/permissions/{vhost}/{user}"
_TOPIC_PERMISSION: Final = "/topic-permissions/{vhost}/{user}/{exchange}"
_LIMITS: Final = ("max-connections", "max-channels", "max-message-rate", "max-message-bytes")
_NUMBER: Final = {"type": "integer"}
_USER_BODY: Final = table(
    password={"type": "string", "minLength": 1, "maxLength": 256},
    tags={"type": "array", "items": {"type": "string", "enum": ["administrator", "monitoring", "management"]}},
    limits={
        "type": "object",
        "properties": dict.fromkeys(_LIMITS, _NUMBER),
    },
)

OPERATIONS: Final = (
    Operation("GET", "/vhosts", list_hosts, "List virtual hosts", PAGED, answer=page_of("VirtualHost")),
    Operation("PUT", _HOST, put_host, "Have a virtual host", answer=ref("VirtualHost"), needs=ADMINISTRATOR),
    Operation(
        "DELETE",
        _HOST,
        delete_host,
        "Remove a virtual host with its queues and messages",
        answer=table(("vhost", "queues", "messages"), vhost=TEXT, queues=COUNT, messages=COUNT),
        needs=ADMINISTRATOR,
    ),
    Operation("GET", "/users", list_users, "List users", PAGED, answer=page_of("User"), needs=ADMINISTRATOR),
    Operation("GET", _USER, show_user, "One user", answer=ref("User"), needs=ADMINISTRATOR),
    Operation("PUT", _USER, put_user, "Have a user", body=_USER_BODY, answer=ref("User"), needs=ADMINISTRATOR),
    Operation("DELETE", _USER, delete_user, "Remove a user", status=204, needs=ADMINISTRATOR),
    Operation(
        "GET",
        "/permissions",
        list_permissions,
        "List permissions",
        PAGED,
        answer=page_of("Permission"),
        needs=ADMINISTRATOR,
    ),
    Operation(
        "PUT",
        _PERMISSION,
        put_permission,
        "Let a user into a virtual host",
        body=table(configure=TEXT, write=TEXT, read=TEXT),
        answer=ref("Permission"),
        needs=ADMINISTRATOR,
    ),
    Operation(
        "DELETE",
        _PERMISSION,
        delete_permission,
        "Let a user into a virtual host no more",
        status=204,
        needs=ADMINISTRATOR,
    ),
    Operation(
        "GET",
        "/topic-permissions",
        list_topic_permissions,
        "List topic permissions",
        PAGED,
        answer=page_of("TopicPermission"),
        needs=ADMINISTRATOR,
    ),
    Operation(
        "PUT",
        _TOPIC_PERMISSION,
        put_topic_permission,
        "Bound a user to topics of an exchange",
        body=table(write=TEXT, read=TEXT),
        answer=ref("TopicPermission"),
        needs=ADMINISTRATOR,
    ),
    Operation(
        "DELETE",
        _TOPIC_PERMISSION,
        delete_topic_permission,
        "Bound a user to topics of an exchange no more",
        status=204,
        needs=ADMINISTRATOR,
    ),
)

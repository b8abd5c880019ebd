"""Virtual hosts, users and permissions over HTTP. Only administrators change them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from starlette.responses import Response

from headrace.admin.api.operation import Operation, Paged, page_of, ref, table
from headrace.admin.pages import Call, after, answer, done, listed, nothing
from headrace.admin.resources import delete_host as remove_host
from headrace.admin.resources import delete_permission as remove_permission
from headrace.admin.resources import delete_user as remove_user
from headrace.admin.resources import permission_to_json, put_host_limits, topic_permission_to_json, user_to_json
from headrace.admin.site import ADMINISTRATOR
from headrace.config.kinds import Secret, Text, Texts, Unchecked
from headrace.config.table import option
from headrace.core.access.permissions import Permission, TopicPermission
from headrace.core.access.users import Limits
from headrace.core.parameters import HOST_LIMITS, read_limits

Item = TypeVar("Item")
_LIMITS: Final = ("max-connections", "max-channels", "max-message-rate", "max-message-bytes")


@dataclass(frozen=True)
class UserBody:
    """Body of a user. Without a password the user keeps the present one; a new user then has none."""

    password: str = option("", Secret())
    tags: Sequence[str] = option((), Texts(), "Any of administrator, monitoring and management.")
    limits: object = option(None, Unchecked(type="object", properties={name: {"type": "integer"} for name in _LIMITS}))


@dataclass(frozen=True)
class HostBody:
    """Body of a virtual host."""

    limits: object = option(
        None,
        Unchecked(type="object", properties={name: {"type": "integer"} for name in HOST_LIMITS}),
        "Limits to change; -1 lifts one.",
    )


@dataclass(frozen=True)
class TopicPatterns:
    """Body of a topic permission."""

    write: str = option("", Text())
    read: str = option("", Text())


@dataclass(frozen=True)
class Patterns(TopicPatterns):
    """Body of a permission."""

    configure: str = option("", Text())


async def _page(
    call: Call, items: Iterable[Item], key: Callable[[Item], str], shown: Callable[[Item], object]
) -> Response:
    """Answer with a page of a list that is ordered by its keys."""
    query, found = call.query(Paged), {key(item): item for item in items}
    names, following = await after(found, query.after, query.limit)
    return await listed(names, following, lambda name: shown(found[name]))


async def list_hosts(call: Call) -> Response:
    names = [name for name in call.site.hosts.names() if call.sees(name)]
    return await _page(call, names, lambda name: name, lambda name: _host_to_json(call, name))


def _host_to_json(call: Call, name: str) -> dict[str, object] | None:
    broker = call.site.hosts.find(name)
    if broker is None:
        return None
    return {"name": name, "queues": len(broker.topology.queues), "limits": dict(broker.parameters.limits)}


async def put_host(call: Call) -> Response:
    name, body = call.path("vhost"), await call.read(HostBody)
    limits = read_limits(body.limits or {})
    await done(lambda tell: call.site.hosts.create(name, tell))
    await put_host_limits(call, name, limits)
    return answer(_host_to_json(call, name))


async def delete_host(call: Call) -> Response:
    return answer(await remove_host(call, call.path("vhost")))


async def list_users(call: Call) -> Response:
    return await _page(call, call.site.access.users(), lambda user: user.name, user_to_json)


async def show_user(call: Call) -> Response:
    return answer(user_to_json(call.site.access.account(call.path("user")).user))


async def put_user(call: Call) -> Response:
    name, access = call.path("user"), call.site.access
    body = await call.read(UserBody)
    limits = None if body.limits is None else Limits.from_json(body.limits)
    await done(lambda tell: access.put_user(name, body.password or None, list(body.tags), tell))
    if limits is not None:
        await done(lambda tell: access.set_limits(name, limits, tell))
    return answer(user_to_json(access.account(name).user))


async def delete_user(call: Call) -> Response:
    await remove_user(call, call.path("user"))
    return nothing()


async def list_permissions(call: Call) -> Response:
    granted = call.site.access.permissions()
    return await _page(call, granted, lambda each: f"{each.host}\n{each.user}", permission_to_json)


async def put_permission(call: Call) -> Response:
    body = await call.read(Patterns)
    permission = Permission(call.path("user"), call.path("vhost"), body.configure, body.write, body.read)
    await done(lambda tell: call.site.access.put_permission(permission, tell))
    return answer(permission_to_json(permission))


async def delete_permission(call: Call) -> Response:
    await remove_permission(call)
    return nothing()


async def list_topic_permissions(call: Call) -> Response:
    granted = call.site.access.topic_permissions()
    return await _page(
        call, granted, lambda each: f"{each.host}\n{each.user}\n{each.exchange}", topic_permission_to_json
    )


async def put_topic_permission(call: Call) -> Response:
    body = await call.read(TopicPatterns)
    permission = TopicPermission(call.path("user"), call.path("vhost"), call.path("exchange"), body.write, body.read)
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


_administration: Final = partial(Operation, needs=ADMINISTRATOR)

OPERATIONS: Final = (
    Operation("GET", "/vhosts", list_hosts, "List virtual hosts", page_of("VirtualHost"), Paged),
    _administration(
        "PUT", _HOST, put_host, "Create a virtual host, or change its limits", ref("VirtualHost"), body=HostBody
    ),
    _administration(
        "DELETE",
        _HOST,
        delete_host,
        "Remove a virtual host with its queues and messages",
        table("vhost queues:count messages:count"),
    ),
    _administration("GET", "/users", list_users, "List users", page_of("User"), Paged),
    _administration("GET", _USER, show_user, "One user", ref("User")),
    _administration("PUT", _USER, put_user, "Create or change a user", ref("User"), body=UserBody),
    _administration("DELETE", _USER, delete_user, "Remove a user", status=204),
    _administration("GET", "/permissions", list_permissions, "List permissions", page_of("Permission"), Paged),
    _administration(
        "PUT", _PERMISSION, put_permission, "Let a user into a virtual host", ref("Permission"), body=Patterns
    ),
    _administration("DELETE", _PERMISSION, delete_permission, "Revoke a permission", status=204),
    _administration(
        "GET", "/topic-permissions", list_topic_permissions, "List topic permissions", page_of("TopicPermission"), Paged
    ),
    _administration(
        "PUT",
        _TOPIC_PERMISSION,
        put_topic_permission,
        "Restrict a user to topics of an exchange",
        ref("TopicPermission"),
        body=TopicPatterns,
    ),
    _administration(
        "DELETE",
        _TOPIC_PERMISSION,
        delete_topic_permission,
        "Lift the restriction to topics of an exchange",
        status=204,
    ),
)

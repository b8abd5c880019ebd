"""Policies, limits and parameters as RabbitMQ shows them."""

from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from headrace.admin.pages import BadRequest, Call, answer, done, nothing
from headrace.admin.rabbitmq.shapes import Row, asked_hosts, named_host, row, rows
from headrace.admin.resources import delete_policy as remove_policy
from headrace.admin.resources import find_policy, policy_to_json, put_host_limits
from headrace.admin.resources import put_policy as store_policy
from headrace.config.kinds import Unchecked
from headrace.config.table import required
from headrace.core.access.users import Limits, User
from headrace.core.broker import Broker
from headrace.core.parameters import read_limits
from headrace.core.policies import Policy
from headrace.errors import NotFound

VHOST_LIMITS: Final = "vhost-limits"
OPERATOR_POLICY: Final = "operator_policy"
LIMITS: Final = "limits"
"""Name of the only parameter of a virtual host's limits."""


@dataclass(frozen=True, kw_only=True)
class ValueBody:
    """Body of a limit or a parameter."""

    value: object = required(Unchecked())


# -- policies


async def list_policies(call: Call) -> Response:
    return await _list(call, False)


async def list_operator_policies(call: Call) -> Response:
    return await _list(call, True)


async def _list(call: Call, is_operator: bool) -> Response:
    found = [(host, each) for host, broker in asked_hosts(call) for each in broker.parameters.policies.all(is_operator)]
    return await rows(call, found, lambda pair: policy_to_json(*pair))


async def show_policy(call: Call) -> Response:
    return _show(call, False)


async def show_operator_policy(call: Call) -> Response:
    return _show(call, True)


def _show(call: Call, is_operator: bool) -> Response:
    host = call.path("vhost")
    return row(call, policy_to_json(host, find_policy(call, host, call.path("name"), is_operator)))


async def put_policy(call: Call) -> Response:
    return await _put(call, False)


async def put_operator_policy(call: Call) -> Response:
    return await _put(call, True)


async def _put(call: Call, is_operator: bool) -> Response:
    policy = Policy.from_json(call.path("name"), await call.json(), is_operator)
    return nothing(201 if await store_policy(call, call.path("vhost"), policy) else 204)


async def delete_policy(call: Call) -> Response:
    await remove_policy(call, call.path("vhost"), call.path("name"), False)
    return nothing()


async def delete_operator_policy(call: Call) -> Response:
    await remove_policy(call, call.path("vhost"), call.path("name"), True)
    return nothing()


# -- limits of virtual hosts and users


async def list_host_limits(call: Call) -> Response:
    found = [(host, broker) for host, broker in asked_hosts(call) if broker.parameters.limits]
    return await rows(call, found, lambda pair: {"vhost": pair[0], "value": dict(pair[1].parameters.limits)})


async def put_host_limit(call: Call) -> Response:
    value = (await call.read(ValueBody, is_lenient=True)).value
    await put_host_limits(call, call.path("vhost"), read_limits({call.path("name"): value}))
    return nothing()


async def delete_host_limit(call: Call) -> Response:
    await put_host_limits(call, call.path("vhost"), read_limits({call.path("name"): -1}))
    return nothing()


async def list_user_limits(call: Call) -> Response:
    users = call.site.access.users()
    if "user" in call.request.path_params:
        users = [call.site.access.account(call.path("user")).user]
    return await rows(call, [user for user in users if user.limits != Limits()], _user_limits)


def _user_limits(user: User) -> Row:
    return {"user": user.name, "value": user.limits.to_json()}


async def put_user_limit(call: Call) -> Response:
    value = (await call.read(ValueBody, is_lenient=True)).value
    await _set_user_limit(call, call.path("name"), value)
    return nothing()


async def delete_user_limit(call: Call) -> Response:
    await _set_user_limit(call, call.path("name"), -1)
    return nothing()


async def _set_user_limit(call: Call, name: str, value: object) -> None:
    user = call.site.access.account(call.path("user")).user
    limits = Limits.from_json({**user.limits.to_json(), name: value})
    await done(lambda tell: call.site.access.set_limits(user.name, limits, tell))


# -- parameters


def parameters_of(host: str, broker: Broker) -> list[Row]:
    """Return what RabbitMQ keeps as parameters of a virtual host: operator policies and limits."""
    found: list[Row] = [
        {"vhost": host, "component": OPERATOR_POLICY, "name": policy.name, "value": policy.to_json()}
        for policy in broker.parameters.policies.all(True)
    ]
    if broker.parameters.limits:
        limits = dict(broker.parameters.limits)
        found.append({"vhost": host, "component": VHOST_LIMITS, "name": LIMITS, "value": limits})
    return found


async def list_parameters(call: Call) -> Response:
    component = call.path("component") if "component" in call.request.path_params else ""
    found = [each for host, broker in asked_hosts(call) for each in parameters_of(host, broker)]
    shown = [each for each in found if each["component"] == component or not component]
    return await rows(call, shown, lambda each: each)


async def show_parameter(call: Call) -> Response:
    for each in parameters_of(call.path("vhost"), call.broker(call.path("vhost"))):
        if (each["component"], each["name"]) == (call.path("component"), call.path("name")):
            return row(call, each)
    raise NotFound(f"no parameter '{call.path('name')}' of {call.path('component')} in vhost '{named_host(call)}'")


async def put_parameter(call: Call) -> Response:
    value = (await call.read(ValueBody, is_lenient=True)).value
    host, component, name = call.path("vhost"), call.path("component"), call.path("name")
    await set_parameter(call, host, component, name, value)
    return nothing()


async def set_parameter(call: Call, host: str, component: str, name: str, value: object) -> None:
    """Set a parameter of a virtual host. Raises BadRequest for a component that is unknown here, Refused."""
    if component == OPERATOR_POLICY:
        await store_policy(call, host, Policy.from_json(name, value, True))
    elif component != VHOST_LIMITS:
        raise BadRequest(f"Validation failed\n\ncomponent {component} not found")
    else:
        await put_host_limits(call, host, read_limits(value or {}))  # RabbitMQ writes no limits as an empty list


async def delete_parameter(call: Call) -> Response:
    host, component, name = call.path("vhost"), call.path("component"), call.path("name")
    if component == OPERATOR_POLICY:
        await remove_policy(call, host, name, True)
        return nothing()
    limits = dict.fromkeys(call.broker(host).parameters.limits, -1)
    if component != VHOST_LIMITS or name != LIMITS or not limits:
        raise NotFound(f"no parameter '{name}' of {component} in vhost '{host}'")
    await put_host_limits(call, host, limits)
    return nothing()


async def list_global_parameters(call: Call) -> Response:
    found = list(call.site.hosts.global_parameters().items())
    return await rows(call, found, lambda pair: {"name": pair[0], "value": pair[1]})


async def show_global_parameter(call: Call) -> Response:
    name, found = call.path("name"), call.site.hosts.global_parameters()
    if name not in found:
        raise NotFound(f"no global parameter '{name}'")
    return answer({"name": name, "value": found[name]})


async def put_global_parameter(call: Call) -> Response:
    value = (await call.read(ValueBody, is_lenient=True)).value
    name = call.path("name")
    is_new = name not in call.site.hosts.global_parameters()
    await done(lambda tell: call.site.hosts.put_global_parameter(name, value, tell))
    return nothing(201 if is_new else 204)


async def delete_global_parameter(call: Call) -> Response:
    await done(lambda tell: call.site.hosts.delete_global_parameter(call.path("name"), tell))
    return nothing()

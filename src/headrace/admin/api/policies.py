"""Policies over HTTP: settings for queues and exchanges by a pattern of their names. Core has the rules."""

from dataclasses import dataclass
from functools import partial
from typing import Final

from starlette.responses import Response

from headrace.admin.api.operation import Operation, Paged, page_of, ref
from headrace.admin.pages import Call, after, answer, listed, nothing
from headrace.admin.resources import delete_policy as remove_policy
from headrace.admin.resources import find_policy, hosts
from headrace.admin.resources import put_policy as store_policy
from headrace.admin.site import ADMINISTRATOR, POLICYMAKER
from headrace.config.kinds import MAX_NUMBER, Choice, Number, Object, Text
from headrace.config.settings import ALL, APPLY_TO
from headrace.config.table import option, required
from headrace.core.policies import Policy


@dataclass(frozen=True)
class PolicyBody:
    """Body of a policy."""

    pattern: str = required(Text(), "Regular expression that names must match anywhere.")
    definition: dict[str, object] = required(Object(), "Settings by RabbitMQ's names, such as message-ttl.")
    apply_to: str = option(ALL, Choice(*APPLY_TO))
    priority: int = option(0, Number(-MAX_NUMBER), "Of the policies that match, the highest one counts.")


@dataclass(frozen=True)
class PolicyList(Paged):
    """Query of policies: of one virtual host."""

    vhost: str = option("", Text())


def _shown(host: str, policy: Policy) -> dict[str, object]:
    return {
        "vhost": host,
        "name": policy.name,
        "pattern": policy.pattern,
        "apply_to": policy.apply_to,
        "priority": policy.priority,
        "definition": dict(policy.definition),
        "without_effect": policy.idle,
    }


async def _list(call: Call, is_operator: bool) -> Response:
    query = call.query(PolicyList)
    found = {
        f"{host}\n{policy.name}": (host, policy)
        for host, broker in hosts(call, query.vhost)
        for policy in broker.parameters.policies.all(is_operator)
    }
    names, following = await after(found, query.after, query.limit)
    return await listed(names, following, lambda name: _shown(*found[name]))


async def _show(call: Call, is_operator: bool) -> Response:
    host = call.path("vhost")
    return answer(_shown(host, find_policy(call, host, call.path("policy"), is_operator)))


async def _put(call: Call, is_operator: bool) -> Response:
    host, body = call.path("vhost"), await call.read(PolicyBody)
    policy = Policy(call.path("policy"), body.pattern, body.definition, body.apply_to, body.priority, is_operator)
    is_new = await store_policy(call, host, policy)
    return answer(_shown(host, policy), 201 if is_new else 200)


async def _delete(call: Call, is_operator: bool) -> Response:
    await remove_policy(call, call.path("vhost"), call.path("policy"), is_operator)
    return nothing()


def _operations(path: str, noun: str, is_operator: bool, needs: str) -> tuple[Operation, ...]:
    one = f"{path}/{{vhost}}/{{policy}}"
    return (
        Operation(
            "GET", path, partial(_list, is_operator=is_operator), f"List {noun[:-1]}ies", page_of("Policy"), PolicyList
        ),
        Operation("GET", one, partial(_show, is_operator=is_operator), f"One {noun}", ref("Policy")),
        Operation(
            "PUT",
            one,
            partial(_put, is_operator=is_operator),
            f"Create or replace the {noun}",
            ref("Policy"),
            body=PolicyBody,
            needs=needs,
        ),
        Operation(
            "DELETE", one, partial(_delete, is_operator=is_operator), f"Delete the {noun}", status=204, needs=needs
        ),
    )


OPERATIONS: Final = (
    *_operations("/policies", "policy", False, POLICYMAKER),
    *_operations("/operator-policies", "operator policy", True, ADMINISTRATOR),
)

"""Paths of RabbitMQ's API that Headrace answers, and the tag that each needs."""

from typing import Final

from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from headrace.admin.pages import BadRequest, Call, Page, Pages
from headrace.admin.rabbitmq import connections, definitions, exchanges, overview, policies, queues, users
from headrace.admin.site import ADMINISTRATOR, MANAGEMENT, MONITORING, POLICYMAKER
from headrace.errors import PreconditionFailed

_BINDINGS: Final = "/bindings/{vhost}/e/{source}/{kind}/{destination}"
_POLICY: Final = "/policies/{vhost}/{name}"
_OPERATOR_POLICY: Final = "/operator-policies/{vhost}/{name}"
_PARAMETER: Final = "/parameters/{component}/{vhost}/{name}"
_CHECKS: Final = "/health/checks"

_READING: Final[tuple[tuple[str, Page, str], ...]] = (
    ("/overview", overview.overview, MANAGEMENT),
    ("/cluster-name", overview.cluster_name, MANAGEMENT),
    ("/extensions", overview.extensions, MANAGEMENT),
    ("/nodes", overview.list_nodes, MONITORING),
    ("/nodes/{name}", overview.show_node, MONITORING),
    ("/whoami", users.whoami, MANAGEMENT),
    ("/vhosts", users.list_hosts, MANAGEMENT),
    ("/vhosts/{name}", users.show_host, MANAGEMENT),
    ("/vhosts/{name}/permissions", users.permissions_of_host, ADMINISTRATOR),
    ("/vhosts/{vhost}/connections", connections.list_connections, MANAGEMENT),
    ("/vhosts/{vhost}/channels", connections.list_channels, MANAGEMENT),
    ("/users", users.list_users, ADMINISTRATOR),
    ("/users/without-permissions", users.users_without_permissions, ADMINISTRATOR),
    ("/users/{name}", users.show_user, ADMINISTRATOR),
    ("/users/{name}/permissions", users.permissions_of_user, ADMINISTRATOR),
    ("/users/{name}/topic-permissions", users.topic_permissions_of_user, ADMINISTRATOR),
    ("/permissions", users.list_permissions, ADMINISTRATOR),
    ("/permissions/{vhost}/{user}", users.show_permission, ADMINISTRATOR),
    ("/topic-permissions", users.list_topic_permissions, ADMINISTRATOR),
    ("/topic-permissions/{vhost}/{user}", users.show_topic_permissions, ADMINISTRATOR),
    ("/connections", connections.list_connections, MANAGEMENT),
    ("/connections/{name}", connections.show_connection, MANAGEMENT),
    ("/connections/{name}/channels", connections.channels_of_connection, MANAGEMENT),
    ("/channels", connections.list_channels, MANAGEMENT),
    ("/channels/{name}", connections.show_channel, MANAGEMENT),
    ("/consumers", connections.list_consumers, MANAGEMENT),
    ("/consumers/{vhost}", connections.list_consumers, MANAGEMENT),
    ("/exchanges", exchanges.list_exchanges, MANAGEMENT),
    ("/exchanges/{vhost}", exchanges.list_exchanges, MANAGEMENT),
    ("/exchanges/{vhost}/{name}", exchanges.show_exchange, MANAGEMENT),
    ("/exchanges/{vhost}/{name}/bindings/source", exchanges.bindings_from_exchange, MANAGEMENT),
    ("/exchanges/{vhost}/{name}/bindings/destination", exchanges.bindings_to_exchange, MANAGEMENT),
    ("/queues", queues.list_queues, MANAGEMENT),
    ("/queues/{vhost}", queues.list_queues, MANAGEMENT),
    ("/queues/{vhost}/{name}", queues.show_queue, MANAGEMENT),
    ("/queues/{vhost}/{name}/bindings", exchanges.bindings_of_queue, MANAGEMENT),
    ("/bindings", exchanges.list_bindings, MANAGEMENT),
    ("/bindings/{vhost}", exchanges.list_bindings, MANAGEMENT),
    (_BINDINGS, exchanges.bindings_between, MANAGEMENT),
    (_BINDINGS + "/{properties}", exchanges.show_binding, MANAGEMENT),
    ("/definitions", definitions.export, ADMINISTRATOR),
    ("/definitions/{vhost}", definitions.export, ADMINISTRATOR),
    ("/parameters", policies.list_parameters, POLICYMAKER),
    ("/parameters/{component}", policies.list_parameters, POLICYMAKER),
    ("/parameters/{component}/{vhost}", policies.list_parameters, POLICYMAKER),
    (_PARAMETER, policies.show_parameter, POLICYMAKER),
    ("/global-parameters", policies.list_global_parameters, MANAGEMENT),
    ("/global-parameters/{name}", policies.show_global_parameter, MANAGEMENT),
    ("/policies", policies.list_policies, MANAGEMENT),
    ("/policies/{vhost}", policies.list_policies, MANAGEMENT),
    (_POLICY, policies.show_policy, MANAGEMENT),
    ("/operator-policies", policies.list_operator_policies, MANAGEMENT),
    ("/operator-policies/{vhost}", policies.list_operator_policies, MANAGEMENT),
    (_OPERATOR_POLICY, policies.show_operator_policy, MANAGEMENT),
    ("/vhost-limits", policies.list_host_limits, MANAGEMENT),
    ("/vhost-limits/{vhost}", policies.list_host_limits, MANAGEMENT),
    ("/user-limits", policies.list_user_limits, ADMINISTRATOR),
    ("/user-limits/{user}", policies.list_user_limits, ADMINISTRATOR),
    ("/feature-flags", overview.nothing_there, MANAGEMENT),
    ("/aliveness-test/{vhost}", overview.aliveness, MANAGEMENT),
    ("/healthchecks/node", overview.check, MONITORING),
    (_CHECKS + "/alarms", overview.check, MONITORING),
    (_CHECKS + "/local-alarms", overview.check, MONITORING),
    (_CHECKS + "/virtual-hosts", overview.check, MONITORING),
    (_CHECKS + "/node-is-mirror-sync-critical", overview.check, MONITORING),
    (_CHECKS + "/node-is-quorum-critical", overview.check, MONITORING),
    (_CHECKS + "/port-listener/{port}", overview.check_port, MONITORING),
    (_CHECKS + "/protocol-listener/{protocol}", overview.check_protocol, MONITORING),
)

_CHANGING: Final[tuple[tuple[str, str, Page, str], ...]] = (
    ("PUT", "/vhosts/{name}", users.put_host, ADMINISTRATOR),
    ("DELETE", "/vhosts/{name}", users.delete_host, ADMINISTRATOR),
    ("POST", "/users/bulk-delete", users.delete_users, ADMINISTRATOR),
    ("PUT", "/users/{name}", users.put_user, ADMINISTRATOR),
    ("DELETE", "/users/{name}", users.delete_user, ADMINISTRATOR),
    ("PUT", "/permissions/{vhost}/{user}", users.put_permission, ADMINISTRATOR),
    ("DELETE", "/permissions/{vhost}/{user}", users.delete_permission, ADMINISTRATOR),
    ("PUT", "/topic-permissions/{vhost}/{user}", users.put_topic_permission, ADMINISTRATOR),
    ("DELETE", "/topic-permissions/{vhost}/{user}", users.delete_topic_permissions, ADMINISTRATOR),
    ("DELETE", "/connections/{name}", connections.close_connection, MANAGEMENT),
    ("PUT", "/exchanges/{vhost}/{name}", exchanges.declare_exchange, MANAGEMENT),
    ("DELETE", "/exchanges/{vhost}/{name}", exchanges.delete_exchange, MANAGEMENT),
    ("POST", "/exchanges/{vhost}/{name}/publish", exchanges.publish, MANAGEMENT),
    ("PUT", "/queues/{vhost}/{name}", queues.declare_queue, MANAGEMENT),
    ("DELETE", "/queues/{vhost}/{name}", queues.delete_queue, MANAGEMENT),
    ("DELETE", "/queues/{vhost}/{name}/contents", queues.purge_queue, MANAGEMENT),
    ("POST", "/queues/{vhost}/{name}/get", queues.get_messages, MANAGEMENT),
    ("POST", _BINDINGS, exchanges.bind, MANAGEMENT),
    ("DELETE", _BINDINGS + "/{properties}", exchanges.unbind, MANAGEMENT),
    ("PUT", _POLICY, policies.put_policy, POLICYMAKER),
    ("DELETE", _POLICY, policies.delete_policy, POLICYMAKER),
    ("PUT", _OPERATOR_POLICY, policies.put_operator_policy, ADMINISTRATOR),
    ("DELETE", _OPERATOR_POLICY, policies.delete_operator_policy, ADMINISTRATOR),
    ("PUT", _PARAMETER, policies.put_parameter, ADMINISTRATOR),
    ("DELETE", _PARAMETER, policies.delete_parameter, ADMINISTRATOR),
    ("PUT", "/global-parameters/{name}", policies.put_global_parameter, ADMINISTRATOR),
    ("DELETE", "/global-parameters/{name}", policies.delete_global_parameter, ADMINISTRATOR),
    ("PUT", "/vhost-limits/{vhost}/{name}", policies.put_host_limit, ADMINISTRATOR),
    ("DELETE", "/vhost-limits/{vhost}/{name}", policies.delete_host_limit, ADMINISTRATOR),
    ("PUT", "/user-limits/{user}/{name}", policies.put_user_limit, ADMINISTRATOR),
    ("DELETE", "/user-limits/{user}/{name}", policies.delete_user_limit, ADMINISTRATOR),
    ("POST", "/definitions", definitions.import_definitions, ADMINISTRATOR),
    ("POST", "/definitions/{vhost}", definitions.import_definitions, ADMINISTRATOR),
)


def _as_there(page: Page) -> Page:
    """Answer 400 for a declaration that differs or makes no sense, as RabbitMQ does; our own API says 409."""

    async def answered(call: Call) -> Response:
        try:
            return await page(call)
        except PreconditionFailed as error:
            raise BadRequest(str(error)) from error

    return answered


def routes(pages: Pages) -> list[BaseRoute]:
    """Return a route for every path and method."""
    found: list[BaseRoute] = [Route("/api/auth", overview.auth, methods=["GET"])]
    found += [pages.route(f"/api{path}", page, "GET", tag) for path, page, tag in _READING]
    found += [pages.route(f"/api{path}", _as_there(page), method, tag) for method, path, page, tag in _CHANGING]
    return found

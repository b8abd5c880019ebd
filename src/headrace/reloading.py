"""The configuration in use: applied at the start, and again on a reload. No files: see config/.

A reload checks everything before it changes anything, so a refused reload changes nothing.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, final

from headrace import logs
from headrace.config.configuration import Configuration, is_live
from headrace.config.settings import DROP, Settings, TlsSettings
from headrace.config.table import Fault
from headrace.core.access.access import Access
from headrace.core.broker import Broker
from headrace.core.hosts import Hosts
from headrace.core.policies import Policy, wanted_policies
from headrace.core.queue.configured import Plan, Wanted, wanted_queues
from headrace.net.tls import Tls, TlsFiles
from headrace.tokens import read_tokens

_log: Final = logging.getLogger("headrace.config")


@dataclass(frozen=True)
class Reloaded:
    """The result of a reload: names of settings, queues and policies."""

    applied: list[str] = field(default_factory=list)
    created: list[str] = field(default_factory=list)
    altered: list[str] = field(default_factory=list)
    policies: list[str] = field(default_factory=list)
    needs_restart: list[str] = field(default_factory=list)


def tls_files(settings: TlsSettings) -> TlsFiles | None:
    """Return the files of the certificate, if there is one."""
    if settings.certificate is None or settings.key is None:
        return None
    return TlsFiles(settings.certificate, settings.key, settings.authority)


def limit(broker: Broker, settings: Settings) -> None:
    """Apply the configured limits to a virtual host."""
    limits = settings.limits
    broker.administration.limit(
        limits.unwritten_bytes, limits.memory_bytes, settings.queue_manager.auto_commit_interval
    )


@final
class Reloading:
    """The configuration in use, and the queues that it declares."""

    def __init__(
        self,
        configuration: Configuration,
        again: Callable[[], Configuration],
        hosts: Hosts,
        access: Access,
        tls: Tls | None,
    ) -> None:
        self._configuration = configuration
        self._again = again
        self._hosts = hosts
        self._access = access
        self._tls = tls

    @property
    def settings(self) -> Settings:
        """The settings in use; those that need a restart are as they were at the start."""
        return self._configuration.settings

    @property
    def _group(self) -> str:
        return self.settings.cluster.group

    def start(self) -> None:
        """Declare the configured queues before clients are served. Raises Refused with file and line."""
        self._put_policies(_policies(self._configuration))
        self._carry_out(self._plans(self._configuration, is_start=True), is_start=True)
        _log_warnings(self._configuration)
        self._tell_of_others(self._configuration)

    def reload(self) -> Reloaded:
        """Apply the configuration as it is now, or raise Refused or Unavailable and change nothing."""
        newer = self._again()
        policies = _policies(newer)
        plans = self._plans(newer, is_start=False)
        changes = self._configuration.changes(newer)
        files = tls_files(newer.settings.tls)
        has_same_listeners = (self._tls is None) == (files is None)
        live = [key for key in changes if is_live(key) and (key[0] != "tls" or has_same_listeners)]
        tokens = read_tokens(newer.settings.jwt)
        if self._tls is not None and files is not None:
            self._tls.reload(files)
        self._access.use_tokens(tokens)
        put = self._put_policies(policies)
        done = self._carry_out(plans, is_start=False)
        _log_warnings(newer)
        self._tell_of_others(newer)
        self._take(newer, live)
        result = Reloaded(
            [".".join(key) for key in live],
            [definition.name for plan in done for definition in plan.created],
            [definition.name for plan in done for definition, _ in plan.altered],
            put,
            [".".join(key) for key in changes if key not in live],
        )
        _log_result(result, self._tls is not None)
        return result

    def _plans(self, configuration: Configuration, is_start: bool) -> "list[Plan | list[Wanted]]":
        """Plan the changes of each virtual host; a host that does not exist yet is listed with all its queues."""
        may_drop = configuration.settings.queue_manager.shrink == DROP
        by_host: dict[str, list[Wanted]] = {}
        try:
            for each in wanted_queues(configuration.queues):
                if each.group == self._group:
                    by_host.setdefault(each.host, []).append(each)
            found = {host: self._hosts.find(host) for host in by_host}
            return [
                wanted if (broker := found[host]) is None else Plan(broker, wanted, may_drop, is_start)
                for host, wanted in by_host.items()
            ]
        except Fault as fault:
            raise configuration.located(fault) from fault

    def _carry_out(self, plans: "list[Plan | list[Wanted]]", is_start: bool) -> list[Plan]:
        """Carry the plans out. A new virtual host has nothing to lose, so its plan cannot be refused."""
        done: list[Plan] = []
        for plan in plans:
            if not isinstance(plan, Plan):
                plan = Plan(self._hosts.ensure(plan[0].host), plan, False, is_start)
            plan.carry_out()
            _tell(plan)
            done.append(plan)
        return done

    def _put_policies(self, policies: list[tuple[str, Policy]]) -> list[str]:
        """Create or replace the policies that differ; returns their names."""
        changed: list[str] = []
        for host, policy in policies:
            broker = self._hosts.ensure(host)
            if broker.parameters.policies.find(policy.name, policy.is_operator) != policy:
                broker.administration.put_policy(policy, _nothing)
                changed.append(policy.name)
                _log.info("the policy is there, as configured", extra={"policy": policy.name, "vhost": host})
        return changed

    def _tell_of_others(self, configuration: Configuration) -> None:
        """Log the queues of other replication groups, and warn of those that exist here. Move nothing."""
        wanted = wanted_queues(configuration.queues)
        here = {(each.host, each.definition.name) for each in wanted if each.group == self._group}
        elsewhere: dict[str, list[str]] = {}
        for each in wanted:
            name = each.definition.name
            if each.group == self._group:
                continue
            elsewhere.setdefault(each.group, []).append(name)
            broker = self._hosts.find(each.host)
            if broker is not None and name in broker.topology.queues and (each.host, name) not in here:
                _log.warning(
                    "the queue is in this broker's replication group, %r, and is to be in %r: it stays here as it is, "
                    "with its messages, until it is deleted",
                    self._group,
                    each.group,
                    extra={"queue": name},
                )
        if elsewhere:
            listed = "; ".join([f"{group}: {', '.join(elsewhere[group])}" for group in sorted(elsewhere)])
            _log.info("queues that are left to the brokers of other replication groups: %s", listed)

    def _take(self, newer: Configuration, live: list[tuple[str, str]]) -> None:
        self._configuration = self._configuration.with_changes(newer, live)
        settings = self._configuration.settings
        logs.set_up(settings.log.level, settings.log.format)
        for broker in self._hosts.brokers():
            limit(broker, settings)


def _policies(configuration: Configuration) -> list[tuple[str, Policy]]:
    """Return the configured policies with their virtual hosts. Raises Refused with file and line."""
    try:
        return wanted_policies(configuration.policies)
    except Fault as fault:
        raise configuration.located(fault) from fault


def _nothing() -> None:
    return


def reload_waiting(configuration: Configuration, newer: Configuration, tls: Tls | None) -> Configuration:
    """Reload the configuration of a node that does not serve yet. Raises Unavailable."""
    files = tls_files(newer.settings.tls)
    if tls is not None and files is not None:
        tls.reload(files)
    changes = configuration.changes(newer)
    live = [key for key in changes if is_live(key)]
    merged = configuration.with_changes(newer, live)
    logs.set_up(merged.settings.log.level, merged.settings.log.format)
    needs_restart = [".".join(key) for key in changes if key not in live]
    _log_result(Reloaded([".".join(key) for key in live], needs_restart=needs_restart), tls is not None)
    return merged


def _tell(plan: Plan) -> None:
    for definition in plan.created:
        _log.info("the queue is there, as configured", extra={"queue": definition.name})
    for definition, changes in plan.altered:
        _log.info("the queue was changed: %s", ", ".join(changes), extra={"queue": definition.name})


def _log_warnings(configuration: Configuration) -> None:
    """Log settings that are valid but probably not meant."""
    for text in configuration.warnings:
        _log.warning("%s", text)
    for each in wanted_queues(configuration.queues):
        for text in each.definition.warnings:
            _log.warning("%s", text, extra={"queue": each.definition.name})


def _log_result(result: Reloaded, has_tls: bool) -> None:
    _log.info("the configuration was read again%s", "; connections from now on get the certificate" if has_tls else "")
    for name in result.applied:
        _log.info("changed and in use", extra={"key": name})
    for name in result.needs_restart:
        _log.warning("changed, but counts after a restart only", extra={"key": name})

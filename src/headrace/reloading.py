"""The configuration in use: applied at the start, and again on a reload. No files: see config/.

A reload checks everything before it changes anything, so a refused reload changes nothing. A file may have thousands
of queues: a thread reads it, and the event loop serves others between the queues.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final, final

from headrace import logs
from headrace.config.configuration import Configuration, is_live
from headrace.config.settings import DROP, Settings, TlsSettings
from headrace.config.table import Fault
from headrace.core.access.access import Access
from headrace.core.broker import Broker
from headrace.core.hosts import Hosts
from headrace.core.policies import Policy, wanted_policies
from headrace.core.queue.configured import Plan, Wanted, wanted_queues
from headrace.errors import HeadraceError
from headrace.net.tls import Tls, TlsFiles
from headrace.tokens import read_tokens

if TYPE_CHECKING:
    from headrace.core.access.logins import Tokens

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
        self._is_busy = asyncio.Lock()
        """Held during a reload: a second one waits for it."""

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
        wanted = self._wanted(self._configuration)
        by_host = self._by_host(wanted)
        hosts = sorted(by_host, key=lambda host: self._hosts.find(host) is None)  # new ones last: others may be refused
        plans: list[Plan] = []
        for host in hosts:
            plans.append(self._plan(self._configuration, self._hosts.ensure(host), by_host[host], is_start=True))
            _take_all(self._located(self._configuration, plans[-1]))
        for plan in plans:
            _take_all(chain(plan.carry_out(), _tell(plan)))
        _log_warnings(self._configuration, wanted)
        self._tell_of_others(wanted)

    async def reload(self) -> Reloaded:
        """Apply the configuration as it is now, or raise Refused or Unavailable and change nothing."""
        async with self._is_busy:
            newer, wanted, policies, tokens = await asyncio.to_thread(self._read)
            by_host = self._by_host(wanted)
            found = {host: broker for host in by_host if (broker := self._hosts.find(host)) is not None}
            plans = [self._plan(newer, broker, by_host[host], is_start=False) for host, broker in found.items()]
            for plan in plans:
                await _in_turns(self._located(newer, plan))
            changes = self._configuration.changes(newer)
            files = tls_files(newer.settings.tls)
            has_same_listeners = (self._tls is None) == (files is None)
            live = [key for key in changes if is_live(key) and (key[0] != "tls" or has_same_listeners)]
            if self._tls is not None and files is not None:
                self._tls.reload(files)
            self._access.use_tokens(tokens)
            put = self._put_policies(policies)
            for host in [host for host in by_host if host not in found]:  # a new one has nothing to lose
                plans.append(self._plan(newer, self._hosts.ensure(host), by_host[host], is_start=False))
                await _in_turns(self._located(newer, plans[-1]))
            for plan in plans:
                await _in_batches(plan.broker, plan.carry_out())
                await _in_turns(_tell(plan))
            _log_warnings(newer, wanted)
            self._tell_of_others(wanted)
            self._take(newer, live)
            result = Reloaded(
                [".".join(key) for key in live],
                [definition.name for plan in plans for definition in plan.created],
                [definition.name for plan in plans for definition, _ in plan.altered],
                put,
                [".".join(key) for key in changes if key not in live],
            )
            _log_result(result, self._tls is not None)
            return result

    def _read(self) -> "tuple[Configuration, list[Wanted], list[tuple[str, Policy]], Tokens | None]":
        """Read the configuration as it is now, in any thread. Raises Refused, Unavailable."""
        newer = self._again()
        return newer, self._wanted(newer), _policies(newer), read_tokens(newer.settings.jwt)

    def _wanted(self, configuration: Configuration) -> list[Wanted]:
        """Read the queues. Raises Refused with file and line."""
        try:
            return wanted_queues(configuration.queues)
        except Fault as fault:
            raise configuration.located(fault) from fault

    def _by_host(self, wanted: list[Wanted]) -> dict[str, list[Wanted]]:
        """Return the queues of this broker's replication group by virtual host."""
        found: dict[str, list[Wanted]] = {}
        for each in wanted:
            if each.group == self._group:
                found.setdefault(each.host, []).append(each)
        return found

    def _plan(self, configuration: Configuration, broker: Broker, wanted: list[Wanted], is_start: bool) -> Plan:
        return Plan(broker, wanted, configuration.settings.queue_manager.shrink == DROP, is_start)

    def _located(self, configuration: Configuration, plan: Plan) -> Iterator[None]:
        """Find the changes of a plan. Raises Refused with file and line."""
        try:
            yield from plan.look()
        except Fault as fault:
            raise configuration.located(fault) from fault

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

    def _tell_of_others(self, wanted: list[Wanted]) -> None:
        """Log the queues of other replication groups, and warn of those that exist here. Move nothing."""
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


_AT_ONCE: Final = 50
"""Queues that are looked at in one turn of the event loop: one takes up to 0.1 ms."""


_QUEUE_STEPS: Final = 4
"""Steps for which a queue that is altered counts: it takes up to 0.4 ms."""


def _take_all(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


async def _in_turns(steps: Iterator[None]) -> None:
    """Take some steps in each turn of the event loop."""
    for number, _ in enumerate(steps, 1):
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)


async def _in_batches(broker: Broker, steps: Iterator[None]) -> None:
    """Take steps that are stored, some in each batch."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def each() -> Iterator[None]:
        error: HeadraceError | None = None
        try:
            for _ in steps:
                for _ in range(_QUEUE_STEPS):
                    yield
        except HeadraceError as caught:
            error = caught
        if ended.done():  # the broker stops
            return
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error)

    broker.in_steps(each())
    await ended


def _tell(plan: Plan) -> Iterator[None]:
    """Log what became of each queue, one in each step."""
    for definition in plan.created:
        _log.info("the queue is there, as configured", extra={"queue": definition.name})
        yield
    for definition, changes in plan.altered:
        _log.info("the queue was changed: %s", ", ".join(changes), extra={"queue": definition.name})
        yield
    for fault in plan.refused:
        _log.error("a queue changed while the configuration was read, and stays as it is: %s", fault)
        yield


def _log_warnings(configuration: Configuration, wanted: list[Wanted]) -> None:
    """Log settings that are valid but probably not meant."""
    for text in configuration.warnings:
        _log.warning("%s", text)
    for each in wanted:
        for text in each.definition.warnings:
            _log.warning("%s", text, extra={"queue": each.definition.name})


def _log_result(result: Reloaded, has_tls: bool) -> None:
    _log.info("the configuration was read again%s", "; connections from now on get the certificate" if has_tls else "")
    for name in result.applied:
        _log.info("changed and in use", extra={"key": name})
    for name in result.needs_restart:
        _log.warning("changed, but counts after a restart only", extra={"key": name})

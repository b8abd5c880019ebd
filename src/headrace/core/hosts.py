"""The virtual hosts of one engine: created, found, deleted, each with a broker of its own. Who may enter: access.py."""

import json
from collections.abc import Callable
from typing import final

from headrace.core.access.users import check_name
from headrace.core.broker import Broker
from headrace.core.flow import Intake
from headrace.core.routing.topology import DEFAULT_HOST
from headrace.errors import HeadraceError, NotFound, Refused, Unavailable
from headrace.storage.api import HOSTS, Commit, Done, Engine


@final
class Hosts:
    """All virtual hosts by name. The default one is always there."""

    def __init__(self, engine: Engine, make_broker: Callable[[str], Broker]) -> None:
        self._engine = engine
        self._make_broker = make_broker
        self._brokers: dict[str, Broker] = {}
        self._leaving: dict[str, Broker] = {}
        """Hosts that are gone for everybody, but not yet in storage."""
        self.on_delete: list[Callable[[str, Commit], None]] = []
        """Called with the name of a host that goes and the commit it goes in, to add what else must go."""
        for name in sorted({DEFAULT_HOST, *[key.decode() for key, _ in engine.items(HOSTS)]}):
            self._brokers[name] = make_broker(name)

    def find(self, name: str) -> Broker | None:
        """The broker of a virtual host, None when there is no such host."""
        return self._brokers.get(name)

    @property
    def intake(self) -> Intake:
        """What the connections of all hosts hold that is not published yet."""
        return self._brokers[DEFAULT_HOST].intake

    def check_memory(self) -> None:
        """For publishers that cannot be read from more slowly. Raises Unavailable while queues in memory are full."""
        self._brokers[DEFAULT_HOST].check_memory()

    def names(self) -> list[str]:
        """All virtual hosts, in order."""
        return sorted(self._brokers)

    def brokers(self) -> list[Broker]:
        """The brokers of all hosts, those of hosts that are still being deleted too: all want to tick."""
        return [*self._brokers.values(), *self._leaving.values()]

    def create(self, name: str, done: Done) -> None:
        """Have a virtual host; `done` is told when it is there and would survive a crash.

        Raises Refused for a name that cannot be, Unavailable while a host of that name is being deleted.
        """
        check_name("virtual host", name)
        if name in self._leaving:
            raise Unavailable(f"vhost '{name}' is still being deleted; try again")

        def stored(error: HeadraceError | None) -> None:
            if error is None and name not in self._brokers:
                self._brokers[name] = self._make_broker(name)
            done(error)

        commit = Commit()
        commit.put(HOSTS, name.encode(), json.dumps({"name": name}, ensure_ascii=False).encode())
        self._engine.commit(commit, stored)

    def ensure(self, name: str) -> Broker:
        """The broker of a virtual host, which is made where there is none; returns when that would survive a crash.

        Raises what `create` raises, and what it tells.
        """
        if name not in self._brokers:
            self.create(name, _raise)
            self._engine.sync()
        return self._brokers[name]

    def delete(self, name: str, done: Done) -> None:
        """Remove a virtual host with everything in it; its connections are ended.

        It is gone at once; `done` is told when it would not come back after a crash either, or that it still would:
        then that is tried again by itself. One with many queues goes in several commits, of which the last removes the
        host: after a crash before that, it is there with what was left. Raises NotFound, Refused for the default host.
        """
        if name == DEFAULT_HOST:
            raise Refused(f"the virtual host '{DEFAULT_HOST}' is always there")
        broker = self._brokers.pop(name, None)
        if broker is None:
            raise NotFound(f"no vhost '{name}'")
        self._leaving[name] = broker

        def dissolved(commit: Commit) -> None:
            commit.delete(HOSTS, name.encode())
            for add in self.on_delete:
                add(name, commit)
            broker.administration.end(done, lambda: self._gone(name))

        broker.administration.dissolve(dissolved)

    def _gone(self, name: str) -> None:
        self._leaving.pop(name, None)


def _raise(error: HeadraceError | None) -> None:
    if error is not None:
        raise error

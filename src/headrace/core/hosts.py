"""The virtual hosts of one engine: created, found, deleted, each with a broker of its own. No rights: see access.py."""

import json
from collections.abc import Callable
from typing import final

from headrace.core.access.users import check_name
from headrace.core.broker import Broker
from headrace.core.flow import Intake
from headrace.core.routing.topology import DEFAULT_HOST
from headrace.errors import HeadraceError, NotFound, Refused, Unavailable
from headrace.storage.api import GLOBAL_PARAMETERS, HOSTS, Commit, Done, Engine


@final
class Hosts:
    """All virtual hosts by name. The default one always exists."""

    def __init__(self, engine: Engine, make_broker: Callable[[str, bool], Broker]) -> None:
        """`make_broker` gets the name, and whether the host is new, so that nothing of it is stored."""
        self._engine = engine
        self._make_broker = make_broker
        self._brokers: dict[str, Broker] = {}
        self._leaving: dict[str, Broker] = {}
        """Deleted hosts that storage still has."""
        self.on_delete: list[Callable[[str, Commit], None]] = []
        """Called with the name of a deleted host and its last commit, to add further deletions."""
        for name in sorted({DEFAULT_HOST, *[key.decode() for key, _ in engine.items(HOSTS)]}):
            self._brokers[name] = make_broker(name, False)

    def find(self, name: str) -> Broker | None:
        """Return the broker of a virtual host, None when there is no such host."""
        return self._brokers.get(name)

    @property
    def intake(self) -> Intake:
        """Bytes that connections of all hosts hold and have not published."""
        return self._brokers[DEFAULT_HOST].intake

    def names(self) -> list[str]:
        """Return the names of all virtual hosts, in order."""
        return sorted(self._brokers)

    def brokers(self) -> list[Broker]:
        """Return the brokers of all hosts, also of hosts that are being deleted: all of them tick."""
        return [*self._brokers.values(), *self._leaving.values()]

    def create(self, name: str, done: Done) -> None:
        """Create a virtual host, if there is none; `done` is called when it is durable.

        Raises Refused for a bad name, Unavailable while a host of that name is being deleted.
        """
        check_name("virtual host", name)
        if name in self._leaving:
            raise Unavailable(f"vhost '{name}' is still being deleted; try again")

        def stored(error: HeadraceError | None) -> None:
            if error is None and name not in self._brokers:
                self._brokers[name] = self._make_broker(name, True)
            done(error)

        commit = Commit()
        commit.put(HOSTS, name.encode(), json.dumps({"name": name}, ensure_ascii=False).encode())
        self._engine.commit(commit, stored)

    def global_parameters(self) -> dict[str, object]:
        """Return parameters of the whole broker, by name. They are kept for tools; nothing reads them here."""
        found = {key.decode(): json.loads(value) for key, value in self._engine.items(GLOBAL_PARAMETERS)}
        return dict(sorted(found.items()))

    def put_global_parameter(self, name: str, value: object, done: Done) -> None:
        """Set a parameter of the whole broker; `done` is called when it is durable. Raises Refused for a bad name."""
        check_name("parameter", name)
        commit = Commit()
        commit.put(GLOBAL_PARAMETERS, name.encode(), json.dumps(value, separators=(",", ":")).encode())
        self._engine.commit(commit, done)

    def delete_global_parameter(self, name: str, done: Done) -> None:
        """Remove a parameter of the whole broker. Raises NotFound."""
        if self._engine.get(GLOBAL_PARAMETERS, name.encode()) is None:
            raise NotFound(f"no global parameter '{name}'")
        commit = Commit()
        commit.delete(GLOBAL_PARAMETERS, name.encode())
        self._engine.commit(commit, done)

    def ensure(self, name: str) -> Broker:
        """Return the broker of a virtual host, new if need be, once it is durable.

        Raises what `create` raises, and the error that it passes to `done`.
        """
        if name not in self._brokers:
            self.create(name, _raise)
            self._engine.sync()
        return self._brokers[name]

    def delete(self, name: str, done: Done) -> None:
        """Remove a virtual host with everything in it, and end its connections.

        It is gone at once. `done` is called when the deletion is durable, or with the error; the deletion is then
        retried. A host with many queues goes in several commits, the last of which removes the host: after a crash
        before that, it exists with the remaining queues. Raises NotFound, Refused for the default host.
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

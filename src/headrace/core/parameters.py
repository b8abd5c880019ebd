"""Parameters of one virtual host: its policies and its limits, stored as keyed state. Their meaning: policies.py.

Keys are `policy NAME`, `operator_policy NAME` and `limit NAME`, each below its virtual host; values are JSON.
"""

import json
from collections.abc import Mapping
from typing import Final, final

from headrace.config.kinds import MAX_NUMBER, Number
from headrace.config.table import Key, Table
from headrace.core.batch import Batch
from headrace.core.policies import Policies, Policy
from headrace.core.routing.topology import scoped, unscoped
from headrace.errors import NotFound
from headrace.storage.api import PARAMETERS, Items

MAX_CONNECTIONS: Final = "max-connections"
MAX_QUEUES: Final = "max-queues"
HOST_LIMITS: Final = (MAX_CONNECTIONS, MAX_QUEUES)
_POLICY: Final = "policy"
_OPERATOR_POLICY: Final = "operator_policy"
_LIMIT: Final = "limit"
_LIMITS: Final = Table(
    *[Key(name, Number(-MAX_NUMBER, expected="must be a whole number"), None, "") for name in HOST_LIMITS]
)


@final
class Parameters:
    """The policies and limits of one virtual host; changes are stored with the open batch."""

    def __init__(self, items: Items, host: str) -> None:
        self._host = host
        self.policies = Policies()
        self.limits: dict[str, int] = {}
        """Limits by RabbitMQ's names, without those that are none."""
        for key, value in items(PARAMETERS):
            stored = unscoped(host, key.decode())
            if stored is not None:
                component, _, name = stored.partition(" ")
                self._take(component, name, json.loads(value))

    def _take(self, component: str, name: str, value: object) -> None:
        if component == _LIMIT and isinstance(value, int):
            self.limits[name] = value
        elif component in (_POLICY, _OPERATOR_POLICY):
            self.policies.put(Policy.from_json(name, value, component == _OPERATOR_POLICY))

    def put_policy(self, batch: Batch, policy: Policy) -> None:
        """Create or replace a policy. Raises Refused for one that cannot be used."""
        policy.check()
        self.policies.put(policy)
        self._store(batch, _component(policy.is_operator), policy.name, policy.to_json())

    def delete_policy(self, batch: Batch, name: str, is_operator: bool) -> None:
        """Raises NotFound."""
        if self.policies.find(name, is_operator) is None:
            kind = "operator policy" if is_operator else "policy"
            raise NotFound(f"no {kind} '{name}' in vhost '{self._host}'")
        self.policies.remove(name, is_operator)
        self._store(batch, _component(is_operator), name, None)

    def put_limits(self, batch: Batch, limits: Mapping[str, int]) -> None:
        """Set limits that were read; a negative one lifts a limit."""
        for name, number in limits.items():
            if number >= 0:
                self.limits[name] = number
                self._store(batch, _LIMIT, name, number)
            elif self.limits.pop(name, None) is not None:
                self._store(batch, _LIMIT, name, None)

    def _store(self, batch: Batch, component: str, name: str, value: object) -> None:
        raw = None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        batch.define(PARAMETERS, scoped(self._host, f"{component} {name}").encode(), raw)


def read_limits(values: object) -> dict[str, int]:
    """Read limits of a virtual host. Raises Fault for an unknown one, and for one that is no whole number."""
    read = _LIMITS.read(values, "limits", is_lenient=False)
    return {name: number for name, number in read.items() if isinstance(number, int)}


def _component(is_operator: bool) -> str:
    return _OPERATOR_POLICY if is_operator else _POLICY

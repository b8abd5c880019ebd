"""Everything an engine holds, as plain values that can be compared."""

from typing import Any

from headrace.errors import Corrupt
from headrace.storage.api import QUEUES, RETAINED, TRANSACTIONS, Engine
from headrace.storage.group_state import GroupState

Contents = dict[str, Any]


def contents(engine: Engine) -> Contents:
    """Logs by name, and `tables`. A log that is refused is the Corrupt that says why."""
    found: Contents = {name: _log(engine, name) for name in sorted(engine.logs())}
    found["tables"] = {table: sorted(engine.items(table)) for table in (QUEUES, RETAINED, TRANSACTIONS)}
    return found


def _log(engine: Engine, name: str) -> object:
    log = engine.log(name)
    try:
        rows = [
            (
                m.source.topic,
                m.source.exchange,
                m.source.client_id,
                m.source.protocol,
                m.source.encoding,
                m.payload,
                m.timestamp_us,
                m.properties,
                m.priority,
                m.expires_us,
                m.not_before_us,
            )
            for m in log.read(log.first_offset, 1 << 30)
        ]
    except Corrupt as error:
        return error
    states = {
        group: (state.mode, state.filter, state.cursor, state.committed, list(state.settled), _pending(state))
        for group, state in log.groups.items()
    }
    return log.first_offset, log.next_offset, rows, states


def _pending(state: GroupState) -> dict[int, tuple[int, int, str]]:
    return {offset: (entry.attempts, entry.due_us, entry.consumer) for offset, entry in state.pending.items()}


def members(value: object) -> dict[str, object]:
    """Attributes of a value, by name; compiled classes have neither a dictionary nor slots to ask."""
    public = {name: getattr(value, name) for name in dir(value) if not name.startswith("_")}
    return {name: found for name, found in public.items() if not callable(found)}

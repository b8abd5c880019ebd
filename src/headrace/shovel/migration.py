"""A move from RabbitMQ: definitions over the management API or from a file, then the messages of each queue.

A queue is drained (each message is acknowledged there once it is confirmed here) or copied (each is held until the end
and goes back). A file says how far it is, so a run that was stopped goes on; after a kill some messages may come twice.
"""

import asyncio
import base64
import http.client
import json
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, final
from urllib.parse import quote, unquote, urlsplit

from headrace.errors import HeadraceError, Refused, Unavailable
from headrace.shovel.amqp091 import MOST_COPIED, QueueDestination, QueueSource
from headrace.shovel.ends import Place
from headrace.shovel.shovel import Shovel, Tally, make_ends, move

_SECONDS: Final = 120.0
_SAVE_SECONDS: Final = 1.0
_TRIES: Final = 5
"""Attempts to move a queue."""
_EVERYTHING: Final = {"configure": ".*", "write": ".*", "read": ".*"}
_FILE_FORMAT: Final = 1

Definitions = dict[str, Any]
Tell = Callable[[str], None]


@final
class Management:
    """The management API of a broker."""

    def __init__(self, url: str) -> None:
        """Raises Refused for what is no address."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise Refused(f"{url.rpartition('@')[2]!r} is no address of a management API") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Refused(f"the address of a management API is like http://guest:guest@localhost:15672, not {url!r}")
        self._is_secure = parts.scheme == "https"
        self._host, self._port, self._path = parts.hostname, port, parts.path.rstrip("/")
        self.user = unquote(parts.username or "guest")
        login = base64.b64encode(f"{self.user}:{unquote(parts.password or 'guest')}".encode()).decode()
        self._headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}

    def get(self, *path: str) -> Any:
        return self._call("GET", path, None)

    def post(self, *path: str, body: object) -> Any:
        return self._call("POST", path, json.dumps(body).encode())

    def _call(self, method: str, path: tuple[str, ...], body: bytes | None) -> Any:
        """Raises Unavailable, Refused."""
        target = "/".join([self._path, "api", *[quote(part, safe="") for part in path]])
        connection = (
            http.client.HTTPSConnection(self._host, self._port, timeout=_SECONDS, context=ssl.create_default_context())
            if self._is_secure
            else http.client.HTTPConnection(self._host, self._port, timeout=_SECONDS)
        )
        try:
            connection.request(method, target, body, self._headers)
            response = connection.getresponse()
            said = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"the management API at {self._host}:{self._port} does not answer: {error}") from error
        finally:
            connection.close()
        try:
            answer = json.loads(said) if said else None
        except ValueError as error:
            raise Refused(f"what answers at {self._host}:{self._port} is no management API") from error
        if response.status >= 400:
            reason = answer.get("reason", response.reason) if isinstance(answer, Mapping) else response.reason
            raise Refused(f"the management API at {self._host}:{self._port} refuses: {reason}")
        return answer


# -- definitions -------------------------------------------------------------------------------------------------------


def read_definitions(file: Path) -> Definitions:
    """Read an export of definitions. Raises Refused."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise Refused(f"the definitions {file} cannot be read: {error}") from error
    if not isinstance(found, dict) or not isinstance(found.get("queues", []), list):
        raise Refused(f"{file} is no export of definitions")
    return found


def bring(definitions: Definitions, here: Management) -> list[dict[str, Any]]:
    """Import definitions here; return all that has no effect or was left out, as an import answers it.

    The user of the import stays as it is, and gets all rights in the virtual hosts that come.
    """
    types = {each["name"] for each in here.get("overview")["exchange_types"]}
    left: list[dict[str, Any]] = []
    exchanges, strange = [], set()
    for each in definitions.get("exchanges", []):
        if each["type"] in types:
            exchanges.append(each)
        else:
            strange.add((each.get("vhost", "/"), each["name"]))
            left.append(_left("exchange", each, each["type"], "Exchanges of this type are unknown here."))
    bindings = []
    for each in definitions.get("bindings", []):
        host = each.get("vhost", "/")
        ends = {(host, each["source"])}
        if each["destination_type"] == "exchange":
            ends.add((host, each["destination"]))
        if ends & strange:
            left.append(_left("binding", each, each["source"], "Its exchange is not here."))
        else:
            bindings.append(each)
    users = []
    for each in definitions.get("users", []):
        if each["name"] == here.user:
            left.append(_left("user", each, "password_hash", "It is the user of this import, and stays as it is."))
        else:
            users.append(each)
    permissions = [each for each in definitions.get("permissions", []) if each["user"] != here.user]
    permissions += [{"user": here.user, "vhost": each["name"], **_EVERYTHING} for each in definitions.get("vhosts", [])]
    kept = {"exchanges": exchanges, "bindings": bindings, "users": users, "permissions": permissions}
    answer = here.post("definitions", body={**definitions, **kept}) or {}
    return [*left, *answer.get("without_effect", [])]


def _left(kind: str, entry: Mapping[str, Any], setting: str, why: str) -> dict[str, Any]:
    name = entry["destination"] if kind == "binding" else entry["name"]
    return {"kind": kind, "vhost": entry.get("vhost", ""), "name": name, "setting": setting, "reason": why}


# -- messages ----------------------------------------------------------------------------------------------------------


@dataclass
class Moved:
    """One queue, and what a migration has moved of it, over all its runs."""

    vhost: str
    name: str
    type: str
    tally: Tally = field(default_factory=Tally)
    left: int | None = None
    """Messages that waited there and are not here; None if unknown."""
    reason: str = ""
    """The reason why it is not done; "" if it is."""
    is_done: bool = False

    def to_json(self) -> dict[str, Any]:
        tally = self.tally
        moved = {"messages": tally.messages, "bytes": tally.size_bytes, "offset": tally.offset}
        row = {"vhost": self.vhost, "queue": self.name, "type": self.type, **moved}
        return {**row, "left": self.left, "done": self.is_done, "reason": self.reason}


def queues_of(definitions: Definitions, pattern: str) -> list[Moved]:
    """Return the queues of definitions whose names match a pattern anywhere. Raises Refused."""
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise Refused(f"{pattern!r} is no regular expression: {error}") from error
    found = [
        Moved(each.get("vhost", "/"), each["name"], str(each.get("arguments", {}).get("x-queue-type", "classic")))
        for each in definitions.get("queues", [])
        if wanted.search(each["name"])
    ]
    return sorted(found, key=lambda each: (each.vhost, each.name))


@final
class Migration:
    """The messages of some queues, from one broker to another."""

    def __init__(self, source: Place, destination: Place, queues: list[Moved], drains: bool, state: Path) -> None:
        """Raises Refused for a file of another migration."""
        self._source = source
        self._destination = destination
        self.queues = queues
        self._drains = drains
        self._state = state
        self._saved = 0.0
        self.stop = asyncio.Event()
        """Set to stop soon; the next run goes on."""
        self._load()

    def _load(self) -> None:
        """Go on where the file says that the last run was."""
        if not self._state.exists():
            return
        try:
            stored = json.loads(self._state.read_text())
            rows = {(each["vhost"], each["queue"]): each for each in stored["queues"]}
            is_same = (stored["format"], stored["source"]) == (_FILE_FORMAT, self._source.shown)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Refused(f"{self._state} is no state of a migration: {error!r}; name another with --state") from error
        if not is_same or stored["drains"] != self._drains:
            raise Refused(f"{self._state} is about another migration; remove it, or name another with --state")
        for queue in self.queues:
            row = rows.get((queue.vhost, queue.name))
            if row is not None:
                queue.tally = Tally(row["messages"], row["bytes"], row["offset"])
                queue.is_done = row["done"] and not self._drains

    def save(self) -> None:
        """Write down how far it is."""
        values = {
            "format": _FILE_FORMAT,
            "source": self._source.shown,
            "drains": self._drains,
            "queues": [queue.to_json() for queue in self.queues],
        }
        beside = self._state.with_name(self._state.name + ".tmp")
        beside.write_text(json.dumps(values, indent=1))
        beside.replace(self._state)

    async def run(self, tell: Tell) -> None:
        """Move all queues, one after the other; a queue that cannot be moved is named in the end."""
        for queue in self.queues:
            if self.stop.is_set():
                queue.reason = queue.reason or "stopped"
                continue
            if queue.is_done:
                continue
            watch = asyncio.ensure_future(self._watch(queue, tell))
            try:
                await self._move(queue, tell)
                queue.is_done = not self.stop.is_set()
                queue.reason = "" if queue.is_done else "stopped"
            except HeadraceError as error:
                queue.reason = str(error)
            finally:
                watch.cancel()
                self.save()

    async def _watch(self, queue: Moved, tell: Tell) -> None:
        """Tell and save from time to time how far it is."""
        while True:
            before = queue.tally.messages
            await asyncio.sleep(_SAVE_SECONDS)
            rate = (queue.tally.messages - before) / _SAVE_SECONDS
            tell(f"{queue.name}: {queue.tally.messages:,} messages, {rate:,.0f} a second")
            self.save()

    async def _move(self, queue: Moved, tell: Tell) -> None:
        source = replace(self._source, vhost=queue.vhost, queue=queue.name)
        destination = replace(self._destination, vhost=queue.vhost, queue=queue.name)
        tell(f"{queue.name}: connecting")
        if not self._drains or queue.type == "stream":
            await self._copy(queue, source, destination, tell)
            return
        await move(
            lambda fail: make_ends(source, destination, fail),
            queue.tally,
            False,
            self.stop,
            tell,
            _TRIES,
        )
        queue.left = 0

    async def _copy(self, queue: Moved, source: Place, destination: Place, tell: Tell) -> None:
        """Copy what is there now, behind what an earlier run copied."""
        for attempt in range(1, _TRIES + 1):
            try:
                await self._copy_once(queue, source, destination)
            except Unavailable as error:
                if attempt == _TRIES:
                    raise
                tell(f"{queue.name}: {error}")
                await asyncio.sleep(attempt)
            else:
                return

    async def _copy_once(self, queue: Moved, source: Place, destination: Place) -> None:
        is_stream = queue.type == "stream"
        done = queue.tally.messages
        shovels: list[Shovel] = []

        def fail(error: HeadraceError) -> None:
            for shovel in shovels:
                shovel.fail(error)

        start = (queue.tally.offset + 1 if queue.tally.offset >= 0 else "first") if is_stream else None
        there = QueueSource(source, fail, False, start, queue.type == "classic")
        here = QueueDestination(destination, fail)
        try:
            most = max(0, await there.count() - done)
            if queue.type == "quorum" and most + done > MOST_COPIED:
                raise Refused(f"a quorum queue gives {MOST_COPIED:,} messages at most that it keeps: use --drain")
            if most:
                shovels.append(Shovel(queue.tally, 0 if is_stream else done, most))
                await shovels[0].run(there, here, False, self.stop)
            queue.left = done + most - queue.tally.messages
            if queue.left > 0 and not self.stop.is_set():
                raise Refused(f"{queue.left:,} messages did not come: other consumers have them, or took them")
        finally:
            await there.close()
            await here.close()

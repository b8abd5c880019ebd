"""Small objects in the store, made once or written over, of one replication group. What they say is in lease.py."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Final, final
from urllib.parse import urlsplit
from uuid import uuid4

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError

from headrace.config.groups import is_name
from headrace.errors import Refused, Unavailable
from headrace.storage.objects.bucket import VARIABLES, folders, groups_in, open_bucket

_ROOM: Final = "cluster"
SCHEMES: Final = (*VARIABLES, "file")


@final
class Records:
    """The objects of one replication group. Every call waits for the store, at most as long as was said.

    All of them raise Unavailable when the store does not answer, or not as it should.
    """

    def __init__(self, url: str, group: str, timeout_ms: int, create: bool = True) -> None:
        """A directory that is not there is made, unless it is only to be read.

        Raises Refused when the URL cannot be one of a store that nodes share.
        """
        scheme = urlsplit(url).scheme
        if scheme == "memory":
            raise Refused(f"the nodes of a cluster share a store, and {url} is this process's alone; use another")
        if scheme not in SCHEMES:
            raise Refused(f"{url!r} is not the URL of a store: it begins with {', '.join(f'{s}://' for s in SCHEMES)}")
        self.url = url.rstrip("/")
        self._enter(group)
        with self._translated("opening"):
            self._store = open_bucket(self.url, timeout_ms, create)

    def _enter(self, group: str) -> None:
        self.group = group
        self._folder = f"{_ROOM}/{group}"
        self._place = f"{self.url}/{self._folder}"

    def of(self, group: str) -> "Records":
        """The objects of another group of the same store."""
        other = copy(self)
        other._enter(group)
        return other

    def groups(self) -> list[str]:
        """All groups of the store, in order: those that have a database, and those that nodes were started for."""
        with self._translated("reading"):
            started = [name for name in folders(self._store, _ROOM) if is_name(name)]
            return sorted({*started, *groups_in(self._store)})

    def create(self, name: str, data: bytes) -> bool:
        """Make an object unless there is one of this name; whether it was made, or is there with the very same bytes.

        The bytes must be nobody else's: a store may do what it is told and lose its answer.
        """
        with self._translated("writing"):
            try:
                obstore.put(self._store, self._path(name), data, mode="create")
            except AlreadyExistsError:
                return self.get(name) == data
            return True

    def put(self, name: str, data: bytes) -> None:
        """Write an object, over what was there."""
        with self._translated("writing"):
            obstore.put(self._store, self._path(name), data)

    def get(self, name: str) -> bytes | None:
        with self._translated("reading"):
            try:
                return bytes(obstore.get(self._store, self._path(name)).bytes())
            except (FileNotFoundError, NotFoundError):
                return None

    def names(self, folder: str) -> list[str]:
        """The names of all objects in a folder, without the folder, in order."""
        prefix = self._path(folder) + "/"
        with self._translated("reading"):
            found = [meta["path"] for batch in obstore.list(self._store, prefix) for meta in batch]
        return sorted(path[path.rindex("/") + 1 :] for path in found)

    def delete(self, name: str) -> None:
        """Remove an object, if it is there."""
        with self._translated("deleting"):
            try:
                obstore.delete(self._store, self._path(name))
            except (FileNotFoundError, NotFoundError):
                return

    def where(self, name: str) -> str:
        """How to call an object in a message."""
        return f"{self._place}/{name}"

    def prove_creation(self) -> None:
        """See that an object cannot be made twice. Raises Unavailable where it can: two nodes could own the store."""
        name = f"probe/{uuid4().hex}"
        first = self.create(name, b"first")
        second = self.create(name, b"second")
        self.delete(name)
        if not first or second:
            raise Unavailable(
                f"the store {self.url} does not honour conditional writes (if there is nothing yet), so nothing would "
                f"keep two nodes from owning it at once; use a store that does"
            )

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise Unavailable(f"{doing} in {self._place} failed: {reason}") from error

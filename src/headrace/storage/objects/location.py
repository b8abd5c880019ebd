"""Where a store is: a URL, taken apart, and the object store behind it. What is in it is not looked at."""

from pathlib import Path
from typing import Any, Final, final
from urllib.parse import unquote, urlsplit

from headrace.errors import Refused, Unavailable
from headrace.storage.objects.binding import native

SCHEMES: Final = ("s3", "gs", "az", "file", "memory")


@final
class Location:
    """A place for databases, one path for each."""

    def __init__(self, url: str, create: bool = True) -> None:
        """A directory that is not there is made, unless it is only to be read.

        Raises Refused when the URL cannot be one of a store, Unavailable when the store cannot be used as it is.
        """
        self.url = url.rstrip("/")
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES:
            raise Refused(f"{url!r} is not the URL of a store: it begins with {', '.join(f'{s}://' for s in SCHEMES)}")
        if parts.query or parts.fragment or parts.username or parts.password:
            raise Refused(
                f"{url!r}: a store's URL has no user, query or fragment; credentials come from the environment"
            )
        self.directory = unquote(parts.path) if parts.scheme == "file" else ""
        """Where it is on this machine; "" when it is elsewhere."""
        self._prefix = "" if self.directory else unquote(parts.path).strip("/")
        self.store = self._resolve(url, parts.scheme, parts.netloc, unquote(parts.path), create)

    def path(self, name: str) -> str:
        """Where in the store the database of this name is."""
        return f"{self._prefix}/{name}" if self._prefix else name

    def describe(self, name: str) -> str:
        return f"the store {self.url}/{name}"

    def _resolve(self, url: str, scheme: str, host: str, path: str, create: bool) -> Any:
        try:
            if scheme == "file":
                return _directory(url, host, path, create)
            if scheme == "memory":
                return native.ObjectStore.resolve("memory:///")
            if not host:
                raise Refused(f"{url!r} names no bucket: write {scheme}://bucket/prefix")
            return native.ObjectStore.resolve(f"{scheme}://{host}")
        except native.Error as error:
            text = getattr(error, "message", error)
            raise Unavailable(f"the store {url} cannot be used: {text}") from error


def _directory(url: str, host: str, path: str, create: bool) -> Any:
    if host or len(path) < 2:
        raise Refused(f"{url!r} names no directory: write file:///path/of/a/directory")
    if not create and not Path(path).is_dir():
        raise Unavailable(f"there is no directory {path}, and so no store {url}")
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"the directory of {url} cannot be made: {error.strerror or error}") from error
    builder = native.ObjectStoreBuilder(native.ObjectStoreType.LOCAL)
    builder.with_config("local_path", path)
    return builder.build()

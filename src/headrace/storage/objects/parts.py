"""Files of bulk transactions beside a group's database, while a commit is stored part by part. No records.

<group>/staging/<transaction>/<file>
"""

from typing import Final, final

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore

from headrace.errors import Unavailable
from headrace.storage.local.staging import Keeper
from headrace.storage.objects.location import open_bucket

_FOLDER: Final = "staging"


@final
class StoredParts(Keeper):
    """The files in a store, where also the next broker of the group finds them."""

    def __init__(self, url: str, group: str, timeout_ms: int) -> None:
        self._url = url
        self._root = f"{group}/{_FOLDER}"
        self._timeout_ms = timeout_ms
        self._bucket: ObjectStore | None = None

    def keep(self, folder: str, name: str, data: bytes) -> None:
        try:
            obstore.put(self._opened(), f"{self._root}/{folder}/{name}", data)
        except (BaseError, OSError, ValueError) as error:
            raise self._failure("written", error) from error

    def fetch(self, folder: str, name: str) -> bytes | None:
        try:
            return bytes(obstore.get(self._opened(), f"{self._root}/{folder}/{name}").bytes())
        except FileNotFoundError:
            return None
        except (BaseError, OSError, ValueError) as error:
            raise self._failure("read", error) from error

    def remove(self, folder: str) -> None:
        self._delete(f"{self._root}/{folder}", float("inf"))

    def sweep(self, before_s: float) -> None:
        self._delete(self._root, before_s)

    def _delete(self, prefix: str, before_s: float) -> None:
        try:
            bucket = self._opened()
            for found in obstore.list(bucket, prefix):
                old = [each["path"] for each in found if each["last_modified"].timestamp() < before_s]
                if old:
                    obstore.delete(bucket, old)
        except (BaseError, OSError, ValueError) as error:
            raise self._failure("removed", error) from error

    def _opened(self) -> ObjectStore:
        if self._bucket is None:
            self._bucket = open_bucket(self._url, self._timeout_ms, create=True)
        return self._bucket

    def _failure(self, done: str, error: Exception) -> Unavailable:
        text = str(error).partition("\n")[0]
        return Unavailable(f"parts of a transaction cannot be {done} in {self._url}: {text}")

"""A store's objects as such, whatever they hold: opens it for small ones, and tells which databases there are."""

import os
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore, from_url

from headrace.config.groups import is_name
from headrace.errors import Unavailable

VARIABLES: Final = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}
"""How the environment variables of a vendor begin."""
_MANIFESTS: Final = "manifest"


def open_bucket(url: str, timeout_ms: int, create: bool) -> ObjectStore:
    """What is below a URL. Every call waits for at most this long, and is not tried again.

    Raises what obstore raises: BaseError, OSError and ValueError.
    """
    scheme = urlsplit(url).scheme
    if scheme not in VARIABLES:
        return from_url(url, mkdir=True) if create else from_url(url)
    waiting = timedelta(milliseconds=timeout_ms)
    return from_url(
        url,
        client_options={
            "timeout": waiting,
            "connect_timeout": waiting,
            "allow_http": os.environ.get(f"{VARIABLES[scheme]}_ALLOW_HTTP", "").lower() == "true",
        },
        retry_config={"max_retries": 0, "retry_timeout": waiting},  # who asks decides whether to ask again
    )


def groups(url: str, timeout_ms: int) -> list[str]:
    """The replication groups that have a database in a store, in order. Raises Unavailable."""
    try:
        return groups_in(open_bucket(url, timeout_ms, create=False))
    except (BaseError, OSError, ValueError) as error:
        raise Unavailable(f"reading in {url} failed: {str(error).partition(chr(10))[0]}") from error


def groups_in(bucket: ObjectStore) -> list[str]:
    """The same of a store that is open. Raises what obstore raises."""
    return [name for name in folders(bucket) if is_name(name) and _has_manifest(bucket, name)]


def folders(bucket: ObjectStore, inside: str = "") -> list[str]:
    """The names of folders at the top, or inside another, in order. Raises what obstore raises."""
    found = obstore.list_with_delimiter(bucket, inside or None)["common_prefixes"]
    return sorted([path.rstrip("/").rpartition("/")[2] for path in found])


def _has_manifest(bucket: ObjectStore, name: str) -> bool:
    return any(len(batch) for batch in obstore.list(bucket, f"{name}/{_MANIFESTS}/", chunk_size=1))

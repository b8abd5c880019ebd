"""A running broker as commands reach it: over its HTTP API, with the login in the address. No command."""

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Annotated, Final, final
from urllib.parse import quote, unquote, urlsplit

import typer

from headrace.cli.words import EXIT_PROBLEMS, EXIT_USAGE, fail

DEFAULT_URL: Final = "http://guest:guest@127.0.0.1:15672"
_API: Final = "/api/v1"
_SECONDS: Final = 30.0

Row = dict[str, object]
Url = Annotated[
    str,
    typer.Option(envvar="HEADRACE_URL", help="Where the broker serves HTTP, with the login of an administrator in it."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@final
class Remote:
    """One broker somewhere. What goes wrong ends the command with a sentence."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            fail(f"--url takes http://USER:PASSWORD@HOST:PORT; {_without_login(url)!r} is no such address", EXIT_USAGE)
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self.address = f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "")
        login = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        self._headers = {"Authorization": "Basic " + base64.b64encode(login.encode()).decode()}

    def call(self, method: str, *path: str, body: Mapping[str, object] | None = None, query: str = "") -> Row:
        """Ask for what is at a path of the API, each part of it a name as it is; {} where there is no answer."""
        url = self.address + _API + "".join("/" + quote(part, safe="") for part in path) + query
        data = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, **({} if body is None else {"Content-Type": "application/json"})}
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            fail(self._refusal(error), EXIT_PROBLEMS)
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            fail(f"no broker answers at {self.address}: {reason}; start one, or name another with --url", EXIT_PROBLEMS)
        found = json.loads(text) if text else {}
        assert isinstance(found, dict)
        return found

    def list(self, *path: str) -> list[Row]:
        """All there is at a path, however many pages that is."""
        rows: list[Row] = []
        query = ""
        while True:
            page = self.call("GET", *path, query=query)
            items = page["items"]
            assert isinstance(items, list)
            rows += items
            following = page.get("next")
            if not isinstance(following, str) or not following:
                return rows
            query = "?after=" + quote(following, safe="")

    def _refusal(self, error: urllib.error.HTTPError) -> str:
        try:
            reason = json.loads(error.read())["reason"]
        except (ValueError, KeyError, TypeError, OSError):
            reason = f"{error.code} {error.reason}"
        if error.code == 401:
            return f"{self.address} refuses the login: {reason}; give a user and its password in --url"
        return str(reason)


def _without_login(url: str) -> str:
    return url.rpartition("@")[2]

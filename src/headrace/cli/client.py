"""The client of the HTTP API: one broker, one login, errors as exit codes. No output: see output.py."""

import base64
import contextlib
import http
import http.client
import inspect
import io
import json
import os
import ssl
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, final
from urllib.parse import SplitResult, quote, unquote, urlencode, urlsplit

import typer

from headrace.cli.output import Command, announce, command, fail
from headrace.config.configuration import CLIENT_VARIABLES, unknown_variables
from headrace.process import EXIT_PROBLEMS, EXIT_USAGE

DEFAULT_URL: Final = "http://127.0.0.1:15672"
EXIT_NOT_FOUND: Final = 3
EXIT_UNAVAILABLE: Final = os.EX_UNAVAILABLE  # 69
EXIT_LOGIN: Final = os.EX_NOPERM  # 77
_TIMEOUT_SECONDS: Final = 60.0
_COMPLETION_SECONDS: Final = 2.0
_COMPLETIONS: Final = 200
_MUCH_ALIKE: Final = 0.85
_CODES: Final = {401: EXIT_LOGIN, 403: EXIT_LOGIN, 404: EXIT_NOT_FOUND, 503: EXIT_UNAVAILABLE}

Answer = dict[str, Any]


@final
class Client:
    """Calls `/api/v1` of one broker; an error ends the command."""

    def __init__(
        self, url: str, user: str, password: str, host: str, timeout_seconds: float = _TIMEOUT_SECONDS
    ) -> None:
        parts, port = _split(url)
        self._url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._prefix = parts.path.rstrip("/") + "/api/v1"
        if parts.username is not None:
            user, password = unquote(parts.username), unquote(parts.password or "")
        login = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
        self.host = host
        self._connection: http.client.HTTPConnection
        if parts.scheme == "https":
            context = ssl.create_default_context()
            self._connection = http.client.HTTPSConnection(
                parts.hostname or "", port, timeout=timeout_seconds, context=context
            )
        else:
            self._connection = http.client.HTTPConnection(parts.hostname or "", port, timeout=timeout_seconds)

    def close(self) -> None:
        self._connection.close()

    def get(self, *path: str, **query: object) -> Answer:
        return self._call("GET", path, None, query)

    def put(self, *path: str, body: object = None) -> Answer:
        return self._call("PUT", path, body or {}, {})

    def post(self, *path: str, body: object = None, **query: object) -> Answer:
        return self._call("POST", path, body or {}, query)

    def delete(self, *path: str, **query: object) -> Answer:
        return self._call("DELETE", path, None, query)

    def pages(self, *path: str, **query: object) -> Iterator[Answer]:
        """Yield all items of a list, page by page."""
        following: object = None
        while True:
            page = self.get(*path, **query, after=following)
            yield from page["items"]
            following = page["next"]
            if following is None:
                return

    def queue(self, name: str, *more: str) -> tuple[str, ...]:
        """Return a path below a queue."""
        return ("queues", self.host, name, *more)

    def _call(self, method: str, path: tuple[str, ...], body: object, query: dict[str, object]) -> Answer:
        kept = {name: _shown(value) for name, value in query.items() if value not in (None, "")}
        target = "/".join([self._prefix, *[quote(part, safe="") for part in path]])
        target += "?" + urlencode(kept) if kept else ""
        raw = None if body is None else json.dumps(body).encode()
        try:
            self._connection.request(method, target, raw, self._headers)
            response = self._connection.getresponse()
            said = response.read()
        except (OSError, http.client.HTTPException) as error:
            fail(f"the broker at {self._url} does not answer: {error}; is it running?", EXIT_UNAVAILABLE)
        try:
            answer = json.loads(said) if said else {}
        except ValueError:
            fail(f"what answers at {self._url} is no Headrace broker", EXIT_UNAVAILABLE)
        if response.status >= 400:
            reason = str(answer.get("reason", response.reason)) if isinstance(answer, dict) else response.reason
            if response.status == http.HTTPStatus.UNAUTHORIZED:
                reason = f"{self._url} refuses the login: {reason}; give --user and --password, or both in --url"
            fail(reason, _CODES.get(response.status, EXIT_PROBLEMS))
        return answer if isinstance(answer, dict) else {}


def _split(url: str) -> tuple[SplitResult, int | None]:
    """Return the parts of a broker's address and its port; end the command where it is no address."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # unbalanced brackets, or a port that is no number
        parts, port = SplitResult("", "", "", "", ""), None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        fail(f"--url takes an address like {DEFAULT_URL}; {_without_login(url)!r} is none", EXIT_USAGE)
    return parts, port


def _without_login(url: str) -> str:
    return url.rpartition("@")[2]


def _shown(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


def queue_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the queue names with this beginning, for the shell's completion; none without a broker."""
    given = {name: context.params.get(name) or default for name, (_, default) in _SHARED.items()}
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            client = Client(
                str(given["url"]), str(given["user"]), str(given["password"]), str(given["vhost"]), _COMPLETION_SECONDS
            )
            found = client.get("queues", vhost=client.host, search=incomplete, limit=_COMPLETIONS)["items"]
    except typer.Exit:
        return []
    return [queue["name"] for queue in found if queue["name"].startswith(incomplete)]


def queue_argument(text: str) -> Any:
    """Return an argument that takes the name of a queue."""
    return typer.Argument(help=text, autocompletion=queue_names)


QueueName = Annotated[str, queue_argument("The queue's name.")]
_SHARED: Final[dict[str, tuple[Any, object]]] = {
    "url": (
        Annotated[str, typer.Option(envvar="HEADRACE_URL", help="The broker's HTTP address; a login may be in it.")],
        DEFAULT_URL,
    ),
    "user": (Annotated[str, typer.Option(envvar="HEADRACE_USER", help="The user to log in as.")], "guest"),
    "password": (
        Annotated[
            str,
            typer.Option(envvar="HEADRACE_PASSWORD", help="The password; safer in the environment."),
        ],
        "guest",
    ),
    "vhost": (Annotated[str, typer.Option(envvar="HEADRACE_VHOST", help="The virtual host.")], "/"),
    "as_json": (Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")], False),
}


def connected(
    app: typer.Typer, *lines: str, name: str | None = None, has_host: bool = True
) -> Callable[[Command], Command]:
    """Add a command to an app, with its examples. It gets a Client and `as_json` for the options of all clients.

    Only a command that works in one virtual host has --vhost.
    """
    options = {key: option for key, option in _SHARED.items() if has_host or key != "vhost"}
    return lambda function: command(app, *lines, name=name)(_with_options(function, options))


def _with_options(function: Command, options: dict[str, tuple[Any, object]]) -> Command:
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    own = [each for each in parameters if each.name not in ("client", "as_json")]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in options.items()
    ]

    def run(**values: Any) -> None:
        for text in unknown_variables(os.environ, CLIENT_VARIABLES, _MUCH_ALIKE):
            announce(text)
        client = Client(values.pop("url"), values.pop("user"), values.pop("password"), values.pop("vhost", "/"))
        with contextlib.closing(client):
            function(client, **values)

    run.__name__ = function.__name__
    run.__doc__ = function.__doc__
    keyword_only = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
    run.__signature__ = inspect.Signature([*keyword_only, *shared])  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in [*own, *shared]}
    return run

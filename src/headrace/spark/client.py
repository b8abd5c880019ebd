"""The client of the broker's bulk endpoints: login, retries, errors. No Spark, no Arrow.

Every call may be repeated: reads change nothing, a repeated part is kept once, a commit has an id. So the client waits
for a broker that restarts.
"""

import base64
import http.client
import json
import random
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar, final
from urllib.parse import quote, urlencode

from headrace.errors import AccessRefused, HeadraceError, NotFound, Refused, TooLarge, Truncated, Unavailable
from headrace.spark.options import Server

PATIENCE_SECONDS: Final = 90.0
"""Time of retries while a broker does not answer."""
TIMEOUT_SECONDS: Final = 120.0
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 3.0

Result = TypeVar("Result")
Query = Mapping[str, str | int] | Sequence[tuple[str, str | int]]


@final
class Client:
    """One connection to one broker, opened when it is needed and again after it broke."""

    def __init__(self, server: Server, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._server = server
        self._patience_seconds = patience_seconds
        self._connection: http.client.HTTPConnection | None = None
        self._headers = {"authorization": _login(server), "x-requested-with": "headrace"}

    def __str__(self) -> str:
        scheme = "https" if self._server.tls else "http"
        return f"{scheme}://{self._server.host}:{self._server.port}"

    def json(self, method: str, path: str, query: Query, body: object = None) -> dict[str, object]:
        """Call with JSON and return the JSON answer. Raises Refused and its kinds, and Unavailable."""
        raw = None if body is None else json.dumps(body).encode()
        answer = json.loads(self.send(method, path, query, raw))
        if not isinstance(answer, dict):
            raise Unavailable(f"{self} answered {answer!r}: is it a Headrace broker?")
        return answer

    def send(self, method: str, path: str, query: Query, body: bytes | None = None) -> bytes:
        """Call with bytes and return the bytes of the answer."""
        return self._patiently(lambda: self._exchange(method, path, query, body).read())

    def open(self, path: str, query: Query) -> http.client.HTTPResponse:
        """Return an answer that the caller reads in parts. The caller handles a connection that breaks meanwhile."""
        return self._patiently(lambda: self._exchange("GET", path, query, None))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _patiently(self, call: Callable[[], Result]) -> Result:
        deadline = time.monotonic() + self._patience_seconds
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                return call()
            except (OSError, http.client.HTTPException, _Busy) as error:
                self.close()
                if time.monotonic() + pause > deadline:
                    raise Unavailable(
                        f"the broker at {self} cannot be reached: {error or type(error).__name__}; "
                        f"start it, or correct option url"
                    ) from error
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _exchange(self, method: str, path: str, query: Query, body: bytes | None) -> http.client.HTTPResponse:
        pairs = [*(query.items() if isinstance(query, Mapping) else query), ("vhost", self._server.vhost)]
        if self._connection is None:
            self._connection = self._connect()
        self._connection.request(method, f"{quote(path, safe='/%')}?{urlencode(pairs)}", body, self._headers)
        response = self._connection.getresponse()
        if response.status >= 300:
            raise self._problem(response.status, response.read())
        return response

    def _connect(self) -> http.client.HTTPConnection:
        server = self._server
        if server.tls:
            try:
                context = ssl.create_default_context(cafile=server.ca or None)
                if server.certificate:
                    context.load_cert_chain(server.certificate, server.key or None)
            except OSError as error:
                raise Unavailable(
                    f"the files of options tlsCa, tlsCertificate and tlsKey cannot be used here: {error}"
                ) from error
            return http.client.HTTPSConnection(server.host, server.port, timeout=TIMEOUT_SECONDS, context=context)
        return http.client.HTTPConnection(server.host, server.port, timeout=TIMEOUT_SECONDS)

    def _problem(self, status: int, body: bytes) -> Exception:
        try:
            answer = json.loads(body)
            error, reason = str(answer["error"]), str(answer["reason"])
        except (ValueError, KeyError, TypeError):
            error, reason = "", body[:200].decode(errors="replace")
        text = f"{reason} (the broker at {self})"
        if error == "truncated":
            return Truncated(text)
        if status == 401:
            return AccessRefused(f"{text}: check options user and password")
        kinds: dict[int, type[HeadraceError]] = {403: AccessRefused, 404: NotFound, 413: TooLarge}
        if status in (429, 503):
            return _Busy(text)
        return kinds.get(status, Refused if status < 500 else Unavailable)(text)


def _login(server: Server) -> str:
    """Return the value of the header that logs in. Raises Unavailable when a file with a secret cannot be read."""
    token = _secret(server.token_file) if server.token_file else server.token
    if token:
        return f"Bearer {token}"
    password = _secret(server.password_file) if server.password_file else server.password
    return f"Basic {base64.b64encode(f'{server.user}:{password}'.encode()).decode()}"


def _secret(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Unavailable(
            f"the secret in {path} cannot be read here: {error}; the file must be there on every node"
        ) from error


class _Busy(Exception):
    """The broker asks for a retry later."""

"""Object stores for tests: moto's S3 over real HTTP on loopback, behind a proxy that can be shut; and Google's by it.

Google's XML interface is that of S3 but for the names of conditions, so the proxy that makes the one of the other
translates these: to write if there is nothing, and to write over what was seen, whose generation follows from its tag.
"""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping

import requests

_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
_CONDITION = re.compile(rb"if-none-match", re.IGNORECASE)
_GENERATION_MATCH = re.compile(rb"x-goog-if-generation-match: (\d+)", re.IGNORECASE)
_BEARER = re.compile(rb"authorization: bearer", re.IGNORECASE)
_HOST = re.compile(rb"\r\nhost: ", re.IGNORECASE)
_SIGNED = (
    b"\r\nAuthorization: AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=\r\nHost: "
)
_TAG = re.compile(rb"\r\netag: \"([0-9a-f]{32})\"", re.IGNORECASE)


class StoreProxy:
    """A TCP proxy to the store. Shut, it keeps what is sent until it is opened; forgetful, it drops conditions."""

    def __init__(self, port: int, forgetful: bool = False, listener: socket.socket | None = None) -> None:
        self._upstream = port
        self._forgetful = forgetful
        self._seconds = 0.0
        self._open = threading.Event()
        self._open.set()
        self._listener = listener or socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def slow_down(self, seconds: float) -> None:
        """Have everything that is sent to the store wait for so long."""
        self._seconds = seconds

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._open.set()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    store = socket.create_connection(("127.0.0.1", self._upstream))
                except OSError:  # the store was stopped before its proxy
                    client.close()
                    continue
                for source, target, asks in ((client, store, True), (store, client, False)):
                    threading.Thread(target=self._pump, args=(source, target, asks), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, asks: bool) -> None:
        with contextlib.suppress(OSError), source, target:
            while data := source.recv(1 << 16):
                self._open.wait()
                time.sleep(self._seconds if asks else 0)
                target.sendall(self._altered(data, asks))

    def _altered(self, data: bytes, asks: bool) -> bytes:
        return _CONDITION.sub(b"x-none-match", data) if asks and self._forgetful else data


class GoogleProxy(StoreProxy):
    """Makes Google's store of S3. Forgetful, it translates no conditions, and S3 does not know them."""

    def _altered(self, data: bytes, asks: bool) -> bytes:
        if not asks:
            return _TAG.sub(_with_generation, data)
        data = _HOST.sub(_SIGNED, _BEARER.sub(b"x-bearer:", data))
        return data if self._forgetful else _GENERATION_MATCH.sub(_as_tag, data)


def _as_tag(found: re.Match[bytes]) -> bytes:
    generation = int(found[1])
    return b'If-Match: "%032x"' % generation if generation else b"If-None-Match: *"


def _with_generation(found: re.Match[bytes]) -> bytes:
    return b"%s\r\nx-goog-generation: %d" % (found[0], int(found[1], 16))


class S3:
    """A bucket in moto's S3, of its own unless it is named, behind a proxy, which may be where one was built before."""

    def __init__(
        self, port: int, forgetful: bool = False, bucket: str = "", listener: socket.socket | None = None
    ) -> None:
        self._proxy = StoreProxy(port, forgetful, listener)
        self.bucket = bucket or f"bucket-{uuid.uuid4().hex[:12]}"
        requests.put(f"http://127.0.0.1:{port}/{self.bucket}", timeout=30).raise_for_status()
        self.url = f"s3://{self.bucket}/some/prefix"
        self.slow_down = self._proxy.slow_down
        self.shut = self._proxy.shut
        self.open = self._proxy.open
        self.close = self._proxy.close

    @property
    def environment(self) -> dict[str, str]:
        """The environment that a process needs to find it."""
        return environment_of(self._proxy.port)

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Have this process find it."""
        with within(self.environment):
            yield


def environment_of(port: int) -> dict[str, str]:
    """The environment that a process needs to find an S3 at this port."""
    return {
        "AWS_ENDPOINT": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }


class Google:
    """A bucket of Google's store, as moto's S3 makes it."""

    def __init__(self, port: int, forgetful: bool = False) -> None:
        self._proxy = GoogleProxy(port, forgetful)
        self.bucket = f"bucket{uuid.uuid4().hex[:12]}"  # moto does not decode names, of which other signs are encoded
        requests.put(f"http://127.0.0.1:{port}/{self.bucket}", timeout=30).raise_for_status()
        self.url = f"gs://{self.bucket}/some/prefix"
        self.close = self._proxy.close

    @property
    def environment(self) -> dict[str, str]:
        """The environment that a process needs to find it."""
        address = f"http://127.0.0.1:{self._proxy.port}"
        key = {
            "gcs_base_url": address,
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        return {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(key), "GOOGLE_ALLOW_HTTP": "true"}


@contextlib.contextmanager
def within(environment: Mapping[str, str]) -> Iterator[None]:
    """Have these variables in the environment of this process, for the length of a block."""
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def moto() -> Iterator[int]:
    """The port of a store that lives as long as the block, in a process of its own: tests do not keep it waiting."""
    with subprocess.Popen([sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.stdin.close()

"""The client of a broker logs in with what the options say, over TLS where they say so."""

import base64
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from headrace.errors import Unavailable
from headrace.spark.client import Client
from headrace.spark.options import read_options
from tests.certificates import Authority

SECRET = "hunter2"


class Answering(BaseHTTPRequestHandler):
    """Answers with the header that a client logs in with."""

    def do_GET(self) -> None:
        body = b'{"login": "%s"}' % self.headers["authorization"].encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        return


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    made = HTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def login(url: str, **options: str) -> object:
    server = read_options({"url": url, "path": "orders", **options}).server
    assert server is not None
    client = Client(server, patience_seconds=0.1)
    try:
        return client.json("GET", "/bulk/queues", {})["login"]
    finally:
        client.close()


def test_a_login_is_a_password_or_a_token_given_or_in_a_file(server: HTTPServer, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{server.server_port}"
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    basic = "Basic " + base64.b64encode(f"ann:{SECRET}".encode()).decode()

    assert login(url, user="ann", password=SECRET) == basic
    assert login(url, user="ann", passwordFile=str(file)) == basic
    assert login(url, token=SECRET) == f"Bearer {SECRET}"
    assert login(url, tokenFile=str(file)) == f"Bearer {SECRET}"
    with pytest.raises(Unavailable, match="the file must be there on every node"):
        login(url, tokenFile=str(tmp_path / "none"))


def test_authorities_and_certificates_are_files(server: HTTPServer, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.path))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(*authority.sign("localhost", "server"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = f"https://localhost:{server.server_port}"
    certificate, key = authority.sign("device")

    said = login(url, tlsCa=str(authority.path), tlsCertificate=str(certificate), tlsKey=str(key), token=SECRET)

    assert said == f"Bearer {SECRET}"
    with pytest.raises(Unavailable, match="certificate verify failed"):
        login(url, tlsCertificate=str(certificate), tlsKey=str(key))
    with pytest.raises(Unavailable, match="files of options tlsCa, tlsCertificate and tlsKey cannot be used"):
        login(url, tlsCa=str(tmp_path / "none"))

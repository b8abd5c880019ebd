"""Certificates for tests, made by openssl: an authority, and what it signs."""

import subprocess
from pathlib import Path

from headrace.core.access.access import Access
from headrace.core.access.permissions import Permission
from headrace.core.hosts import Hosts
from tests.endpoints import must, prepare
from tests.servers import Server


class Authority:
    """Signs certificates; `path` is its own."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self.path = directory / f"{name}.pem"
        self._key = directory / f"{name}.key"
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"),
            *("-subj", f"/CN={name}", "-keyout", str(self._key), "-out", str(self.path)),
        )

    def sign(self, name: str, file: str = "") -> tuple[Path, Path]:
        """A certificate for this common name, good for a server called localhost too, and its key."""
        certificate, key = self._directory / f"{file or name}.pem", self._directory / f"{file or name}.key"
        request, extensions = self._directory / "request.csr", self._directory / "extensions.cnf"
        extensions.write_text("subjectAltName=DNS:localhost\n")
        _openssl(
            *("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-subj", f"/CN={name}", "-keyout", str(key), "-out", str(request)),
        )
        _openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.path), "-CAkey", str(self._key)),
            *("-CAcreateserial", "-days", "2", "-extfile", str(extensions), "-out", str(certificate)),
        )
        return certificate, key


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def encrypt(key: Path, target: Path) -> Path:
    """The key behind a password."""
    _openssl("pkey", "-in", str(key), "-aes256", "-passout", "pass:secret", "-out", str(target))
    return target


def asking_for_certificates(directory: Path, authority: Authority) -> Server:
    """A server that asks clients for certificates; `device` may log in with one."""

    def users(hosts: Hosts, access: Access) -> None:
        access.put_user("device", None, (), must)
        access.put_permission(Permission("device", "/", "^tls", "^tls|^amq.default$", "^tls"), must)

    prepare(directory / "data", users)
    certificate, key = authority.sign("localhost", "server")
    options = ["--tls-cert", str(certificate), "--tls-key", str(key), "--tls-ca", str(authority.path)]
    return Server(directory, options=[*options, "--amqps", "0", "--mqtts", "0", "--https", "0"])

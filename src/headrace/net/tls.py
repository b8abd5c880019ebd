"""Certificates: what a listener shows and which clients' it trusts, read again without a restart. No sockets."""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import final

from headrace.errors import Unavailable


@dataclass(frozen=True)
class TlsFiles:
    """Where the certificate, its key and, to ask clients for certificates too, their authority are; all in PEM."""

    certificate: Path
    key: Path
    authority: Path | None = None


@final
class Tls:
    """TLS 1.2 and later with the certificate in these files, for any number of listeners."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises Unavailable when a file cannot be used, and says which and why."""
        self._files = files
        self.context = _load(files)
        """What listeners are opened with. Each connection gets the newest certificate: see `reload`."""
        self._current = self.context
        self.context.sni_callback = self._greet

    def reload(self, files: TlsFiles | None = None) -> None:
        """Read the files again, or others, for connections that come from now on.

        Raises Unavailable and changes nothing then.
        """
        files = files or self._files
        self._current = _load(files)
        self._files = files

    def _greet(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._current


def _load(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _check_readable("certificate", files.certificate)
    _check_readable("key", files.key)
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except (ssl.SSLError, _Encrypted) as error:
        why = "the key is encrypted" if isinstance(error, _Encrypted) else _reason(error)
        raise Unavailable(
            f"the certificate {files.certificate} and the key {files.key} cannot be used: {why}; give a certificate "
            f"chain and its private key, both in PEM and without a password"
        ) from error
    if files.authority is not None:
        _check_readable("authority", files.authority)
        try:
            context.load_verify_locations(files.authority)
        except ssl.SSLError as error:
            raise Unavailable(
                f"the authority {files.authority} cannot be used: {_reason(error)}; give the certificates in PEM that "
                f"sign those of the clients"
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class _Encrypted(Exception):
    """The key asks for a password."""


def _no_password() -> str:
    raise _Encrypted


def _check_readable(what: str, path: Path) -> None:
    try:
        with path.open("rb"):
            return
    except OSError as error:
        raise Unavailable(f"the {what} {path} cannot be read: {error.strerror or error}") from error


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)

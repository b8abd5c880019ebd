"""Certificates of listeners and of trusted clients, reloaded without a restart. No sockets."""

import hashlib
import ssl
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from headrace.errors import Unavailable


@dataclass(frozen=True)
class TlsFiles:
    """PEM files of the certificate and its key; with `authority`, clients must show certificates that it signed."""

    certificate: Path
    key: Path
    authority: Path | None = None


@final
class Tls:
    """TLS 1.2 and later with one certificate, for any number of listeners."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises Unavailable, naming the unusable file."""
        self._files = files
        self.context = _load(files)
        """Context of the listeners; each connection gets the newest certificate, see `reload`."""
        self._current = self.context
        self.context.sni_callback = self._greet
        self._for_nodes: ssl.SSLContext | None = None
        self.fingerprint = b""
        """Hash of the certificate that other nodes see."""

    def reload(self, files: TlsFiles | None = None) -> None:
        """Read the same or other files for new connections. Raises Unavailable and changes nothing then."""
        files = files or self._files
        current = _load(files)
        if self._for_nodes is not None:
            self._show_nodes(files)
        self._current = current
        self._files = files

    def for_nodes(self) -> ssl.SSLContext:
        """Context for other nodes, which prove their membership by a secret and not by a certificate.

        Raises Unavailable.
        """
        context = self._show_nodes(self._files)
        context.sni_callback = self._greet_node
        return context

    def _show_nodes(self, files: TlsFiles) -> ssl.SSLContext:
        context, fingerprint = _load(replace(files, authority=None)), _fingerprint(files.certificate)
        self._for_nodes, self.fingerprint = context, fingerprint
        return context

    def _greet(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._current

    def _greet_node(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        assert self._for_nodes is not None
        connection.context = self._for_nodes


def to_nodes() -> ssl.SSLContext:
    """Client context for connections to other nodes. The handshake of forwarding verifies the certificate's hash."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


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


def _fingerprint(certificate: Path) -> bytes:
    """Hash of the first certificate in a file. Raises Unavailable."""
    text = certificate.read_text("latin-1")
    start, end = text.find(ssl.PEM_HEADER), text.find(ssl.PEM_FOOTER)
    if start < 0 or end < start:
        raise Unavailable(f"the certificate {certificate} cannot be shown to other nodes: it has no {ssl.PEM_HEADER}")
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(text[start : end + len(ssl.PEM_FOOTER)])).digest()


class _Encrypted(Exception):
    """The key file is encrypted."""


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

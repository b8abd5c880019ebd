"""JSON web tokens of another service: its public keys from a file, and the checks that a token must pass.

PyJWT checks the signatures. Core decides the rights of a token's bearer.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from headrace.config.settings import JwtSettings
from headrace.core.access.logins import Bearer, Tokens
from headrace.core.access.permissions import Grants
from headrace.core.access.users import check_name
from headrace.errors import Refused, Unavailable

if TYPE_CHECKING:
    from jwt.algorithms import AllowedPublicKeys

MAX_TOKEN_BYTES: Final = 16 << 10
_MAX_FILE_BYTES: Final = 1 << 20
_LATEST_SECONDS: Final = 1 << 40
_BY_KIND: Final = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
"""Algorithms of each kind of key: never `none`, and none with a shared secret."""


def read_tokens(settings: JwtSettings) -> Tokens | None:
    """Return the checker of tokens; None where tokens are off. Raises Unavailable when the keys cannot be used."""
    return None if settings.keys is None else _SignedTokens(settings, settings.keys)


@final
@dataclass(frozen=True)
class _Key:
    """A public key and its algorithms."""

    value: "AllowedPublicKeys"
    algorithms: tuple[str, ...]


@final
class _SignedTokens(Tokens):
    def __init__(self, settings: JwtSettings, file: Path) -> None:
        self._settings = settings
        self._keys = _read_keys(file)

    def read(self, token: bytes) -> Bearer:
        if len(token) > MAX_TOKEN_BYTES:
            raise Refused(f"has more than {MAX_TOKEN_BYTES} bytes")
        claims = self._verified(token)
        settings = self._settings
        user, expires = claims.get(settings.user_claim), claims["exp"]
        if not isinstance(user, str):
            raise Refused(f"has no text in the claim {settings.user_claim!r}, which names the user")
        check_name("user", user)
        if not 0 < expires < _LATEST_SECONDS:
            raise Refused("says a time of expiry that is none")
        grants = None
        if settings.scope_claim:
            grants = Grants(user, settings.audience, _words(claims.get(settings.scope_claim)))
        return Bearer(user, int(expires * 1_000_000) + settings.leeway * 1000, grants)

    def _verified(self, token: bytes) -> dict[str, Any]:
        """Return the claims after a check of signature, times, issuer and audience. Raises Refused."""
        import jwt

        try:
            key = self._key(jwt.get_unverified_header(token))
            return jwt.decode(
                token,
                key.value,
                algorithms=key.algorithms,
                audience=self._settings.audience,
                issuer=self._settings.issuer,
                leeway=self._settings.leeway / 1000,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.PyJWTError as error:
            raise Refused(f"is not to be trusted: {error}") from error
        except (ValueError, TypeError, OverflowError, RecursionError) as error:  # errors that PyJWT does not wrap
            raise Refused("is not to be trusted: it cannot be read") from error

    def _key(self, header: dict[str, Any]) -> "_Key":
        """Return the key that the token names. Raises Refused."""
        name = header.get("kid")
        if name is None and len(self._keys) > 1:
            raise Refused("names no key (kid), and there are several")
        found = next(iter(self._keys.values())) if name is None else self._keys.get(name)
        if found is None:
            raise Refused(f"was signed with the key {str(name)[:64]!r}, which is not known here")
        return found


def _words(claim: object) -> list[str]:
    """Return the scopes of a claim: words with spaces between, or a list of words."""
    if isinstance(claim, str):
        return claim.split()
    return [word for word in claim if isinstance(word, str)] if isinstance(claim, list) else []


def _read_keys(file: Path) -> dict[str, _Key]:
    """Read the keys for signatures of a JWKS file, by name. Raises Unavailable."""
    try:
        import jwt
        import jwt.algorithms

        jwt.algorithms.RSAAlgorithm  # noqa: B018  absent without cryptography
    except (ImportError, AttributeError) as error:
        raise Unavailable("tokens need PyJWT and cryptography: pip install 'headrace[jwt]'") from error
    keys: dict[str, _Key] = {}
    for at, entry in enumerate(_entries(file)):
        kind, name = entry.get("kty"), entry.get("kid", "")
        where = f"{file}: key {name!r}" if name else f"{file}: key number {at + 1}"
        if entry.get("use", "sig") != "sig":
            continue
        if kind not in _BY_KIND:
            raise Unavailable(f"{where} is of kind {kind!r}; public keys of the kinds {', '.join(_BY_KIND)} are taken")
        algorithms = _BY_KIND[kind]
        if entry.get("alg", algorithms[0]) not in algorithms:
            raise Unavailable(f"{where} is for {entry['alg']!r}; of its kind there are {', '.join(algorithms)}")
        if "d" in entry:
            raise Unavailable(f"{where} is a private key; keep that with who signs, and give the public one here")
        if name in keys:
            raise Unavailable(f"{where} is there twice")
        try:
            keys[name] = _Key(jwt.PyJWK(entry).key, (entry["alg"],) if "alg" in entry else algorithms)
        except (jwt.PyJWTError, ValueError, TypeError, KeyError) as error:
            raise Unavailable(f"{where} cannot be used: {error}") from error
    if not keys:
        raise Unavailable(f"{file} has no key for signatures in it")
    return keys


def _entries(file: Path) -> list[dict[str, Any]]:
    try:
        with file.open("rb") as opened:
            data = opened.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise Unavailable(f"the keys {file} cannot be read: {error.strerror or error}") from error
    try:
        entries = json.loads(data[:_MAX_FILE_BYTES])["keys"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Unavailable(f'{file} is no JWKS: a JSON object {{"keys": [...]}} is expected') from error
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise Unavailable(f'{file} is no JWKS: "keys" must be a list of keys')
    return entries

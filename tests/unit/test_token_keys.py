"""The file with the keys of tokens: what is in it is used, and what cannot be used is said with the key's name."""

import base64
import json
from dataclasses import replace
from pathlib import Path

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.settings import JwtSettings
from headrace.core.access.logins import Tokens
from headrace.errors import Refused, Unavailable
from headrace.tokens import read_tokens
from tests.tokens import AUDIENCE, ISSUER, TokenService


@pytest.fixture
def service(tmp_path: Path) -> TokenService:
    return TokenService(tmp_path / "keys.json")


@pytest.fixture
def settings(service: TokenService) -> JwtSettings:
    return JwtSettings(keys=service.file, issuer=ISSUER, audience=AUDIENCE)


@pytest.fixture(scope="module")
def any_tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    file = TokenService(tmp_path_factory.mktemp("keys") / "keys.json").file
    tokens = read_tokens(JwtSettings(keys=file, issuer=ISSUER, audience=AUDIENCE))
    assert tokens is not None
    return tokens


def _assembled(parts: list[bytes]) -> bytes:
    """Three parts in base64, as those of a token are; the first often looks like a header."""
    head = b'{"alg":"ES256","kid":"ES256"}' if parts[0][:1] < b"\x80" else parts[0]
    return b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in (head, *parts[1:]))


def test_one_key_needs_no_name(service: TokenService, settings: JwtSettings) -> None:
    key = service.public("ES256")
    del key["kid"]
    service.file.write_text(json.dumps({"keys": [key]}))
    tokens = read_tokens(settings)
    assert tokens is not None

    claims = jwt.decode(service.token("ann"), options={"verify_signature": False})
    nameless = jwt.encode(claims, service.keys["ES256"], "ES256")

    assert tokens.read(nameless.encode()).user == "ann"
    with pytest.raises(Refused, match="key 'ES256', which is not known here"):
        tokens.read(service.token("ann").encode())


@given(st.binary(max_size=300) | st.lists(st.binary(max_size=60), min_size=3, max_size=3).map(_assembled))
def test_whatever_comes_is_refused_and_nothing_else(any_tokens: Tokens, data: bytes) -> None:
    with pytest.raises(Refused):
        any_tokens.read(data)


def test_keys_that_are_not_for_signatures_are_left_alone(service: TokenService, settings: JwtSettings) -> None:
    entries = [{"kty": "RSA", "use": "enc", "kid": "other"}, service.public("EdDSA")]
    service.file.write_text(json.dumps({"keys": entries}))
    tokens = read_tokens(settings)

    assert tokens is not None
    assert tokens.read(service.token("ann", "EdDSA").encode()).user == "ann"


def test_another_claim_may_name_the_user(service: TokenService, settings: JwtSettings) -> None:
    tokens = read_tokens(replace(settings, user_claim="preferred_username"))
    assert tokens is not None

    assert tokens.read(service.token("1234", preferred_username="ann").encode()).user == "ann"
    with pytest.raises(Refused, match="no text in the claim 'preferred_username'"):
        tokens.read(service.token("1234").encode())


def test_without_keys_no_token_is_taken() -> None:
    assert read_tokens(JwtSettings()) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is no JWKS"),
        ("[]", "is no JWKS"),
        ('{"keys": {}}', '"keys" must be a list'),
        ('{"keys": []}', "no key for signatures"),
        ('{"keys": [{"kty": "oct", "k": "AAAA", "kid": "s"}]}', "key 's' is of kind 'oct'"),
        ('{"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB", "d": "AQAB"}]}', "key number 1 is a private key"),
        ('{"keys": [{"kty": "RSA", "kid": "r"}]}', "key 'r' cannot be used"),
        ('{"keys": [{"kty": "EC", "kid": "e", "alg": "HS256"}]}', "key 'e' is for 'HS256'"),
        ('{"keys": [' + "[" * 100_000, "is no JWKS"),
    ],
)
def test_what_cannot_be_used_is_said(settings: JwtSettings, text: str, expected: str) -> None:
    assert settings.keys is not None
    settings.keys.write_text(text)

    with pytest.raises(Unavailable, match=expected) as raised:
        read_tokens(settings)
    assert str(settings.keys) in str(raised.value)


def test_a_key_that_is_there_twice_is_refused(service: TokenService, settings: JwtSettings) -> None:
    service.publish("ES256", "ES256")

    with pytest.raises(Unavailable, match="key 'ES256' is there twice"):
        read_tokens(settings)


def test_a_file_that_is_not_there_is_said(settings: JwtSettings, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be read: No such file"):
        read_tokens(replace(settings, keys=tmp_path / "nowhere.json"))

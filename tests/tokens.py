"""A service that signs tokens, for tests: its keys, the file with their public halves, and tokens of any kind."""

import json
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER = "https://login.example.com"
AUDIENCE = "headrace"


class TokenService:
    """Signs with RS256, ES256 and EdDSA, by keys of these names."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.keys: dict[str, Any] = {
            "RS256": rsa.generate_private_key(public_exponent=65537, key_size=2048),
            "ES256": ec.generate_private_key(ec.SECP256R1()),
            "EdDSA": ed25519.Ed25519PrivateKey.generate(),
        }
        self.publish(*self.keys)

    def public(self, name: str) -> dict[str, Any]:
        key = self.keys[name].public_key()
        makers: dict[str, Any] = {"RS256": RSAAlgorithm, "ES256": ECAlgorithm, "EdDSA": OKPAlgorithm}
        return {**makers[name].to_jwk(key, as_dict=True), "kid": name, "use": "sig"}

    def publish(self, *names: str) -> None:
        """Have these keys in the file, and no others."""
        self.file.write_text(json.dumps({"keys": [self.public(name) for name in names]}))

    def token(self, user: str, algorithm: str = "ES256", **claims: object) -> str:
        """A token of the user that is good for an hour, or as the claims say; None leaves one out."""
        now = time.time()
        said: dict[str, object] = {"sub": user, "iss": ISSUER, "aud": AUDIENCE, "exp": now + 3600, "nbf": now - 1}
        said |= claims
        kept = {name: value for name, value in said.items() if value is not None}
        return jwt.encode(kept, self.keys[algorithm], algorithm, {"kid": algorithm})

"""What the scopes of a token allow: RabbitMQ's way to write permissions into a list of words. No token, no signature.

    <audience>.read:<vhost>/<name>[/<routing key>]        also write and configure; `*` stands for anything
    <audience>.tag:<tag>

Parts are percent-encoded, so the default virtual host is `%2F`. A scope that is written otherwise allows nothing.
"""

import re
from collections.abc import Iterable
from typing import Final, final
from urllib.parse import unquote

from headrace.core.rights import CONFIGURE, READ, WRITE, Permission, TopicPermission

MAX_SCOPES: Final = 256
_TAG: Final = "tag"
_ANY: Final = "(?s:.*)"


@final
class _Scope:
    """One permission: what may be done, and regular expressions for virtual host, name and key."""

    __slots__ = ("exchange", "host", "key", "name", "what")

    def __init__(self, what: str, host: str, name: str, key: str) -> None:
        self.what = what
        self.host = _expression(host)
        self.name = _expression(name)
        self.exchange = unquote(name) if key != "*" else ""
        """Whose keys it is about; "" where all keys are allowed."""
        self.key = _expression(key)


@final
class Grants:
    """The permissions and tags that one token carries."""

    __slots__ = ("_scopes", "_user", "tags")

    def __init__(self, user: str, audience: str, words: Iterable[str]) -> None:
        self._user = user
        self._scopes: list[_Scope] = []
        tags: list[str] = []
        for word in words:
            if not word.startswith(audience + "."):
                continue
            what, _, rest = word[len(audience) + 1 :].partition(":")
            if what == _TAG and rest:
                tags.append(rest)
            elif what in (CONFIGURE, WRITE, READ) and len(self._scopes) < MAX_SCOPES:
                self._add(what, rest.split("/"))
        self.tags = tuple(dict.fromkeys(tags))

    def _add(self, what: str, parts: list[str]) -> None:
        if len(parts) not in (2, 3) or not all(parts):
            return
        host, name, key = parts if len(parts) == 3 else [*parts, "*"]
        if key == "*" or "*" not in name:  # keys belong to one exchange, which has to be named
            self._scopes.append(_Scope(what, host, name, key))

    def permission(self, host: str) -> Permission | None:
        """What the token allows in a virtual host; None when its bearer may not even enter."""
        found = [scope for scope in self._scopes if _fits(scope.host, host)]
        if not found:
            return None
        patterns = [_either([scope.name for scope in found if scope.what == what]) for what in (CONFIGURE, WRITE, READ)]
        return Permission(self._user, host, *patterns)

    def topics(self, host: str) -> dict[str, TopicPermission]:
        """To which keys the token bounds its bearer, by exchange."""
        found = [scope for scope in self._scopes if _fits(scope.host, host)]
        exchanges = {scope.exchange for scope in found if scope.exchange}
        return {
            name: TopicPermission(self._user, host, name, _keys(found, WRITE, name), _keys(found, READ, name))
            for name in exchanges
        }


def _keys(scopes: list[_Scope], what: str, exchange: str) -> str:
    return _either([scope.key for scope in scopes if scope.what == what and _fits(scope.name, exchange)])


def _either(patterns: list[str]) -> str:
    """A regular expression for whatever one of them fits entirely; "" for nothing."""
    return rf"^(?:{'|'.join(patterns)})\Z" if patterns else ""


def _fits(pattern: str, name: str) -> bool:
    return re.fullmatch(pattern, name) is not None


def _expression(pattern: str) -> str:
    # A class instead of a backslash before a brace: `{username}` in a scope is a name like any other.
    parts = [re.escape(unquote(part)).replace(r"\{", "[{]") for part in pattern.split("*")]
    return _ANY.join(parts)

"""How each kind of exchange picks its bindings. The way from one exchange to the next is in exchanges.py."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Mapping
from typing import Final, TypeAlias, final

from headrace.core.arguments import frozen
from headrace.core.exchange import DIRECT, FANOUT, HEADERS, KINDS, TOPIC, Binding
from headrace.core.words import WordTree
from headrace.errors import PreconditionFailed, Refused

X_MATCH: Final = "x-match"

# A header that a binding asks for: its name, and its frozen value or None where any value will do.
Need: TypeAlias = tuple[str, Hashable]


class Router(ABC):
    """The bindings of one exchange, ready to be picked. Each binding is added once and removed once."""

    @abstractmethod
    def add(self, binding: Binding) -> None:
        """Take the binding in. Raises PreconditionFailed, changing nothing, when its arguments are wrong."""

    @abstractmethod
    def remove(self, binding: Binding) -> None:
        """Let go of a binding that was added."""

    @abstractmethod
    def match(self, key: str, headers: Mapping[str, object] | None) -> Collection[Binding]:
        """The bindings that a message takes, each once."""


def router_for(kind: str) -> Router:
    """An empty router for an exchange of one of AMQP's own kinds. Raises PreconditionFailed for any other."""
    if kind == DIRECT:
        return DirectRouter()
    if kind == FANOUT:
        return FanoutRouter()
    if kind == TOPIC:
        return TopicRouter()
    if kind == HEADERS:
        return HeadersRouter()
    raise PreconditionFailed(f"unknown exchange type '{kind}': use {', '.join(KINDS[:-1])} or {KINDS[-1]}")


@final
class DirectRouter(Router):
    """Bindings whose key is the message's."""

    __slots__ = ("_by_key",)

    def __init__(self) -> None:
        self._by_key: dict[str, dict[Binding, None]] = {}

    def add(self, binding: Binding) -> None:
        self._by_key.setdefault(binding.key, {})[binding] = None

    def remove(self, binding: Binding) -> None:
        bindings = self._by_key[binding.key]
        del bindings[binding]
        if not bindings:
            del self._by_key[binding.key]

    def match(self, key: str, headers: Mapping[str, object] | None) -> Collection[Binding]:
        return self._by_key.get(key, ())


@final
class FanoutRouter(Router):
    """All bindings, whatever the key."""

    __slots__ = ("_bindings",)

    def __init__(self) -> None:
        self._bindings: dict[Binding, None] = {}

    def add(self, binding: Binding) -> None:
        self._bindings[binding] = None

    def remove(self, binding: Binding) -> None:
        del self._bindings[binding]

    def match(self, key: str, headers: Mapping[str, object] | None) -> Collection[Binding]:
        return self._bindings


@final
class TopicRouter(Router):
    """Bindings whose key is a pattern of words that matches the message's key."""

    __slots__ = ("_tree",)

    def __init__(self) -> None:
        self._tree: WordTree[Binding] = WordTree()

    def add(self, binding: Binding) -> None:
        self._tree.add(binding.key, binding)

    def remove(self, binding: Binding) -> None:
        self._tree.remove(binding.key, binding)

    def match(self, key: str, headers: Mapping[str, object] | None) -> Collection[Binding]:
        return self._tree.match(key)


@final
class HeadersRouter(Router):
    """Bindings whose arguments are among the message's headers: all of them, or any.

    A binding that wants any header is indexed under each, one that wants all under the one that fewest others
    share; so a message is held only against bindings that want something it has.
    """

    __slots__ = ("_all", "_always", "_any", "_names")

    def __init__(self) -> None:
        self._all: dict[Need, dict[Binding, tuple[Need, ...]]] = {}
        self._any: dict[Need, dict[Binding, None]] = {}
        self._always: dict[Binding, None] = {}  # those that want all of nothing
        self._names: dict[str, int] = {}  # how many bindings ask for a header of this name

    def add(self, binding: Binding) -> None:
        wants_any, needs = _needs(binding)
        for name, _ in needs:
            self._names[name] = self._names.get(name, 0) + 1
        if wants_any:
            for need in needs:
                self._any.setdefault(need, {})[binding] = None
        elif needs:
            rarest = min(needs, key=self._popularity)
            self._all.setdefault(rarest, {})[binding] = needs
        else:
            self._always[binding] = None

    def remove(self, binding: Binding) -> None:
        wants_any, needs = _needs(binding)
        self._always.pop(binding, None)
        for need in needs:
            name = need[0]
            self._names[name] -= 1
            if not self._names[name]:
                del self._names[name]
            if wants_any:
                self._any[need].pop(binding, None)
                if not self._any[need]:
                    del self._any[need]
            elif need in self._all:
                self._all[need].pop(binding, None)
                if not self._all[need]:
                    del self._all[need]

    def match(self, key: str, headers: Mapping[str, object] | None) -> Collection[Binding]:
        if not headers:
            return self._always
        offered = self._offered(headers)
        found = dict(self._always)
        for need in offered:
            if need in self._any:
                found.update(self._any[need])
            if need in self._all:
                for binding, needs in self._all[need].items():
                    if _has_all(offered, needs):
                        found[binding] = None
        return found

    def _popularity(self, need: Need) -> int:
        return len(self._all.get(need, ()))

    def _offered(self, headers: Mapping[str, object]) -> dict[Need, None]:
        """What the message has of what any binding asks for."""
        offered: dict[Need, None] = {}
        for name, value in headers.items():
            if name in self._names:
                offered[name, None] = None
                try:
                    offered[name, frozen(value)] = None
                except Refused:
                    continue  # no binding can hold such a value, so it is present and equals none
        return offered


def _needs(binding: Binding) -> tuple[bool, tuple[Need, ...]]:
    """Whether any one header will do, and which headers are asked for."""
    mode = binding.arguments.get(X_MATCH, "all")
    if mode not in ("all", "any", "all-with-x", "any-with-x"):
        raise PreconditionFailed(
            f"invalid arg '{X_MATCH}' for binding of '{binding.destination}' to exchange '{binding.source}': "
            f"received {mode!r} but expected 'all', 'any', 'all-with-x' or 'any-with-x'"
        )
    with_x = mode in ("all-with-x", "any-with-x")
    needs: list[Need] = []
    for name, value in binding.arguments.items():
        if name != X_MATCH and (with_x or not name.startswith("x-")):
            needs.append((name, frozen(value)))
    return mode in ("any", "any-with-x"), tuple(needs)


def _has_all(offered: dict[Need, None], needs: tuple[Need, ...]) -> bool:
    for need in needs:
        if need not in offered:
            return False
    return True

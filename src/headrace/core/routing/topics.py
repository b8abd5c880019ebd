"""Topics and routing keys, and patterns that match them: MQTT's levels and AMQP's words. Values are opaque here."""

from typing import Final, Generic, TypeVar, final

from headrace.names import check_filter

T = TypeVar("T")

_OTHER_WAY: Final = str.maketrans("/.", "./")


def key_of_topic(topic: str) -> str:
    """The routing key in `amq.topic` of a plain topic, and back: words are levels."""
    return topic.translate(_OTHER_WAY)


def key_of_filter(pattern: str) -> str:
    """The routing key of a pattern: a level `+` becomes the word `*`; any other `+` is a character."""
    if "+" in pattern:
        pattern = "/".join(["*" if level == "+" else level for level in pattern.split("/")])
    return key_of_topic(pattern)


@final
class TopicFilter:
    """One pattern, prepared for many topics.

    With `for_keys` it matches routing keys, the part after `$queue/<name>/`: a leading `$` is an ordinary character
    there and the empty key has no level, so `#` matches every key.

    Raises Refused for an invalid pattern.
    """

    __slots__ = ("_dollar", "_for_keys", "_has_rest", "_has_wildcard", "_levels", "_stem", "pattern")

    def __init__(self, pattern: str, for_keys: bool = False) -> None:
        check_filter(pattern)
        levels = pattern.split("/")
        self.pattern = pattern
        self._for_keys = for_keys
        self._has_rest = levels[-1] == "#"
        if self._has_rest:
            levels.pop()
        self._levels = levels
        self._has_wildcard = "+" in levels
        self._stem = "".join([level + "/" for level in levels])
        # MQTT 5 [4.7.2]: a pattern that begins with a wildcard does not match topics that begin with `$`.
        self._dollar = for_keys or not pattern.startswith(("+", "#"))

    def matches(self, topic: str) -> bool:
        """True if the pattern matches this topic, or this key."""
        if not self._has_wildcard and not self._has_rest:
            return topic == self.pattern
        if not self._dollar and topic.startswith("$"):
            return False
        if self._for_keys and not topic:
            return self._has_rest and not self._levels
        if not self._has_wildcard:
            return topic.startswith(self._stem) or topic == self._stem[:-1]
        return self._matches_levels(topic)

    def _matches_levels(self, topic: str) -> bool:
        wanted = len(self._levels)
        levels = topic.split("/", wanted)
        if len(levels) < wanted or (len(levels) > wanted and not self._has_rest):
            return False
        for number, level in enumerate(self._levels):
            if level != "+" and level != levels[number]:
                return False
        return True


@final
class _Node(Generic[T]):
    """All patterns with the same first words: the values that end here, and the next words."""

    __slots__ = ("any_rest", "any_word", "literal", "values")

    def __init__(self) -> None:
        self.literal: dict[str, _Node[T]] = {}
        self.any_word: _Node[T] | None = None
        self.any_rest: _Node[T] | None = None
        self.values: dict[T, None] = {}

    def child(self, word: str, wildcard: str) -> "_Node[T] | None":
        """The child for this word of a pattern; `wildcard` stands for one word."""
        if word == wildcard:
            return self.any_word
        if word == "#":
            return self.any_rest
        return self.literal.get(word)

    def set_child(self, word: str, wildcard: str, node: "_Node[T] | None") -> None:
        if word == wildcard:
            self.any_word = node
        elif word == "#":
            self.any_rest = node
        elif node is None:
            del self.literal[word]
        else:
            self.literal[word] = node

    def is_empty(self) -> bool:
        return not (self.values or self.literal or self.any_word is not None or self.any_rest is not None)


class _PatternTree(Generic[T]):
    """Values by pattern, word by word. The kinds of trees differ in their words and in their match."""

    __slots__ = ("_root", "_size", "_wildcard")

    def __init__(self, wildcard: str) -> None:
        self._root: _Node[T] = _Node()
        self._size = 0
        self._wildcard = wildcard

    def __len__(self) -> int:
        """Number of values, counted once per pattern."""
        return self._size

    def _add(self, words: list[str], value: T) -> bool:
        node = self._root
        for word in words:
            child = node.child(word, self._wildcard)
            if child is None:
                child = _Node()
                node.set_child(word, self._wildcard, child)
            node = child
        if value in node.values:
            return False
        node.values[value] = None
        self._size += 1
        return True

    def _remove(self, words: list[str], value: T) -> bool:
        """Remove a value and the nodes that become empty, from the leaf up."""
        node = self._root
        path: list[_Node[T]] = []
        for word in words:
            child = node.child(word, self._wildcard)
            if child is None:
                return False
            path.append(node)
            node = child
        if value not in node.values:
            return False
        del node.values[value]
        self._size -= 1
        while path and node.is_empty():
            node = path.pop()
            node.set_child(words[len(path)], self._wildcard, None)
        return True


@final
class TopicTree(_PatternTree[T]):
    """Values by topic pattern, found by topic, by MQTT's rules.

    A match visits only nodes whose levels match so far, each once: patterns that differ early cost nothing, and the
    worst case is linear in all patterns.
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("+")

    def add(self, pattern: str, value: T) -> bool:
        """Add a value under a pattern; False if it is there already. Raises Refused for an invalid pattern."""
        check_filter(pattern)
        return self._add(pattern.split("/"), value)

    def remove(self, pattern: str, value: T) -> bool:
        """Undo one add; False when there was none."""
        return self._remove(pattern.split("/"), value)

    def match(self, topic: str) -> list[T]:
        """The values whose patterns match this topic, each once."""
        hits: list[dict[T, None]] = []
        nodes = [self._root]
        wildcards = not topic.startswith("$")  # MQTT 5 [4.7.2], for the first level only
        for level in topic.split("/"):
            below: list[_Node[T]] = []
            for node in nodes:
                child = node.literal.get(level)
                if child is not None:
                    below.append(child)
                if wildcards:
                    if node.any_rest is not None:
                        hits.append(node.any_rest.values)
                    if node.any_word is not None:
                        below.append(node.any_word)
            nodes = below
            if not nodes:
                return _each_once(hits)
            wildcards = True
        for node in nodes:
            if node.values:
                hits.append(node.values)
            if node.any_rest is not None:  # MQTT 5 [4.7.1.2]: `a/#` matches `a`
                hits.append(node.any_rest.values)
        return _each_once(hits)


def _each_once(hits: list[dict[T, None]]) -> list[T]:
    if len(hits) == 1:
        return list(hits[0])
    found: dict[T, None] = {}
    for values in hits:
        found.update(values)
    return list(found)


@final
class KeyTrie(_PatternTree[T]):
    """Values by pattern, found by routing key, by AMQP's rules: dots separate words, and the empty key has none.

    `*` is one word and `#` any number of words. A match goes through the key once with the set of nodes reached so far.
    A node is in the set at most once, so the cost is at most words times nodes, however many `#` the patterns have.
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("*")

    def add(self, pattern: str, value: T) -> bool:
        """Add a value under a pattern; False if it is there already."""
        return self._add(_words(pattern), value)

    def remove(self, pattern: str, value: T) -> bool:
        """Undo one add; False when there was none."""
        return self._remove(_words(pattern), value)

    def match(self, key: str) -> list[T]:
        """The values whose patterns match this key, once per pattern."""
        nodes = [self._root]  # reached by exactly the words so far
        spans: dict[_Node[T], None] = {}  # `#` nodes reached so far: any further word keeps them
        _open_spans(self._root, spans)
        for word in _words(key):
            below: list[_Node[T]] = []
            for node in nodes:
                _step(node, word, below)
            for node in spans:
                _step(node, word, below)
            for node in below:
                if node.any_rest is not None:
                    _open_spans(node, spans)
            nodes = below
            if not nodes and not spans:
                return []
        found: list[T] = []
        for node in nodes:
            found.extend(node.values)
        for node in spans:
            found.extend(node.values)
        return found


def _words(text: str) -> list[str]:
    return text.split(".") if text else []


def _step(node: _Node[T], word: str, below: list[_Node[T]]) -> None:
    child = node.literal.get(word)
    if child is not None:
        below.append(child)
    if node.any_word is not None:
        below.append(node.any_word)


def _open_spans(node: _Node[T], spans: dict[_Node[T], None]) -> None:
    """Add the `#` nodes below a reached node, because `#` also matches no word."""
    span = node.any_rest
    while span is not None and span not in spans:
        spans[span] = None
        span = span.any_rest

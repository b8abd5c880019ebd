"""Values by patterns of words, as topic exchanges match them: `*` is one word, `#` any number of them."""

from typing import Generic, TypeVar, final

T = TypeVar("T")


@final
class _Node(Generic[T]):
    """All patterns that share their first words: the values that end here, and the ways on."""

    __slots__ = ("any_word", "any_words", "literal", "values")

    def __init__(self) -> None:
        self.literal: dict[str, _Node[T]] = {}
        self.any_word: _Node[T] | None = None
        self.any_words: _Node[T] | None = None
        self.values: dict[T, None] = {}

    def child(self, word: str) -> "_Node[T] | None":
        """The way on by this word of a pattern."""
        if word == "*":
            return self.any_word
        if word == "#":
            return self.any_words
        return self.literal.get(word)

    def set_child(self, word: str, node: "_Node[T] | None") -> None:
        if word == "*":
            self.any_word = node
        elif word == "#":
            self.any_words = node
        elif node is None:
            del self.literal[word]
        else:
            self.literal[word] = node

    def is_empty(self) -> bool:
        return not (self.values or self.literal or self.any_word is not None or self.any_words is not None)


@final
class WordTree(Generic[T]):
    """Values by pattern, found by key. Words are what dots separate; the empty key has none.

    A match goes through the key once and keeps the set of nodes reached so far. A node is in it at most once,
    so the cost is at most words times nodes, however many `#` the patterns have; and nodes that the key does
    not lead to are never looked at.
    """

    __slots__ = ("_root", "_size")

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()
        self._size = 0

    def __len__(self) -> int:
        """How many values are in the tree, counted once per pattern."""
        return self._size

    def add(self, pattern: str, value: T) -> bool:
        """Have the value match this pattern too; False when it did already."""
        node = self._root
        for word in _words(pattern):
            child = node.child(word)
            if child is None:
                child = _Node()
                node.set_child(word, child)
            node = child
        if value in node.values:
            return False
        node.values[value] = None
        self._size += 1
        return True

    def remove(self, pattern: str, value: T) -> bool:
        """Undo one add; False when there was none."""
        words = _words(pattern)
        node = self._root
        path: list[_Node[T]] = []
        for word in words:
            child = node.child(word)
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
            node.set_child(words[len(path)], None)
        return True

    def match(self, key: str) -> list[T]:
        """The values whose patterns match this key, once for each such pattern."""
        nodes = [self._root]  # reached by exactly the words so far
        spans: dict[_Node[T], None] = {}  # `#` nodes reached by the words so far: any further word keeps them
        _open_spans(self._root, spans)
        for word in _words(key):
            below: list[_Node[T]] = []
            for node in nodes:
                _step(node, word, below)
            for node in spans:
                _step(node, word, below)
            for node in below:
                if node.any_words is not None:
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
    """`#` also stands for no word: whoever reaches the node has reached the `#` below it."""
    span = node.any_words
    while span is not None and span not in spans:
        spans[span] = None
        span = span.any_words

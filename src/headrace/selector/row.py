"""What a selector is evaluated against. Where the values come from is the caller's business."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import final

from mypy_extensions import mypyc_attr

from headrace.selector.values import HeaderValue


@mypyc_attr(allow_interpreted_subclasses=True)
class Row(ABC):
    """One message as a selector sees it. A value of a type that its column cannot have counts as absent."""

    __slots__ = ()

    @abstractmethod
    def field(self, name: str) -> HeaderValue:
        """The message field of this name (see fields.py), or None when the message has none."""

    @abstractmethod
    def header(self, name: str) -> HeaderValue:
        """The header, or application property, of this name, or None when there is none."""


@final
class MappingRow(Row):
    """A row over two mappings, for tests and for callers that hold a message as plain values."""

    __slots__ = ("_fields", "_headers")

    def __init__(
        self,
        fields: Mapping[str, HeaderValue] | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
    ) -> None:
        self._fields = {} if fields is None else fields
        self._headers = {} if headers is None else headers

    def field(self, name: str) -> HeaderValue:
        return self._fields.get(name)

    def header(self, name: str) -> HeaderValue:
        return self._headers.get(name)

"""Headers exchanges: the headers that a binding asks for, and messages that match them."""

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from headrace.core.routing.exchange import Binding
from headrace.core.routing.exchanges import HeadersRouter
from headrace.errors import PreconditionFailed

ORDER = {"type": "order", "region": "eu"}


def is_matched(arguments: Mapping[str, object], headers: Mapping[str, object] | None) -> bool:
    router = HeadersRouter()
    router.add(Binding("x", "q", "", arguments))
    return len(router.match("", headers)) == 1


@pytest.mark.parametrize(
    ("mode", "headers", "expected"),
    [
        ("all", {"type": "order", "region": "eu"}, True),
        ("all", {"type": "order", "region": "eu", "more": 1}, True),
        ("all", {"type": "order"}, False),
        ("all", {"type": "order", "region": "us"}, False),
        ("all", None, False),
        ("any", {"region": "eu"}, True),
        ("any", {"type": "invoice", "region": "eu"}, True),
        ("any", {"type": "invoice"}, False),
        ("any", {}, False),
        ("any", None, False),
    ],
)
def test_a_binding_asks_for_all_of_its_headers_or_for_any(
    mode: str, headers: dict[str, object] | None, expected: bool
) -> None:
    assert is_matched({"x-match": mode, **ORDER}, headers) is expected


def test_a_binding_that_does_not_say_asks_for_all() -> None:
    assert not is_matched({**ORDER}, {"type": "order"})


@pytest.mark.parametrize(("mode", "expected"), [("all", True), ("any", False)])
def test_a_binding_without_headers_gets_everything_or_nothing(mode: str, expected: bool) -> None:
    assert [is_matched({"x-match": mode}, headers) for headers in (None, {"a": 1})] == [expected] * 2


@pytest.mark.parametrize(
    ("mode", "expected"), [("all", True), ("any", False), ("all-with-x", False), ("any-with-x", True)]
)
def test_headers_whose_names_begin_with_x_count_only_where_asked(mode: str, expected: bool) -> None:
    arguments = {"x-match": mode, "x-tenant": "a", "type": "order"}

    headers: dict[str, object] = {"type": "order"} if mode.startswith("all") else {"x-tenant": "a"}

    assert is_matched(arguments, headers) is expected


def test_the_mode_itself_is_never_asked_for() -> None:
    assert is_matched({"x-match": "all-with-x", "x-tenant": "a"}, {"x-tenant": "a"})


@pytest.mark.parametrize("mode", ["some", "", 1, None, b"all", ["all"]])
def test_an_unknown_mode_is_refused(mode: object) -> None:
    with pytest.raises(PreconditionFailed, match="invalid arg 'x-match' for binding of 'q' to exchange 'x'"):
        is_matched({"x-match": mode}, None)


@pytest.mark.parametrize("value", ["text", 0, False, None, [], {"deep": 1}, object()])
def test_a_header_asked_for_without_a_value_need_only_be_there(value: object) -> None:
    assert is_matched({"flag": None}, {"flag": value})


def test_a_header_asked_for_without_a_value_must_be_there() -> None:
    assert not is_matched({"flag": None}, {"other": None})


@pytest.mark.parametrize(
    ("asked", "given", "expected"),
    [
        (1, 1, True),
        (1, True, False),
        (1, 1.0, False),
        (1, "1", False),
        (1, Decimal(1), False),
        (True, True, True),
        (0, False, False),
        ("a", "a", True),
        ("a", b"a", False),
        (b"a", bytearray(b"a"), True),
        (1.5, 1.5, True),
        (Decimal("1.50"), Decimal("1.5"), True),
        (Decimal("NaN"), Decimal("NaN"), True),
        (float("nan"), float("nan"), True),
        (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC), True),
        (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC), False),
        ([1, "a"], [1, "a"], True),
        ([1, "a"], ["a", 1], False),
        ([1], [True], False),
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}, True),
        ({"a": 1}, {"a": True}, False),
        ("a", None, False),
        ("a", object(), False),
    ],
)
def test_values_are_equal_when_type_and_value_are(asked: object, given: object, expected: bool) -> None:
    assert is_matched({"header": asked}, {"header": given}) is expected


def test_a_header_nested_beyond_reason_equals_nothing() -> None:
    value: object = 1
    for _ in range(50_000):
        value = [value]

    assert not is_matched({"header": 1}, {"header": value})


def test_a_removed_binding_leaves_nothing_behind() -> None:
    router = HeadersRouter()
    bindings = [
        Binding("x", "q", "", arguments)
        for arguments in ({"x-match": "any", **ORDER}, {**ORDER}, {}, {"type": "order"}, {"region": None})
    ]
    for binding in bindings:
        router.add(binding)
    for binding in bindings:
        router.remove(binding)

    assert (router.match("", ORDER), router._all, router._any, router._names) == ({}, {}, {}, {})


def test_a_message_is_held_only_against_bindings_that_ask_for_what_is_rare() -> None:
    router = HeadersRouter()
    for tenant in range(1_000):
        router.add(Binding("x", f"q{tenant}", "", {"type": "order", "tenant": tenant}))

    assert max(len(bindings) for bindings in router._all.values()) <= 2
    assert [b.destination for b in router.match("", {"type": "order", "tenant": 7})] == ["q7"]

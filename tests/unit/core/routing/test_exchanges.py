"""Exchanges: declared, bound, listed and removed."""

import pytest

from headrace.core.routing.exchange import Binding, Exchange
from headrace.core.routing.exchanges import Exchanges
from headrace.errors import AccessRefused, NotFound, PreconditionFailed, Refused


def with_exchange(kind: str, durable: bool = False, auto_delete: bool = False, internal: bool = False) -> Exchanges:
    exchanges = Exchanges()
    exchanges.declare(Exchange("x", kind, durable, auto_delete, internal))
    return exchanges


def topic_exchange(**keys: str) -> Exchanges:
    """A topic exchange `x` with a queue for each key."""
    exchanges = with_exchange("topic")
    for queue, key in keys.items():
        exchanges.bind(Binding("x", queue, key))
    return exchanges


# Declare


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("", "direct"),
        ("amq.direct", "direct"),
        ("amq.fanout", "fanout"),
        ("amq.topic", "topic"),
        ("amq.headers", "headers"),
        ("amq.match", "headers"),
    ],
)
def test_the_standard_exchanges_exist_and_are_durable(name: str, kind: str) -> None:
    exchange = Exchanges().get(name)

    assert (exchange.kind, exchange.durable) == (kind, True)


def test_declaring_says_whether_the_exchange_is_new() -> None:
    exchanges = Exchanges()

    assert [exchanges.declare(Exchange("x", "topic")) for _ in range(2)] == [True, False]


def test_an_exchange_is_found_as_it_was_declared() -> None:
    exchanges = Exchanges()
    definition = Exchange("x", "topic", durable=True, internal=True, arguments={"alternate-exchange": "y"})

    exchanges.declare(definition)

    assert exchanges.get("x") is definition


def test_a_passive_declare_of_what_exists_ignores_everything_but_the_name() -> None:
    assert not with_exchange("topic").declare(Exchange("x", "fanout", durable=True), passive=True)


def test_a_passive_declare_of_what_does_not_exist_is_not_found() -> None:
    with pytest.raises(NotFound, match="no exchange 'x'"):
        Exchanges().declare(Exchange("x", "topic"), passive=True)


@pytest.mark.parametrize(
    ("again", "message"),
    [
        (
            Exchange("x", "fanout", True),
            "inequivalent arg 'type' .* received 'fanout' but current is 'topic'",
        ),
        (
            Exchange("x", "topic", False),
            "^inequivalent arg 'durable' for exchange 'x' in vhost '/': received 'false' but current is 'true'$",
        ),
        (
            Exchange("x", "topic", True, auto_delete=True),
            "'auto_delete' .* received 'true' but current is 'false'",
        ),
        (Exchange("x", "topic", True, internal=True), "'internal' .* received 'true' but current is 'false'"),
        (
            Exchange("x", "topic", True, arguments={"alternate-exchange": "y"}),
            "'alternate-exchange' .* received the value 'y' of type 'longstr' but current is none",
        ),
    ],
)
def test_a_different_redeclare_is_refused_with_the_difference(again: Exchange, message: str) -> None:
    exchanges = with_exchange("topic", durable=True)

    with pytest.raises(PreconditionFailed, match=message):
        exchanges.declare(again)


def test_a_standard_exchange_may_be_redeclared_as_it_is() -> None:
    assert not Exchanges().declare(Exchange("amq.topic", "topic", durable=True))


def test_a_standard_exchange_cannot_be_redeclared_as_another() -> None:
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'type'"):
        Exchanges().declare(Exchange("amq.topic", "fanout", durable=True))


def test_reserved_names_cannot_be_declared() -> None:
    with pytest.raises(AccessRefused, match=r"'amq.mine' contains reserved prefix 'amq\.\*'"):
        Exchanges().declare(Exchange("amq.mine", "topic"))


@pytest.mark.parametrize("passive", [True, False])
def test_the_default_exchange_cannot_be_declared(passive: bool) -> None:
    with pytest.raises(AccessRefused, match="operation not permitted on the default exchange"):
        Exchanges().declare(Exchange("", "direct", durable=True), passive)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(PreconditionFailed, match="unknown exchange type 'x-recent-history'"):
        Exchanges().declare(Exchange("x", "x-recent-history"))


def test_a_refused_declare_leaves_nothing_behind() -> None:
    exchanges = Exchanges()

    with pytest.raises(PreconditionFailed):
        exchanges.declare(Exchange("x", "x-recent-history"))

    with pytest.raises(NotFound):
        exchanges.get("x")


def test_a_name_longer_than_the_wire_can_carry_is_refused() -> None:
    with pytest.raises(Refused, match="has 256 bytes, 255 is the most"):
        Exchanges().declare(Exchange("ü" * 128, "topic"))


def test_an_alternate_exchange_that_is_no_name_is_refused() -> None:
    with pytest.raises(PreconditionFailed, match="invalid arg 'alternate-exchange' for exchange 'x'"):
        Exchange("x", "topic", arguments={"alternate-exchange": 5})


# Delete


def test_a_deleted_exchange_is_gone_with_all_its_bindings() -> None:
    exchanges = with_exchange("fanout")
    exchanges.declare(Exchange("y", "fanout"))
    out = Binding("x", "q")
    into = Binding("y", "x", to_exchange=True)
    exchanges.bind(out)
    exchanges.bind(into)

    dropped = exchanges.delete("x")

    assert ([exchange.name for exchange in dropped.exchanges], set(dropped.bindings)) == (["x"], {out, into})
    assert exchanges.bindings() == []


def test_a_deleted_exchange_cannot_be_routed_through() -> None:
    exchanges = with_exchange("fanout")
    exchanges.bind(Binding("x", "q"))
    exchanges.route("x", "k")

    exchanges.delete("x")

    with pytest.raises(NotFound, match="no exchange 'x'"):
        exchanges.route("x", "k")


def test_deleting_what_does_not_exist_is_not_found() -> None:
    with pytest.raises(NotFound, match="no exchange 'x'"):
        Exchanges().delete("x")


def test_a_used_exchange_is_kept_when_deleted_if_unused() -> None:
    exchanges = with_exchange("fanout")
    exchanges.bind(Binding("x", "q"))

    with pytest.raises(PreconditionFailed, match="exchange 'x' in vhost '/' in use"):
        exchanges.delete("x", if_unused=True)

    assert exchanges.route("x", "") == ("q",)


def test_an_exchange_that_is_only_a_destination_counts_as_unused() -> None:
    exchanges = with_exchange("fanout")
    exchanges.bind(Binding("amq.topic", "x", "#", to_exchange=True))

    assert len(exchanges.delete("x", if_unused=True).bindings) == 1


def test_standard_exchanges_cannot_be_deleted() -> None:
    with pytest.raises(AccessRefused, match=r"deletion of system exchange 'amq\.topic' in vhost '/' not allowed"):
        Exchanges().delete("amq.topic")


def test_the_default_exchange_cannot_be_deleted() -> None:
    with pytest.raises(AccessRefused, match="default exchange"):
        Exchanges().delete("")


def test_an_exchange_bound_to_itself_can_be_deleted() -> None:
    exchanges = with_exchange("fanout")
    exchanges.bind(Binding("x", "x", to_exchange=True))

    assert len(exchanges.delete("x").bindings) == 1


# Bind and unbind


def test_binding_says_whether_the_binding_is_new() -> None:
    exchanges = with_exchange("topic")

    assert [exchanges.bind(Binding("x", "q", "k", {"a": 1})) for _ in range(2)] == [True, False]


@pytest.mark.parametrize(
    "other",
    [
        Binding("x", "q", "k"),
        Binding("x", "q", "l", {"a": 1}),
        Binding("x", "r", "k", {"a": 1}),
        Binding("x", "q", "k", {"a": True}),
        Binding("x", "q", "k", {"a": 1.0}),
        Binding("x", "x", "k", {"a": 1}, to_exchange=True),
    ],
)
def test_bindings_that_differ_in_anything_are_two(other: Binding) -> None:
    exchanges = with_exchange("topic")
    exchanges.bind(Binding("x", "q", "k", {"a": 1}))

    exchanges.bind(other)

    assert len(exchanges.bindings_from("x")) == 2


def test_an_unbound_queue_gets_nothing_more() -> None:
    exchanges = topic_exchange(q="a.*", r="a.b")

    dropped = exchanges.unbind(Binding("x", "q", "a.*"))

    assert ([b.destination for b in dropped.bindings], exchanges.route("x", "a.b")) == (["q"], ("r",))


def test_a_queue_bound_twice_stays_bound_when_one_binding_goes() -> None:
    exchanges = topic_exchange(q="a.*")
    exchanges.bind(Binding("x", "q", "a.*", {"second": True}))

    exchanges.unbind(Binding("x", "q", "a.*"))

    assert exchanges.route("x", "a.b") == ("q",)


def test_unbinding_what_is_not_bound_changes_nothing() -> None:
    dropped = topic_exchange(q="a").unbind(Binding("x", "q", "b"))

    assert (dropped.bindings, dropped.exchanges) == ([], [])


@pytest.mark.parametrize(
    "binding",
    [Binding("nowhere", "q"), Binding("amq.topic", "nowhere", to_exchange=True)],
)
def test_an_unknown_exchange_cannot_be_bound(binding: Binding) -> None:
    with pytest.raises(NotFound, match="no exchange 'nowhere'"):
        Exchanges().bind(binding)


def test_an_unknown_exchange_cannot_be_unbound() -> None:
    with pytest.raises(NotFound, match="no exchange 'nowhere'"):
        Exchanges().unbind(Binding("nowhere", "q"))


@pytest.mark.parametrize("binding", [Binding("", "q", "q"), Binding("amq.topic", "", to_exchange=True)])
def test_the_default_exchange_can_be_neither_end_of_a_binding(binding: Binding) -> None:
    with pytest.raises(AccessRefused, match="operation not permitted on the default exchange"):
        Exchanges().bind(binding)


def test_a_removed_queue_takes_all_its_bindings_along() -> None:
    exchanges = topic_exchange(q="a", r="a")
    exchanges.bind(Binding("amq.fanout", "q"))

    dropped = exchanges.remove_queue("q")

    assert sorted(b.source for b in dropped.bindings) == ["amq.fanout", "x"]
    assert (exchanges.route("x", "a"), exchanges.route("amq.fanout", "a")) == (("r",), ())


def test_removing_a_queue_leaves_the_exchange_of_the_same_name_bound() -> None:
    exchanges = with_exchange("fanout")
    exchanges.bind(Binding("amq.topic", "x", "#", to_exchange=True))

    exchanges.remove_queue("x")

    assert len(exchanges.bindings_to("x", to_exchange=True)) == 1


# Auto-delete


def test_an_auto_delete_exchange_goes_with_its_last_binding() -> None:
    exchanges = with_exchange("fanout", auto_delete=True)
    exchanges.bind(Binding("x", "q"))
    exchanges.bind(Binding("x", "r"))

    first = exchanges.unbind(Binding("x", "q"))
    last = exchanges.remove_queue("r")

    assert (first.exchanges, [exchange.name for exchange in last.exchanges]) == ([], ["x"])


def test_an_auto_delete_exchange_that_was_never_bound_stays() -> None:
    exchanges = with_exchange("fanout", auto_delete=True)

    exchanges.unbind(Binding("x", "q"))

    assert exchanges.get("x").auto_delete


def test_other_exchanges_stay_without_bindings() -> None:
    exchanges = with_exchange("fanout")
    exchanges.bind(Binding("x", "q"))

    exchanges.unbind(Binding("x", "q"))

    assert exchanges.get("x").name == "x"


def test_a_long_chain_of_auto_delete_exchanges_goes_link_by_link() -> None:
    exchanges = Exchanges()
    for number in range(5_000):
        exchanges.declare(Exchange(f"x{number}", "fanout", auto_delete=True))
    for number in range(4_999):
        exchanges.bind(Binding(f"x{number}", f"x{number + 1}", to_exchange=True))
    exchanges.bind(Binding("x4999", "q"))

    dropped = exchanges.remove_queue("q")

    assert (len(dropped.exchanges), len(dropped.bindings)) == (5_000, 5_000)


# Introspection


def test_exchanges_are_listed() -> None:
    names = [exchange.name for exchange in with_exchange("topic").exchanges()]

    assert names == ["", "amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match", "x"]


def test_bindings_are_listed_by_source_and_by_destination() -> None:
    exchanges = with_exchange("topic")
    to_queue = Binding("amq.topic", "x", "a")
    to_exchange = Binding("amq.topic", "x", "a", to_exchange=True)
    other = Binding("x", "q", "b")
    for binding in (to_queue, to_exchange, other):
        exchanges.bind(binding)

    assert exchanges.bindings() == [to_queue, to_exchange, other]
    assert exchanges.bindings_from("amq.topic") == [to_queue, to_exchange]
    assert exchanges.bindings_to("x") == [to_queue]
    assert exchanges.bindings_to("x", to_exchange=True) == [to_exchange]


def test_bindings_of_an_unknown_source_are_not_found() -> None:
    with pytest.raises(NotFound):
        Exchanges().bindings_from("nowhere")

"""Cost of routing a message, and its growth with bindings that do not fit.

Run with `python -m bench.routing`; CPU microseconds per call, the best of several rounds.
"""

import gc
from collections.abc import Callable
from time import process_time

from headrace.core.routing.address import parse_address
from headrace.core.routing.exchange import Binding, Exchange
from headrace.core.routing.exchanges import Exchanges
from headrace.core.routing.topics import TopicFilter, TopicTree
from headrace.names import check_topic

ROUNDS = 5
CALLS = 20_000


def cost_us(call: Callable[[int], object]) -> float:
    """CPU time of one call, which gets a number it never had before; the loop around it is taken off."""
    best = 1e9
    for first in range(0, ROUNDS * CALLS, CALLS):
        start = process_time()
        for number in range(first, first + CALLS):
            call(number)
        spent = process_time() - start
        start = process_time()
        for number in range(first, first + CALLS):
            _nothing(number)
        best = min(best, spent - (process_time() - start))
    return best / CALLS * 1e6


def _nothing(number: int) -> object:
    return number


def show(what: str, us: float) -> None:
    print(f"{what:<44}{us:8.2f} us")


def queue_tree(queues: int) -> TopicTree[str]:
    tree: TopicTree[str] = TopicTree()
    for number in range(queues):
        tree.add(f"$queue/queue-{number}/#", f"queue-{number}")
    tree.add("$queue/+/audit/#", "audit")
    return tree


def bound(kind: str, bindings: int) -> Exchanges:
    exchanges = Exchanges()
    exchanges.declare(Exchange("x", kind))
    for number in range(bindings):
        key = f"region-{number % 100}.order-{number}"
        if kind == "topic":
            key = f"*.order-{number}.#" if number % 2 else key + ".#"
        arguments = {"type": "order", "number": number} if kind == "headers" else None
        exchanges.bind(Binding("x", f"queue-{number}", key, arguments))
    return exchanges


def names() -> None:
    topic = "$queue/orders/eu/images/resize"
    key_filter = TopicFilter("+/images/#", for_keys=True)
    show("check_topic", cost_us(lambda _: check_topic(topic)))
    show("parse_address", cost_us(lambda _: parse_address(topic)))
    show("TopicFilter.matches", cost_us(lambda _: key_filter.matches("eu/images/resize")))


def tree(queues: int) -> None:
    found = queue_tree(queues)
    show(f"topic tree, {queues} queues", cost_us(lambda _: found.match("$queue/queue-7/eu/images/resize")))


def exchange(kind: str, bindings: int) -> None:
    exchanges = bound(kind, bindings)
    headers = {"type": "order", "number": 7}
    key = "region-7.order-7"
    if kind == "topic":
        keys = [f"{key}.{number}" for number in range(ROUNDS * CALLS)]
        show(f"{kind}, {bindings} bindings, new key", cost_us(lambda n: exchanges.route("x", keys[n])))
    elif kind == "direct":
        show(
            f"{kind}, {bindings} bindings, extra key",
            cost_us(lambda _: exchanges.route("x", key, None, ("no",))),
        )
    if kind == "headers":
        show(f"{kind}, {bindings} bindings", cost_us(lambda _: exchanges.route("x", key, headers)))
    else:
        show(f"{kind}, {bindings} bindings, cached key", cost_us(lambda _: exchanges.route("x", key)))


def worst() -> None:
    """Cost of one message against patterns made to be reached in as many ways as can be."""
    exchanges = Exchanges()
    exchanges.declare(Exchange("x", "topic"))
    for bits in range(1024):
        words = ["*" if bits >> n & 1 else "a" for n in range(10)]
        exchanges.bind(Binding("x", "q", "#." + ".#.".join(words) + ".z"))
    start = process_time()
    exchanges.route("x", ".".join(["a"] * 127))
    show("topic, 1024 hostile bindings, 127 words", (process_time() - start) * 1e6)

    patterns: TopicTree[int] = TopicTree()
    for bits in range(4096):
        patterns.add("/".join("+" if bits >> n & 1 else "a" for n in range(12)) + "/z/#", bits)
    start = process_time()
    patterns.match("/".join(["a"] * 30_000))
    show("tree, 4096 hostile patterns, 30000 levels", (process_time() - start) * 1e6)


if __name__ == "__main__":
    names()
    for size in (10, 10_000, 100_000):
        tree(size)
    for routed in ("direct", "topic", "headers"):
        for size in (10, 10_000, 100_000):
            exchange(routed, size)
            gc.collect()
    worst()

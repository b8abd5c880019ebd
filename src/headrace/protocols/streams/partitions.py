"""Super streams: an exchange whose bindings lead to the streams that are its partitions, as AMQP clients see it too."""

from typing import Final

from headrace.core.broker import Broker
from headrace.core.routing.exchange import DIRECT, Binding, Exchange
from headrace.errors import NotFound

ORDER: Final = "x-stream-partition-order"
_MARK: Final = "x-super-stream"


def super_exchange(name: str) -> Exchange:
    """The exchange of a super stream."""
    return Exchange(name, DIRECT, durable=True, arguments={_MARK: True})


def partition_binding(super_stream: str, stream: str, key: str, order: int) -> Binding:
    return Binding(super_stream, stream, key, {ORDER: order})


def partitions_of(broker: Broker, super_stream: str) -> list[str]:
    """The partitions of a super stream, in their order. Raises NotFound."""
    exchanges = broker.topology.exchanges
    if not super_stream:
        raise NotFound("a super stream has a name")
    exchanges.get(super_stream)
    bindings = [each for each in exchanges.bindings_from(super_stream) if _is_partition(broker, each)]
    return list(dict.fromkeys([each.destination for each in sorted(bindings, key=_order)]))


def route_of(broker: Broker, super_stream: str, key: str) -> list[str]:
    """The partitions that a routing key leads to. Raises NotFound."""
    if not super_stream:
        raise NotFound("a super stream has a name")
    queues = broker.topology.queues
    names = broker.topology.exchanges.route(super_stream, key)
    return [name for name in names if name in queues and queues[name].is_stream]


def _is_partition(broker: Broker, binding: Binding) -> bool:
    queue = None if binding.to_exchange else broker.topology.queues.get(binding.destination)
    return queue is not None and queue.is_stream


def _order(binding: Binding) -> int:
    order = binding.arguments.get(ORDER)
    return order if isinstance(order, int) else 1 << 30

"""Cost of a message as things grow: queues, bindings, connections, backlog. Each point is a scenario of its own."""

from dataclasses import replace
from typing import Final

from bench.compare.catalog import FLOW, warmed
from bench.compare.load import FRAMES_AT_ONCE, MAX_KEYS, Load, Scenario, Step

_WARM: Final = 4
_STEADY_RATE: Final = 10_000
_QUEUES: Final = (10, 100, 1_000, 10_000)
AXES: Final = {
    "queues": _QUEUES,
    "steady": _QUEUES,
    "scattered": _QUEUES,
    "bindings": (10, 100, 1_000, 10_000, 100_000),
    "connections": (1, 10, 100, 1_000, 5_000),
    "backlog": (0, 10_000, 100_000, 1_000_000, 10_000_000),
}
TITLES: Final = {
    "queues": f"queues, {FRAMES_AT_ONCE} messages to each in turn",
    "steady": f"queues, one message to each in turn, {_STEADY_RATE:,} a second",
    "scattered": "queues, one message to each in turn, as fast as it goes",
    "bindings": "bindings of the exchange",
    "connections": "open connections, two of them at work",
    "backlog": "messages that wait in the queue",
}


def points() -> list[Scenario]:
    """All points of all axes."""
    return [_point(axis, point) for axis, sizes in AXES.items() for point in sizes]


def _point(axis: str, point: int) -> Scenario:
    name = f"scale-{axis}-{point}"
    title = f"{point:,} {axis}"
    flow = Step(name, title, "flow", is_paced=axis == "backlog")
    steps: tuple[Step, ...] = (flow,)
    if flow.is_paced and point:
        steps = (Step(f"{name}-fill", title, "publish", point, is_row=False), flow)
    scenario = Scenario(name, (_load(axis, point),), steps, is_fresh=True, axis=axis, point=point)
    return warmed(scenario, _WARM * (point if AXES[axis] is _QUEUES else MAX_KEYS))


def _load(axis: str, point: int) -> Load:
    """The same load at every point of an axis, but for what the axis says."""
    if axis == "queues":  # with as many on their way as ten queues get in turn
        return Load("amqp", queues=point, in_row=FRAMES_AT_ONCE, window=_QUEUES[0] * FRAMES_AT_ONCE, ahead=8192)
    if axis == "steady":
        return Load("amqp", queues=point, rate=_STEADY_RATE)
    if axis == "scattered":
        return Load("amqp", queues=point, window=1024, ahead=8192)
    if axis == "bindings":
        return replace(FLOW, exchange="topic", bindings=point)
    if axis == "connections":
        return replace(FLOW, idle=max(0, point - 2))
    return FLOW

"""What a message costs as things grow: queues, bindings, connections, backlog. Each point is a scenario of its own."""

from typing import Final

from headrace.bench.catalog import warmed
from headrace.bench.load import FRAMES_AT_ONCE, MAX_KEYS, Load, Scenario, Step

_WARM: Final = 4
AXES: Final = {
    "queues": (10, 100, 1_000, 10_000),
    "scattered": (10, 100, 1_000, 10_000),
    "bindings": (10, 100, 1_000, 10_000, 100_000),
    "connections": (1, 10, 100, 1_000, 5_000),
    "backlog": (0, 10_000, 100_000, 1_000_000, 10_000_000),
}
TITLES: Final = {
    "queues": f"queues, {FRAMES_AT_ONCE} messages to each in turn",
    "scattered": "queues, one message to each in turn",
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
    flow = Step(name, title, "flow", is_paced=axis == "backlog" and point > 0)
    steps: tuple[Step, ...] = (flow,)
    if flow.is_paced:
        steps = (Step(f"{name}-fill", title, "publish", point, is_row=False), flow)
    scenario = Scenario(name, (_load(axis, point),), steps, is_fresh=True, axis=axis, point=point)
    return warmed(scenario, _WARM * (point if axis in ("queues", "scattered") else MAX_KEYS))


def _load(axis: str, point: int) -> Load:
    """The same load at every point of an axis, but for what the axis says."""
    if axis == "queues":
        return Load("amqp", queues=point, in_row=FRAMES_AT_ONCE, window=1024, ahead=8192)
    if axis == "scattered":
        return Load("amqp", queues=point, window=1024, ahead=8192)
    if axis == "bindings":
        return Load("amqp", exchange="topic", bindings=point)
    if axis == "connections":
        return Load("amqp", idle=max(0, point - 2))
    return Load("amqp")

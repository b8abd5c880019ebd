"""What a message costs as things grow: queues, bindings, connections, backlog. Each point is a scenario of its own."""

from typing import Final

from headrace.bench.load import Load, Scenario, Step

AXES: Final = {
    "queues": (10, 100, 1_000, 10_000),
    "bindings": (10, 100, 1_000, 10_000, 100_000),
    "connections": (1, 10, 100, 1_000, 5_000),
    "backlog": (0, 10_000, 100_000, 1_000_000, 10_000_000),
}
TITLES: Final = {
    "queues": "queues that messages go to in turn",
    "bindings": "bindings of the exchange",
    "connections": "open connections, two of them at work",
    "backlog": "messages that wait in the queue",
}


def points(most: int = 0) -> list[Scenario]:
    """All points of all axes, up to a size when one is given."""
    return [_point(axis, point) for axis, sizes in AXES.items() for point in sizes if not most or point <= most]


def _point(axis: str, point: int) -> Scenario:
    name = f"scale-{axis}-{point}"
    title = f"{point:,} {axis}"
    flow = Step(name, title, "flow", is_paced=axis == "backlog" and point > 0)
    steps: tuple[Step, ...] = (flow,)
    if flow.is_paced:
        steps = (Step(f"{name}-fill", title, "publish", point, is_row=False), flow)
    return Scenario(name, (_load(axis, point),), steps, is_fresh=True, axis=axis, point=point)


def _load(axis: str, point: int) -> Load:
    """The same load at every point of an axis, but for what the axis says."""
    if axis == "queues":
        return Load("amqp", queues=point, window=1024, ahead=8192)
    if axis == "bindings":
        return Load("amqp", exchange="topic", bindings=point)
    if axis == "connections":
        return Load("amqp", idle=max(0, point - 2))
    return Load("amqp")

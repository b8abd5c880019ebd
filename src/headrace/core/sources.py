"""Which queue may be filled from which: checked before it is, and in which order they are declared. No messages."""

from collections.abc import Callable, Mapping, Sequence

from headrace.core.definition import QueueDefinition
from headrace.errors import NotFound, PreconditionFailed

Find = Callable[[str], QueueDefinition | None]


def check_source(definition: QueueDefinition, find: Find) -> None:
    """Accept a queue whose source, if it has one, is a stream that is not filled from the queue itself.

    Raises NotFound when there is no such stream, PreconditionFailed when the two do not fit.
    """
    if not definition.source:
        return
    name, source = definition.name, find(definition.source)
    if definition.source == name:
        raise PreconditionFailed(f"queue '{name}' cannot be filled from itself: its source must be another one")
    if not definition.is_stored:
        raise PreconditionFailed(
            f"queue '{name}' cannot be filled from '{definition.source}': it would not be there after a restart, "
            f"make it durable and not exclusive"
        )
    if source is None:
        raise NotFound(f"no queue '{definition.source}' from which queue '{name}' could be filled: declare it first")
    if not source.is_stream or not source.is_stored:
        raise PreconditionFailed(
            f"queue '{name}' cannot be filled from '{source.name}', a {source.kind} queue: its source must be a stream"
        )
    way = [name]
    following: QueueDefinition | None = source
    while following is not None and following.name not in way:
        way.append(following.name)
        if following.source == name:
            raise PreconditionFailed(
                f"queue '{name}' cannot be filled from '{source.name}', which is filled from it: "
                + " from ".join([f"'{each}'" for each in [*way, name]])
            )
        following = find(following.source)


def sources_first(sources: Sequence[tuple[str, str]]) -> list[int]:
    """Where the named queues stand, given each with its source, such that every one comes behind its source."""
    known = dict(sources)
    return sorted(range(len(sources)), key=lambda at: _depth(sources[at][0], known))


def _depth(name: str, known: Mapping[str, str]) -> int:
    depth = 0
    while (source := known.get(name, "")) and depth < len(known):
        name, depth = source, depth + 1
    return depth
